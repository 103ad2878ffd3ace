"""The figures of the tree, from the summary of a run: those that it knows without a re-run.

Nothing here can fail; what a summary does not say is absent with a reason.
"""

from collections.abc import Mapping

import msgspec

from offstage.bindings.errors import BadInput
from offstage.bindings.ledger import share
from offstage.testbeds.lab.results.summary import Interval, LabSummary, PointInfo, PointSummary
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.live.results import RunResult
from offstage.testbeds.report.bottleneck.tree import (
    ARENA,
    COMPUTE,
    HBM,
    STEPS,
    Bottleneck,
    Figure,
    unchecked,
)

__all__ = [
    "NO_DEVICE",
    "ROOMLESS",
    "at_pace",
    "compute_share",
    "figures_of_point",
    "figures_of_run",
    "of_counts",
    "point_by_figures",
    "run_by_figures",
    "said",
    "spec_of",
]

ROOMLESS = ("capacity", "policy")
"""Ends of demands that missed for want of room: with a larger arena, or under another eviction, the
block would still have been there."""
UNTIMED = "the summary has no times of tokens"
UNITS = "only a re-run times the units of the device"
NO_DEVICE = "the experiment names no device: `lab run --device PRESET` models one"


def compute_share(wait_ms: float, token_ms: float, provenance: str = "modelled") -> Figure:
    """One less the mean wait of a token for blocks over the mean time of a token."""
    if token_ms <= 0:
        return Figure(absent="no token was decoded")
    return Figure(min(1.0, max(0.0, 1.0 - wait_ms / token_ms)), provenance)


def of_counts(
    selected: int, demands: int, ends: Mapping[str, int], provenance: str
) -> dict[str, Figure]:
    """HBM: demands over selected blocks. Arena: demands that missed for want of room, over all."""
    nothing = Figure(provenance=provenance, absent="no block was selected")
    roomless = sum(ends.get(end, 0) for end in ROOMLESS)
    return {
        HBM: Figure(share(demands, selected), provenance) if selected else nothing,
        # Without a demand none missed: the pool held everything.
        ARENA: Figure(share(roomless, demands), provenance) if selected else nothing,
    }


def figures_of_run(run: RunResult) -> dict[str, Figure]:
    """Of a live run: of the device only how the host saw it is known."""
    found = dict.fromkeys(STEPS, Figure(absent=UNITS))
    waits = run.stall_ms_by_token
    if run.token_ms_mean and waits:
        wait_ms = sum(waits) / len(waits)
        found[COMPUTE] = compute_share(wait_ms, run.token_ms_mean, run.provenance)
    else:
        found[COMPUTE] = Figure(absent=UNTIMED)
    return found | of_counts(run.selected, run.demands, run.ends, run.provenance)


def figures_of_point(point: PointSummary, summary: LabSummary) -> dict[str, Figure]:
    """Of a point of the laboratory. The time of its tokens, with it the share of compute, and what
    its device did are known where the experiment names one."""
    found = dict.fromkeys(STEPS, Figure(absent=NO_DEVICE))
    found |= of_counts(point.selected, point.demands, point.ends, "modelled")
    found |= {part: Figure(share) for part, share in point.used.items() if part in found}
    token_ms: Interval | None = point.token_ms_mean
    if token_ms is None:
        return found | {COMPUTE: Figure(absent=UNTIMED if point.info.device else NO_DEVICE)}
    try:
        spec = spec_of(summary)
    except BadInput as error:
        return found | {COMPUTE: Figure(absent=error.what)}
    return found | {COMPUTE: at_pace(token_ms.value, spec)}


def spec_of(summary: LabSummary, where: str = "summary.json") -> Spec:
    """The spec that was run. BadInput for one that this release does not know."""
    try:
        return msgspec.convert(summary.spec, Spec, strict=False)
    except msgspec.ValidationError:
        raise BadInput(
            "the spec in the summary is none of this release", where, "run the experiment again"
        ) from None


def at_pace(token_ms: float, spec: Spec) -> Figure:
    """The share of compute of an experiment whose sessions take so long for a token: all but the
    GPU's own time is wait. Tokens/s do not say it: sessions begin and end at other times."""
    return compute_share(token_ms - spec.time_per_token_ns / 1e6, token_ms)


def run_by_figures(run: RunResult, why: str, where: str = "") -> Bottleneck:
    """What binds a live run by its figures alone; `why` it was not run again."""
    return unchecked(where, run.called, figures_of_run(run), why)


def point_by_figures(point: PointSummary, summary: LabSummary, why: str) -> Bottleneck:
    """What binds a point by its figures alone."""
    return unchecked(summary.name, said(point.info), figures_of_point(point, summary), why)


def said(info: PointInfo) -> str:
    """A point in words."""
    return f"policy {info.policy} at {info.buffer_over_k:g} k on {info.device or info.storage}"
