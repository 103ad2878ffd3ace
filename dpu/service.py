"""What the daemon answers: one method per request, no sockets and no clock of its own.

`Service.answer` takes a ticket and a decoded request and returns the reply. What a host may not do
or name comes back as `Error`; an unexpected failure of one request is logged, answered `internal`
and leaves the daemon running.
"""

import os
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from offstage.bindings import nixl
from offstage.bindings.attachment import Attachment
from offstage.bindings.errors import OffstageError
from offstage.dpu import options
from offstage.dpu import protocol as p
from offstage.dpu.config import Config, change_policy, change_tenant
from offstage.dpu.connects import Connects
from offstage.dpu.derive import Derived, check_endpoint
from offstage.dpu.device import DeviceLike
from offstage.dpu.log import Log
from offstage.dpu.login import negotiate
from offstage.dpu.pod.member import PodMember
from offstage.dpu.quotas import Quotas, used
from offstage.dpu.replies import error_reply
from offstage.dpu.sessions import Host, Hosts, Refused, TenantState, check_selection, draining
from offstage.dpu.spending import Spending

__all__ = ["Attachments", "Service"]

# The side of the port behind each fabric: the driver of a ZMQ host runs beside the daemon.
PORT_SIDES = {"shm": "shm", "verbs": "verbs", "nixl": "nixl", "zmq": "shm"}


class Attachments(Protocol):
    """How an attached host gets its attachment; `offer` returns the fields of `Attached`."""

    def open(self, fabric: str, endpoint: str) -> None: ...

    def shut(self, fabric: str) -> None: ...

    def endpoint(self, fabric: str) -> str: ...

    def offer(
        self, fabric: str, tenant: str, ticket: bytes, attachment: Attachment
    ) -> dict[str, Any]: ...

    def forget(self, ticket: bytes) -> None: ...

    def counts(self) -> dict[str, int]: ...


