"""A fabric: moves blocks between a tier and this process, over any transport.

`Fabric` is the abstract class of every side: the driver over shared memory, RDMA and NIXL, messages
to a daemon, the members of a pod, a tier of this machine, and those of tests. A side must state the
size of a block, begin a fetch and begin a put; everything else has a default. The defaults suit a
side whose calls complete immediately, and which does not use scores, guesses, pins or registered
memory; other sides override them. A side whose calls complete later overrides `_advance`.

`tests/reference/smallest_fabric.py` is a complete side to start from.
"""

import errno
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput, OffstageError, RunFailed
from offstage.bindings.layouts import HIT_ENDS
from offstage.bindings.stages import StageTimes
from offstage.bindings.value_io import ValueIO

__all__ = [
    "UNKNOWN_END",
    "Call",
    "Fabric",
    "Fetch",
    "FetchRequest",
    "FetchResult",
    "Put",
    "PutRequest",
]

UNKNOWN_END = 255
"""In `FetchResult.ends`: the block did not come."""
WAIT_NS = 2_000_000_000
"""How long one look for what has ended may wait."""
U8 = NDArray[np.uint8]
U16 = NDArray[np.uint16]
U32 = NDArray[np.uint32]
I32 = NDArray[np.int32]
U64 = NDArray[np.uint64]


class FetchRequest(msgspec.Struct, frozen=True, eq=False):
    """The blocks that one layer of a session's step demands. No array may change before its end.

    A Struct and not a dataclass: the decode loop makes one for each call, several times faster.
    """

    session: int
    step: int
    layer: int
    ordinals: U32
    """[n]: which blocks of the layer."""
    keys: U64
    """[n, 2]: their names, (lo, hi)."""
    target: U8
    """[rows, at least payload bytes], contiguous."""
    target_index: U32 | None = None
    """[n]: the row of `target` that each lands in; None: row i."""
    selected_count: int | None = None
    """How many blocks the kernel reads, those of the HBM pool included; None: n."""
    scores: U16 | None = None
    """[blocks of the layer]: a hint for the tier; None: none."""
    timeout_ns: int = 2_000_000_000
    spare: U8 | None = None
    """[rows, as many bytes as `target` has], contiguous: further rows, numbered after those of
    `target`, in memory of their own; not of granules. The drivers and `zmq` take it."""
    granules: U32 | None = None
    """[n]: which of each block's granules, bit i the i-th; None: whole blocks. `target_index`, a
    row of `target` and the result's `checksums` are then of a granule, block after block."""

    @property
    def rows(self) -> U32:
        """`target_index`, or row i for each."""
        if self.target_index is not None:
            return self.target_index
        return np.arange(len(self.ordinals), dtype=np.uint32)

    def row(self, index: int) -> U8:
        """A row by its number, of `target` or of `spare`."""
        apart = index - len(self.target)
        found: U8 = self.target[index] if self.spare is None or apart < 0 else self.spare[apart]
        return found

    @property
    def resident(self) -> int:
        """How many of the selected blocks are not demanded."""
        count = len(self.ordinals)
        return 0 if self.selected_count is None else self.selected_count - count


class PutRequest(msgspec.Struct, frozen=True, eq=False):
    """Blocks of one layer to be written. No array may change before its end."""

    session: int
    layer: int
    ordinals: U32
    """[n]: which blocks of the layer."""
    source: U8
    """[n, length]: row i is block `ordinals[i]`."""
    length_bytes: int | None = None
    """Of each block; None: all of a row."""
    timeout_ns: int = 10_000_000_000

    @property
    def length(self) -> int:
        """Bytes of each block."""
        return self.source.shape[1] if self.length_bytes is None else self.length_bytes


