"""Controllers of NVMe over Fabrics: who has connected, proved itself, and may use which queue.

Commands on values never come here: the firmware has them as soon as a queue is admitted. Everything
else does, from hosts that may send anything. One thread, the listener's; pure but for random
numbers.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from offstage.bindings.nvme_tcp import CHUNK_BYTES, DEPTH, FINAL, Asked
from offstage.dpu.nvme import admin, identify
from offstage.dpu.nvme.admin import Controller, Refusal, Subsystem
from offstage.dpu.nvme.dhchap import Authentication

__all__ = ["Controllers", "Target"]

FABRICS = 0x7F
PROPERTY_SET, CONNECT, PROPERTY_GET, AUTH_SEND, AUTH_RECEIVE = 0x00, 0x01, 0x04, 0x05, 0x06
CONNECT_BYTES, DYNAMIC, CNTLID_MAX, CONTROLLERS_MAX = 1024, 0xFFFF, 0xFFEF, 64
AUTHENTICATION_REQUIRED, ATR = 0x191, 1 << 17
BUSY, PARAMETERS, FORMAT, HOST = 0x181, 0x182, 0x180, 0x184
SEQUENCE, FIELD, OPCODE = 0x0C, 0x02, 0x01
CAP, VS, CC, CSTS = 0x00, 0x08, 0x14, 0x1C
SECURITY = bytes([1, 1, 0xE9])  # of a message of authentication: SPSP0, SPSP1, SECP
NQN_BYTES_MAX = 223


class Target(Protocol):
    """How commands are answered: `bindings.nvme_tcp.NvmeTarget`."""

    def answer(self, ticket: int, status: int, result: int = 0, data: bytes = b"") -> None: ...

    def admit(self, connection: int, tenant: int = -1) -> None: ...

    def hang_up(self, connection: int) -> None: ...


@dataclass
class _Queue:
    """A connection that has sent a Connect that was accepted. `auth` None: it needs no proof."""

    connection: int
    number: int
    controller: Controller
    auth: Authentication | None
    admitted: bool = False


@dataclass
class Controllers:
    """All controllers of a listener. `subsystems` by their NQN; `address` and `port` are said in
    the discovery log; `note` is called with an event and its fields."""

    target: Target
    subsystems: dict[str, Subsystem]
    address: str
    port: int
    note: Callable[..., None]
    _queues: dict[int, _Queue] = field(default_factory=dict)
    _controllers: dict[int, Controller] = field(default_factory=dict)
    _last: int = 0

    def take(self, asked: Asked, now_s: float) -> None:
        """One ask of the target."""
        queue = self._queues.get(asked.connection)
        if not asked.ticket:
            self._closed(asked, queue)
            return
        try:
            status, (result, data) = 0, self._carry_out(queue, asked, now_s)
        except Refusal as refusal:
            status, result, data = refusal.status | FINAL, refusal.result, b""
        except (struct.error, IndexError):
            status, result, data = FIELD | FINAL, 0, b""
        if result != admin.HELD:
            self.target.answer(asked.ticket, status, result, data[: asked.room])
        queue = self._queues.get(asked.connection)
        if queue is not None:
            self._let_in(queue)

    def expire(self, now_s: float) -> None:
        """End what has kept silent for longer than it said it would."""
        for one in list(self._controllers.values()):
            if one.keep_alive_s and now_s - one.heard_s > one.keep_alive_s + 1:
                self.note("nvme_host_silent", host=one.host)
                self._end(one)

    def counts(self) -> tuple[int, int]:
        """Controllers, and queues."""
        return len(self._controllers), len(self._queues)

    # ---- what becomes of connections ----

    def _closed(self, asked: Asked, queue: _Queue | None) -> None:
        if queue is None:
            return
        del self._queues[queue.connection]
        if queue.number == 0:
            self._end(queue.controller)

    def _end(self, controller: Controller) -> None:
        """With its admin queue a controller ends, and all its queues."""
        self._controllers.pop(controller.cntlid, None)
        self.note("nvme_host_out", host=controller.host)
        for one in [q for q in self._queues.values() if q.controller is controller]:
            del self._queues[one.connection]
            self.target.hang_up(one.connection)

    def _let_in(self, queue: _Queue) -> None:
        """Once it has proved itself, which who asks for the discovery log cannot; a queue for I/O
        belongs to the firmware from then on."""
        if queue.admitted or queue.auth is None or not queue.auth.proved:
            return
        queue.admitted = True
        tenant = queue.controller.subsystem
        number = tenant.number if queue.number and tenant is not None else -1
        self.target.admit(queue.connection, number)
        if not queue.number:
            self.note("nvme_host_in", host=queue.controller.host)

    # ---- commands ----

    def _carry_out(self, queue: _Queue | None, asked: Asked, now_s: float) -> tuple[int, bytes]:
        fabrics = asked.sqe[0] == FABRICS
        kind = asked.sqe[4] if fabrics else -1
        if queue is None:
            if kind != CONNECT:
                raise Refusal(SEQUENCE)
            return self._connect(asked, now_s)
        queue.controller.heard_s = now_s
        if kind == CONNECT:
            raise Refusal(SEQUENCE)
        if kind in (AUTH_SEND, AUTH_RECEIVE):
            return self._authenticate(queue, asked, kind)
        if queue.auth is not None and not queue.auth.proved:
            raise Refusal(AUTHENTICATION_REQUIRED)
        if queue.number:
            raise Refusal(OPCODE)
        if kind == PROPERTY_GET:
            return self._property(queue.controller, asked.sqe), b""
        if kind == PROPERTY_SET:
            self._set_property(queue.controller, asked.sqe)
            return 0, b""
        if fabrics:
            raise Refusal(OPCODE)
        names = [one.nqn for one in self.subsystems.values()]
        log = identify.discovery_log(names, self.address, self.port)
        return admin.carry_out(queue.controller, asked, log)

    def _connect(self, asked: Asked, now_s: float) -> tuple[int, bytes]:
        record, number, size = struct.unpack_from("<HHH", asked.sqe, 40)
        (keep_alive_ms,) = struct.unpack_from("<I", asked.sqe, 48)
        data = asked.data
        if record or len(data) != CONNECT_BYTES:
            raise Refusal(FORMAT)
        cntlid = int.from_bytes(data[16:18], "little")
        subsystem, host = _name(data[256:512]), _name(data[512:768])
        if not 1 <= size < DEPTH:
            raise Refusal(PARAMETERS, 44)
        if not host:
            raise Refusal(HOST)
        if subsystem != identify.DISCOVERY_NQN and subsystem not in self.subsystems:
            raise Refusal(PARAMETERS, 256 | 1 << 16)
        identity = host, data[:16], subsystem
        if number == 0:
            controller = self._make(identity, cntlid, keep_alive_ms, now_s)
        else:
            controller = self._find(identity, cntlid, number)
        tenant = controller.subsystem
        auth = None if tenant is None else Authentication(tenant.key, host, subsystem)
        self._queues[asked.connection] = _Queue(asked.connection, number, controller, auth)
        return controller.cntlid | (ATR if auth else 0), b""

    def _make(
        self, identity: tuple[str, bytes, str], cntlid: int, keep_alive_ms: int, now_s: float
    ) -> Controller:
        if cntlid != DYNAMIC:
            raise Refusal(PARAMETERS, 16 | 1 << 16)
        if len(self._controllers) >= CONTROLLERS_MAX:
            raise Refusal(BUSY)
        while True:
            self._last = self._last % CNTLID_MAX + 1
            if self._last not in self._controllers:
                break
        made = Controller(
            self._last, identity, self.subsystems.get(identity[2]), keep_alive_ms / 1e3, now_s
        )
        self._controllers[made.cntlid] = made
        return made

    def _find(self, identity: tuple[str, bytes, str], cntlid: int, number: int) -> Controller:
        """Only for the host that has it, which has proved itself on its admin queue."""
        found = self._controllers.get(cntlid)
        queues = [q for q in self._queues.values() if q.controller is found]
        if found is None or found.identity != identity or found.subsystem is None:
            raise Refusal(PARAMETERS, 16 | 1 << 16)
        if not any(q.number == 0 and q.admitted for q in queues) or not found.enabled:
            raise Refusal(PARAMETERS, 16 | 1 << 16)
        if number > identify.QUEUES_MAX or any(q.number == number for q in queues):
            raise Refusal(PARAMETERS, 42)
        return found

    def _authenticate(self, queue: _Queue, asked: Asked, kind: int) -> tuple[int, bytes]:
        if queue.auth is None or asked.sqe[41:44] != SECURITY:
            raise Refusal(FIELD)
        if kind == AUTH_SEND:
            queue.auth.take(asked.data)
            if queue.auth.refused:
                self.note("nvme_host_refused", host=queue.controller.host)
            return 0, b""
        answer = queue.auth.give()
        if not answer:
            raise Refusal(SEQUENCE)
        if len(answer) > asked.room:
            raise Refusal(FIELD)
        return 0, answer.ljust(min(asked.room, CHUNK_BYTES), b"\0")

    def _property(self, controller: Controller, sqe: bytes) -> int:
        (offset,) = struct.unpack_from("<I", sqe, 44)
        values = {
            CAP: identify.capabilities(controller.subsystem is None),
            VS: identify.VERSION,
            CC: controller.configuration,
            CSTS: controller.status,
        }
        if offset not in values or bool(sqe[40] & 1) != (offset == CAP):
            raise Refusal(FIELD)
        return values[offset]

    def _set_property(self, controller: Controller, sqe: bytes) -> None:
        offset, value = struct.unpack_from("<IQ", sqe, 44)
        if offset != CC or sqe[40] & 1:
            raise Refusal(FIELD)
        controller.configuration = value & 0xFFFFFFFF


def _name(field_: bytes) -> str:
    """An NQN of a Connect; "": it is none."""
    text, end, _ = field_.partition(b"\0")
    try:
        name = text.decode("utf-8")
    except UnicodeDecodeError:
        return ""
    return name if end and name.startswith("nqn.") and len(text) <= NQN_BYTES_MAX else ""
