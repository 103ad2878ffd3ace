"""The result of `offstage bench pod`: figures of each phase, or of a trace, and verdicts."""

import msgspec

from offstage.bindings.units import format_count, format_seconds, format_size
from offstage.testbeds.bench.pod.faults import Done
from offstage.testbeds.bench.pod.host import PAYLOAD_BYTES, Seen
from offstage.testbeds.bench.rows import UNITS, BenchResult
from offstage.testbeds.table import Column, Table

__all__ = ["FaultFigures", "Figures", "PodBenchResult", "PodResult", "TraceResult"]

Series = list[tuple[float, int, int]]
"""By second since the bench began: time, known blocks requested, hits."""


class Figures(msgspec.Struct, kw_only=True):
    """Figures of a set of requests: blocks, and durations in seconds."""

    requests: int
    asked: int
    known: int
    """Acknowledged to some host before."""
    hits: int
    hit_rate: float | None
    """Share of the known blocks; None: there were none."""
    request_s_p50: float
    request_s_p99: float
    request_s_max: float
    without_tier: int
    late_s_max: float
    misses: dict[str, int]
    series: Series = []
    blocks_copied: int = 0


class FaultFigures(Figures, kw_only=True):
    """Figures of a phase with a fault, against the same requests without it. Times are since it;
    None: it did not happen."""

    fault: str
    member: str
    struck_s: float
    ended_s: float
    """Time of the phase's last request."""
    detected_first_s: float | None
    detected_last_s: float | None
    in_map_s: float | None
    answer_s: float | None
    hit_s: float | None
    hits_lost: int
    hits_lost_share: float
    share_of_member: float
    back_s: float | None
    blocks_put_again: int
    blocks_put_again_least: int
    blocks_filled: int
    blocks_asked: int
    waited_s: float
    others_suspected: int


class PodBenchResult(BenchResult, kw_only=True):
    """Common to both modes."""

    seconds: float = 0.0
    hosts: int = 0
    deadline_s: float
    with_etcd: bool = False
    block_bytes: int = PAYLOAD_BYTES
    seen: list[Seen]
    done: list[Done]


class PodResult(PodBenchResult, kw_only=True):
    """Phase after phase; the first, "no fault", is the reference of all others."""

    phases: dict[str, Figures | FaultFigures]
    rate_hz: float = 0.0

    def about(self) -> list[str]:
        alone = self.phases["no fault"]
        return [
            f"measured on loopback: 4 daemons, {'3 of etcd' if self.with_etcd else 'no etcd'}, "
            f"{self.hosts} hosts, {self.rate_hz:g} requests/s, {self.seconds:g} s a "
            f"phase, a fetch deadline of {format_seconds(self.deadline_s)}, blocks of "
            f"{format_size(self.block_bytes)}, seed {self.seed}",
            f"without a fault a request took {format_seconds(alone.request_s_p50)} (p50), "
            f"{format_seconds(alone.request_s_p99)} (p99), and began at most "
            f"{format_seconds(alone.late_s_max)} late",
        ]

    def own_tables(self) -> list[Table]:
        """A row for each phase."""
        columns = [
            Column("phase", left=True),
            Column("requests", format_count),
            Column("hits", UNITS["%"]),
            Column("lost", format_count),
            *(
                Column(name, format_seconds)
                for name in ("detected", "in the map", "good answer", "hit again", "back", "waited")
            ),
            *(Column(name, format_count) for name in ("again", "filled", "copied")),
        ]
        return [Table.of(columns, [_cells(name, one) for name, one in self.phases.items()])]


class TraceResult(PodBenchResult, kw_only=True):
    """Requests of a trace with faults one after another."""

    figures: Figures
    """Figures of all requests; in the document its fields are merged into this one's."""
    trace: str = ""
    begin_s: float = 0.0
    span_s: float = 0.0
    compression: float = 0.0
    compression_asked: float = 0.0
    blocks_distinct: int = 0
    blocks_filled: int = 0
    wrong: int
    refused: int
    put: int
    put_again: int
    late_s_p50: float
    late_s_p99: float
    waited_s_max: float
    faults: dict[str, int]
    unexplained: list[tuple[int, str, str, str, float]]

    def about(self) -> list[str]:
        return [
            f"{format_seconds(self.span_s)} of {self.trace} from {format_seconds(self.begin_s)} "
            f"on, in {format_seconds(self.seconds)}: {self.compression:.2f} s of the trace in one "
            f"second; {self.hosts} hosts, seed {self.seed}",
        ]

    def document(self) -> dict[str, object]:
        found = super().document()
        of_all = found.pop("figures")
        assert isinstance(of_all, dict)
        return of_all | found

    def own_tables(self) -> list[Table]:
        """The results of all requests, and the misses of known blocks by reason."""
        one = self.figures
        took = (one.request_s_p50, one.request_s_p99, one.request_s_max)
        late = (self.late_s_p50, self.late_s_p99, one.late_s_max)
        rate = "–" if one.hit_rate is None else f"{one.hit_rate:.2%}"
        rows = {
            "requests": format_count(one.requests),
            "blocks asked": f"{one.asked:,} ({self.blocks_distinct:,} distinct)",
            "of these known": format_count(one.known),
            "hits": format_count(one.hits),
            "hit rate of what was known": rate,
            "wrong": format_count(self.wrong),
            "computed again": format_count(self.put_again),
            "brought home, copied": f"{self.blocks_filled:,}, {one.blocks_copied:,}",
            "requests without the tier": format_count(one.without_tier),
            "puts refused": format_count(self.refused),
            "faults": ", ".join(f"{count} {name}" for name, count in self.faults.items()),
            "a request took (p50, p99, max)": ", ".join(map(format_seconds, took)),
            "began late (p50, p99, max)": ", ".join(map(format_seconds, late)),
            "most that a connection waited": format_seconds(self.waited_s_max),
        }
        misses = sorted(one.misses.items(), key=lambda miss: -miss[1])
        reason = Column("misses of what was known", left=True)
        return [
            Table.of([Column("", left=True), Column("")], rows.items(), heads=False),
            Table.of([reason, Column("", format_count)], misses),
        ]


def _cells(name: str, one: Figures) -> list[object]:
    found: list[object] = [name, one.requests, one.hit_rate]
    if not isinstance(one, FaultFigures):
        return found
    return [
        *found,
        one.hits_lost,
        one.detected_last_s,
        one.in_map_s,
        one.answer_s,
        one.hit_s,
        one.back_s,
        one.waited_s,
        one.blocks_put_again,
        one.blocks_filled,
        one.blocks_copied,
    ]