@dataclass(frozen=True, slots=True)
class FetchResult:
    """What became of the demands of one layer, in demand order.

    `ends` [n] is `enum ofs_end` (255 where the block failed), `rcs` [n] 0 or -errno, `lengths`
    [n] payload bytes, `checksums` [n] XXH3-64 of what was copied. `stall_ns` is the wait for
    blocks that were not there, `copy_ns` the one-sided reads with their checks.
    """

    ends: U8
    rcs: I32
    lengths: U32
    checksums: U64
    hit_count: int = 0
    failed_count: int = 0
    retry_count: int = 0
    torn_count: int = 0
    stall_ns: int = 0
    copy_ns: int = 0


class Call:
    """A fetch or put in flight. `work` is its fabric's own; `request` keeps the arrays alive."""

    ended = False
    error: OffstageError | None = None
    """Raised at its end: it has failed as a whole."""
    unanswered = False
    """It ended without a complete answer: blocks may have arrived nevertheless."""
    ticket = 0
    kept: tuple[Any, ...] = ()
    """Objects to keep alive until its end."""
    cut: Any = None
    """The state that `bindings.granules` needs at the end of a call in granules."""

    def __init__(self, count: int, request: Any = None, work: Any = None) -> None:
        self.rcs = np.zeros(count, np.int32)
        self.checksums = np.zeros(count, np.uint64)
        self.request, self.work = request, work


class Fetch(Call):
    """A fetch in flight, of any fabric. The arrays are those of `FetchResult`, and fill up."""

    def __init__(self, request: FetchRequest, work: Any = None) -> None:
        count = len(request.ordinals)
        super().__init__(count, request, work)
        self.ends = np.full(count, UNKNOWN_END, np.uint8)
        self.lengths = np.zeros(count, np.uint32)

    def result(self, **counts: int) -> FetchResult:
        """Its arrays, with the counts and times of `FetchResult` that the fabric knows."""
        counts.setdefault("hit_count", int(np.count_nonzero(self.ends < HIT_ENDS)))
        counts.setdefault("failed_count", int(np.count_nonzero(self.rcs)))
        return FetchResult(self.ends, self.rcs, self.lengths, self.checksums, **counts)


class Put(Call):
    """A put in flight, of any fabric. `checksums` [n]: XXH3-64 of what was sent, of blocks that
    were taken."""

    def __init__(self, request: PutRequest, work: Any = None) -> None:
        super().__init__(len(request.ordinals), request, work)


