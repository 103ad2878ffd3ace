"""What `offstage bench sparse` found: stall per token, live and in virtual time, and sessions."""

from typing import Literal

import msgspec

from offstage.bindings.units import format_seconds
from offstage.testbeds.bench.rows import UNITS, BenchResult
from offstage.testbeds.live.checks import OVERRUNS_MAX
from offstage.testbeds.table import SIGN, Cell, Column, Table

__all__ = ["Carried", "Pair", "Point", "Provenance", "Replay", "SparseResult"]

Provenance = Literal["measured", "emulated", "modelled"]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Decoding at one setting. `token_ms`: the GPU's own time of a token. `first_ms`: the mean
    stall of the sessions' first tokens, from a cold arena; all else is of a run's second half.
    `missed_per_token`: demands that waited; `reads_per_token`: with what was read ahead.
    `used`: share of each part of the device; of a live run the share of a demand's wait that each
    took. `binds`: the one with the largest share, or nothing. `late`: share of requests that ended
    later than on the modelled device in the loop; None: none was modelled. `capture`: whose
    selections were replayed; empty: drawn ones."""

    provenance: Provenance
    device: str
    context_tokens: int
    selected: int
    drives: int
    sessions: int
    token_ms: float
    first_ms: float
    stall_ms_mean: float
    stall_ms_p50: float
    stall_ms_p99: float
    missed_per_token: float
    reads_per_token: float | None
    used: dict[str, float]
    binds: str
    late: float | None = None
    capture: str = ""

    @property
    def waits(self) -> float:
        """Share of a token's mean time in which it waits for blocks."""
        return self.stall_ms_mean / (self.stall_ms_mean + self.token_ms)


class Pair(msgspec.Struct, frozen=True):
    """A live run, and the laboratory's run of the same setting; None: of a real disk or a real
    model, which the laboratory does not have."""

    live: Point
    lab: Point | None


class Replay(msgspec.Struct, frozen=True):
    """One session with the selections of a capture, in virtual time, and with drawn ones of as many
    blocks, layers and steps."""

    point: Point
    drawn: Point


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """How many sessions decode at one setting until tokens wait for the stated share of their time,
    interpolated between two runs; 0: one session waits longer. `more`: the most that were run wait
    less. `binds`: what is used most there, or the arena, whose memory the sessions fill.
    `drive_reads_per_s`: of each drive; `core`: share of the DPU's core that is used."""

    context_tokens: int
    selected: int
    drives: int
    sessions: float
    more: bool
    binds: str
    reads_per_token: float
    drive_reads_per_s: float
    core: float


