"""The daemon's answers: one method for each call, without sockets or clock.

`Service.answer` takes a ticket and a decoded call and returns the reply. A request for something
that the host may not do or name is answered with `Error`; an unexpected exception is logged,
answered `internal`, and the daemon keeps running. The type of its parameter `request` binds a
method to its call. Calls with a deferred reply start in `daemon.py`: Connect, Drain and
StorageMove.
"""

import os
import platform
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import msgspec

from offstage.bindings.errors import BadInput, OffstageError
from offstage.dpu import protocol as p
from offstage.dpu.config import options
from offstage.dpu.config.derive import Derived
from offstage.dpu.config.values import Config, change_policy, change_tenant
from offstage.dpu.control.connects import Connects
from offstage.dpu.control.drain import Drain
from offstage.dpu.control.pod_member import PodMember
from offstage.dpu.control.ports import Attachments, Ports
from offstage.dpu.control.replies import Waiting, error_reply
from offstage.dpu.economics.spending import Spending
from offstage.dpu.log import Log
from offstage.dpu.protocol.login import negotiate
from offstage.dpu.protocol.message import Setting
from offstage.dpu.protocol.status import (
    ArchivedLedger,
    DaemonStatus,
    DeviceReport,
    HostReport,
    MachineReport,
    QuotaUse,
    TenantReport,
)
from offstage.dpu.storage.device import Device
from offstage.dpu.tenants.hosts import Host, Hosts, Refused, check_selection, draining
from offstage.dpu.tenants.quotas import Quotas, used

__all__ = ["Answered", "Service"]


class Answered(NamedTuple):
    """What `Service.answer` did: the reply, and the tenant whose blocks were deleted by it."""

    reply: p.Reply
    deleted: int | None = None


Method = TypeVar("Method", bound=Callable[..., p.Reply])
METHODS: dict[type[p.Request], Callable[..., p.Reply]] = {}
"""Of `Service`, by the call that each answers."""


def _answers(method: Method) -> Method:
    """It answers the call that its parameter `request` is."""
    METHODS[method.__annotations__["request"]] = method
    return method


