"""Parts of the plain model of the decision core: keys, slots, candidates, tenants, sessions.

To be read together with `ofs_core.h`; not optimized: lists, dicts and `sorted`.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from core_model_calibrate import Calibration

from offstage.bindings.core import CoreConfig, Policy, SessionConfig

M64 = (1 << 64) - 1
NONE = (1 << 32) - 1
Key = tuple[int, int]

READ, PUBLISH, RETRACT, COMPLETE = 1, 2, 3, 4
DEMAND, WRITE, WINDOW = 1, 2, 3
RETAINED, SHARED, LATE, COLD, CAPACITY, POLICY = 4, 3, 5, 6, 7, 8
END_OF_CAUSE = [4, 4, 4, 0, 1, 2, 3, 1]
USED, FATE_LATE, UNUSED, DROPPED, CANCELLED = range(5)
EAGAIN, ENOENT, ECANCELED, ETIMEDOUT = 11, 2, 125, 110
LOST = (-74, -5, -2)  # EBADMSG, EIO, ENOENT

# type io tenant chunk layer slot generation cause waiter index rc session deadline key
Action = tuple[int, ...]


def _rotate(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (64 - bits))) & M64


def siphash128(secret: Key, data: bytes) -> Key:
    """SipHash-2-4 with 128-bit output (Aumasson, Bernstein 2012)."""
    low, high = secret
    v = [
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D ^ 0xEE,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    ]

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & M64
            v[2] = (v[2] + v[3]) & M64
            v[1] = _rotate(v[1], 13) ^ v[0]
            v[3] = _rotate(v[3], 16) ^ v[2]
            v[0] = _rotate(v[0], 32)
            v[2] = (v[2] + v[1]) & M64
            v[0] = (v[0] + v[3]) & M64
            v[1] = _rotate(v[1], 17) ^ v[2]
            v[3] = _rotate(v[3], 21) ^ v[0]
            v[2] = _rotate(v[2], 32)

    whole = len(data) - len(data) % 8
    words = [int.from_bytes(data[i : i + 8], "little") for i in range(0, whole, 8)]
    words.append(int.from_bytes(data[whole:], "little") | (len(data) & 0xFF) << 56)
    for word in words:
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return first, v[0] ^ v[1] ^ v[2] ^ v[3]


def pack(*words: int) -> bytes:
    """Pack 64-bit words, little-endian."""
    return b"".join(word.to_bytes(8, "little") for word in words)


@dataclass
class Chunk:
    """One chunk; `stored` (layers) is kept at its home."""

    number: int
    key: Key
    tenant: int
    home: "Chunk | None" = None  # None: itself
    sessions: dict[int, int] = field(default_factory=dict)  # session -> ordinal
    privates: int = 0  # private chunks that read from it
    stored: set[int] = field(default_factory=set)

    @property
    def store(self) -> "Chunk":
        return self.home or self


@dataclass(eq=False)
class Slot:
    """One slot of a tenant; `block` is (chunk number, layer) while it holds or awaits one."""

    tenant: int
    number: int
    state: str = "free"  # free pending reading resident quarantined
    generation: int = 0
    chunk: Chunk | None = None
    layer: int = 0
    cause: int = 0
    fresh: bool = False
    dirty: bool = False
    prefetch: bool = False
    pins: int = 0
    score: int = 0
    lift: tuple[int, int] | None = None  # session whose guess scores it, and the score
    hinted: bool = False  # prefetched on a guess of the host
    frequency: int = 0
    queue: str = ""  # if its eviction order has several
    times: list[int] = field(default_factory=list)  # of its last two uses: lru_k
    staged_by: int = 0
    used_by: int = 0
    users: set[int] = field(default_factory=set)
    arrived_ns: int = 0
    waiters: list["Waiter"] = field(default_factory=list)
    generating: bool = False

    @property
    def held(self) -> bool:
        return self.pins > 0 or self.dirty

    @property
    def block(self) -> tuple[int, int]:
        assert self.chunk is not None
        return self.chunk.number, self.layer


@dataclass
class Waiter:
    """One demand that waits for a read."""

    session: int
    waiter: int
    index: int
    need_ns: int
    late: bool


@dataclass
class Candidate:
    """One guess in the queue."""

    deadline_ns: int
    probability: int
    sequence: int
    chunk: Chunk
    layer: int
    session: int
    stamp: int  # of the layer, up to which it is good
    cause: int
    hinted: bool = False

    @property
    def order(self) -> tuple[int, int, int]:
        return self.deadline_ns, -self.probability, self.sequence


@dataclass
class Tenant:
    secret: Key
    slot_count: int
    stride: int
    slots: list[Slot]
    free: list[int]
    shadow: "OrderedDict[tuple[int, int], None]" = field(default_factory=OrderedDict)
    turn: int = 0
    queue: list[Candidate] = field(default_factory=list)
    degree: int = 0
    margin_ns: int = 0
    ended: list[int] = field(default_factory=lambda: [0, 0, 0])  # used, late, unused
    ledger: dict[str, Any] = field(default_factory=dict)


@dataclass
class Session:
    config: SessionConfig
    serial: int
    shared: bool
    opened: int
    layers: int
    step_ns: int = 0
    layer_ns: int = 0
    generating: bool = False
    chunks: list[Chunk] = field(default_factory=list)
    pins: list[tuple[Slot, int]] = field(default_factory=list)
    step: int | None = None
    step_begin_ns: int = 0
    lease_ns: int = 0
    averages: list[list[int]] = field(default_factory=list)  # by layer, ordinal
    known: list[int] = field(default_factory=list)
    stamps: list[int] = field(default_factory=list)
    last_steps: list[int | None] = field(default_factory=list)  # the step each layer ran last
    chosen: list[set[int]] = field(default_factory=list)
    overlap: list[int] = field(default_factory=list)
    last_demands: list[list[int]] = field(default_factory=list)
    calibrations: list[Calibration] = field(default_factory=list)
    windowed: list[int] = field(default_factory=list)

    def nontrivial(self, ordinal: int) -> bool:
        """Neither a sink nor in the window at the end of the context."""
        first = len(self.chunks) - self.config.window_blocks
        return self.config.sink_blocks <= ordinal < first


def empty_ledger() -> dict[str, Any]:
    names = (
        "steps selected demands nontrivial demand_bytes_read prefetch_bytes_read shadow_misses "
        "shadow_nontrivial_misses pollution evictions evictions_generating shared_chunks "
        "appended_chunks io_errors leases_expired busy records_lost log_bytes_lost hint_bytes "
        "demand_bytes_wanted demand_bytes_spared"
    ).split()
    return {name: 0 for name in names} | {
        "ends": [0] * 9,
        "nontrivial_ends": [0] * 9,
        "fates": [[0] * 5 for _ in range(8)],
        "issued": [0] * 8,
        "lead_ns_log2": [0] * 64,
        "late_ns_log2": [0] * 64,
    }


class State:
    """The tables, and the calls between the files of the model."""

    config: CoreConfig
    policy: Policy
    now: int
    event: int
    tenants: list[Tenant]
    sessions: dict[int, Session]
    slot_of: dict[tuple[int, int], Slot]
    gone: dict[tuple[int, int], int]
    polluted: set[tuple[int, int]]
    free_ios: list[int]
    ios: dict[int, Slot]
    pending: list[Slot]
    leases: list[int]
    orders: dict[tuple[int, bool], Any]
    done: list[Action]
    order: Any
    take: Any
    assign: Any
    read: Any
    _enter: Any
    _is_generating: Any
    _chunk_maybe_free: Any
    _unstore: Any
    _used: Any
