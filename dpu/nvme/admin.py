"""Commands of an admin queue, of a host that has proved itself or asks for the discovery log."""

import struct
from dataclasses import dataclass, field

from offstage.bindings.nvme_tcp import CHUNK_BYTES, Asked
from offstage.dpu.nvme import identify
from offstage.dpu.nvme.identify import KV, Volume

__all__ = ["HELD", "Controller", "Refusal", "Subsystem", "carry_out"]

HELD = -1
"""The result of a command that is not answered now."""
GET_LOG, IDENTIFY, ABORT, SET_FEATURES, GET_FEATURES, EVENT, KEEP_ALIVE = (
    0x02,
    0x06,
    0x08,
    0x09,
    0x0A,
    0x0C,
    0x18,
)
OPCODE, FIELD, NAMESPACE, LOG_PAGE, TOO_MANY_EVENTS, COMMAND_SET = (
    0x01,
    0x02,
    0x0B,
    0x109,
    0x105,
    0x12C,
)
QUEUES, EVENTS, TIMER, PROFILE = 0x07, 0x0B, 0x0F, 0x19
LOGS, ERRORS, HEALTH, SLOTS, EFFECTS, DISCOVERY = 0x00, 0x01, 0x02, 0x03, 0x05, 0x70
EVENTS_MAX = 4
PAGE_BYTES = 4096
SHUT, READY = 2 << 2, 1


class Refusal(Exception):
    """A command ends with `status` (type << 8 | code) and `result`."""

    def __init__(self, status: int, result: int = 0) -> None:
        super().__init__(status)
        self.status, self.result = status, result


@dataclass(frozen=True)
class Subsystem:
    """A tenant: its NQN, its hosts' key, its number at the target, and its namespaces."""

    nqn: str
    key: bytes
    number: int
    volumes: tuple[Volume, ...]


@dataclass
class Controller:
    """`identity`: host's NQN and identifier, subsystem's NQN; `subsystem` None: discovery.
    `keep_alive_s` 0: it may be silent."""

    cntlid: int
    identity: tuple[str, bytes, str]
    subsystem: Subsystem | None
    keep_alive_s: float
    heard_s: float
    configuration: int = 0
    events: int = 0
    features: dict[int, int] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The NQN of its host."""
        return self.identity[0]

    @property
    def enabled(self) -> bool:
        """Whether its host has enabled it, and not shut it down."""
        return bool(self.configuration & 1) and not self.configuration >> 14 & 3

    @property
    def status(self) -> int:
        """The property CSTS."""
        shut = SHUT if self.configuration >> 14 & 3 else 0
        return shut | (READY if self.configuration & 1 else 0)


def carry_out(controller: Controller, asked: Asked, discovery: bytes) -> tuple[int, bytes]:
    """Result and data of a command; HELD: none now. `discovery`: the log page of that."""
    opcode = asked.sqe[0]
    if opcode == IDENTIFY:
        return 0, _identify(controller, asked.sqe)
    if opcode == GET_LOG:
        return 0, _log(controller, asked, discovery)
    if opcode in (SET_FEATURES, GET_FEATURES):
        return _feature(controller, asked.sqe, opcode == SET_FEATURES), b""
    if opcode == KEEP_ALIVE:
        return 0, b""
    if opcode == ABORT:
        return 1, b""  # what was named is not aborted: commands end by themselves
    if opcode == EVENT:
        if controller.events == EVENTS_MAX:
            raise Refusal(TOO_MANY_EVENTS)
        controller.events += 1
        return HELD, b""
    raise Refusal(OPCODE)


def _volume(controller: Controller, number: int) -> Volume:
    volumes = controller.subsystem.volumes if controller.subsystem else ()
    if not 1 <= number <= len(volumes):
        raise Refusal(NAMESPACE)
    return volumes[number - 1]


def _identify(controller: Controller, sqe: bytes) -> bytes:
    what, command_set = sqe[40], sqe[47]
    (number,) = struct.unpack_from("<I", sqe, 4)
    volumes = controller.subsystem.volumes if controller.subsystem else ()
    discovery = controller.subsystem is None
    if what == 0x01:
        nqn = controller.identity[2]
        serial = nqn.rpartition(":")[2][:8]
        return identify.controller(controller.cntlid, nqn, serial, len(volumes), discovery)
    if discovery:
        raise Refusal(FIELD)
    if what == 0x02 or (what == 0x07 and command_set == KV):
        return identify.active(len(volumes), number)
    if what == 0x03:
        return identify.descriptors(_volume(controller, number))
    if what == 0x08:
        return identify.independent(_volume(controller, number))
    if what == 0x1C:
        return identify.combinations()
    if what in (0x05, 0x06) and command_set != KV:
        raise Refusal(COMMAND_SET)
    if what == 0x05:
        return identify.kv_namespace(_volume(controller, number))
    if what == 0x06:
        return bytes(PAGE_BYTES)
    if what == 0x00:
        return identify.block_namespace(_volume(controller, number))
    raise Refusal(FIELD)


def _log(controller: Controller, asked: Asked, discovery: bytes) -> bytes:
    sqe = asked.sqe
    low, high = struct.unpack_from("<HH", sqe, 42)
    (offset,) = struct.unpack_from("<Q", sqe, 48)
    length = 4 * ((high << 16 | low) + 1)
    pages = {LOGS: b"", ERRORS: bytes(64), HEALTH: bytes(512), SLOTS: bytes(512)}
    pages[EFFECTS] = identify.effects_log(sqe[59] == KV)
    if controller.subsystem is None:
        pages = {LOGS: b"", DISCOVERY: discovery}
    pages[LOGS] = identify.logs_log(tuple(pages))
    if sqe[40] not in pages:
        raise Refusal(LOG_PAGE)
    page = pages[sqe[40]]
    if offset % 4 or offset > len(page) or length > min(asked.room, CHUNK_BYTES):
        raise Refusal(FIELD)
    return page[offset : offset + length].ljust(length, b"\0")


def _feature(controller: Controller, sqe: bytes, set_it: bool) -> int:
    what, value = sqe[40], int.from_bytes(sqe[44:48], "little")
    if what == QUEUES and controller.subsystem is not None:
        most = identify.QUEUES_MAX - 1
        return most << 16 | most
    if what == TIMER:
        if set_it:
            controller.keep_alive_s = value / 1e3
        return int(controller.keep_alive_s * 1e3)
    if what == EVENTS:
        if set_it:
            controller.features[what] = value
        return controller.features.get(what, 0)
    if what == PROFILE and not (set_it and value):
        return 0
    raise Refusal(FIELD)
