"""The daemon: one loop over the control socket, the hand-out, its hosts' processes and the clock.

The data plane is the firmware's thread; this loop only controls access to it. It serves requests,
declares a host dead when its process exits or it falls silent, drains on SIGTERM, writes
recordings, and stores a snapshot for the metrics endpoint. Only the poll blocks.
"""

import contextlib
import json
import os
import shlex
import signal
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType

import msgspec
import zmq

from offstage.bindings import nixl, verbs
from offstage.bindings.errors import BadInput, OffstageError
from offstage.dpu import protocol as p
from offstage.dpu.archive.returns import held_answers, with_archive
from offstage.dpu.config.addresses import parse_host_port
from offstage.dpu.config.derive import Derived
from offstage.dpu.config.idle import unused
from offstage.dpu.config.values import Config
from offstage.dpu.control.attachments import Attachments
from offstage.dpu.control.connects import Connects
from offstage.dpu.control.drain import Drain, State
from offstage.dpu.control.pod_member import PodMember
from offstage.dpu.control.replies import Waiting
from offstage.dpu.control.service import Service
from offstage.dpu.control.store_moves import Moves
from offstage.dpu.control.volumes import Volumes
from offstage.dpu.log import Log
from offstage.dpu.process import say_ready
from offstage.dpu.protocol.status import DeviceReport
from offstage.dpu.sockets.control_socket import ControlSocket
from offstage.dpu.sockets.door import shared
from offstage.dpu.storage.alone import set_alone
from offstage.dpu.storage.device import Device
from offstage.dpu.tenants.hosts import Hosts, TenantState
from offstage.dpu.tenants.quotas import give
from offstage.dpu.tenants.tenancy import (
    check_secrets,
    hold_runtime_dir,
    index_key,
    metrics_tokens,
    operator_secret,
    publish_secret,
    secrets_beside,
    tenant_secret,
)
from offstage.dpu.watch.recorder import Recorder
from offstage.dpu.watch.telemetry import Snapshot, Telemetry

__all__ = ["Daemon"]

TICK_S = 0.5  # heartbeats, expiry, snapshot
RECORD_S = 0.025
DRAIN_S = 0.01
MESSAGES_MAX = 64  # of one turn, so that a flood does not starve the rest

OpenDevice = Callable[[], Device]


