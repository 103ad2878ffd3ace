"""The two modes of `offstage bench pod`."""

from pathlib import Path
from typing import TYPE_CHECKING

from offstage.bindings.errors import BadInput
from offstage.bindings.units import parse_time, parse_time_between

if TYPE_CHECKING:
    from offstage.testbeds.bench.pod.result import PodResult, TraceResult

__all__ = ["run_phases", "run_trace"]

RATE_MAX = 10_000.0
SECONDS_MIN, SECONDS_MAX = 2.0, 7 * 86_400.0
WHERE = "bench pod"


def run_phases(
    folder: Path, faults: str, seconds: float, rate_hz: float, deadline: str, seed: int
) -> "PodResult":
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
) -> "TraceResult":
    """A trace, compressed in time. BadInput as `run_phases`, and for the trace."""
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
    return parse_time_between(text, "--fetch-deadline", "1ms", "60s") / 1e9
