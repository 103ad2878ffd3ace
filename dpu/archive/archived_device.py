"""A device whose kept chunks are also copied to a bucket, and restored from it.

Model: it wraps the device and sees the chunks of every session appear and leave. On the daemon's
loop it only looks up tables (state.py); its workers do the rest. A chunk is uploaded when a session
that has it ends and keeps its blocks. A chunk that the store no longer has is restored when a
session names it, and the reply to that session waits for it, up to `archive.wait` (returns.py). A
delete is acknowledged only after it has been recorded for the bucket too. Belongs to the daemon's
loop.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from offstage.bindings.archive import Places, ValueNotes
from offstage.bindings.device import Chunk
from offstage.bindings.errors import BadInput
from offstage.dpu.archive.format import CHUNKS_MAX, Shape, object_key
from offstage.dpu.archive.object_moves import look
from offstage.dpu.archive.s3 import Bucket
from offstage.dpu.archive.state import COUNTS, Return, State, Tenant
from offstage.dpu.archive.value_notes import ArchivedValues
from offstage.dpu.archive.workers import Workers
from offstage.dpu.config.derive import Derived
from offstage.dpu.config.options import PolicyOptions
from offstage.dpu.config.values import Config
from offstage.dpu.economics.thresholds import NONE_RETURN
from offstage.dpu.log import Log
from offstage.dpu.protocol.status import (
    ArchivedLedger,
    ArchivedTenant,
    ArchiveStatus,
    DeviceReport,
    Pace,
)
from offstage.dpu.storage.device import PLACES
from offstage.dpu.tenants.tenancy import secrets_beside

__all__ = ["ArchivedDevice", "Wanted", "check_archive", "group_of"]

FLUSH_S = 2.0  # write-back: what a session wrote is on the store by then, as a rule


@dataclass
class Wanted:
    """The chunks of one append, all of their `keys`, of which some are on their way."""

    tenant: Tenant
    keys: list[bytes]
    returns: list[Return]

    @property
    def ended(self) -> bool:
        """Whether all of its restores have ended."""
        return all(one.ended for one in self.returns)


def group_of(config: Config) -> int:
    """Chunks of one object."""
    tokens = max(config.archive.chunk_tokens // config.arena.block_tokens, 1)
    return min(tokens, CHUNKS_MAX)


def check_archive(config: Config, log: Log) -> Bucket:
    """The bucket of the configuration. BadInput: refused credentials, an absent bucket, an invalid
    prefix. A server that does not answer is retried in the background."""
    archive, where = config.archive, config.file or "archive.bucket"
    prefix = archive.prefix
    if (
        prefix.startswith("/")
        or prefix.endswith("/")
        or len(prefix.encode()) > 256
        or any(not one.isprintable() for one in prefix)
    ):
        raise BadInput(
            f"archive.prefix {prefix!r} is not a folder of a bucket",
            where,
            "write one such as offstage/cluster-1",
        )
    bucket = Bucket(archive, where)
    away = bucket.check()
    if away:
        log.warning("archive_away", why=away, kind="start")
    return bucket


class ArchivedDevice:
    """Wraps the device, which it takes over; attributes not defined here are the device's."""

    def __init__(
        self,
        device: Any,
        config: Config,
        derived: Derived,
        runtime_dir: Path,
        log: Log,
        bucket: Bucket,
    ) -> None:
        """Wrap an open device that has `archive.connections` x PLACES places."""
        self._device, self._config, self._bucket, self._log = device, config, bucket, log
        self._names = [tenant.name for tenant in config.tenants]
        self._tenants: list[Tenant] = []
        self._ports: dict[int, Tenant] = {}
        self._sessions: dict[int, tuple[int, list[bytes]]] = {}  # port, store keys
        self._return_tokens_min = config.policy.return_tokens_min
        self.wanted: list[Wanted] = []
        """Restores of the request being answered."""
        arena = config.arena
        self.shape = Shape(
            arena.payload_bytes, arena.layers, arena.block_tokens, config.store.codec
        )
        self.state = State(config.archive.queue, group_of(config), arena.layers)
        base = Path(secrets_beside(config.storage) or runtime_dir / "memory")
        journal = base.with_name(f"{base.name}.archive")
        self._values = self._archived_values(device) if config.limits.values else None
        self.workers = Workers(
            self.state, bucket, self.shape, journal, derived.ttl_s, log, self._values
        )

    def _archived_values(self, device: Any) -> ArchivedValues:
        return ArchivedValues(
            self.state,
            ValueNotes(device),
            self._log,
            lambda: self._return_tokens_min != NONE_RETURN,
            FLUSH_S if self._config.store.write == "back" else 0.0,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def set_policy(self, policy: PolicyOptions) -> None:
        """As the device's; changes to the archive take effect."""
        self._return_tokens_min = policy.return_tokens_min
        self._device.set_policy(policy)

    # ---- tenants and hosts ----

    def tenant_add(self, secret: bytes, slot_count: int, weight: int) -> int:
        """As the device's. The archive starts with the last tenant."""
        index = int(self._device.tenant_add(secret, slot_count, weight))
        prefix = self._config.archive.prefix
        folder = f"{prefix}/{self._names[index]}/" if prefix else f"{self._names[index]}/"
        self._tenants.append(Tenant(index, folder, object_key(secret)))
        if len(self._tenants) == len(self._names):
            self._looking = Places(self._device, 0, 0, 0)
            self.workers.start(
                self._tenants,
                [
                    Places(self._device, i * PLACES, PLACES, self.shape.payload_bytes)
                    for i in range(self._config.archive.connections)
                ],
            )
        return index

    def attach(self, tenant: int, fabric: str) -> tuple[int, Any]:
        """As the device's."""
        port, attachment = self._device.attach(tenant, fabric)
        self._ports[port] = self._tenants[tenant]
        return port, attachment

    def detach(self, port: int) -> None:
        """As the device's: the sessions of the host end, and keep their blocks."""
        self._device.detach(port)
        mine = [number for number, (of, _) in self._sessions.items() if of == port]
        self._keep(mine)
        self._ports.pop(port, None)

    # ---- sessions ----

    def session_open(self, port: int, *rest: int) -> int:
        """As the device's."""
        session = int(self._device.session_open(port, *rest))
        self._sessions[session] = (port, [])
        return session

    def session_append(self, session: int, contents: list[bytes]) -> list[Chunk]:
        """As the device's; starts restores of what the bucket has of it."""
        chunks: list[Chunk] = self._device.session_append(session, contents)
        port, keys = self._sessions[session]
        keys += [chunk.store_key for chunk in chunks]
        there = [(chunk.store_key, chunk.stored_layers) for chunk in chunks]
        self._want(self._ports[port], there)
        return chunks

    def session_close(self, session: int, keep: bool) -> None:
        """As the device's; kept chunks are uploaded, deleted ones leave the bucket too."""
        if not keep:
            self._delete(session)
        self._device.session_close(session, keep)
        if keep:
            self._keep([session])
        self._sessions.pop(session, None)

    def tenant_purge(self, tenant: int, keep_blocks: int, again: bool = False) -> dict[str, int]:
        """As the device's. Without `keep_blocks` all objects of the tenant in the bucket are
        deleted, else those that the store no longer has: these are looked up first, then
        recorded. That starts with the purge, and again if the store lost chunks meanwhile."""
        mine = self._tenants[tenant]
        if keep_blocks == 0:
            self.state.deleting_all(mine)
        purged: dict[str, int] = self._device.tenant_purge(tenant, keep_blocks, again)
        if keep_blocks:
            self.state.purged(mine, not again or purged["chunks"] > 0, purged["more"] > 0)
        self.workers.wake()
        if not self.workers.noted(mine):
            purged["marking"] += 1
        return purged

    def wiped(self, tenant: int, ticket: int) -> tuple[bool, int, int]:
        """As the device's, and whether the deletes are recorded for the bucket."""
        done, held, left = self._device.wiped(tenant, ticket)
        noted = self.workers.noted(self._tenants[tenant])
        return done and noted, held, left + (not noted)

    def _delete(self, session: int) -> None:
        """Called before the device: the chunks of this session that no other session names."""
        if session in self._sessions:
            port, own = self._sessions[session]
            tenant, keys = self._ports[port], set(own)
            for number, (of, others) in self._sessions.items():
                if number != session and self._ports.get(of) is tenant:
                    keys.difference_update(others)
            self.state.deleting(tenant, keys)
        self.workers.wake()

    def _keep(self, sessions: list[int]) -> None:
        after_s = time.monotonic() + (FLUSH_S if self._config.store.write == "back" else 0.0)
        for session in sessions:
            port, keys = self._sessions.pop(session, (-1, []))
            if port in self._ports:
                self.state.closed(self._ports[port], keys, after_s)
        self.workers.wake()

    def _want(self, tenant: Tenant, found: list[tuple[bytes, int]]) -> None:
        missing = [(key, there) for key, there in found if there < self.shape.layers]
        if not missing or self.workers.away:
            return
        tokens, least = len(missing) * self._config.arena.block_tokens, self._return_tokens_min
        if tokens < least or least == NONE_RETURN:
            tenant.counts["chunks_left"] += sum(key in tenant.known for key, _ in missing)
            return
        returns = self.state.wanted(tenant, missing)
        if returns:
            self.wanted.append(Wanted(tenant, [key for key, _ in found], returns))
            self.workers.wake()

    def look(self, tenant: Tenant, keys: list[bytes]) -> list[int]:
        """The number of layers of each in the store now."""
        return look(self._looking, self.shape, tenant, keys)

    # ---- figures ----

    def tenant_status(self, tenant: int) -> ArchivedTenant:
        """As the device's, and the archive's counts."""
        mine = self._tenants[tenant]
        with self.state.lock:
            counts = {f"archive_{name}": count for name, count in mine.counts.items()}
            counts["archive_chunks"] = len(mine.known)
        return ArchivedTenant(
            **msgspec.structs.asdict(self._device.tenant_status(tenant)), **counts
        )

    def ledger(self, tenant: int | None = None) -> ArchivedLedger:
        """As the device's, and the archive's transfers, as `archive_...`."""
        some = self._tenants if tenant is None else [self._tenants[tenant]]
        with self.state.lock:
            moved = {f"archive_{name}": sum(one.counts[name] for one in some) for name in COUNTS}
        return ArchivedLedger(**msgspec.structs.asdict(self._device.ledger(tenant)) | moved)

    def status(self) -> DeviceReport:
        """As the device's, and the state of the archive."""
        noted = self._values.waiting if self._values is not None else 0
        with self.state.lock:
            waiting = noted + len(self.state.uploads) + len(self.state.active)
        seconds, chunks = self.state.pace()
        status: DeviceReport = self._device.status()
        return msgspec.structs.replace(
            status,
            archive=ArchiveStatus(
                away=int(self.workers.away),
                uploads_waiting=waiting,
                deletes_waiting=self.workers.deletes_waiting,
                pace=Pace(
                    seconds=seconds,
                    tokens=chunks * self._config.arena.block_tokens,
                    at_once=self._config.archive.connections,
                ),
            ),
        )

    def close(self, drain: bool) -> None:
        """Close the archive first: it uses the device."""
        self.workers.close(self._config.archive.timeout_ns / 1e9)
        self._device.close(drain)
