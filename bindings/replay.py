"""A decision log event by event: the core's input, and what a fresh core decides on it.

`events` is a generator over a `Walk`, which owns a copy of the log and the fresh core. Shapes and
meanings are those of `replay.h`. It stops after the first event that disagrees with the log. A
torn, foreign or changed log raises `Corrupt`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.core import ACTION, EVENTS, CoreConfig, Policy, work_by_event
from offstage.bindings.figures import EventWork, read_struct
from offstage.bindings.firmware import check_rc, ffi, lib
from offstage.bindings.layouts import EVICTIONS, PREFETCHERS

if TYPE_CHECKING:  # collections.abc has it from Python 3.12
    from _typeshed import ReadableBuffer as Buffer

__all__ = ["Event", "ToldStep", "Walk", "events", "policy_of"]


@dataclass(frozen=True, eq=False)
class ToldStep:
    """A step as it came in: uint32 `demands` `[n]` by ordinal, uint16 `scores` `[m]`."""

    session: int
    step: int
    layer: int
    selected_count: int
    waiter: int
    retry: bool
    demands: npt.NDArray[np.uint32]
    scores: npt.NDArray[np.uint16]


@dataclass(frozen=True, eq=False)
class Event:
    """One event: its `kind`, of `bindings.core.EVENTS`, and the byte of its record, `offset`.

    rc: the core's return code; `answer`: its further output, as the call's struct or
    numbers. actions: `ACTION` `[n]`, what it wants done. ends: uint8 `[n]` by
    `ENDS`, of the demands of a `step`. agreed: all of that is what the log has.
    """

    offset: int
    now_ns: int
    kind: str
    rc: int
    agreed: bool
    input: bytes
    answer: bytes
    actions: npt.NDArray[np.void]
    ends: npt.NDArray[np.uint8]
    step: ToldStep | None


class Walk:
    """A log under replay, closed with the object; iterate over it once."""

    def __init__(self, log: "Buffer", where: str = "log") -> None:
        out: Any = ffi.new("struct ofs_replay **")
        with ffi.from_buffer(log) as view:
            rc = lib.ofs_replay_open(out, view, len(view))
        self._where = where
        self._check(rc)
        self._handle: Any = ffi.gc(out[0], lib.ofs_replay_close)

    def __iter__(self) -> Iterator[Event]:
        event: Any = ffi.new("struct ofs_replay_event *")
        while self._check(lib.ofs_replay_next(self._handle, event)):
            yield _event(event)

    def opened(self) -> tuple[CoreConfig, Policy]:
        """The configuration of the core, without its rings, and its policy as it is now."""
        config: Any = ffi.new("struct ofs_core_config *")
        policy: Any = ffi.new("struct ofs_policy *")
        core = lib.ofs_replay_core(self._handle)
        check_rc(lib.ofs_core_describe(core, config, policy), "reading the core's configuration")
        return read_struct(config, CoreConfig), _policy(policy)

    def work(self) -> dict[str, EventWork]:
        """What the events so far cost the core, as `Core.work()`."""
        work: Any = ffi.new("struct ofs_work[]", lib.OFS_EVENT_COUNT)
        check_rc(lib.ofs_core_work(lib.ofs_replay_core(self._handle), work), "reading the work")
        return work_by_event(work)

    def _check(self, rc: int) -> int:
        doing, fix = "replaying a decision log", "it is torn, or not one of ours"
        return check_rc(rc, doing, self._where, fix)


def policy_of(data: bytes) -> Policy:
    """The policy that a `policy` event brings: its input, `struct ofs_policy`."""
    struct: Any = ffi.new("struct ofs_policy *")
    ffi.buffer(struct)[:] = data
    return _policy(struct)


def _policy(struct: Any) -> Policy:
    named = [name for name, bit in PREFETCHERS.items() if struct.prefetchers & bit]
    prefetchers = "+".join(named) or "none"
    eviction = EVICTIONS[struct.eviction]
    return read_struct(struct, Policy, prefetchers=prefetchers, eviction=eviction)


def events(log: "Buffer", where: str = "log") -> Iterator[Event]:
    """The events of a whole log in order, each run on the core as it is given."""
    yield from Walk(log, where)


def _event(event: Any) -> Event:
    return Event(
        offset=int(event.offset),
        now_ns=int(event.now_ns),
        kind=EVENTS[int(event.type)],
        rc=int(event.rc),
        agreed=bool(event.agreed),
        input=bytes(ffi.buffer(event.input, event.input_bytes)) if event.input_bytes else b"",
        answer=bytes(ffi.buffer(event.answer, event.answer_bytes)) if event.answer_bytes else b"",
        actions=_copy(event.actions, event.action_count, ACTION),
        ends=_copy(event.ends, event.end_count, np.dtype(np.uint8)),
        step=_step(event.step) if event.step else None,
    )


def _step(step: Any) -> ToldStep:
    return ToldStep(
        session=int(step.session),
        step=int(step.step),
        layer=int(step.layer),
        selected_count=int(step.selected_count),
        waiter=int(step.waiter),
        retry=bool(step.flags & lib.OFS_STEP_RETRY),
        demands=_copy(step.demands, step.demand_count, np.dtype(np.uint32)),
        scores=_copy(step.scores, step.score_count, np.dtype(np.uint16)),
    )


def _copy(pointer: Any, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if count == 0:
        return np.zeros(0, dtype)
    return np.frombuffer(bytes(ffi.buffer(pointer, count * dtype.itemsize)), dtype)
