"""Runs a chip and computes the run's figures.

Model: a `Device` submits requests to the chip through the timing seam and calls back on completion,
so a replay is written as a chain of callbacks. An `Account` collects fetches, tokens and reads in
picoseconds and builds a `ChipRun` from them and from the counters of the chip's units. Each is used
by one thread, for one run.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.asic_model.chip import open_chip
from offstage.asic_model.parameters import Preset
from offstage.asic_model.result import Logged, Times, UnitRun, times_of
from offstage.asic_model.samples import REST_NS
from offstage.asic_model.services import Services
from offstage.asic_model.trace import Trace
from offstage.asic_model.turns import Asked, Turns
from offstage.bindings.chip import NO_NUMBER, UnitStats
from offstage.bindings.network import Limits, Network

__all__ = [
    "Account",
    "Calls",
    "Device",
    "Figures",
    "Served",
    "digest",
    "logged_of",
    "utilisation",
]

PS = 1000
SHARE_OF_FETCHES = 0.02
FETCHES_MIN, FETCHES_MAX = 5, 200
"""Number of fetches around a quantile whose time is attributed to units."""
IN_FLIGHT_MAX = 1 << 14
PIECES_MAX = 1 << 14
VISITS_MAX = 1 << 15


class Calls:
    """A queue of timed calls, without a chip: what is asked of it is done at once. Times in ps."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int, Callable[[int], None]]] = []
        self._calls = 0

    def at(self, ps: int, call: Callable[[int], None]) -> None:
        """Schedule `call` at time `ps`."""
        self._calls += 1
        heapq.heappush(self._due, (ps, self._calls, call))

    def ask(self, kind: str, now_ps: int, done: Callable[[int], None], **request: Any) -> int:
        """`done` gets the time of completion. Returns the request's tag; 0: there is no request."""
        self.at(now_ps, done)
        return 0

    def write(self, trace: Trace, chunk: int, layer: int, now_ps: int) -> None:
        """Write a block of the trace; nothing waits for its end."""
        self.ask(
            "write",
            now_ps,
            _ended,
            size_bytes=trace.block_bytes,
            layer=layer,
            offset_bytes=trace.offset_bytes(chunk, layer),
        )

    def run(self) -> int:
        """Run until no call is due; return the time of the last."""
        now_ps = 0
        while self._due:
            now_ps, _, call = heapq.heappop(self._due)
            call(now_ps)
        return now_ps


def _ended(now_ps: int) -> None:
    """Nobody waits."""


