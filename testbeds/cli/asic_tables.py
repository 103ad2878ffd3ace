"""Tables of the results of `offstage asic run` and `sweep`, for the terminal."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from offstage.asic_model.result import ChipRun, LimitRow, Times
from offstage.bindings.ledger import share
from offstage.bindings.notes import note_lines
from offstage.bindings.units import format_count, format_rate, format_size, format_time
from offstage.testbeds.table import Column, Table

__all__ = ["run_table", "sweep_table"]

SESSIONS_SHOWN = 8


def run_table(run: ChipRun) -> RenderableType:
    """Demands, times and units of one run, with the log's times for comparison."""
    lines: list[RenderableType] = [
        Text(_sentence(run)),
        *map(Text, note_lines(run.notes)),
        Text(""),
    ]
    if run.limits:
        lines += [_limits(run.limits), Text(""), *map(Text, map(_cost, run.limits)), Text("")]
    return Group(_times(run), Text(""), _units(run), Text(""), _sessions(run), Text(""), *lines)


TABLES = {"scheduler.candidates": "table of candidates", "dedup.entries": "dedup index"}


def _limits(rows: Sequence[LimitRow]) -> Table:
    """Every table with every size; the first row of each has room for everything."""
    columns = [
        Column("table", left=True),
        Column("entries", format_count),
        Column("hits", "{:.1%}".format),
        Column("reads", format_count),
        Column("known prefixes", "{:.1%}".format),
        Column("written again", format_size),
    ]
    lines = [
        [
            TABLES[one.table],
            "all" if one.entries is None else one.entries,
            one.hit,
            one.reads,
            one.known,
            one.bytes_written_again,
        ]
        for one in rows
    ]
    return Table.of(columns, lines)


def _cost(row: LimitRow) -> str:
    """What a table of that size costs, or that it costs nothing."""
    if row.entries is None:
        return f"A {TABLES[row.table]} with room for everything: {row.hit:.1%} hits."
    begun = f"A {TABLES[row.table]} of {row.entries:,} entries"
    if not row.has_effect:
        return f"{begun} has no effect: as many hits, reads and known prefixes."
    if row.table == "dedup.entries":
        begun += (
            f" loses {row.known_lost_points:.1f} points of sharing, writes "
            f"{format_size(row.bytes_written_again)} again, and"
        )
    lost = round(row.hit_lost_points, 2)
    hits = f"{'loses' if lost > 0 else 'gains'} {abs(lost):.2f} points of hits"
    return f"{begun} {hits if lost else 'loses no hits'}."


def _sentence(run: ChipRun) -> str:
    shares = [share(count, run.demands) for count in (run.hits, run.late, run.misses)]
    said = (
        f"{run.label}, {run.mode}: {run.demands:,} demands, {shares[0]:.1%} hits, {shares[1]:.1%} "
        f"late, {shares[2]:.1%} misses; {run.tokens_per_s:,.1f} tokens/s, "
        f"{format_size(run.bytes_read)} read at {format_rate(run.bandwidth_bytes_per_s)}; "
        f"bottleneck: {run.binds_first}. Modelled."
    )
    if run.mode == "closed-loop":
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in run.diverged.items())
        said += f" Decisions that differ from the log's: {kinds or 'none'}."
        if run.prefixes is not None and run.prefixes.named:
            known = share(run.prefixes.known, run.prefixes.named)
            said += f" Prefixes that were known: {known:.1%} of {run.prefixes.named:,} chunks."
    return said


def _times(run: ChipRun) -> Table:
    found: list[tuple[str, Times]] = [
        ("fetch", run.fetch_ns),
        ("of it, on the device", run.device_ns),
        ("read", run.read_ns),
        ("stall of a token", run.stall_ns),
    ]
    if run.logged is not None:
        shown = f"on the device, {run.logged.provenance} in the log"
        found.insert(2, (shown, run.logged.fetch_ns))
    columns = [Column("", left=True), Column("count", format_count)]
    columns += [Column(name, format_time) for name in ("mean", "p50", "p90", "p99", "p99.9")]
    rows = [[name, one.count, one.mean, one.p50, one.p90, one.p99, one.p999] for name, one in found]
    return Table.of(columns, rows)


def _units(run: ChipRun) -> Table:
    columns = [
        Column("unit", left=True),
        Column("visits", format_count),
        Column("used", "{:.2%}".format),
        Column("wait", format_time),
        Column("wait p99", format_time),
        Column("blocked", "{:.1%}".format),
        Column("of p50", "{:.0%}".format),
        Column("of p99", "{:.0%}".format),
    ]
    rows = [
        [
            one.name,
            one.arrivals,
            one.utilisation,
            one.wait_ns_mean,
            one.wait_ns_p99,
            one.blocked_share,
            one.share_p50,
            one.share_p99,
        ]
        for one in run.units
    ]
    return Table.of(columns, rows)


def _sessions(run: ChipRun) -> Table:
    """The sessions that stalled longest, with their waits at the arbiter; the JSON has all."""
    columns = [
        Column("session", left=True),
        Column("tenant"),
        Column("tokens", format_count),
        Column("too late", format_count),
        Column("fetch", format_time),
        Column("stall", format_time),
        Column("reads", format_count),
        Column("wait", format_time),
        Column("wait max", format_time),
    ]
    found = sorted(run.by_session, key=lambda one: one.stall_ns, reverse=True)
    rows: list[list[object]] = [
        [
            "none" if one.session is None else one.session,
            one.tenant,
            one.tokens,
            one.deadlines_missed,
            one.fetch_ns_mean,
            one.stall_ns,
            one.reads,
            one.wait_ns_mean,
            one.wait_ns_max,
        ]
        for one in found[:SESSIONS_SHOWN]
    ]
    if len(found) > SESSIONS_SHOWN:
        rows.append([f"and {len(found) - SESSIONS_SHOWN:,} more"])
    return Table.of(columns, rows)


SHOWN = {"fetch_ns_mean": format_time, "fetch_ns_p99": format_time, "stall_ns_mean": format_time}


def sweep_table(rows: Sequence[Mapping[str, Any]], path: str) -> RenderableType:
    """The results over all chips of a sweep: minimum, median and maximum."""
    lines = []
    for name, form in SHOWN.items():
        values = sorted(row[name] for row in rows)
        lines.append([name, *map(form, (values[0], values[len(values) // 2], values[-1]))])
    table = Table.named(("figure", "minimum", "median", "maximum"), lines)
    binds = Counter(row["binds_first"] for row in rows)
    used = ", ".join(f"{name} in {count:,}" for name, count in binds.most_common())
    said = f"{len(rows):,} chips, modelled and uncalibrated; busiest unit: {used}"
    return Group(table, Text(""), Text(said), Text(path))
