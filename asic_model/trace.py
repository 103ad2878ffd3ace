"""A daemon's decision log as work for a chip: fetches and reads, and what each depends on.

Model: the log is walked once, and a fresh core repeats every decision, bit for bit. The trace keeps
the order that the hardware cannot change. A read follows the decision that issued it, or the read
whose end made room. A fetch follows the fetches of the round before, since a host that decodes a
batch waits for all of it; the time between them, the host's own, is kept. A *round* is a run of
fetches of different sessions. Of the round before, only the fetches that had ended in the log
when the fetch was sent count.

What can fail: `BadInput`, one line, for a file that is not a log of this version, is torn or has a
hole, has a decision that the core does not repeat (with its offset), or has a time that goes
backwards.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from offstage.bindings.core import COMPLETE, READ, CoreConfig, Policy
from offstage.bindings.errors import BadInput, Corrupt
from offstage.bindings.layouts import HIT_ENDS, layout
from offstage.bindings.outside import read_json
from offstage.bindings.replay import Event, Walk

__all__ = ["RECORDS", "START", "Fetch", "Read", "Trace", "log_path", "read_trace", "walk"]

LOG_NAME = "decisions.log"
RECORD_NAME = "record.json"
SUMMARY_NAME = "summary.json"
RECORDS = "records"
"""The folder of a demo that holds those of its recorded runs."""
START = -1
"""The predecessor of an event without any other: the beginning of the run."""
SESSION = layout("struct ofs_session_config")
TENANT = layout("struct ofs_tenant_config")

T = TypeVar("T")


class Record(msgspec.Struct, frozen=True):
    """The fields of `record.json`, next to the log, that are read."""

    storage: str = ""
    header_bytes: int = 0
    log_bytes_lost: int = 0
    kv_heads: int = 0
    laboratory: str = ""
    """What was run, where the log is the laboratory's; empty: a daemon's."""
    model: str = ""
    """Whose layers and blocks the laboratory ran."""
    layers: int = 0
    """Layers for which those of the log stand, each of them at its share of a token's time; 0: for
    themselves."""
    context_tokens: int = 0
    """Of each session of the laboratory; 0: unknown."""


class _Workload(msgspec.Struct, frozen=True):
    kv_heads: int = 0


class _Summary(msgspec.Struct):
    """The field of the host's `summary.json` that is read."""

    workload: _Workload = _Workload()


@dataclass(slots=True)
class Fetch:
    """One command of one layer of one step. Times in ns, as the log has them.

    session: the core's number, which a later session may have again; its steps go on from there.
    blocks: the demands, by ordinal.
    after: the fetches it follows, `lag_ns` behind the last of them; none: behind the beginning.
    waits: for each demand that was not staged, the read that brought it, or START where the
    answer came without a read. answered_ns: when the last demand was answered.
    """

    session: int
    step: int
    layer: int
    tenant: int
    at_ns: int
    answered_ns: int
    demands: int
    scores: int
    hits: int
    late: int
    retry: bool
    blocks: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    lag_ns: int = 0
    waits: list[int] = field(default_factory=list)

    @property
    def is_answered(self) -> bool:
        """Whether every demand is answered, as far as the log was read."""
        return len(self.waits) >= self.demands - self.hits


@dataclass(slots=True)
class Read:
    """One read of the medium. session: its session, or the core's NONE. after: ("fetch", i) its
    command, ("read", i) the read whose end led to it, each `lag_ns` before; ("start", START)."""

    chunk: int
    layer: int
    tenant: int
    session: int
    cause: int
    at_ns: int
    deadline_ns: int
    ended_ns: int
    after: tuple[str, int]
    lag_ns: int


@dataclass
class Trace:
    """The work of one log. `session_ns`: the pace that each session announced."""

    name: str
    sha256: str
    storage: str
    config: CoreConfig
    policy: Policy
    begin_ns: int
    fetches: list[Fetch] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    writes_ns: list[tuple[int, int, int]] = field(default_factory=list)
    """Written blocks: (when, chunk, layer)."""
    session_ns: dict[int, int] = field(default_factory=dict)
    weights: tuple[int, ...] = (1,)
    """The tenants' weights, by number."""
    heads: int = 0
    """KV heads in a block, from the host's summary or the laboratory's spec; 0: unknown."""
    ends: "np.ndarray[Any, Any]" = field(default_factory=lambda: np.zeros(9, np.int64))
    log: bytes = b""
    """The raw log, to drive a core again."""
    named: int = 0
    """Chunks that sessions appended."""
    prefills: list[tuple[int, int]] = field(default_factory=list)
    """Bytes of the log, from and up to, in which a session's prefill takes no time: the
    laboratory's, from a session's opening until it generates."""
    record: Record = field(default_factory=Record)

    @property
    def block_bytes(self) -> int:
        """Size of one block."""
        return self.config.block_size_bytes

    def is_prefill(self, offset: int) -> bool:
        """Whether the event at that byte of the log is of a prefill that takes no time."""
        at = bisect_right(self.prefills, (offset, len(self.log))) - 1
        return at >= 0 and offset < self.prefills[at][1]

    def offset_bytes(self, chunk: int, layer: int) -> int:
        """A block's offset on the medium as far as a log determines it: in order, after the store's
        header, so that blocks cross the medium's pages as the store's do."""
        place = layer * self.config.chunk_max + chunk
        return place * self.block_bytes + self.record.header_bytes