class Device(Calls):
    """Timed calls and the chip that serves what is asked. `starts`: reads that found none in
    flight; `wakes`: those of them after `REST_NS` without; `rests`: commands after as long
    without a command or a read's end, and `cold_scores` those of them and of the commands that
    arrive while the reactor wakes up, which the same turn takes. Where services are drawn, the
    reactor works in turns."""

    def __init__(self, preset: Preset, trace: Trace, *, drive: str, seed: int) -> None:
        super().__init__()
        self.chip = open_chip(
            preset,
            Limits(
                in_flight_max=IN_FLIGHT_MAX,
                piece_max=PIECES_MAX,
                end_max=IN_FLIGHT_MAX,
                visit_max=VISITS_MAX,
                sample_every=1,
            ),
            drive=drive,
            seed=seed,
            weights=trace.weights,
            drawn=True,
        )
        disk = preset.disk if (drive or preset.nvme.drive) == "disk" else None
        self._turns: Turns | None = None
        if disk is not None and disk.service.spread:
            self._turns = Turns(preset, Services(disk, seed), self.at, self._enter)
        self._reading = 0
        self.starts = self.wakes = self.rests = self.cold_scores = 0
        self._active_ps = self._idle_ps = 0
        self._awake_ps = -1
        self._wake_ps = preset.front_end.latency.whole
        self.timing = self.chip.timing()
        self._tags = 0
        self._owed: dict[int, Callable[[int], None]] = {}
        self._outside: deque[Asked] = deque()

    def ask(self, kind: str, now_ps: int, done: Callable[[int], None], **request: Any) -> int:
        """Submit a request; `done` gets its completion time. Returns the request's tag. While the
        chip is full, the request waits outside until another one completes."""
        self._tags += 1
        if kind == "read":
            if self._reading == 0:
                rested = now_ps - self._idle_ps >= REST_NS * PS
                self.starts += 1
                self.wakes += rested
                if self._turns is not None:
                    self._turns.starts(rested)
            self._reading += 1
            done = partial(self._read, done)
            if self._turns is not None:
                self._turns.read(self._tags, done, request)
                return self._tags
        elif kind == "command":
            rested = now_ps - self._active_ps >= REST_NS * PS
            if rested:
                self.rests += 1
                self._awake_ps = now_ps + self._wake_ps
            if now_ps <= self._awake_ps:
                self.cold_scores += request["score_count"]
            self._active_ps = now_ps
            if self._turns is not None:
                done = self._turns.command(now_ps, done, rested=rested)
        self._enter((self._tags, kind, done, request), now_ps)
        return self._tags

    def _enter(self, asked: Asked, now_ps: int) -> None:
        self._outside.append(asked)
        self._admit(now_ps)

    def _read(self, done: Callable[[int], None], now_ps: int) -> None:
        self._reading -= 1
        self._idle_ps = now_ps
        self._active_ps = now_ps
        done(now_ps)

    def _admit(self, now_ps: int) -> None:
        while self._outside and len(self._owed) < IN_FLIGHT_MAX:
            tag, kind, done, request = self._outside.popleft()
            end_ps = self.timing.ask(kind, now_ps, tag=tag, **request)
            assert end_ps is None, "the chip must complete every request later"
            self._owed[tag] = done

    def run(self) -> int:
        """Run until no call is due or request in flight; return the time of the last call."""
        now_ps = 0
        while self._due or self._owed:
            ends = self.chip.next_ends(self._due[0][0] if self._due else None)
            for tag, end_ps in ends:
                now_ps = max(now_ps, end_ps)
                done = self._owed.pop(tag)
                self._admit(now_ps)
                self._call(done, now_ps)
            if not ends:
                assert self._due, "a request never completes"
                at_ps, _, call = heapq.heappop(self._due)
                now_ps = max(now_ps, at_ps)
                self._call(call, now_ps)
        return now_ps

    def _call(self, call: Callable[[int], None], now_ps: int) -> None:
        call(now_ps)
        if self._turns is not None:
            self._turns.submit(now_ps, self._reading)