class Daemon:
    """All parts of one running daemon. `run` returns the exit code; errors at start raise."""

    def __init__(self, config: Config, derived: Derived, open_device: OpenDevice) -> None:
        """Open all parts, cheapest checks first."""
        self._config, self._derived = config, derived
        self.log = Log(config.daemon.log_level)
        self._closing: list[Callable[[], object]] = []
        self._moving: Waiting | None = None  # for the move to begin
        self._held = False  # a thread still uses the device: it cannot be closed
        self._target_noted = (0, "")
        self._wake_r, self._wake_w = -1, -1
        self._watch_fd: int | None = None
        try:
            self._open(open_device)
        except BaseException:
            self._close()
            raise

    def _open(self, open_device: OpenDevice) -> None:
        config = self._config
        self.control = ControlSocket(config, self.log)
        self._closing.append(self.control.close)
        self._listen()
        self.telemetry = Telemetry()
        if config.daemon.metrics_endpoint:
            self.telemetry.start(*parse_host_port(config.daemon.metrics_endpoint, "metrics"))
            self._closing.append(self.telemetry.stop)
        if config.daemon.nixl:
            nixl.prepare()  # refused now, if at all
        if config.rdma.enabled:
            self._open_rdma()
        check_secrets(config, self.runtime_dir)
        self.device = with_archive(open_device, config, self._derived, self.runtime_dir, self.log)
        if config.daemon.isolate:
            set_alone(config.daemon.cpu)
        self.drain = Drain(self.device, config.daemon.drain_timeout_ns, self.log)
        self._closing.append(self._close_device)
        if self.device.warning():
            self.log.warning("storage", warning=self.device.warning())
        self.recorder = self._open_recorder()
        self.deletes = held_answers(config, self.device, self.control.send, self.log)
        self._wake_r, self._wake_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._open_hosts()
        self.telemetry.show(metrics_tokens(config, self.runtime_dir, self.hosts))
        if config.pod.map:
            self._join()
        for note in unused(config):  # of a daemon that starts: one that cannot says why alone
            self.log.warning(note.code.replace("-", "_"), what=note.what)

    def _listen(self) -> None:
        """Claim the endpoint and the runtime directory before any other process can."""
        config = self._config
        directory = config.daemon.runtime_dir
        if "*" in config.daemon.endpoint:  # the port, and so the directory, is known once bound
            self.endpoint = self.control.listen()
        self.runtime_dir = (
            Path(directory)
            if directory
            else p.default_runtime_dir(getattr(self, "endpoint", config.daemon.endpoint))
        )
        lock = hold_runtime_dir(self.runtime_dir, shared=shared(config))
        self._closing.append(lambda: os.close(lock))
        if "*" not in config.daemon.endpoint:
            self.endpoint = self.control.listen()
        self.control.open(self.runtime_dir)

    def _open_recorder(self) -> Recorder | None:
        config = self._config
        if not config.daemon.record_dir:
            return None
        recorder = Recorder(
            Path(config.daemon.record_dir),
            self.device,
            self.log,
            {
                "device": config.model.device,
                "dilation": config.model.dilation,
                "header_bytes": config.storage.lba_bytes,  # of a segment, before its records
            },
        )
        self._closing.append(recorder.close)
        return recorder

    def _open_hosts(self) -> None:
        """Create the service and the registry of hosts."""
        config = self._config
        self.connects = Connects(self.device, self._wake)
        self._closing.append(self._close_connects)
        hosts = Hosts(
            self.connects,
            self._add_tenants(),
            operator_secret(self.runtime_dir, config.daemon.operator_secret_file),
            4 * (sum(self._derived.port_counts) + len(config.tenants)) + 12,
            self.log,
        )
        memory = self.device.memory()  # now that the tenants have theirs
        log = self.log.warning if memory.warning else self.log.info
        log("memory", **msgspec.structs.asdict(memory))
        self.hosts, hosts.fabric_key = hosts, self.control.fabric_key
        self.control.gate.whose = hosts.whose
        self.attachments = Attachments(self.runtime_dir, self.control, config, self.log)
        self._closing.append(self.attachments.close)
        self.service = Service(
            config,
            self._derived,
            self.device,
            hosts,
            self.attachments,
            self.connects,
            self.drain,
            self.log,
        )
        service = self.service
        used = service.ports, service.quotas, self.drain, self.device, service.leave
        volumes = Volumes(config, hosts, *used)
        self.attachments.serve_volumes(volumes.open, volumes.own)
        if config.nvme.listen:
            self._closing.append(volumes.listen(self.runtime_dir, self.log).close)
        self.moves = Moves(
            config, self.device, list(hosts.tenants.values()), self.log, self.runtime_dir
        )
        self._closing.append(self.moves.close)

    def _join(self) -> None:
        """Join its pod; no host is served before."""
        self.service.pod = PodMember(
            self._config,
            self.endpoint,
            self.runtime_dir,
            self.device,
            self.hosts,
            self.service.leave,
            self._wake,
            self.log,
        )
        self._closing.append(self.service.pod.close)
        self.service.pod.join()

    def _open_rdma(self) -> None:
        rdma, where = self._config.rdma, self._config.file or "rdma"
        verbs.check_memlock(self._config.arena.size_bytes, where)
        adapter = verbs.prepare(
            verbs.Rdma(rdma.device, rdma.port, rdma.gid_index, rdma.mtu_bytes), where
        )
        self.log.info("rdma", **asdict(adapter))

    def _add_tenants(self) -> list[TenantState]:
        tenants = []
        derived = self._derived
        for tenant, slots, sessions, ports, dirty in zip(
            self._config.tenants,
            derived.slot_counts,
            derived.session_counts,
            derived.port_counts,
            derived.dirty_counts,
            strict=True,
        ):
            beside = secrets_beside(self._config.storage)
            secret, generated = tenant_secret(tenant, beside, self.runtime_dir)
            if generated:
                publish_secret(self.runtime_dir, tenant.name, secret)
            key = index_key(secret, tenant.sharing)
            index = self.device.tenant_add(key, slots, tenant.weight)
            tenants.append(
                TenantState(
                    tenant.name,
                    index,
                    secret,
                    slots,
                    sessions,
                    ports,
                    dirty,
                    tenant.secret_file,
                    tenant.sharing,
                )
            )
            give(self.device, tenants[-1], tenant)
        for event, count in self.device.values_unserved().items():
            if count > 0:
                self.log.info(event, count=count)
        return tenants

    def ready(self) -> dict[str, str | int]:
        """The fields of the ready line."""
        return {
            "event": "ready",
            "endpoint": self.endpoint,
            "metrics_port": self.telemetry.port,
            "runtime_dir": str(self.runtime_dir),
            "storage": self.device.storage_name(),
            "pid": os.getpid(),
        }

    def run(self, ready_fd: int | None = None, watch_fd: int | None = None) -> int:
        """Report ready, serve until a signal, drain, close. Returns the exit code.

        When the other end of `watch_fd` is closed, that counts as the signal: a parent that starts
        the daemon for itself keeps that end open, and the kernel closes it when the parent dies."""
        self._watch_fd = watch_fd
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(self._wake_w)
        try:
            self._announce(ready_fd)
            while self._turn():
                pass
        finally:
            signal.set_wakeup_fd(-1)
            self._close()
        self.log.info("stopped")
        return 1 if self._held or self.drain.stuck or self.drain.lost else 0

    def _announce(self, ready_fd: int | None) -> None:
        say_ready(json.dumps(self.ready()) + "\n", ready_fd, self._watch_fd)
        self.log.info("ready", **{k: v for k, v in self.ready().items() if k != "event"})
        where = ["--endpoint", self.endpoint, "--runtime-dir", str(self.runtime_dir.absolute())]
        self.log.tell("next, in another terminal:")
        self.log.tell(f"  {shlex.join(['offstage', 'dpu', 'status', *where])}")
        self._next_tick_s = 0.0

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.drain.signalled()

    def _turn(self) -> bool:
        """One turn of the loop; False when the daemon is to stop."""
        processes = self.hosts.by_pidfd()
        ready = self.control.poll(
            self._pause_s(),
            [
                self._wake_r,
                *([] if self._watch_fd is None else [self._watch_fd]),
                *self.attachments.filenos(),
                *processes,
            ],
        )
        if self._wake_r in ready:
            os.read(self._wake_r, 4096)
        if self._watch_fd in ready:
            self._watch()
        for handed in self.attachments.serve(ready):
            self.hosts.took(handed)
        for ticket in self.attachments.left():
            self.service.leave(self.hosts.find(ticket), "left")
        for pidfd, host in processes.items():  # a new one may reuse a number in `ready`
            if pidfd in ready:
                self.service.leave(host, "process gone")
        self._take_messages()
        if self.recorder is not None:
            self.recorder.drain()
        self._answer_move()
        self._answer_connects()
        self.deletes.turn()
        if self.service.pod is not None:
            self.service.pod.turn()
        now_s = time.monotonic()
        if now_s >= self._next_tick_s:
            self._next_tick_s = now_s + TICK_S
            self._tick()
        if self.drain.cuts_hosts(now_s):
            self._cut_hosts()
        for waiting, reply in self.drain.turn(now_s):
            self._answer(waiting, reply)
        return self.drain.state is not State.STOPPED

    def _watch(self) -> None:
        """The watched descriptor is readable: bytes are ignored, its end counts as SIGTERM."""
        assert self._watch_fd is not None
        try:
            if os.read(self._watch_fd, 4096):
                return
        except OSError as error:
            self.log.warning("watch_failed", error=str(error))
        self._watch_fd = None
        self._on_signal(signal.SIGTERM, None)
        self.log.info("starter_gone")

    def _pause_s(self) -> float:
        pod = self.service.pod
        if self.drain.pending or self.moves.beginning or (pod and pod.deleting):
            return DRAIN_S
        return self.deletes.pause_s(RECORD_S if self.recorder is not None else TICK_S)

    def _tick(self) -> None:
        for host in self.hosts.silent(self._config.daemon.host_timeout_ns / 1e9):
            self.service.leave(host, "silent")
        self.hosts.note_unproved()
        self.attachments.expire()
        self.control.note_disconnects()
        self.control.note_keys()
        self.hosts.note_secrets()
        if self.recorder is not None:
            self.recorder.check_lost()
        try:
            self.moves.tick()
            tenants = {
                one.name: self.device.ledger(one.index) for one in self.hosts.tenants.values()
            }
            status = self.service.worn(self.device.status())
            self._note_target(status)
            self.telemetry.set(
                Snapshot(
                    tenants=tenants,
                    shares=self.service.quotas.look(),
                    status=status,
                    stages=self.device.stages(),
                    daemon=self.service.counts(),
                )
            )
        except OffstageError as error:
            self.log.error("reactor_silent", error=str(error))

    def _note_target(self, status: DeviceReport) -> None:
        """A target of ours died: once for each time it was started again, and once for good."""
        noted = status.target_restarts or 0, status.target_down or ""
        if noted != self._target_noted:
            self._target_noted = noted
            level = self.log.error if noted[1] else self.log.warning
            level("target_restarted", restarts=noted[0], down=noted[1])

    def _take_messages(self) -> None:
        for _ in range(MESSAGES_MAX):
            frames = self.control.receive()
            if frames is None:
                return
            self.hosts.counts["messages"] += 1
            self._take(frames)

    def _take(self, frames: list[bytes]) -> None:
        """Handle one message: a malformed one is counted, answered with an error if possible."""
        try:
            if len(frames) != 3:
                raise BadInput(
                    f"{len(frames) - 1} frames instead of two",
                    "control message",
                    "send [ticket][message]",
                )
            if len(frames[2]) > self._config.limits.message_bytes:
                raise BadInput(
                    f"a message of {len(frames[2])} B",
                    "control message",
                    "raise limits.message or send smaller messages",
                )
            request = p.decode_request(frames[2])
        except BadInput as error:
            self.hosts.counts["messages_bad"] += 1
            self.log.warning("message_bad", error=str(error))
            bad = p.Error(code="bad_message", what=error.what, where=error.where, fix=error.fix)
            self.control.send(frames[0], bad)
            return
        self.log.debug("request", request=type(request).__name__)
        try:
            self._handle(frames, request)
        except Exception as error:
            refused = self.service.failed(type(request), error)
            self._answer(Waiting(frames[0], request.id), refused)

    def _handle(self, frames: list[bytes], request: p.Request) -> None:
        """Raises the errors that the requester gets."""
        if not isinstance(request, p.Connect | p.Drain | p.StorageMove):
            done = self.service.answer(frames[1], request, frames[0], self.control.peer)
            self.deletes.answer(done.deleted, frames[0], done.reply)
            return
        host = self.service.admit(frames[1], request)
        waiting = Waiting(frames[0], request.id)
        if isinstance(request, p.Connect):
            self.service.begin_connect(host, request, waiting)
        elif isinstance(request, p.Drain):
            self.drain.ask(waiting, request.timeout_ns)
        else:
            self.moves.begin(request.changes)
            self._moving = waiting

    def _answer(self, waiting: Waiting, reply: p.Reply) -> None:
        """Send the deferred reply to an earlier call."""
        reply.id = waiting.number
        self.control.send(waiting.route, reply)

    def _answer_move(self) -> None:
        """The requested move has begun, or the firmware refused it."""
        if self._moving is None:
            return
        try:
            if not self.moves.begun():
                return
            reply: p.Reply = p.Ok()
        except Exception as error:
            reply = self.service.failed(p.StorageMove, error)
        self._answer(self._moving, reply)
        self._moving = None

    def _answer_connects(self) -> None:
        for one in self.connects.ended():
            failed = one.error and self.service.failed(p.Connect, one.error)
            self._answer(one.waiting, failed or p.Ok())

    def _wake(self) -> None:
        """From any thread: wake the loop. If the pipe is full, it is already awake."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_w, b"w")

    def _close_connects(self) -> None:
        try:
            self.connects.close()
        except OffstageError:
            self._held = True
            raise

    def _close_device(self) -> None:
        if not (self._held or self.drain.stuck):
            self.device.close(drain=False)

    def _cut_hosts(self) -> None:
        if not (self._held or self.drain.stuck):
            for host in self.hosts.all():
                self.service.leave(host, "left")

    def _close(self) -> None:
        """Close in the reverse order; a failure does not prevent closing the rest."""
        if hasattr(self, "service"):
            self._cut_hosts()
        while self._closing:
            close = self._closing.pop()
            try:
                close()
            except (OffstageError, OSError, zmq.ZMQError) as error:
                self.log.error("close_failed", error=str(error))
        for fd in (self._wake_r, self._wake_w):
            if fd >= 0:
                os.close(fd)
        self._wake_r = self._wake_w = -1