class Fabric(ABC):
    """One side of a fabric, as the decode loop sees it.

    Contract: one thread owns it. Up to `calls_max` calls are in flight, each with its deadline: a
    fetch ends within about `timeout_ns`, if its owner polls or ends one. Whatever it says came
    (`rcs` 0) is byte for byte what was put, checked on this side of the link. A block that did not
    come has its -errno in `rcs`, and 255 in `ends`. RunFailed: the daemon is gone, attach again.
    """

    payload_size_bytes: int
    demand_max: int = 1 << 16
    calls_max: int = 64
    dilation: int = 1
    """How many of the machine's seconds the device's and this side's second takes."""
    pins = False
    """Whether what is fetched into must be registered."""
    where = "fabric"
    """Named in errors."""

    def __init__(self) -> None:
        self._in_flight: dict[Any, bool] = {}  # a Fetch or Put: whether its end was reported

    @abstractmethod
    def fetch_begin(self, request: FetchRequest) -> Fetch:
        """Begin to bring blocks into rows of the target. RunFailed with EAGAIN: `calls_max` are in
        flight."""

    @abstractmethod
    def put_begin(self, request: PutRequest) -> Put:
        """Begin to write blocks. RunFailed with EAGAIN as `fetch_begin`."""

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        """Wait for this fetch, moving the others on meanwhile."""
        self._finish(fetch)
        return fetch.result()

    def put_end(self, put: Put) -> I32:
        """Wait for this put: [n] 0 or -errno; acknowledged as the daemon's write mode says."""
        self._finish(put)
        return put.rcs

    def fetch(self, request: FetchRequest) -> FetchResult:
        """`fetch_begin` and `fetch_end` in a row."""
        return self.fetch_end(self.fetch_begin(request))

    def put(self, request: PutRequest) -> I32:
        """`put_begin` and `put_end` in a row."""
        return self.put_end(self.put_begin(request))

    def fetch_cancel(self, fetch: Fetch) -> None:
        """Give this fetch up, ended or not: none of its arrays is written any more, whatever the
        daemon does, and others go on. The daemon does what it was asked for all the same, so the
        same session's next step should be a later one. Here: wait for its end."""
        fetch.error = None
        self._finish(fetch)

    def poll(self, timeout_ns: int = 0) -> list[Any]:
        """Move all calls on, and wait up to `timeout_ns` for one to end: each Fetch and Put that
        has ended and was not reported before. It is still to be ended."""
        until_ns = self._now_ns() + timeout_ns
        while True:
            self._advance(0)
            ended = [one for one, told in self._in_flight.items() if one.ended and not told]
            left_ns = until_ns - self._now_ns()
            if ended or left_ns <= 0 or all(one.ended for one in self._in_flight):
                self._in_flight.update(dict.fromkeys(ended, True))
                return ended
            self._advance(left_ns)

    def register(self, array: NDArray[Any]) -> None:
        """Fetches go into rows of `array` (contiguous) from now on. Here: no effect."""
        return None

    def unregister(self, array: NDArray[Any]) -> None:
        """The same array, before its memory goes. Here: no effect."""
        return None

    def hint(self, session: int, guesses: NDArray[np.void]) -> int:
        """Send guesses (`bindings.core.GUESS` `[n]`) for layers to come, and wait for nothing: how
        many were sent. They are advice; where there is no room for them now they are left out.
        Here: none is sent."""
        return 0

    def value_io(self, sessions_max: int, timeout_s: float) -> ValueIO:
        """Tasks on values over this fabric, as `ValueIO` has them; one at a time, and closed with
        it. BadInput: it, or the daemon's port, takes none. Here: none."""
        raise BadInput("this fabric carries no values", self.where, "use shm, verbs, nixl or zmq")

    def limit_scores(self, scores_max: int, every_steps: int, score_bits: int) -> None:
        """Send only the scores that the policy uses, from the next fetch on: the best
        `scores_max` of a layer (0: all), of one step in `every_steps`, with 8 or 16 bits;
        decisions are the same as with all scores. Here: no effect."""
        return None

    def release(self, session: int) -> None:
        """End the session's pins now instead of at its next step. Here: nothing is pinned."""
        return None

    def stats(self) -> dict[str, int]:
        """Counters since open, by the field names of `struct ofs_driver_stats`. Here: none."""
        return {}

    def stages(self) -> dict[str, StageTimes]:
        """How long the stages that this end sees took, as `bindings.stages` shows them. Here: none
        is timed."""
        return {}

    def time_stages(self, on: bool, *, all: bool = False) -> bool:
        """Stage timers of this end on or off. `all`: of everything, not of one in 31. Returns
        whether it has timers; here it has none."""
        return False

    def close(self) -> None:
        """Let go of everything; closing twice does nothing. Before the control connection ends.
        Here: calls in flight are forgotten."""
        self._in_flight.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- for a side ----

    def _admit(self, call: Any) -> Any:
        """A Fetch or Put that begins. RunFailed with EAGAIN where `calls_max` are in flight."""
        if len(self._in_flight) >= self.calls_max:
            raise self._full()
        self._in_flight[call] = False
        return call

    def _full(self) -> RunFailed:
        return RunFailed(
            f"{self.calls_max} calls are in flight",
            self.where,
            "end one before the next begins",
            errno=errno.EAGAIN,
        )

    def _advance(self, timeout_ns: int) -> None:
        """Take in what has come, waiting up to so long for the first; sets `ended` of what has.
        Here: nothing, since a call has ended when it has begun."""
        return None

    def _finish(self, call: Call) -> None:
        """Wait for its completion. Raises its error."""
        while not call.ended:
            self._advance(WAIT_NS)
        self._in_flight.pop(call, None)
        if call.error is not None:
            raise call.error

    def _now_ns(self) -> int:
        return time.monotonic_ns()
