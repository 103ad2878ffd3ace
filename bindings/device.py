"""The firmware's device: `ofs_device_*` with Python's types.

The reactor is the firmware's thread. A call here sends it a message, waits for the answer with the
GIL released, and may be made from any thread. A refusal raises an error of the tree of
`offstage.bindings.errors`, with the firmware's error line where there is one.
"""

import errno
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.attachment import Attachment
from offstage.bindings.core import RECORD, Policy, filled_policy, work_by_event
from offstage.bindings.errors import BadInput, OffstageError, RunFailed, StoreFull
from offstage.bindings.figures import (
    DeviceStatus,
    DmaTotals,
    MoveStatus,
    TenantStatus,
    plain,
    read_struct,
)
from offstage.bindings.firmware import MEANINGS, check_rc, ffi, lib, text_of
from offstage.bindings.ledger import Ledger
from offstage.bindings.moments import MOMENT
from offstage.bindings.stages import StageTimes, StepTimes, device_stages, step_times

__all__ = ["FOR_EVER", "Chunk", "FirmwareDevice", "name_store", "new_config"]

ERROR_SIZE = 1024
MOVE_STATES = ("none", "running", "done", "failed")  # enum ofs_move_state
FOR_EVER = 2**64 - 1
RECORDS_MAX = 65_536  # taken from the ring in one call
MOMENTS_MAX = 16_384  # likewise
KEPT = {
    errno.EMSGSIZE: ("a value in the store is longer than a session", "limits.context_tokens"),
    errno.ENOSPC: ("the store has more than twice as many values", "limits.values"),
}
"""Values that a smaller limit would cost, and which limit it is."""
LOG_BYTES_MAX = 262_144  # most bytes that the firmware returns in one call


@dataclass(frozen=True, slots=True)
class Chunk:
    """What an append says about one chunk: 16-byte keys, and the layers the store has of it."""

    key: bytes
    store_key: bytes
    stored_layers: int
    references: int


def new_config() -> Any:
    """A `struct ofs_device_config` of zeros, to be filled by the names of the header."""
    return ffi.new("struct ofs_device_config *")


def name_store(config: Any, uuid: bytes) -> None:
    """The store that this device opens is the one of this uuid (16 bytes); zero: whatever it is."""
    ffi.buffer(ffi.addressof(config.store, "uuid"))[:] = uuid