def log_path(path: Path) -> Path:
    """The decision log of a recorded run, from its folder or the log's path. BadInput for a folder
    with several runs, naming them."""
    if not path.is_dir():
        return path
    if (path / LOG_NAME).is_file():
        return path / LOG_NAME
    inside = sorted(str(one.parent.relative_to(path)) for one in path.glob(f"*/**/{LOG_NAME}"))
    if len(inside) == 1:
        return path / inside[0] / LOG_NAME
    raise BadInput(
        "holds several recorded runs" if inside else "holds no recorded run",
        str(path),
        f"name one of {', '.join(inside)}"
        if inside
        else "record one with `offstage dpu serve --record DIR`",
    )


def walk(log: bytes, where: str) -> Iterator[Event]:
    """The events of a log, each decided again; BadInput at the first mismatch. A tick has the time
    at which the reactor's turn began; other events of that turn may have later times."""
    try:
        found = Walk(log, where)
    except Corrupt:
        raise BadInput(
            "is not a decision log of this version", where, "record the run again with this release"
        ) from None
    before_ns = 0
    try:
        for event in found:
            if not event.agreed:
                raise BadInput(
                    f"the core decides otherwise at byte {event.offset} ({event.kind})",
                    where,
                    "the log was changed, or made by another core",
                )
            if event.kind != "tick" and event.now_ns < before_ns:
                raise BadInput(
                    f"time goes back at byte {event.offset}, from {before_ns} to {event.now_ns} ns",
                    where,
                    "record the run again",
                )
            before_ns = max(before_ns, event.now_ns)
            yield event
    except Corrupt:
        raise BadInput(
            "is torn or has a hole", where, "record the run again, with a larger limits.log"
        ) from None


def read_trace(path: Path) -> Trace:
    """The trace of a recorded run or of a decision log alone."""
    path = log_path(path)
    try:
        log = path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror})",
            str(path),
            "give a recorded run or its decisions.log",
        ) from None
    record = _read(path.parent / RECORD_NAME, Record)
    if record.log_bytes_lost:
        raise BadInput(
            "has a hole: the recorder lost events",
            str(path),
            "record the run again, with a larger limits.log",
        )
    trace = _Reader(log, path, record).trace
    trace.heads = record.kv_heads or _heads(path.parent)
    return trace


def _heads(folder: Path) -> int:
    """The number of KV heads from the host's summary, in the log's folder or in that of the demo
    above it."""
    above = (folder.parent.parent,) if folder.parent.name == RECORDS else ()
    for near in (folder, *above):
        count = _read(near / SUMMARY_NAME, _Summary).workload.kv_heads
        if count > 0:
            return count
    return 0


def _read(path: Path, kind: type[T]) -> T:
    """A file of the run; all defaults where there is only a log. BadInput for one that is damaged:
    without it figures would be others, and nothing would say so."""
    if not path.exists():
        return kind()
    return read_json(path, "record the run again, or move the file away", kind)


