"""How `offstage asic run` shows what came out, for people."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offstage.asic_model.result import ChipRun, Times
from offstage.bindings.notes import note_lines
from offstage.bindings.units import format_rate, format_size, format_time

__all__ = ["run_table", "sweep_table"]

SESSIONS_SHOWN = 8


def run_table(run: ChipRun) -> RenderableType:
    """Demands, times and units of one run; beside the times those of the log."""
    lines = [Text(_sentence(run)), *map(Text, note_lines(run.notes)), Text("")]
    return Group(_times(run), Text(""), _units(run), Text(""), _sessions(run), Text(""), *lines)


def _sentence(run: ChipRun) -> str:
    shares = [count / max(run.demands, 1) for count in (run.hits, run.late, run.misses)]
    said = (
        f"{run.label}, {run.mode}: {run.demands:,} demands, {shares[0]:.1%} hits, {shares[1]:.1%} "
        f"late, {shares[2]:.1%} misses; {run.tokens_per_s:,.1f} tokens/s, "
        f"{format_size(run.bytes_read)} read at {format_rate(run.bandwidth_bytes_per_s)}; "
        f"{run.binds_first} is used the most. Modelled."
    )
    if run.mode == "closed-loop":
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in run.diverged.items())
        said += f" Decisions that are not the log's: {kinds or 'none'}."
    return said


def _times(run: ChipRun) -> Table:
    table = _table("", "count", "mean", "p50", "p90", "p99", "p99.9")
    rows: list[tuple[str, Times]] = [
        ("fetch", run.fetch_ns),
        ("of it, on the device", run.device_ns),
        ("read", run.read_ns),
        ("stall of a token", run.stall_ns),
    ]
    if run.logged is not None:
        shown = f"on the device, {run.logged.provenance} in the log"
        rows.insert(2, (shown, run.logged.fetch_ns))
    for name, times in rows:
        quantiles = (times.mean, times.p50, times.p90, times.p99, times.p999)
        table.add_row(name, f"{times.count:,}", *(format_time(one) for one in quantiles))
    return table


def _units(run: ChipRun) -> Table:
    table = _table("unit", "visits", "used", "wait", "wait p99", "blocked", "of p50", "of p99")
    for one in run.units:
        table.add_row(
            one.name,
            f"{one.arrivals:,}",
            f"{one.utilisation:.2%}",
            format_time(one.wait_ns_mean),
            format_time(one.wait_ns_p99),
            f"{one.blocked_share:.1%}",
            f"{one.share_p50:.0%}",
            f"{one.share_p99:.0%}",
        )
    return table


def _sessions(run: ChipRun) -> Table:
    """Those that stalled the longest, with their waits at the arbiter; all are in the JSON."""
    table = _table(
        "session", "tenant", "tokens", "too late", "fetch", "stall", "reads", "wait", "wait max"
    )
    found = sorted(run.by_session, key=lambda one: one.stall_ns, reverse=True)
    for one in found[:SESSIONS_SHOWN]:
        table.add_row(
            "none" if one.session is None else str(one.session),
            str(one.tenant),
            f"{one.tokens:,}",
            f"{one.deadlines_missed:,}",
            format_time(one.fetch_ns_mean),
            format_time(one.stall_ns),
            f"{one.reads:,}",
            format_time(one.wait_ns_mean),
            format_time(one.wait_ns_max),
        )
    if len(found) > SESSIONS_SHOWN:
        table.add_row(f"and {len(found) - SESSIONS_SHOWN:,} more")
    return table


SHOWN = {"fetch_ns_mean": format_time, "fetch_ns_p99": format_time, "stall_ns_mean": format_time}


def sweep_table(rows: Sequence[Mapping[str, Any]], path: str) -> RenderableType:
    """What came out over all chips of a sweep: the least, the middle and the most."""
    table = _table("figure", "least", "median", "most")
    for name, form in SHOWN.items():
        values = sorted(row[name] for row in rows)
        ends = (values[0], values[len(values) // 2], values[-1])
        table.add_row(name, *(form(value) for value in ends))
    binds = Counter(row["binds_first"] for row in rows)
    used = ", ".join(f"{name} in {count:,}" for name, count in binds.most_common())
    said = f"{len(rows):,} chips, modelled and uncalibrated; used the most: {used}"
    return Group(table, Text(""), Text(said), Text(path))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for at, column in enumerate(columns):
        table.add_column(column, justify="right" if at else "left", no_wrap=True)
    return table
