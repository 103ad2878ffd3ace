"""A daemon's log through a chip: with the decisions it made, or deciding again.

Model: in *decision-replay* every decision is the log's, bit for bit, and only times are the chip's:
each fetch and each read begins when its predecessors have ended there. In *closed loop* the same
core decides again, in the chip's time: a hit in the log may be late, reads are issued in another
order, victims differ; decisions that differ from the log are counted by kind. In both, the host's
time between an answer and the next fetch is the log's.

What can fail: `BadInput` as in `trace.py`, and `Deadlock` where a full queue never drains.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from offstage.asic_model.account import (
    PS,
    Account,
    Calls,
    Device,
    Served,
    digest,
    logged_of,
)
from offstage.asic_model.by_session import by_session
from offstage.asic_model.closed import ClosedLoop
from offstage.asic_model.elsewhere import AS_LOGGED, Elsewhere
from offstage.asic_model.energy import area, energy, power
from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.result import ChipRun, Times, binding
from offstage.asic_model.trace import START, Fetch, Trace
from offstage.asic_model.units.nvme import medium
from offstage.bindings.layouts import CAUSES
from offstage.bindings.ledger import Demands
from offstage.bindings.notes import Note

__all__ = ["closed_loop", "decision_replay", "own_times"]

Advance = Callable[[int], None]
UNCALIBRATED = "uncalibrated: no calibration on a measured run has passed"
"""What a note says of a preset."""


def decision_replay(
    trace: Trace, preset: Preset, *, drive: str = "", seed: int = 0, advance: Advance | None = None
) -> ChipRun:
    """Replay the log's decisions in the chip's time."""
    device = Device(preset, trace, drive=drive, seed=seed)
    replay = _Replay(trace, preset, device, advance or _nothing)
    replay.run()
    demands = sum(one.demands for one in trace.fetches if not one.retry)
    return _result(
        replay,
        Demands.of(trace.ends, demands - int(trace.ends.sum())),
        mode="decision-replay",
        drive=drive,
        seed=seed,
        reads_by_cause=_by_cause(Counter(one.cause for one in trace.reads)),
    )


def closed_loop(
    trace: Trace,
    preset: Preset,
    *,
    drive: str = "",
    seed: int = 0,
    advance: Advance | None = None,
    elsewhere: Elsewhere = AS_LOGGED,
) -> ChipRun:
    """Replay the log's fetches, decided again in the chip's time. `elsewhere`: on another arena, or
    for a faster host."""
    loop = ClosedLoop(trace, preset, drive, seed, advance or _nothing, elsewhere)
    loop.run()
    return _result(
        loop,
        Demands.of(loop.ends),
        mode="closed-loop",
        drive=drive,
        seed=seed,
        reads_by_cause=_by_cause(loop.issued),
        diverged=loop.diverged(),
        prefixes=loop.prefixes.figures(trace.block_bytes),
    )


def own_times(trace: Trace) -> tuple[Times, Times]:
    """The device times of the log's fetches in ns, replayed with each read's own time, and as the
    log has them. They are equal, unless the replay's structure (what waits for what) is wrong."""
    replay = _OwnTimes(trace, read_preset("ideal"), Calls(), _nothing)
    replay.run()
    return replay.account.figures(trace.block_bytes).device_ns, logged_of(trace).fetch_ns


def _by_cause(counts: "Counter[int]") -> dict[str, int]:
    return {CAUSES[cause]: count for cause, count in sorted(counts.items())}


def _nothing(count: int) -> None:
    """Ignores its argument."""