@dataclass(slots=True)
class Served:
    """One served fetch: when it was decided, when its last block was staged, when the host had it.
    `tags`: the command, the last read, the last hit."""

    token: int
    begin_ps: int
    decided_ps: int = 0
    staged_ps: int = 0
    end_ps: int = 0
    waited: bool = False
    tags: list[int] = field(default_factory=list)
    shift_ps: int = 0
    """For a fetch that did not wait for its command: how much later the chip executed its hit."""

    def landed(self, end_ps: int, ahead_ps: int = 0) -> None:
        """Record that the blocks reached the host `ahead_ps` before the chip's completion."""
        self.end_ps = max(self.end_ps, end_ps - ahead_ps)

    def ahead_ps(self, preset: Preset) -> int:
        """How much earlier than the decision a DPU's hosts can read staged blocks: they read its
        memory directly and do not wait for an answer."""
        return self.decided_ps - self.begin_ps if preset.kind == "dpu" else 0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a `ChipRun` that are computed from the recorded events."""

    tokens: int
    fetch_ns: Times
    device_ns: Times
    read_ns: Times
    stall_ns: Times
    deadlines_missed: int
    tokens_per_s: float
    seconds: float
    reads: int
    bytes_read: int
    bytes_written: int
    bytes_to_hosts: int
    bandwidth_bytes_per_s: float


@dataclass
class Account:
    """Records a run, fetch by fetch and read by read."""

    fetches: list[Served] = field(default_factory=list)
    reads_ps: list[int] = field(default_factory=list)
    readers: Counter[int] = field(default_factory=Counter)
    """Reads by session."""
    tokens: list[int] = field(default_factory=list)
    """The pace of each token's session in ns; 0: the session announced none."""
    sessions: list[int] = field(default_factory=list)
    """Of each token."""
    tenants: dict[int, int] = field(default_factory=dict)
    """Of each session."""
    bytes_to_hosts: int = 0
    bytes_written: int = 0
    _at: dict[int, tuple[int, int]] = field(default_factory=dict)

    def token(self, session: int, step: int, pace_ns: int, tenant: int = 0) -> int:
        """The token that a fetch of this session and step belongs to."""
        last = self._at.get(session)
        if last is None or last[0] != step:
            self._at[session] = last = (step, len(self.tokens))
            self.tokens.append(pace_ns)
            self.sessions.append(session)
            self.tenants[session] = tenant
        return last[1]

    def figures(self, block_bytes: int) -> Figures:
        """The run's figures so far."""
        spans = np.array([one.end_ps - one.begin_ps for one in self.fetches], np.int64)
        staged = np.array([one.staged_ps - one.decided_ps for one in self.fetches], np.int64)
        waited = np.array([one.waited for one in self.fetches], bool)
        token = np.array([one.token for one in self.fetches], np.int64)
        stall_ps = np.bincount(token, spans * waited, minlength=len(self.tokens))
        begin, end = self.span()
        seconds = max(end - begin, 1) / 1e12
        bytes_read = len(self.reads_ps) * block_bytes
        return Figures(
            tokens=len(self.tokens),
            fetch_ns=times_of(spans / PS),
            device_ns=times_of(staged / PS),
            read_ns=times_of(np.array(self.reads_ps, np.int64) / PS),
            stall_ns=times_of(stall_ps / PS),
            deadlines_missed=int(self.missed(token).sum()),
            tokens_per_s=len(self.tokens) / seconds,
            seconds=seconds,
            reads=len(self.reads_ps),
            bytes_read=bytes_read,
            bytes_written=self.bytes_written,
            bytes_to_hosts=self.bytes_to_hosts,
            bandwidth_bytes_per_s=bytes_read / seconds,
        )

    def span(self) -> tuple[int, int]:
        """Start of the first fetch and end of the last."""
        return (
            min((one.begin_ps for one in self.fetches), default=0),
            max((one.end_ps for one in self.fetches), default=0),
        )

    def read(self, took_ps: int, session: int) -> None:
        """Record a completed read of the medium."""
        self.reads_ps.append(took_ps)
        self.readers[session] += 1

    def missed(self, token: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether each token took longer than its session's pace."""
        first = np.full(len(self.tokens), np.iinfo(np.int64).max)
        last = np.zeros(len(self.tokens), np.int64)
        np.minimum.at(first, token, [one.begin_ps for one in self.fetches])
        np.maximum.at(last, token, [one.end_ps for one in self.fetches])
        pace_ps = np.array(self.tokens, np.int64) * PS
        missed: npt.NDArray[np.bool_] = (pace_ps > 0) & (last - first > pace_ps)
        return missed

    def units(self, device: Device, drive: dict[str, int] | None) -> list[UnitRun]:
        """Every unit of the chip over the run, with its share of the latency of fetches."""
        network, visits = device.chip.network, device.chip.visits()
        shares = [self._shares(network, visits, quantile) for quantile in (0.5, 0.99)]
        span, bin_ps = self.span(), device.chip.bin_ps
        return [
            _unit(stats, span, bin_ps, drive, [share.get(stats.name, 0.0) for share in shares])
            for stats in device.chip.stats().values()
        ]

    def _shares(
        self, network: Network, visits: npt.NDArray[np.void], quantile: float
    ) -> dict[str, float]:
        """The units' shares of the time of the fetches around a quantile. Each moment of the chain
        command, last read, last hit is charged to the unit whose visit ended next."""
        order = np.argsort([one.end_ps - one.begin_ps for one in self.fetches], kind="stable")
        size = int(np.clip(len(order) * SHARE_OF_FETCHES, FETCHES_MIN, FETCHES_MAX))
        middle = round(quantile * (len(order) - 1))
        low = max(0, min(middle - size // 2, len(order) - size))
        chosen = [self.fetches[int(number)] for number in order[low : low + size]]
        wanted = np.isin(visits["tag"], [tag for one in chosen for tag in one.tags])
        by_tag: dict[int, list[tuple[int, int]]] = {}
        for visit in visits[wanted]:
            if visit["unit"] != NO_NUMBER:
                by_tag.setdefault(int(visit["tag"]), []).append(
                    (int(visit["leave_ps"]), int(visit["unit"]))
                )
        spent: dict[str, float] = {}
        for one in chosen:
            now_ps = one.begin_ps + one.shift_ps
            for tag in one.tags:
                for leave_ps, unit in sorted(by_tag.get(tag, [])):
                    if leave_ps > now_ps:
                        name = network.units[unit].name
                        spent[name] = spent.get(name, 0.0) + leave_ps - now_ps
                        now_ps = leave_ps
        whole = sum(one.end_ps - one.begin_ps for one in chosen)
        return {name: ps / whole for name, ps in spent.items()} if whole else {}


def _unit(
    stats: UnitStats,
    span_ps: tuple[int, int],
    bin_ps: int,
    drive: dict[str, int] | None,
    shares: Sequence[float],
) -> UnitRun:
    begin_ps, end_ps = span_ps
    elapsed_ps = max(end_ps - begin_ps, 1)
    used = max(1, min(len(stats.busy_bins), -(-end_ps // bin_ps)))
    servers = max(1, stats.servers)
    busy = stats.busy_bins[:used] / (bin_ps * servers)
    share = utilisation(stats, elapsed_ps, drive)
    if stats.kind == "drive" and drive is not None:
        # Occupancy is not utilisation: over the run, use the sum of the stretches.
        busy = busy * (share / max(stats.busy_ps / (elapsed_ps * servers), 1e-12))
    return UnitRun(
        name=stats.name,
        kind=stats.kind,
        servers=servers,
        arrivals=stats.arrivals,
        bytes=stats.bytes,
        utilisation=min(1.0, share),
        blocked_share=min(1.0, stats.blocked_ps / (elapsed_ps * servers)),
        wait_ns_mean=stats.wait.mean_ps / PS,
        wait_ns_p99=stats.wait.quantile_ps(990) / PS,
        time_ns_mean=stats.time.mean_ps / PS,
        time_ns_p99=stats.time.quantile_ps(990) / PS,
        waiting_max=stats.waiting_max,
        hits=stats.hits,
        misses=stats.misses,
        share_p50=shares[0],
        share_p99=shares[1],
        bin_ns=bin_ps / PS,
        occupancy=(stats.area_bins[:used] / bin_ps).tolist(),
        busy=np.minimum(1.0, busy).tolist(),
    )


def utilisation(stats: UnitStats, elapsed_ps: int, drive: Mapping[str, int] | None) -> float:
    """The share of its servers' time that a unit worked. `drive`: the model of it, where the unit
    is one."""
    whole_ps = elapsed_ps * max(1, stats.servers)
    if stats.kind == "drive" and drive is not None:
        return _drive_share(drive, stats, elapsed_ps)
    if stats.kind == "server" and not stats.busy_ps:  # its whole service time is drawn
        return (stats.time.mean_ps - stats.wait.mean_ps) * stats.arrivals / whole_ps
    return stats.busy_ps / whole_ps


def _drive_share(drive: Mapping[str, int], stats: UnitStats, elapsed_ps: int) -> float:
    """Utilisation of a drive over the run: the maximum over its link, channels, planes and
    controller. The unit's own busy time counts any occupancy, so it does not give that."""
    seconds = elapsed_ps / 1e12
    planes = drive["channel_count"] * drive["dies_per_channel"] * drive["planes_per_die"]
    pages = stats.bytes / drive["page_size_bytes"]
    return max(
        stats.bytes / drive["link_bytes_per_s"] / seconds,
        stats.bytes / (drive["channel_bytes_per_s"] * drive["channel_count"]) / seconds,
        pages * drive["read_ps"] / planes / elapsed_ps,
        stats.arrivals * drive["command_interval_ps"] / elapsed_ps,
    )


def logged_of(trace: Trace) -> Logged:
    """The daemon's own figures from the log, by the definitions of a `ChipRun`."""
    fetches = [one for one in trace.fetches if one.demands and not one.retry]
    account = Account()
    for one in fetches:
        token = account.token(one.session, one.step, trace.session_ns.get(one.session, 0))
        account.fetches.append(
            Served(
                token,
                one.at_ns * PS,
                one.at_ns * PS,
                one.answered_ns * PS,
                one.answered_ns * PS,
                bool(one.waits),
            )
        )
    found = account.figures(trace.block_bytes)
    demands = sum(one.demands for one in fetches)
    hits, late = sum(one.hits for one in fetches), sum(one.late for one in fetches)
    return Logged(
        provenance=_provenance(trace.storage),
        storage=trace.storage,
        hits=hits,
        late=late,
        misses=demands - hits - late,
        fetch_ns=found.fetch_ns,
        stall_ns=found.stall_ns,
        seconds=found.seconds,
        bytes_read=len(trace.reads) * trace.block_bytes,
    )


def _provenance(storage: str) -> Literal["measured", "emulated", "modelled"]:
    """Of times over that storage; a log alone names none."""
    kind = storage.partition(" ")[0]
    if kind == "emulated":
        return "emulated"
    return "measured" if kind not in ("", "modelled") else "modelled"


def digest(preset: Preset) -> str:
    """A 16-digit digest of a preset, with all sources and tags."""
    import hashlib

    return hashlib.sha256(msgspec.json.encode(preset, order="deterministic")).hexdigest()[:16]