class SparseResult(BenchResult, kw_only=True):
    """`pairs`: of the small geometry `live_model`. `points`: every run of `model` in virtual time;
    `carried`: what follows from them; `replays`: with captures, in place of both. `load_before`:
    runnable processes of this machine before the live runs; None: there were none."""

    model: str
    live_model: str
    device: str
    drive: str
    policy: str
    block_bytes: int
    layers: int
    waits: float
    load_before: float | None
    pairs: list[Pair]
    points: list[Point]
    carried: list[Carried]
    replays: list[Replay] = msgspec.field(default_factory=list)

    def about(self) -> list[str]:
        found = [
            f"prefetch {self.policy}; first: stall of a session's first token, which finds a cold "
            "arena; all else is of the second half of a run",
        ]
        if self.load_before is not None:
            selected = "a real query over drawn keys"
            if self.pairs and self.pairs[0].live.capture:
                selected = "a captured model over drawn keys, in its layers and blocks"
            found.append(
                f"live: {self.live_model}, selections of {selected}, every block "
                f"checked, beside a load of {self.load_before:.1f} on this machine; of a device in "
                "the loop late says how many requests this machine did not serve at its pace, and "
                f"more than {100 * OVERRUNS_MAX:g} % make a row void; binds: what takes most of a "
                "demand's wait"
            )
        if self.carried:
            found.append(
                f"sessions: {self.model}, modelled on {self.device} over {self.drive}, until "
                f"tokens wait {100 * self.waits:g} % of their time; binds: what is used most"
            )
        if self.replays:
            found.append(
                f"replayed: selections of a captured model on blocks of {self.model}, modelled on "
                f"{self.device} over {self.drive}; a layer takes as long as one of that model"
            )
        return found

    def own_tables(self) -> list[Table]:
        replayed = [self._replayed()] if self.replays else []
        return [*([self._live()] if self.pairs else []), *replayed, *self._virtual()]

    def _replayed(self) -> Table:
        columns = [
            Column("capture", left=True),
            Column("context", "{:,}".format, left=True),
            Column("k", left=True),
            Column("drives", left=True),
            Column("stall mean", _ms, short="mean"),
            Column("drawn mean", _ms, short="drawn"),
            Column("p99", _ms),
            Column("drawn p99", _ms, short="drawn"),
            Column("waits", UNITS["%"]),
            Column("drawn waits", UNITS["%"], short="drawn"),
            Column("reads a token", "{:.1f}".format, short="reads"),
            Column("drawn reads", "{:.1f}".format, short="drawn"),
        ]
        title = f"one session, captured and drawn selections, {self.model} (modelled)"
        return Table.of(columns, [_replay(one) for one in self.replays], title)

    def _live(self) -> Table:
        columns = [
            Column("live on", left=True),
            *([Column("capture", left=True)] if self.pairs[0].live.capture else []),
            Column("context", "{:,}".format, left=True),
            Column("k", left=True),
            Column("drives", left=True),
            Column("first", _ms),
            Column("stall mean", _ms, short="mean"),
            Column("p99", _ms),
            Column("lab mean", _ms),
            Column("lab p99", _ms),
            Column("missed", "{:.1f}".format),
            Column("lab", "{:.1f}".format),
            Column("late", UNITS["%"]),
            Column("binds", left=True),
        ]
        return Table.of(columns, [_pair(one) for one in self.pairs])

    def _virtual(self) -> list[Table]:
        if not self.carried:
            return []
        columns = [
            Column("context", "{:,}".format, left=True),
            Column("k", left=True),
            Column("drives", left=True),
            Column("sessions", left=True),
            Column("first", _ms),
            Column("stall mean", _ms, short="mean"),
            Column("p99", _ms),
            Column("reads a token", "{:.0f}".format, short="reads"),
            Column("drive", UNITS["%"]),
            Column("core", UNITS["%"]),
            Column("memory", UNITS["%"]),
            Column("link", UNITS["%"]),
            Column("binds", left=True),
        ]
        carried = [
            Column("context", "{:,}".format, left=True),
            Column("k", left=True),
            Column("drives", left=True),
            Column("sessions"),
            Column("reads/s of a drive", UNITS["/s"]),
            Column("core", UNITS["%"]),
            Column("binds", left=True),
        ]
        title = f"sessions until tokens wait {100 * self.waits:g} % of their time (modelled)"
        return [
            Table.of(columns, [_point(one) for one in self.points], f"{self.model} (modelled)"),
            Table.of(carried, [_carried(one) for one in self.carried], title),
        ]


def _ms(value: float) -> str:
    return format_seconds(value / 1e3)


def _pair(pair: Pair) -> list[object]:
    one, lab = pair.live, pair.lab
    name = f"{one.device} ({one.provenance})"
    void = (one.late or 0.0) > OVERRUNS_MAX
    beside: list[float | None] = [None, None, None]
    if lab is not None:
        beside = [lab.stall_ms_mean, lab.stall_ms_p99, lab.missed_per_token]
    return [
        Cell(f"{name} {SIGN}", "void") if void else name,
        *([one.capture] if one.capture else []),
        *(one.context_tokens, one.selected, one.drives),
        *(one.first_ms, one.stall_ms_mean, one.stall_ms_p99, *beside[:2]),
        *(one.missed_per_token, beside[2], one.late, one.binds),
    ]


def _point(one: Point) -> list[object]:
    return [
        *(one.context_tokens, one.selected, one.drives, one.sessions),
        *(one.first_ms, one.stall_ms_mean, one.stall_ms_p99, one.reads_per_token),
        *(one.used[part] for part in ("drive", "core", "memory", "link")),
        one.binds,
    ]


def _replay(found: Replay) -> list[object]:
    one, drawn = found.point, found.drawn
    return [
        *(one.capture, one.context_tokens, one.selected, one.drives),
        *(one.stall_ms_mean, drawn.stall_ms_mean, one.stall_ms_p99, drawn.stall_ms_p99),
        *(one.waits, drawn.waits, one.reads_per_token, drawn.reads_per_token),
    ]


def _carried(one: Carried) -> list[object]:
    shown = f"{'> ' if one.more else ''}{one.sessions:.1f}"
    return [
        *(one.context_tokens, one.selected, one.drives, shown),
        *(one.drive_reads_per_s, one.core, one.binds),
    ]