def _result(ran: "_Replay | ClosedLoop", ended: Demands, *, drive: str, **found: Any) -> ChipRun:
    trace, preset, device, account = ran.trace, ran.preset, ran.device, ran.account
    assert isinstance(device, Device)
    unit = medium(preset, drive)
    units = account.units(device, None if unit.drive is None else dict(unit.drive))
    figures = device.chip.figures
    notes = [] if preset.calibrated else [Note("uncalibrated", UNCALIBRATED)]
    if figures["visits_lost"]:
        notes.append(
            Note("visits-lost", f"{figures['visits_lost']} visits are missing from the waterfall")
        )
    run = ChipRun(
        preset=preset.name,
        title=preset.title,
        calibrated=preset.calibrated,
        trace=trace.name,
        trace_sha256=trace.sha256,
        preset_sha256=digest(preset),
        storage=drive or preset.nvme.drive,
        sessions=len({one.session for one in trace.fetches}),
        demands=ended.total,
        starts=device.starts,
        wakes=device.wakes,
        rests=device.rests,
        cold_scores=device.cold_scores,
        hits=ended.hits,
        late=ended.late,
        misses=ended.misses + ended.unanswered,
        ends=ended.by_end(),
        units=units,
        by_session=by_session(account, device.chip, trace.block_bytes),
        binds_first=binding({one.name: one.utilisation for one in units}),
        logged=logged_of(trace),
        notes=notes,
        hash=f"{figures['hash']:016x}",
        **msgspec.structs.asdict(account.figures(trace.block_bytes)),
        **found,
    )
    run.energy, run.power, run.area = energy(run, preset), power(run, preset), area(preset)
    return run


@dataclass(slots=True)
class _Pending:
    """An unfinished fetch: its open dependencies, and its dependents."""

    fetch: Fetch
    before: int
    open: int = 0
    served: Served | None = None
    followers: list[int] = field(default_factory=list)
    decided: list[tuple[int, int]] = field(default_factory=list)  # (read, lag)