class Service:
    """The daemon's answers over a device. `draining` is set by the loop and by Drain."""

    def __init__(
        self,
        config: Config,
        derived: Derived,
        device: DeviceLike,
        hosts: Hosts,
        attachments: Attachments,
        connects: Connects,
        log: Log,
    ) -> None:
        self.config, self.derived, self.device = config, derived, device
        self.hosts, self.attachments, self._log = hosts, attachments, log
        self.connects = connects
        self.policy = config.policy
        tenants = {tenant.name: tenant for tenant in config.tenants}
        self.quotas = Quotas(device, hosts, tenants, derived.record_size_bytes, log)
        self._spending = Spending(config, device, log)
        self.draining = False
        self.pod: PodMember | None = None
        self._nixl_tenants: set[int] = set()
        self.fabrics = set(config.daemon.fabrics)  # what hosts may attach over now
        self.started_s = time.monotonic()
        self._answers: dict[type[Any], Callable[[Host, Any], p.Reply]] = {
            p.Attach: self._attach,
            p.SessionOpen: self._session_open,
            p.Append: self._append,
            p.SetGenerating: self._set_generating,
            p.SessionClose: self._session_close,
            p.SessionsOpen: self._sessions_open,
            p.PolicySet: self._policy_set,
            p.PolicyGet: self._policy_get,
            p.Status: self._status,
            p.Ledger: self._ledger,
            p.Purge: self._purge,
            p.Segments: self.quotas.segments.answer,
            p.Reset: self._reset,
            p.FabricOpen: self._fabric_open,
            p.FabricShut: self._fabric_shut,
            p.Heartbeat: lambda host, request: p.Ok(),
            p.Detach: self._detach,
        }

    def answer(self, ticket: bytes, request: p.Request, route: bytes = b"") -> p.Reply:
        """The reply to one request; never raises for anything a host can send. `route` names the
        connection that it came by."""
        self.deleted: int | None = None  # the tenant whose blocks this request deletes
        try:
            if isinstance(request, p.Hello):
                reply: p.Reply = self._hello(request, route)
            elif isinstance(request, p.Prove):
                reply = self._prove(request, route)
            elif isinstance(request, p.Hold):
                reply = self._member(request.name).hold(request)
            else:
                host = self.hosts.find(ticket)
                if self.pod is not None:
                    self.pod.check(host, request)
                reply = self._answers[type(request)](host, request)
        except Exception as error:
            reply = self.failed(type(request), error)
        reply.id = request.id
        return reply

    def failed(self, request: type[p.Request], error: Exception) -> p.Error:
        """What a host is told of a request that raised; what nobody expected is logged."""
        if not isinstance(error, OffstageError):
            self.hosts.counts["requests_failed"] += 1
        return error_reply(error, request.__name__, self._log)

    def begin_connect(self, ticket: bytes, request: p.Connect, waiting: object) -> None:
        """Connect a host beside the loop; `connects.ended` brings `waiting` back. Refused at once
        where the host may not."""
        host = self.hosts.find(ticket)
        if host.port is None:
            raise Refused("invalid", "the host has no port yet", host.name, "send Attach first")
        self.connects.begin(host.port, request.blob, waiting)

    def operator(self, ticket: bytes) -> Host:
        """The logged-in operator of a ticket; Refused for any other host."""
        host = self.hosts.find(ticket)
        if host.tenant is not None:
            raise Refused(
                "forbidden", "only the operator may do this", host.name, f"log in as {p.OPERATOR!r}"
            )
        return host

    def leave(self, host: Host, reason: str) -> None:
        """The host goes, by its own wish or because it is dead: take everything back."""
        self.attachments.forget(host.ticket)
        self.hosts.remove(host, reason)
        self._shut_left(host.fabric)

    def _hello(self, request: p.Hello, route: bytes) -> p.Reply:
        version = negotiate(request.versions)
        return self.hosts.challenge(request, version, route)

    def _prove(self, request: p.Prove, route: bytes) -> p.Reply:
        host = self.hosts.login(request.nonce, request.proof, route)
        lease_ns = self._admitted(host, request)
        slots = host.tenant.slot_count if host.tenant else self.derived.slot_count
        arena, limits = self.config.arena, self.config.limits
        return p.Welcome(
            ticket=host.ticket,
            version=host.version,
            epoch=self.device.epoch,
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
        """The daemon's lease in its pod. Refused: the host means what is no more."""
        try:
            if self.pod is None and not request.incarnation:
                return 0
            member = self._member(host.name)
            return member.admit(host.tenant, request.incarnation, request.epoch)
        except Refused:
            self.leave(host, "left")
            raise

    def _attach(self, host: Host, request: p.Attach) -> p.Reply:
        if host.tenant is None:
            raise Refused("forbidden", "an operator has no blocks", host.name, "log in as a tenant")
        if request.again:
            return self._attach_again(host, request)
        if host.port is not None:
            raise Refused("invalid", "this host is attached already", host.name, "detach first")
        if self.draining:
            raise draining()
        if request.fabric not in self.fabrics:
            raise Refused(
                "invalid",
                "this daemon does not serve this fabric",
                request.fabric,
                f"offstage dpu fabric add {request.fabric}, or attach over one of "
                f"{', '.join(sorted(self.fabrics)) or 'none'}",
            )
        if request.fabric != "shm" and self.config.model.dilation > 1:
            raise Refused(
                "invalid",
                "this daemon's time is slower than the machine's",
                request.fabric,
                "attach over shm, which goes by its clock",
            )
        self._check_enabled(request.fabric)
        host.tenant.check_fabric(request.fabric)
        if request.fabric == "nixl":
            self._prepare_nixl(host.tenant.index)
        self.quotas.check(host.tenant, "ports")
        port, attachment = self.device.attach(host.tenant.index, PORT_SIDES[request.fabric])
        try:
            offered = self.attachments.offer(
                request.fabric, host.tenant.name, host.ticket, attachment
            )
        except OffstageError:
            self.device.detach(port)
            raise
        host.port, host.fabric = port, request.fabric
        return p.Attached(
            fabric=request.fabric,
            payload_size_bytes=self.config.arena.payload_bytes,
            demand_max=self.derived.demand_max,
            **offered,
        )

    def _attach_again(self, host: Host, request: p.Attach) -> p.Reply:
        if host.port is None or host.fabric != request.fabric:
            raise Refused(
                "invalid",
                "the host has no port of this fabric",
                host.name,
                "attach, and open its sessions again",
            )
        self.connects.check(host.port)
        attachment = self.device.reattach(host.port)
        self._log.info("host_again", host=host.name)
        return p.Attached(
            fabric=request.fabric,
            token="",
            blob=attachment.blob,
            payload_size_bytes=self.config.arena.payload_bytes,
            demand_max=self.derived.demand_max,
        )

    def _check_enabled(self, fabric: str) -> None:
        """What a daemon must be started for is not opened live."""
        if fabric == "verbs" and not self.config.rdma.enabled:
            raise Refused(
                "invalid",
                "this daemon takes no hosts over RDMA",
                "rdma.enabled",
                "set it to true, or attach over zmq",
            )
        if fabric == "nixl" and not self.config.daemon.nixl:
            raise Refused(
                "forbidden",
                "this daemon takes no hosts over NIXL",
                "daemon.nixl",
                "set it to true where every host is trusted, or attach over zmq",
            )

    def _prepare_nixl(self, tenant: int) -> None:
        if tenant not in self._nixl_tenants:  # its region takes an agent at the first attach
            nixl.prepare()
            self._nixl_tenants.add(tenant)

    def _session_open(self, host: Host, request: p.SessionOpen) -> p.Reply:
        port, tenant = host.opens()
        if self.draining:
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

    def _append(self, host: Host, request: p.Append) -> p.Reply:
        _check_session(host, request.session)
        chunks = self.device.session_append(request.session, host.names(request.contents))
        return p.Appended(
            keys=[chunk.key for chunk in chunks],
            store_keys=[chunk.store_key for chunk in chunks],
            stored_layers=[chunk.stored_layers for chunk in chunks],
        )

    def _set_generating(self, host: Host, request: p.SetGenerating) -> p.Reply:
        _check_session(host, request.session)
        self.device.session_set_generating(request.session, request.generating)
        return p.Ok()

    def _session_close(self, host: Host, request: p.SessionClose) -> p.Reply:
        _check_session(host, request.session)
        self._sessions_end(host, [request.session], archive=request.archive)
        return p.Ok()

    def _sessions_open(self, host: Host, request: p.SessionsOpen) -> p.Reply:
        port, tenant = host.opens()
        if self.draining and request.contents:
            raise draining()
        if any(len(one) % 16 or not one for one in request.contents):
            raise Refused(
                "invalid",
                "a session's contents are no hashes of 16 bytes",
                host.name,
                "use the same release on both sides",
            )
        if request.contents:
            check_selection(tenant, request.select_blocks)
        ending = (*request.closing, *request.deleting)
        for session in ending:
            _check_session(host, session)
        if len(set(ending)) != len(ending):
            raise Refused(
                "invalid", "a session is named twice to be ended", host.name, "name it once"
            )
        if request.contents:
            self.quotas.check(tenant, "sessions", len(request.contents) - len(ending))
        self._sessions_end(host, request.closing, archive=True)
        self._sessions_end(host, request.deleting, archive=False)
        opened = self.device.sessions_open(
            port, request.select_blocks, host.names(request.contents), request.due_ns
        )
        sessions = [one.session for one in opened if one.rc == 0]
        host.sessions.update(sessions)
        if not request.keep:
            self._sessions_end(host, sessions, archive=True)
        return p.SessionsOpened(
            sessions=[one.rc or one.session for one in opened],
            keys=[one.keys for one in opened],
            stored_layers=[one.stored_layers for one in opened],
        )

    def _sessions_end(self, host: Host, sessions: list[int], *, archive: bool) -> None:
        if sessions:
            host.sessions.difference_update(sessions)
            self.deleted = self.deleted if archive or not host.tenant else host.tenant.index
            self.device.sessions_close(sessions, archive)

    def _policy_set(self, host: Host, request: p.PolicySet) -> p.Reply:
        self.operator(host.ticket)
        shares, changes = self._shares_of(request.changes)
        policy = change_policy(self.policy, changes)
        if changes:  # first: it may be refused yet
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

    def _policy_get(self, host: Host, request: p.PolicyGet) -> p.Reply:
        return p.PolicyReply(policy=self.policy_now())

    def _status(self, host: Host, request: p.Status) -> p.Reply:
        return p.StatusReply(status=self.status_for(host))

    def _ledger(self, host: Host, request: p.Ledger) -> p.Reply:
        name = request.tenant or (host.tenant.name if host.tenant else "")
        index = self.hosts.tenant(name, host).index if name else None
        return p.LedgerReply(tenant=name, ledger=self.device.ledger(index))

    def _purge(self, host: Host, request: p.Purge) -> p.Reply:
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

    def _reset(self, host: Host, request: p.Reset) -> p.Reply:
        self.operator(host.ticket)
        self.worn(self.device.status())  # before the hits are zero
        self.device.reset()
        self._log.info("reset")
        return p.Ok()

    def _fabric_open(self, host: Host, request: p.FabricOpen) -> p.Reply:
        self.operator(host.ticket)
        self._check_enabled(request.fabric)
        if request.endpoint:
            check_endpoint(self.config, f"{request.fabric}'s", request.endpoint, "fabric add")
        self.attachments.open(request.fabric, request.endpoint)
        self.fabrics.add(request.fabric)
        self._log.info("fabric_opened", fabric=request.fabric)
        return p.Ok()

    def _fabric_shut(self, host: Host, request: p.FabricShut) -> p.Reply:
        self.operator(host.ticket)
        self.fabrics.discard(request.fabric)
        self._shut_left(request.fabric)
        self._log.info("fabric_shut", fabric=request.fabric)
        return p.Ok()

    def _shut_left(self, fabric: str) -> None:
        """A fabric that is not served any more ends with its last host."""
        if fabric and fabric not in self.fabrics and not self._attached_over(fabric):
            self.attachments.shut(fabric)

    def _attached_over(self, fabric: str) -> int:
        return sum(1 for one in self.hosts.all() if one.fabric == fabric)

    def _attached_of(self, tenant: TenantState) -> int:
        return sum(1 for one in self.hosts.all() if one.tenant is tenant and one.fabric)

    def _detach(self, host: Host, request: p.Detach) -> p.Reply:
        self.leave(host, "left")
        return p.Ok()

    def policy_now(self) -> dict[str, Any]:
        """The policy in force."""
        return msgspec.structs.asdict(self.policy)

    def status_for(self, host: Host) -> dict[str, Any]:
        """What a host may know; an operator also sees the device, the hosts and the counters."""
        status: dict[str, Any] = {
            "storage": self.device.storage_name(),
            "warning": self.device.warning(),
            "model": self.config.model.device,
            "dilation": self.config.model.dilation,
            "draining": self.draining,
            "uptime_s": round(time.monotonic() - self.started_s, 3),
            "epoch": self.device.epoch,
        }
        if host.tenant is not None:
            quotas = {
                quota: {"has": has, "most": most}
                for quota, has, most in used(self.quotas.figures(host.tenant))
            }
            return {
                **status,
                "tenant": host.tenant.name,
                "sessions": len(host.sessions),
                "quotas": quotas,
                "tenant_hosts": self._attached_of(host.tenant),
                "store_payload_bytes": self._store_payload_bytes(),
            }
        hosts = [
            {
                "name": one.name,
                "tenant": one.tenant.name if one.tenant else p.OPERATOR,
                "fabric": one.fabric,
                "pid": one.pid,
                "sessions": len(one.sessions),
            }
            for one in self.hosts.all()
        ]
        tenants = [
            {
                "name": name,
                "slots": self.hosts.tenants[name].slot_count,
                "sharing": self.hosts.tenants[name].sharing,
                **share,
                "steps": self.device.step_times(self.hosts.tenants[name].index),
            }
            for name, share in self.quotas.look().items()
        ]
        stages = {
            name: {figure: value for figure, value in stage.items() if figure != "buckets"}
            for name, stage in self.device.stages().items()
        }
        fabrics = {
            name: {
                "open": name in self.fabrics,
                "hosts": self._attached_over(name),
                "endpoint": self.attachments.endpoint(name),
            }
            for name in PORT_SIDES
        }
        return {
            **status,
            "move": self.device.move_status(),
            "fabrics": fabrics,
            "device": self.worn(self.device.status()),
            "stages": stages,
            "hosts": hosts,
            "tenants": tenants,
            "memory": self.device.memory(),
            "machine": self._machine(),
            "daemon": self.counts(),
            **({"pod": self.pod.status()} if self.pod is not None else {}),
        }

    def worn(self, status: Mapping[str, Any]) -> dict[str, Any]:
        """The device's status, what that has cost the drive, as `wear`, and `thresholds`."""
        return {**status, **self._spending.look(status, self.policy)}

    def _store_payload_bytes(self) -> int:
        """Payload that the store holds when it is full, as it is now: a move may have grown it."""
        segments = int(self.device.status()["store"].get("segments_total", 0))
        record = self.config.arena.payload_bytes + self.config.storage.lba_bytes
        room = self.config.store.segment_bytes - self.config.storage.lba_bytes  # after its header
        return segments * (room // record) * self.config.arena.payload_bytes

    def _machine(self) -> dict[str, Any]:
        moved = self.device.move_status()
        path = moved["path"] if moved["state"] == "done" else self.config.storage.path
        return {
            "architecture": platform.machine(),
            "kernel": platform.release(),
            "cores": os.cpu_count(),
            "store": path,
        }

    def counts(self) -> dict[str, int]:
        """The daemon's own figures: of its messages, the connections that they come by, its pod."""
        doubt = {} if self.pod is None else {"pod_in_doubt": int(bool(self.pod.keeper.doubt))}
        return {**self.hosts.counts, **self.attachments.counts(), **doubt}


def _check_session(host: Host, session: int) -> None:
    if session not in host.sessions:
        raise Refused(
            "unknown", f"the host has no session {session}", host.name, "open one with SessionOpen"
        )