class FirmwareDevice:
    """An open device with its reactor running. Contract of every method: the header device.h."""

    def __init__(self, config: Any, where: str) -> None:
        """Open storage, recover the store, start the reactor; `where` names it in an error.

        Raises what the firmware refuses: a store that is in use, of another version or size.
        """
        out: Any = ffi.new("struct ofs_device **")
        error: Any = ffi.new("char[]", ERROR_SIZE)
        rc = lib.ofs_device_open(out, config, error, ERROR_SIZE)
        if rc < 0:
            _refused(rc, text_of(error), where)
        self._device: Any = out[0]
        check_rc(lib.ofs_device_start(self._device), "starting the reactor's thread")
        self.boot_id = self.status().boot_id
        self._records = np.zeros(RECORDS_MAX, RECORD)
        self._moments = np.zeros(MOMENTS_MAX, MOMENT)
        self._log = bytearray(LOG_BYTES_MAX)

    @property
    def handle(self) -> Any:
        """The device, for the other files of `bindings`."""
        return self._device

    def tenant_add(self, secret: bytes, slot_count: int, weight: int) -> int:
        """Give a tenant its part of the arena and the blocks the store has of it."""
        assert len(secret) == 16
        config: Any = ffi.new("struct ofs_tenant_config *")
        ffi.buffer(ffi.addressof(config, "secret"))[:] = secret
        config.slot_count, config.weight = slot_count, weight
        tenant: Any = ffi.new("uint32_t *")
        rc = lib.ofs_device_tenant_add(self._device, config, tenant)
        check_rc(rc, "adding a tenant", "[[tenant]]")
        rc = lib.ofs_device_restore(self._device, tenant[0])
        if -rc in KEPT:
            raise BadInput(*KEPT[-rc], "raise it to what it was, or give another storage.path")
        check_rc(rc, "recovering a tenant's blocks", "[[tenant]]")
        return int(tenant[0])

    def values_unserved(self) -> dict[str, int]:
        """By the event that tells of it: values that the store had and no key of, which no list
        has; and blocks of values that are not served, until `limits.chunks` is raised."""
        count: Any = ffi.new("uint32_t *")
        blocks: Any = ffi.new("uint64_t *")
        check_rc(lib.ofs_device_value_unnamed(self._device, count, blocks), "counting values")
        return {"values_unnamed": int(count[0]), "values_left_out": int(blocks[0])}

    def value_bytes_max(self, tenant: int) -> int:
        """The longest value that the tenant can store."""
        most: Any = ffi.new("uint64_t *")
        check_rc(lib.ofs_device_value_bytes_max(self._device, tenant, most), "values", "[[tenant]]")
        return int(most[0])

    def tenant_share(
        self,
        tenant: int,
        weight: int,
        bandwidth_bytes_per_s: int,
        in_flight_bytes: int,
        floor_bytes_per_s: int = 0,
    ) -> None:
        """What the tenant gets of the drive from now on; 0: no cap, a bound by weight, no floor."""
        share: Any = ffi.new("struct ofs_tenant_share *")
        share.weight, share.bandwidth_bytes_per_s = weight, bandwidth_bytes_per_s
        share.in_flight_bytes_max, share.floor_bytes_per_s = in_flight_bytes, floor_bytes_per_s
        rc = lib.ofs_device_tenant_share(self._device, tenant, share)
        check_rc(
            rc,
            "changing a tenant's share",
            "[[tenant]]",
            "a weight up to 65535, a bandwidth of at least 256 B/s, and a floor within it",
        )

    def tenant_quota(
        self,
        tenant: int,
        chunks_max: int,
        stored_bytes_max: int,
        dirty_blocks_max: int,
        sessions_max: int,
    ) -> None:
        """Set the tenant's limits; 0: none."""
        quota: Any = ffi.new("struct ofs_tenant_quota *")
        quota.chunks_max, quota.stored_bytes_max = chunks_max, stored_bytes_max
        quota.dirty_blocks_max, quota.sessions_max = dirty_blocks_max, sessions_max
        check_rc(lib.ofs_device_tenant_quota(self._device, tenant, quota), "setting a quota")

    def tenant_status(self, tenant: int) -> TenantStatus:
        """The figures of a tenant."""
        status: Any = ffi.new("struct ofs_tenant_status *")
        rc = lib.ofs_device_tenant_status_get(self._device, tenant, status)
        check_rc(rc, "reading a tenant's figures")
        return read_struct(status, TenantStatus)

    def tenant_purge(self, tenant: int, keep_blocks: int, again: bool = False) -> dict[str, int]:
        """`struct ofs_purged` of one call, by field name: asked `again` while `more`, `marking` or
        `writing`; any other call is a separate purge."""
        purged: Any = ffi.new("struct ofs_purged *")
        rc = lib.ofs_device_tenant_purge(self._device, tenant, keep_blocks, again, purged)
        check_rc(rc, "dropping a tenant's chunks")
        return dict(plain(purged[0]))

    def drop_idle(self) -> int:
        """Chunks dropped now because no session named them within the policy's time; looks
        at a part of them, and goes on with the next call."""
        dropped: Any = ffi.new("uint32_t *")
        check_rc(lib.ofs_device_drop_idle(self._device, dropped), "dropping idle chunks")
        return int(dropped[0])

    def wiped(self, tenant: int, ticket: int) -> tuple[bool, int, int]:
        """Whether what the tenant had deleted when the ticket was taken (0: now) stays deleted,
        whatever ends the device; the ticket, and how many writes are still to end."""
        held, left = ffi.new("uint64_t *", ticket), ffi.new("uint64_t *")
        rc = int(lib.ofs_device_wiped(self._device, tenant, held, left))
        if rc != -errno.EAGAIN:
            check_rc(rc, "asking for a tenant's deletes")
        return rc == 0, int(held[0]), int(left[0])

    def attach(self, tenant: int, fabric: str) -> tuple[int, Attachment]:
        """A port for one host; StoreFull if all ports are taken."""
        return Attachment.of_port(self._device, tenant, fabric)

    def reattach(self, port: int) -> Attachment:
        """A connection that was lost: what the host at `port` needs for another."""
        return Attachment.of_port_again(self._device, port)

    def connect(self, port: int, answer: bytes) -> None:
        """What the driver of the port's host answered to its attach."""
        Attachment(answer).connect(self._device, port)

    def own_port(self, port: int, owner: bytes) -> None:
        """Keys of values of the host on `port` are hashed under `owner`, 16 secret bytes."""
        key = ffi.cast("struct ofs_key *", ffi.from_buffer(owner))
        check_rc(lib.ofs_device_own_port(self._device, port, key), "giving a port its owner")

    def detach(self, port: int) -> None:
        """The host is gone: sessions closed, pins and puts released."""
        check_rc(lib.ofs_device_detach(self._device, port), "detaching a host")

    def session_open(
        self, port: int, sink_blocks: int, window_blocks: int, select_blocks: int, step_ns: int
    ) -> int:
        """A new session of the host on `port`; counts in blocks."""
        config: Any = ffi.new("struct ofs_session_config *")
        config.sink_blocks, config.window_blocks = sink_blocks, window_blocks
        config.select_blocks, config.step_ns = select_blocks, step_ns
        session: Any = ffi.new("uint32_t *")
        rc = lib.ofs_device_session_open(self._device, port, config, session)
        check_rc(rc, "opening a session", "", "raise limits.sessions or close a session")
        return int(session[0])

    def session_append(self, session: int, contents: list[bytes]) -> list[Chunk]:
        """Append chunks by the 16-byte hash of their tokens."""
        count = len(contents)
        keys: Any = ffi.new("struct ofs_key[]", max(count, 1))
        ffi.buffer(keys)[: 16 * count] = b"".join(contents)
        infos: Any = ffi.new("struct ofs_chunk_info[]", max(count, 1))
        rc = lib.ofs_device_session_append(self._device, session, count, keys, infos)
        check_rc(
            rc,
            "appending chunks",
            "",
            "close sessions, or raise chunks_max of the tenant"
            if rc == -errno.EDQUOT
            else "raise limits.context_tokens or limits.chunks",
        )
        return [
            Chunk(_key(info.key), _key(info.store_key), info.stored_layers, info.references)
            for info in infos[0:count]
        ]

    def session_set_generating(self, session: int, generating: bool) -> None:
        """A generating session is the last victim."""
        rc = lib.ofs_device_session_set_generating(self._device, session, int(generating))
        check_rc(rc, "marking a session")

    def session_close(self, session: int, keep: bool) -> None:
        """Without `keep`, blocks without another reference are deleted from the store."""
        rc = lib.ofs_device_session_close(self._device, session, int(keep))
        check_rc(rc, "closing a session")

    def set_core_policy(self, policy: Policy) -> None:
        """Change the policy now, without a restart."""
        rc = lib.ofs_device_set_policy(self._device, filled_policy(policy))
        check_rc(rc, "changing the policy", "[policy]")

    def serve_until(self, boot_ns: int) -> None:
        """Hosts are served until CLOCK_BOOTTIME is past this, checked by the reactor itself before
        each command and each answer; FOR_EVER: no end. Any thread; does not wait."""
        lib.ofs_device_serve_until(self._device, boot_ns)

    def reset(self) -> None:
        """Drop what is staged, clean and not pinned; zero the ledger."""
        check_rc(lib.ofs_device_reset(self._device), "resetting the arena")

    def drain(self, timeout_ns: int) -> bool:
        """Refuse new work and wait for write-back; False where the timeout came first."""
        rc = lib.ofs_device_drain(self._device, timeout_ns)
        if rc == -errno.ETIMEDOUT:
            return False
        check_rc(rc, "draining")
        return True

    def undrain(self) -> None:
        """Take new work again after a drain."""
        check_rc(lib.ofs_device_undrain(self._device), "taking work again")

    def move_to(self, config: Any, where: str) -> None:
        """Begin to move all blocks to the storage of another device's config; returns when the
        copies have begun. Raises what the firmware refuses, and then nothing has changed."""
        error: Any = ffi.new("char[]", ERROR_SIZE)
        storage = ffi.addressof(config, "storage")
        rc = lib.ofs_device_move(self._device, storage, error, ERROR_SIZE)
        if rc < 0:
            _refused(rc, text_of(error), where)

    def move_status(self) -> MoveStatus:
        """The last move of the blocks to another storage."""
        status: Any = ffi.new("struct ofs_move_status *")
        check_rc(lib.ofs_device_move_status_get(self._device, status), "reading the status")
        return read_struct(status, MoveStatus, state=MOVE_STATES[status.state])

    def ledger(self, tenant: int | None = None) -> Ledger:
        """Of one tenant; None: of all together."""
        ledger: Any = ffi.new("struct ofs_ledger *")
        index = lib.OFS_NONE if tenant is None else tenant
        check_rc(lib.ofs_device_ledger(self._device, index, ledger), "reading the ledger")
        return read_struct(ledger, Ledger)

    def records(self) -> NDArray[np.void]:
        """Take at most RECORDS_MAX ledger records; a copy of dtype RECORD."""
        target = ffi.cast("struct ofs_ledger_record *", self._records.ctypes.data)
        rc = lib.ofs_device_records(self._device, target, RECORDS_MAX)
        return self._records[: check_rc(rc, "taking ledger records")].copy()

    def moments(self) -> NDArray[np.void]:
        """Take at most MOMENTS_MAX moments of reads, commands and turns; a copy of dtype MOMENT."""
        target = ffi.cast("struct ofs_moment *", self._moments.ctypes.data)
        rc = lib.ofs_device_moments_take(self._device, target, MOMENTS_MAX)
        return self._moments[: check_rc(rc, "taking moments")].copy()

    def log(self) -> bytes:
        """Take at most LOG_BYTES_MAX bytes of the decision log, whole records."""
        rc = lib.ofs_device_log_take(self._device, ffi.from_buffer(self._log), LOG_BYTES_MAX)
        return bytes(self._log[: check_rc(rc, "taking the decision log")])

    def status(self) -> DeviceStatus:
        """The device's counters and gauges."""
        status: Any = ffi.new("struct ofs_device_status *")
        check_rc(lib.ofs_device_status_get(self._device, status), "reading the status")
        work: Any = ffi.new("struct ofs_work[]", lib.OFS_EVENT_COUNT)
        check_rc(lib.ofs_device_work(self._device, work), "reading the core's work")
        return read_struct(status, DeviceStatus, work=work_by_event(work))

    def stages(self) -> dict[str, StageTimes]:
        """How long each stage took since the last reset; see `bindings.stages`."""
        return device_stages(self._device)

    def step_times(self, tenant: int) -> StepTimes:
        """Where the time of a tenant's steps went since the last reset; see `bindings.stages`."""
        return step_times(self._device, tenant)

    def storage_name(self) -> str:
        """The storage in use: io_uring, posix, emulated."""
        return text_of(lib.ofs_device_storage_name(self._device))

    def warning(self) -> str:
        """One line where the storage is not what was asked for; else empty."""
        return text_of(lib.ofs_device_warning(self._device))

    def memory(self) -> DmaTotals:
        """The pages of the process's memory for I/O."""
        totals: Any = ffi.new("struct ofs_dma_totals *")
        lib.ofs_dma_totals_read(totals)
        text: Any = ffi.new("char[]", ERROR_SIZE)
        lib.ofs_dma_warning(text, ERROR_SIZE)
        return read_struct(totals, DmaTotals, warning=text_of(text))

    def close(self, drain: bool) -> None:
        """Stop the reactor and close everything. Closing twice does nothing."""
        if self._device is not None:
            lib.ofs_device_close(self._device, int(drain))
            self._device = None


def _refused(rc: int, text: str, where: str) -> None:
    """The firmware's error line as the class of its errno; the line includes the fix."""
    if not text:
        check_rc(rc, "opening the device", where)
    kind = MEANINGS.get(-rc, (OffstageError, "", ""))[0]
    kind = RunFailed if kind in (OffstageError, StoreFull) else kind
    raise kind(text, "" if where in text else where, "", errno=-rc)


def _key(key: Any) -> bytes:
    return int(key.lo).to_bytes(8, "little") + int(key.hi).to_bytes(8, "little")