class _Replay:
    """Decision-replay: runs the ordered fetches and reads on a chip."""

    def __init__(self, trace: Trace, preset: Preset, device: Calls, advance: Advance) -> None:
        self.trace, self.preset, self.device = trace, preset, device
        self.account = Account()
        self._advance = advance
        self._fetches = [_Pending(one, len(one.after)) for one in trace.fetches]
        self._read_end: list[int | None] = [None] * len(trace.reads)
        self._read_tag = [0] * len(trace.reads)
        self._waiting: list[list[int]] = [[] for _ in trace.reads]
        self._next_reads: list[list[int]] = [[] for _ in trace.reads]
        self._written: list[list[tuple[int, int, int]]] = [[] for _ in trace.fetches]
        for number, one in enumerate(trace.fetches):
            for before in one.after:
                self._fetches[before].followers.append(number)
        for number, read in enumerate(trace.reads):
            kind, what = read.after
            if kind == "fetch":
                self._fetches[what].decided.append((number, read.lag_ns))
            elif kind == "read":
                self._next_reads[what].append(number)

    def run(self) -> None:
        """Run to the end."""
        trace = self.trace
        first_ns = min(one.at_ns for one in trace.fetches)
        first_ns = min([first_ns, *(one.at_ns for one in trace.reads if one.after[0] == "start")])
        for number, one in enumerate(trace.fetches):
            if not one.after:
                self._at(self._begin, number, (one.at_ns - first_ns) * PS)
        for number, read in enumerate(trace.reads):
            if read.after[0] == "start":
                self._at(self._read, number, (read.at_ns - first_ns) * PS)
        self._writes()
        self.device.run()

    def _at(self, call: Callable[[int, int], None], number: int, ps: int) -> None:
        self.device.at(ps, lambda now_ps: call(number, now_ps))

    def _writes(self) -> None:
        """Schedule the writes. Each keeps its distance to the fetch before it; writes before any
        fetch are not run."""
        number, times = 0, [one.at_ns for one in self.trace.fetches]
        for at_ns, chunk, layer in self.trace.writes_ns:
            while number + 1 < len(times) and times[number + 1] <= at_ns:
                number += 1
            if times[number] < at_ns:
                self._written[number].append((at_ns - times[number], chunk, layer))
                self.account.bytes_written += self.trace.block_bytes

    def _begin(self, number: int, now_ps: int) -> None:
        """Send the host's command."""
        one = self._fetches[number]
        fetch, trace = one.fetch, self.trace
        pace_ns = trace.session_ns.get(fetch.session, 0)
        token = self.account.token(fetch.session, fetch.step, pace_ns, fetch.tenant)
        one.served = Served(token, now_ps, waited=bool(fetch.waits))
        if fetch.demands:
            self.account.fetches.append(one.served)
        for lag_ns, chunk, layer in self._written[number]:
            self.device.at(
                now_ps + lag_ns * PS, partial(self.device.write, self.trace, chunk, layer)
            )
        tag = self.device.ask(
            "command",
            now_ps,
            lambda end_ps: self._decided(number, end_ps),
            count=fetch.demands,
            blocks=fetch.blocks,
            score_count=fetch.scores,
            size_bytes=trace.block_bytes,
            tenant=fetch.tenant,
            session=fetch.session,
            layer=fetch.layer,
        )
        one.served.tags.append(tag)

    def _decided(self, number: int, now_ps: int) -> None:
        """After the core's decision: begin reads, send staged blocks to the host."""
        one = self._fetches[number]
        assert one.served is not None
        one.served.decided_ps = now_ps
        for read, lag_ns in one.decided:
            if lag_ns:
                self._at(self._read, read, now_ps + lag_ns * PS)
            else:
                self._read(read, now_ps)
        waits = [wait for wait in one.fetch.waits if wait != START]
        staged = one.fetch.demands - len(waits)
        one.open = (staged > 0) + len(waits)
        if staged > 0:
            self._hit(number, staged, now_ps, 0)
        for wait in waits:
            if self._read_end[wait] is None:
                self._waiting[wait].append(number)
            else:
                self._hit(number, 1, now_ps, self._read_tag[wait])
        one.served.staged_ps = now_ps
        if one.open == 0:
            one.served.landed(now_ps, one.served.ahead_ps(self.preset))
            self._done(number)

    def _hit(self, number: int, count: int, now_ps: int, read_tag: int) -> None:
        """Send staged blocks to the host."""
        one = self._fetches[number]
        fetch = one.fetch
        self.account.bytes_to_hosts += count * self.trace.block_bytes
        tag = 0
        served = one.served
        assert served is not None
        ahead_ps = 0 if read_tag else served.ahead_ps(self.preset)

        def landed(end_ps: int) -> None:
            served.landed(end_ps, ahead_ps)
            one.open -= 1
            if one.open == 0:
                served.tags += [read_tag, tag]
                if ahead_ps and not served.waited:
                    served.tags, served.shift_ps = [tag], ahead_ps
                self._done(number)

        tag = self.device.ask(
            "hit",
            now_ps,
            landed,
            count=count,
            size_bytes=self.trace.block_bytes,
            tenant=fetch.tenant,
            session=fetch.session,
            layer=fetch.layer,
        )

    def _done(self, number: int) -> None:
        """The host has all of its blocks; start the fetches that waited for it."""
        one = self._fetches[number]
        assert one.served is not None
        self._advance(1)
        for follower in one.followers:
            after = self._fetches[follower]
            after.before -= 1
            if after.before == 0:
                self._at(self._begin, follower, one.served.end_ps + after.fetch.lag_ns * PS)

    def _read(self, number: int, now_ps: int) -> None:
        """Read a block from the medium."""
        read = self.trace.reads[number]
        late_by_ps = now_ps - (read.at_ns - self.trace.begin_ns) * PS
        needed_ps = (read.deadline_ns - self.trace.begin_ns) * PS + late_by_ps
        self._read_tag[number] = self.device.ask(
            "read",
            now_ps,
            partial(self._landed, number, now_ps),
            size_bytes=self.trace.block_bytes,
            tenant=read.tenant,
            session=read.session,
            layer=read.layer,
            cause=read.cause,
            deadline_ps=max(0, min(needed_ps, 2**62)),
            offset_bytes=self.trace.offset_bytes(read.chunk, read.layer),
        )

    def _landed(self, number: int, begun_ps: int, end_ps: int) -> None:
        """A read has ended: begin those that waited for room, hand the block to who waits."""
        self._read_end[number] = end_ps
        self.account.read(end_ps - begun_ps, self.trace.reads[number].session)
        for after in self._next_reads[number]:
            self._read(after, end_ps)
        for waiting in self._waiting[number]:
            served = self._fetches[waiting].served
            assert served is not None
            served.staged_ps = end_ps
            self._hit(waiting, 1, end_ps, self._read_tag[number])


class _OwnTimes(_Replay):
    """Decision-replay without a chip: a read takes what it took in the log, all else nothing."""

    def _read(self, number: int, now_ps: int) -> None:
        read = self.trace.reads[number]
        took_ps = (read.ended_ns - read.at_ns) * PS
        self.device.at(now_ps + took_ps, partial(self._landed, number, now_ps))
