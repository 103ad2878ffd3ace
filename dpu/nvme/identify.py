"""What a controller says of itself and its namespaces, as the bytes of NVM Express.

Base 2.0, figures 275 (controller), 280 (namespace), 264 (discovery log); Key Value Command Set 1.0,
figures 39 and 41. Numbers are little-endian; what is not named is zero.
"""

import struct
from dataclasses import dataclass

from offstage.bindings.nvme_tcp import DEPTH, IN_CAPSULE_BYTES, VALUE_BYTES_MAX

__all__ = [
    "DISCOVERY_NQN",
    "KV",
    "QUEUES_MAX",
    "VERSION",
    "Volume",
    "active",
    "block_namespace",
    "capabilities",
    "combinations",
    "controller",
    "descriptors",
    "discovery_log",
    "effects_log",
    "independent",
    "kv_namespace",
    "logs_log",
]

DISCOVERY_NQN = "nqn.2014-08.org.nvmexpress.discovery"
PAGE_BYTES = 4096
KV = 1  # the command set's identifier
VERSION = 2 << 16  # 2.0
QUEUES_MAX = 8  # for I/O, of one controller
TIMEOUT_500MS = 20
EVENTS_MAX = 4  # asynchronous event requests of a controller
KEEP_ALIVE_100MS = 10  # granularity of the keep-alive timer
KEY_BYTES_MAX = 16
SGLS = 1 | 1 << 20  # SGLs, and offsets in capsules
IO_CONTROLLER, DISCOVERY_CONTROLLER = 1, 2
TCP, IPV4, IPV6, NVM_SUBSYSTEM = 3, 1, 2, 2


@dataclass(frozen=True)
class Volume:
    """A namespace: `nguid` 16 bytes; `size_bytes` of the store; `value_bytes_max` of the
    daemon: over NVMe/TCP a value is no longer than a transfer."""

    nguid: bytes
    durable: bool
    size_bytes: int
    value_bytes_max: int


def _page(size: int, *fields: tuple[int, bytes]) -> bytes:
    page = bytearray(size)
    for at, value in fields:
        page[at : at + len(value)] = value
    return bytes(page)


def _text(text: str, size: int, fill: bytes = b" ") -> bytes:
    return text.encode("ascii", "replace")[:size].ljust(size, fill)


def _u16(value: int) -> bytes:
    return struct.pack("<H", value)


def _u32(value: int) -> bytes:
    return struct.pack("<I", value)


def capabilities(discovery: bool) -> int:
    """The property CAP: queues are contiguous, and their sets of commands those that Identify
    lists; a discovery controller has none but the common ones."""
    sets = 1 << 37 if discovery else 1 << 43
    return (DEPTH - 1) | 1 << 16 | TIMEOUT_500MS << 24 | sets


def controller(cntlid: int, subsystem: str, serial: str, volumes: int, discovery: bool) -> bytes:
    """CNS 01h."""
    transfer = (VALUE_BYTES_MAX // PAGE_BYTES).bit_length() - 1
    kind = DISCOVERY_CONTROLLER if discovery else IO_CONTROLLER
    return _page(
        PAGE_BYTES,
        (4, _text(serial, 20)),
        (24, _text("Offstage", 40)),
        (64, _text("1", 8)),
        (76, bytes([0x2])),  # several controllers of one subsystem
        (77, bytes([0 if discovery else transfer])),
        (78, _u16(cntlid)),
        (80, _u32(VERSION)),
        (96, _u32(1)),  # host identifiers of 128 bits
        (111, bytes([kind])),
        (258, bytes([0, EVENTS_MAX - 1])),
        (261, bytes([0x6])),  # log pages: effects, and offsets
        (320, _u16(KEEP_ALIVE_100MS)),
        (512, bytes([0x66, 0x44])),
        (514, _u16(DEPTH)),
        (516, _u32(volumes)),
        (536, _u32(SGLS)),
        (768, _text(subsystem, 256, b"\0")),
        (1792, _u32((64 + IN_CAPSULE_BYTES) // 16)),
        (1796, _u32(1)),
        (1803, bytes([1])),
    )


def active(count: int, after: int) -> bytes:
    """CNS 02h and 07h: the namespaces above `after`, of `count`."""
    numbers = range(after + 1, count + 1)[: PAGE_BYTES // 4]
    return _page(PAGE_BYTES, (0, b"".join(_u32(one) for one in numbers)))


def descriptors(volume: Volume) -> bytes:
    """CNS 03h: NGUID and command set."""
    return _page(PAGE_BYTES, (0, bytes([2, 16, 0, 0]) + volume.nguid + bytes([4, 1, 0, 0, KV])))


def block_namespace(volume: Volume) -> bytes:
    """CNS 00h, which initiators ask of every namespace: its size in blocks that no command reads,
    and its NGUID."""
    blocks = volume.size_bytes // PAGE_BYTES
    return _page(
        PAGE_BYTES,
        (0, struct.pack("<QQ", blocks, blocks)),
        (30, bytes([1])),
        (104, volume.nguid),
        (128, _u32((PAGE_BYTES.bit_length() - 1) << 16)),
    )


def kv_namespace(volume: Volume) -> bytes:
    """CNS 05h of the Key Value command set; it has one format."""
    return _page(
        PAGE_BYTES,
        (0, struct.pack("<Q", volume.size_bytes)),
        (26, bytes([1])),  # shared
        (48, volume.nguid),
        (72, struct.pack("<HxxI", KEY_BYTES_MAX, min(volume.value_bytes_max, VALUE_BYTES_MAX))),
    )


def independent(volume: Volume) -> bytes:
    """CNS 08h: shared, and ready."""
    return _page(PAGE_BYTES, (1, bytes([1])), (14, bytes([1])))


def combinations() -> bytes:
    """CNS 1Ch: Key Value alone."""
    return _page(PAGE_BYTES, (0, struct.pack("<Q", 1 << KV)))


def logs_log(pages: tuple[int, ...]) -> bytes:
    """Log page 00h: which there are."""
    return _page(1024, *((4 * one, _u32(1)) for one in pages))


def effects_log(kv: bool) -> bytes:
    """Log page 05h: commands of the admin queue, and, of this command set, those on values."""
    admin = (0x02, 0x06, 0x08, 0x09, 0x0A, 0x0C, 0x18)
    io = {0x01: 3, 0x02: 1, 0x06: 1, 0x10: 3, 0x14: 1} if kv else {}
    return _page(
        PAGE_BYTES,
        *((4 * one, _u32(1)) for one in admin),
        *((1024 + 4 * one, _u32(effects)) for one, effects in io.items()),
    )


def discovery_log(subsystems: list[str], address: str, port: int) -> bytes:
    """Log page 70h: each subsystem at the address that the host came to."""
    entries = [
        _page(
            1024,
            (0, bytes([TCP, IPV6 if ":" in address else IPV4, NVM_SUBSYSTEM, 2])),
            (4, _u16(1)),
            (6, _u16(0xFFFF)),
            (8, _u16(DEPTH)),
            (32, _text(str(port), 32)),
            (256, _text(one, 256, b"\0")),
            (512, _text(address, 256)),
        )
        for one in subsystems
    ]
    head = _page(1024, (0, struct.pack("<QQ", 1, len(entries))))
    return head + b"".join(entries)
