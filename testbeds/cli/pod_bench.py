"""`offstage bench pod`: its two ways to run, and what it saw as tables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offstage.bindings.errors import BadInput
from offstage.bindings.units import format_size, format_time, parse_time

__all__ = ["pod_table", "run_phases", "run_trace", "schedule_table"]

RATE_MAX = 10_000.0
SECONDS_MIN, SECONDS_MAX = 2.0, 7 * 86_400.0
DEADLINE_NS_MIN, DEADLINE_NS_MAX = 10**6, 60 * 10**9
WHERE = "bench pod"


def run_phases(
    folder: Path, faults: str, seconds: float, rate_hz: float, deadline: str, seed: int
) -> dict[str, Any]:
    """A phase for each fault. BadInput: a number out of bounds, or an unknown fault."""
    from offstage.testbeds.bench.pod.run import PHASES, bench_pod
    from offstage.testbeds.cli.progress import shown

    _check(seconds)
    if not 0.1 <= rate_hz <= RATE_MAX:
        raise BadInput(f"{rate_hz:g} requests a second", WHERE, f"choose 0.1 to {RATE_MAX:g}")
    chosen = [one for one in faults.split(",") if one]
    phases = 2 + 2 * sum(fault in chosen or fault == "none" for fault, _ in PHASES)
    with shown(phases) as progress:
        return bench_pod(
            folder=folder,
            seconds=seconds,
            rate_hz=rate_hz,
            seed=seed,
            phases=chosen,
            deadline_s=_deadline_s(deadline),
            progress=progress,
        )


def run_trace(
    folder: Path,
    trace: Path,
    begin: str,
    span: str,
    seconds: float,
    deadline: str,
    seed: int,
    time_unit: str | None = None,
) -> dict[str, Any]:
    """A trace, faster than it was. BadInput as `run_phases`, and of the trace."""
    from offstage.testbeds.bench.pod.asks import of_trace
    from offstage.testbeds.bench.pod.hour import bench_hour
    from offstage.testbeds.cli.progress import shown

    _check(seconds)
    traced = of_trace(
        trace,
        begin_s=parse_time(begin, "--begin") / 1e9,
        span_s=parse_time(span, "--span") / 1e9,
        seconds=seconds,
        time_unit=time_unit,
    )
    with shown(1) as progress:
        return bench_hour(
            traced, folder=folder, deadline_s=_deadline_s(deadline), seed=seed, progress=progress
        )


def _check(seconds: float) -> None:
    if not SECONDS_MIN <= seconds <= SECONDS_MAX:
        raise BadInput(f"{seconds:g} s", WHERE, f"choose {SECONDS_MIN:g} s to a week")


def _deadline_s(text: str) -> float:
    deadline_ns = int(parse_time(text, "--fetch-deadline"))
    if not DEADLINE_NS_MIN <= deadline_ns <= DEADLINE_NS_MAX:
        raise BadInput(f"a deadline of {text}", "--fetch-deadline", "give 1ms to 60s")
    return deadline_ns / 1e9


def pod_table(result: Mapping[str, Any]) -> tuple[RenderableType, list[str]]:
    """What it says, and how it was measured."""
    if "trace" in result:
        return _trace_table(result)
    table = _grid(
        "phase",
        "requests",
        "hits",
        "lost",
        "detected",
        "in the map",
        "good answer",
        "hit again",
        "back",
        "waited",
        "again",
        "filled",
        "copied",
    )
    for name, one in result["phases"].items():
        table.add_row(name, f"{one['requests']:,}", f"{one['hit_rate']:.1%}", *_fault_cells(one))
    reference = result["phases"]["no fault"]
    return Group(
        table,
        "",
        verdict_table(result["aims"], yes="reached", no="MISSED"),
        "",
        verdict_table(result["verdicts"]),
    ), [
        f"measured on loopback: 4 daemons, {'3 of etcd' if result['with_etcd'] else 'no etcd'}, "
        f"{result['hosts']} hosts, {result['rate_hz']:g} requests/s, {result['seconds']:g} s a "
        f"phase, a fetch deadline of {_time(result['deadline_s'])}, blocks of "
        f"{format_size(result['block_bytes'])}, seed {result['seed']}",
        f"without a fault a request took {_time(reference['request_s_p50'])} (p50), "
        f"{_time(reference['request_s_p99'])} (p99), and began at most "
        f"{_time(reference['late_s_max'])} late",
    ]


def _fault_cells(one: Mapping[str, Any]) -> list[str]:
    if "fault" not in one:
        return []
    times = [
        one["detected_last_s"],
        one["in_map_s"],
        one["answer_s"],
        one["hit_s"],
        one["back_s"],
        one["waited_s"],
    ]
    moved = (f"{one[f'blocks_{name}']:,}" for name in ("put_again", "filled", "copied"))
    return [f"{one['hits_lost']:,}", *map(_time, times), *moved]


def _trace_table(result: Mapping[str, Any]) -> tuple[RenderableType, list[str]]:
    rows = {
        "requests": f"{result['requests']:,}",
        "blocks asked": f"{result['asked']:,} ({result['blocks_distinct']:,} distinct)",
        "of these known": f"{result['known']:,}",
        "hits": f"{result['hits']:,}",
        "hit rate of what was known": f"{result['hit_rate']:.2%}",
        "wrong": f"{result['wrong']:,}",
        "computed again": f"{result['put_again']:,}",
        "brought home, copied": f"{result['blocks_filled']:,}, {result['blocks_copied']:,}",
        "requests without the tier": f"{result['without_tier']:,}",
        "puts refused": f"{result['refused']:,}",
        "faults": ", ".join(f"{count} {name}" for name, count in result["faults"].items()),
        "a request took (p50, p99, max)": ", ".join(
            _time(result[f"request_s_{name}"]) for name in ("p50", "p99", "max")
        ),
        "began late (p50, p99, max)": ", ".join(
            _time(result[f"late_s_{name}"]) for name in ("p50", "p99", "max")
        ),
        "most that a connection waited": _time(result["waited_s_max"]),
    }
    table = _grid("", "")
    for name, value in rows.items():
        table.add_row(name, value)
    reasons = _grid("misses of what was known", "")
    for name, count in sorted(result["misses"].items(), key=lambda one: -one[1]):
        reasons.add_row(name, f"{count:,}")
    return Group(table, "", reasons, "", verdict_table(result["verdicts"])), [
        f"{_time(result['span_s'])} of {result['trace']} from {_time(result['begin_s'])} on, in "
        f"{_time(result['seconds'])}: {result['compression']:.2f} s of the trace in one second; "
        f"{result['hosts']} hosts, seed {result['seed']}",
    ]


def schedule_table(result: Mapping[str, Any]) -> tuple[RenderableType, list[str]]:
    """What each schedule met, live and in the laboratory, and how it was measured."""
    table = _grid("load, schedule", "", "hit", "kept", "first token p50", "p99", "refused")
    for arm in result["arms"]:
        for number, side in enumerate(("live", "lab")):
            one, name = arm[side], f"{arm['load']}, {arm['schedule']}"
            times = (_time(one[f"first_ms_{at}"] / 1e3) for at in ("p50", "p99"))
            table.add_row(
                "" if number else name,
                side,
                f"{one['hit']:.1%}",
                f"{one['pool_hit']:.1%}",
                *times,
                f"{one['refused']:,}",
            )
    return Group(table, "", verdict_table(result["verdicts"])), [
        f"live on loopback: {result['daemons']} daemons, {result['hosts']} hosts that each keep "
        f"{result['kept_blocks']:,} blocks of 512 tokens ({format_size(result['block_bytes'])} "
        f"here); asking for a block took {result['look_ms']:.2f} ms, fetching it "
        f"{result['block_ms']:.2f} ms",
        f"{result['requests']:,} requests of {result['trace']}, {result['compression']:.2f} s of "
        f"it in one second, and {result['saturated']:g} times as many; computing is a wait, of "
        f"{result['prefill_tokens_per_s']:,} tokens/s a host; seed {result['seed']}",
    ]


def _grid(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left")
    return table


def verdict_table(
    verdicts: Mapping[str, bool | None], *, yes: str = "yes", no: str = "NO"
) -> Table:
    """Each verdict with its answer; None is a run that could not tell."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    for name, met in verdicts.items():
        if met is None:
            table.add_row(name, "not judged")
        else:
            table.add_row(name, Text(yes if met else no, style="green" if met else "bold red"))
    return table


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else format_time(1e9 * seconds)