class _Reader:
    """One pass over a log."""

    def __init__(self, log: bytes, path: Path, record: Record) -> None:
        where = str(path)
        try:
            config, policy = Walk(log, where).opened()
        except Corrupt:
            raise BadInput(
                "is not a decision log of this version",
                where,
                "record the run again with this release",
            ) from None
        self.trace = Trace(
            name=path.parent.name if path.name == LOG_NAME else path.name,
            sha256=hashlib.sha256(log).hexdigest(),
            storage=record.storage,
            config=config,
            policy=policy,
            begin_ns=0,
            record=record,
            log=log,
        )
        self._tenants: dict[int, int] = {}
        self._weights: list[int] = []
        self._reads: dict[int, int] = {}  # handle of the core to number
        self._waiting: dict[int, int] = {}  # waiter to fetch
        self._round: list[int] = []
        self._before: list[int] = []
        self._last: dict[int, int] = {}  # session to its last fetch
        self._steps: dict[int, int] = {}  # session to the steps of those before it by that number
        for number, event in enumerate(walk(log, where)):
            if number == 0:
                self.trace.begin_ns = event.now_ns
            self._take(event)
        if not self.trace.fetches:
            raise BadInput("holds no decode step", where, "record a run in which hosts decode")

    def _take(self, event: Event) -> None:
        if event.kind == "step" and event.rc == 0:
            self._step(event)
        elif event.kind == "session_open" and event.rc == 0:
            config = np.frombuffer(event.input, SESSION, 1)[0]
            number = int(np.frombuffer(event.answer, np.uint32, 1)[0])
            self._tenants[number] = int(config["tenant"])
            if number in self._last:
                self._steps[number] = self.trace.fetches[self._last[number]].step + 1
            self.trace.session_ns[number] = int(config["step_ns"])
            if self.trace.record.laboratory:
                self.trace.prefills.append((event.offset, len(self.trace.log)))
        elif event.kind == "tenant" and event.rc == 0:
            weight = max(1, int(np.frombuffer(event.input, TENANT, 1)[0]["weight"]))
            self._weights.append(weight)
            self.trace.weights = tuple(self._weights)
        elif event.kind == "append" and event.rc == 0:
            self.trace.named += int(np.frombuffer(event.input, np.uint32, 2)[1])
        elif event.kind == "generating" and self.trace.prefills:
            begin, end = self.trace.prefills[-1]
            self.trace.prefills[-1] = (begin, min(end, event.offset))
        elif event.kind == "stored" and not self.trace.is_prefill(event.offset):
            chunk, layer = (int(one) for one in np.frombuffer(event.input, np.uint32, 2))
            self.trace.writes_ns.append((event.now_ns, chunk, layer))
        self._actions(event)

    def _step(self, event: Event) -> None:
        step = event.step
        assert step is not None
        number = len(self.trace.fetches)
        hits = int((event.ends < HIT_ENDS).sum())
        fetch = Fetch(
            session=step.session,
            step=step.step + self._steps.get(step.session, 0),
            layer=step.layer,
            tenant=self._tenants.get(step.session, 0),
            at_ns=event.now_ns,
            answered_ns=event.now_ns,
            demands=len(step.demands),
            scores=len(step.scores),
            hits=hits,
            late=int((event.ends == HIT_ENDS).sum()),
            retry=step.retry,
            blocks=tuple(step.demands.tolist()),
        )
        if not step.retry:
            self.trace.ends += np.bincount(event.ends, minlength=9)[:9]
        self._follow(fetch, number)
        self.trace.fetches.append(fetch)
        self._waiting[step.waiter] = number
        self._last[step.session] = number

    def _follow(self, fetch: Fetch, number: int) -> None:
        """Find the fetch's predecessors: the round before, as far as it had ended."""
        fetches = self.trace.fetches
        if any(fetches[one].session == fetch.session for one in self._round):
            self._before, self._round = self._round, []
        self._round.append(number)
        before = {*self._before, self._last.get(fetch.session, START)} - {START}
        after = [one for one in before if fetches[one].is_answered]
        fetch.after = tuple(sorted(after))
        since = max((fetches[one].answered_ns for one in after), default=self.trace.begin_ns)
        fetch.lag_ns = fetch.at_ns - since

    def _actions(self, event: Event) -> None:
        cause = self._cause(event)
        for action in event.actions:
            if action["type"] == READ:
                self._reads[int(action["io"])] = len(self.trace.reads)
                self.trace.reads.append(
                    Read(
                        chunk=int(action["chunk"]),
                        layer=int(action["layer"]),
                        tenant=int(action["tenant"]),
                        session=int(action["session"]),
                        cause=int(action["cause"]),
                        at_ns=event.now_ns,
                        deadline_ns=int(action["deadline_ns"]),
                        ended_ns=event.now_ns,
                        after=cause[0],
                        lag_ns=cause[1],
                    )
                )
            elif action["type"] == COMPLETE:
                self._answered(event, int(action["waiter"]), cause[0])

    def _cause(self, event: Event) -> tuple[tuple[str, int], int]:
        """The event that the actions follow, and the lag behind it."""
        if event.kind == "step":
            return ("fetch", len(self.trace.fetches) - 1), 0
        if event.kind == "io_done":
            number = self._reads[int(np.frombuffer(event.input, np.uint32, 1)[0])]
            self.trace.reads[number].ended_ns = event.now_ns
            return ("read", number), 0
        if self.trace.fetches:  # the core's own clock, or a control call
            last = len(self.trace.fetches) - 1
            return ("fetch", last), max(0, event.now_ns - self.trace.fetches[last].at_ns)
        return ("start", START), max(0, event.now_ns - self.trace.begin_ns)

    def _answered(self, event: Event, waiter: int, cause: tuple[str, int]) -> None:
        number = self._waiting.get(waiter)
        if number is None:
            return
        fetch = self.trace.fetches[number]
        fetch.answered_ns = event.now_ns
        fetch.waits.append(cause[1] if cause[0] == "read" else START)