class Service:
    """The daemon's answers over a device."""

    def __init__(
        self,
        config: Config,
        derived: Derived,
        device: Device,
        hosts: Hosts,
        attachments: Attachments,
        connects: Connects,
        drain: Drain,
        log: Log,
    ) -> None:
        self.config, self.derived, self.device = config, derived, device
        self.hosts, self.attachments, self._log = hosts, attachments, log
        self.connects, self.drain = connects, drain
        self.policy = config.policy
        tenants = {tenant.name: tenant for tenant in config.tenants}
        self.quotas = Quotas(device, hosts, tenants, derived.record_size_bytes, log)
        self.ports = Ports(config, derived, device, hosts, attachments, connects, self.quotas, log)
        self._spending = Spending(config, device, log)
        self.pod: PodMember | None = None
        self.started_s = time.monotonic()

    def answer(
        self, ticket: bytes, request: p.Request, route: bytes = b"", address: str = ""
    ) -> Answered:
        """The reply to one call; never raises for anything a host can send. `route` names the
        connection that it came by, `address` its other end."""
        deleted = None
        try:
            if isinstance(request, p.Hello):
                reply: p.Reply = self._hello(request, route, address)
            elif isinstance(request, p.Prove):
                reply = self._prove(request, route)
            elif isinstance(request, p.Hold):
                reply = self._member(request.name).hold(request)
            else:
                host = self.admit(ticket, request)
                reply = METHODS[type(request)](self, request, host)
                if request.deletes and host.tenant is not None:
                    deleted = host.tenant.index
        except Exception as error:
            reply = self.failed(type(request), error)
        reply.id = request.id
        return Answered(reply, deleted)

    def failed(self, request: type[p.Request], error: Exception) -> p.Error:
        """The error reply for a call that raised; unexpected exceptions are logged."""
        if not isinstance(error, OffstageError):
            self.hosts.counts["requests_failed"] += 1
        return error_reply(error, request.__name__, self._log)

    def admit(self, ticket: bytes, request: p.Request) -> Host:
        """The host of a ticket. Refused: it is not logged in, or may not make this call now."""
        host = self.hosts.find(ticket)
        if self.pod is not None:
            self.pod.check(host, request)
        if request.by == "operator" and host.tenant is not None:
            raise Refused(
                "forbidden", "only the operator may do this", host.name, f"log in as {p.OPERATOR!r}"
            )
        if request.by == "tenant" and host.tenant is None:
            raise Refused("forbidden", "an operator has no blocks", host.name, "log in as a tenant")
        if request.by == "attached" and host.port is None:
            raise Refused("invalid", "the host has no port yet", host.name, "send Attach first")
        if request.by == "owner":
            _check_session(host, getattr(request, "session", -1))
        return host

    def begin_connect(self, host: Host, request: p.Connect, waiting: Waiting) -> None:
        """Connect a host off the loop; `connects.ended` returns `waiting`."""
        assert host.port is not None
        self.connects.begin(host.port, request.blob, waiting)

    def leave(self, host: Host, reason: str) -> None:
        """The host leaves or has died: reclaim everything."""
        self.attachments.forget(host.ticket)
        self.hosts.remove(host, reason)
        self.ports.left(host.fabric)

    def _hello(self, request: p.Hello, route: bytes, address: str) -> p.Reply:
        try:
            version = negotiate(request.versions)
        except BadInput as other:
            self.hosts.refused(request, other.what, address)
            raise
        return self.hosts.challenge(request, version, route, address)

    def _prove(self, request: p.Prove, route: bytes) -> p.Reply:
        host = self.hosts.login(request.nonce, request.proof, route)
        lease_ns = self._admitted(host, request)
        slots = host.tenant.slot_count if host.tenant else self.derived.slot_count
        arena, limits = self.config.arena, self.config.limits
        return p.Welcome(
            ticket=host.ticket,
            version=host.version,
            boot_id=self.device.boot_id,
            storage=self.device.storage_name(),
            lease_ns=lease_ns,
            geometry=p.Geometry(
                payload_size_bytes=arena.payload_bytes,
                layer_count=arena.layers,
                block_tokens=arena.block_tokens,
                slot_count=slots,
                lba_size_bytes=self.config.storage.lba_bytes,
                granule_tokens=arena.granule_tokens if self.derived.granule_count else 0,
            ),
            limits=p.Limits(
                message_size_bytes_max=limits.message_bytes,
                session_max=limits.sessions,
                session_chunk_max=self.derived.session_chunk_max,
                demand_max=self.derived.demand_max,
                score_max=self.derived.session_chunk_max,
                put_slot_count=limits.put_slots,
                host_timeout_ns=self.config.daemon.host_timeout_ns,
            ),
        )

    def _member(self, name: str) -> PodMember:
        if self.pod is None:
            raise Refused(
                "foreign",
                "this daemon is no member of a pod",
                name,
                "start it with --pod, or take it out of the map",
            )
        return self.pod

    def _admitted(self, host: Host, request: p.Prove) -> int:
        """The daemon's lease in its pod. Refused: the host's incarnation or epoch is stale."""
        try:
            if self.pod is None and not request.incarnation:
                return 0
            member = self._member(host.name)
            return member.admit(host.tenant, request.incarnation, request.epoch)
        except Refused:
            self.leave(host, "left")
            raise

    @_answers
    def _heartbeat(self, request: p.Heartbeat, host: Host) -> p.Ok:
        return p.Ok()

    @_answers
    def _attach(self, request: p.Attach, host: Host) -> p.Attached:
        if request.again:
            return self.ports.attach_again(host, request.fabric)
        if host.port is None and self.drain.refuses:
            raise draining()
        return self.ports.attach(host, request.fabric)

    @_answers
    def _session_open(self, request: p.SessionOpen, host: Host) -> p.Opened:
        port, tenant = host.opens()
        if self.drain.refuses:
            raise draining()
        check_selection(tenant, request.select_blocks)
        self.quotas.check(tenant, "sessions")
        session = self.device.session_open(
            port,
            request.sink_blocks,
            request.window_blocks,
            request.select_blocks,
            request.step_ns,
        )
        host.sessions.add(session)
        return p.Opened(session=session, hints=self._hints())

    def _hints(self) -> tuple[int, int, int] | None:
        policy = self.policy
        found = policy.hint_scores_max, policy.hint_every_steps, policy.hint_score_bits
        return None if found == (0, 1, 16) else found

    @_answers
    def _append(self, request: p.Append, host: Host) -> p.Appended:
        chunks = self.device.session_append(request.session, host.names(request.contents))
        return p.Appended(
            keys=[chunk.key for chunk in chunks],
            store_keys=[chunk.store_key for chunk in chunks],
            stored_layers=[chunk.stored_layers for chunk in chunks],
        )

    @_answers
    def _set_generating(self, request: p.SetGenerating, host: Host) -> p.Ok:
        self.device.session_set_generating(request.session, request.generating)
        return p.Ok()

    @_answers
    def _session_close(self, request: p.SessionClose, host: Host) -> p.Ok:
        host.sessions.discard(request.session)
        self.device.session_close(request.session, request.keep)
        return p.Ok()

    @_answers
    def _policy_set(self, request: p.PolicySet, host: Host) -> p.PolicyReply:
        shares, changes = self._shares_of(request.changes)
        policy = change_policy(self.policy, changes)
        if changes:  # first: it can still be refused
            self._spending.set_policy(policy)
            self.policy = policy
        for tenant in shares:
            self.quotas.change(tenant)
        self._log.info("policy_changed", **request.changes)
        return p.PolicyReply(policy=self.policy_now())

    def _shares_of(self, changes: dict[str, str]) -> tuple[list[options.Tenant], dict[str, str]]:
        """The tenants that `tenant.NAME.KEY` changes, as they are to be, and the other changes."""
        others: dict[str, str] = {}
        chosen: dict[str, dict[str, str]] = {}
        for key, text in changes.items():
            name, dot, leaf = key.removeprefix("tenant.").rpartition(".")
            if not key.startswith("tenant.") or not dot:
                others[key] = text
                continue
            chosen.setdefault(self.hosts.tenant(name).name, {})[leaf] = text
        return [
            change_tenant(self.quotas.tenants[name], each, f"tenant.{name}")
            for name, each in chosen.items()
        ], others

    @_answers
    def _policy_get(self, request: p.PolicyGet, host: Host) -> p.PolicyReply:
        return p.PolicyReply(policy=self.policy_now())

    @_answers
    def _status(self, request: p.Status, host: Host) -> p.StatusReply:
        return p.StatusReply(status=self.status_for(host))

    @_answers
    def _ledger(self, request: p.Ledger, host: Host) -> p.LedgerReply:
        name = request.tenant or (host.tenant.name if host.tenant else "")
        index = self.hosts.tenant(name, host).index if name else None
        ledger = ArchivedLedger(**msgspec.structs.asdict(self.device.ledger(index)))
        return p.LedgerReply(tenant=name, ledger=ledger)

    @_answers
    def _purge(self, request: p.Purge, host: Host) -> p.Purged:
        tenant = self.hosts.tenant(request.tenant, host)
        purged = self.device.tenant_purge(tenant.index, request.keep_blocks, request.again)
        if purged["chunks"]:
            self._log.info("purged", tenant=tenant.name, by=host.name, **purged)
        return p.Purged(
            chunks=purged["chunks"],
            blocks=purged["blocks"],
            bytes=purged["bytes"],
            more=purged["more"],
            marking=purged["marking"] + purged["writing"],
        )

    @_answers
    def _reset(self, request: p.Reset, host: Host) -> p.Ok:
        self.worn(self.device.status())  # before the hits are zero
        self.device.reset()
        self._log.info("reset")
        return p.Ok()

    @_answers
    def _dismiss(self, request: p.Dismiss, host: Host) -> p.Dismissed:
        of_name = [
            one
            for one in self.hosts.of(self.hosts.tenant(request.tenant))
            if one.name == request.name
        ]
        for one in of_name:
            self.leave(one, "dismissed")
        return p.Dismissed(hosts=len(of_name))

    @_answers
    def _fabric_open(self, request: p.FabricOpen, host: Host) -> p.Ok:
        self.ports.open_fabric(request.fabric, request.endpoint)
        return p.Ok()

    @_answers
    def _fabric_shut(self, request: p.FabricShut, host: Host) -> p.Ok:
        self.ports.shut_fabric(request.fabric)
        return p.Ok()

    @_answers
    def _undrain(self, request: p.Undrain, host: Host) -> p.Ok:
        self.drain.undrain()
        return p.Ok()

    @_answers
    def _shards(self, request: p.Shards, host: Host) -> p.ShardsReply:
        return self.quotas.shards.answer(host, request)

    @_answers
    def _detach(self, request: p.Detach, host: Host) -> p.Ok:
        self.leave(host, "left")
        return p.Ok()

    def policy_now(self) -> dict[str, Setting]:
        """The policy in force."""
        return msgspec.structs.asdict(self.policy)

    def status_for(self, host: Host) -> DaemonStatus:
        """What a host may know; an operator also sees the device, the hosts and the counters."""
        status = DaemonStatus(
            storage=self.device.storage_name(),
            warning=self.device.warning(),
            model=self.config.model.device,
            dilation=self.config.model.dilation,
            draining=self.drain.refuses,
            uptime_s=round(time.monotonic() - self.started_s, 3),
            boot_id=self.device.boot_id,
        )
        if host.tenant is not None:
            return msgspec.structs.replace(
                status,
                tenant=host.tenant.name,
                sessions=len(host.sessions),
                quotas={
                    quota: QuotaUse(has=has, most=most)
                    for quota, has, most in used(self.quotas.figures(host.tenant))
                },
                tenant_hosts=self.ports.hosts_of(host.tenant),
                store_payload_bytes=self._store_payload_bytes(),
            )
        return msgspec.structs.replace(
            status,
            move=self.device.move_status(),
            fabrics=self.ports.look(),
            device=self.worn(self.device.status()),
            stages={
                name: msgspec.structs.replace(stage, buckets=msgspec.UNSET)
                for name, stage in self.device.stages().items()
            },
            hosts=[_reported(one) for one in self.hosts.all()],
            tenants=self._tenants(),
            memory=self.device.memory(),
            machine=self._machine(),
            daemon=self.counts(),
            pod=msgspec.UNSET if self.pod is None else self.pod.status(),
        )

    def _tenants(self) -> list[TenantReport]:
        found = []
        for name, figures in self.quotas.look().items():
            tenant = self.hosts.tenants[name]
            steps = self.device.step_times(tenant.index)
            fields = msgspec.structs.asdict(msgspec.structs.replace(figures, steps=steps))
            found.append(TenantReport(name, tenant.slot_count, tenant.sharing, **fields))
        return found

    def worn(self, status: DeviceReport) -> DeviceReport:
        """The device's status, what that has cost the drive, as `wear`, and `thresholds`."""
        return self._spending.look(status, self.policy)

    def _store_payload_bytes(self) -> int:
        """Payload that the store holds when it is full, as it is now: a move may have grown it."""
        segments = self.device.status().store.segments_total
        record = self.config.arena.payload_bytes + self.config.storage.lba_bytes
        room = self.config.store.segment_bytes - self.config.storage.lba_bytes  # after its header
        return segments * (room // record) * self.config.arena.payload_bytes

    def _machine(self) -> MachineReport:
        moved = self.device.move_status()
        return MachineReport(
            architecture=platform.machine(),
            kernel=platform.release(),
            cores=os.cpu_count(),
            store=moved.path if moved.state == "done" else self.config.storage.path,
        )

    def counts(self) -> dict[str, int]:
        """The daemon's own figures: of its messages, the connections that they come by, its pod."""
        doubt = int(self.pod is not None and bool(self.pod.keeper.doubt))
        return {**self.hosts.counts, **self.attachments.counts(), "pod_in_doubt": doubt}


def _reported(host: Host) -> HostReport:
    return HostReport(
        name=host.name,
        tenant=host.tenant.name if host.tenant else p.OPERATOR,
        fabric=host.fabric,
        pid=host.pid,
        sessions=len(host.sessions),
    )


def _check_session(host: Host, session: int) -> None:
    if session not in host.sessions:
        raise Refused(
            "unknown", f"the host has no session {session}", host.name, "open one with SessionOpen"
        )
