"""A point of a lab run again in virtual time, with one key of its spec changed.

Model: the point's spec is run by the laboratory itself, with the first of its seeds. The drive and
the rest of the device are changed by the preset that the spec names. A spec without one says only
which drive it has: it runs, unchanged too, on the preset `ideal` with one such drive, whose own
logic takes no time, and so of link, DPU and control there is nothing to double.

What can fail: `BadInput` for a run that is no experiment with points, and for a policy that it does
not have; what `lab run` raises for the spec.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from offstage.asic_model.parameters import read_preset
from offstage.asic_model.twice import FLASH, PARTS, no_room, twice
from offstage.bindings.errors import BadInput, nearest
from offstage.testbeds.lab.results.ledger import RunTotals, totals
from offstage.testbeds.lab.results.summary import LabSummary, PointInfo, PointSummary
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.execute import default_jobs, execute
from offstage.testbeds.lab.run.plan import Point, Task, points_of, steps_of, together
from offstage.testbeds.progress import Progress
from offstage.testbeds.report.bottleneck.figures import (
    NO_DEVICE,
    at_pace,
    figures_of_point,
    said,
    spec_of,
)
from offstage.testbeds.report.bottleneck.tree import (
    ARENA,
    COMPUTE,
    HBM,
    Bottleneck,
    Figure,
    Outcome,
    check,
)
from offstage.testbeds.report.lab.sentence import subject
from offstage.testbeds.report.lab.series import view_of
from offstage.testbeds.report.page.files import read_lab_summary

__all__ = ["lab_bottleneck", "point_of"]

TIERS = "the experiment has tiers below the arena: change them in its spec"
NO_POOL = "the experiment has no HBM pool: set tier.hbm_pool_over_k"
FIX = "name the folder of an experiment with policies"
IDEAL = "ideal,nvme.drives=1"


def lab_bottleneck(folder: Path, policy: str, progress: Progress) -> Bottleneck:
    """What binds a point of the lab run in `folder`: the policy's first, by default the page's
    subject."""
    summary = read_lab_summary(folder)
    found = point_of(summary, policy, str(folder))
    again = _Again(summary, found.info, str(folder), progress)
    base = again.totals(())
    figures = figures_of_point(found, summary) | again.figures(base)
    return check(str(folder), said(found.info), figures, again.outcomes, summary.notes)


def point_of(summary: LabSummary, policy: str, where: str) -> PointSummary:
    """The point to explain. BadInput for a sweep, or a run without points or that policy."""
    if not summary.points:
        raise BadInput("has no points", where, FIX)
    if len({one.info.workload for one in summary.points}) > 1:
        raise BadInput(
            "is a sweep of several experiments", where, "run one of them alone, by --set KEY=VALUE"
        )
    if not policy:
        found = subject(view_of(summary.points))
        assert found is not None, "there are points"
        return found[2]
    named = {one.info.policy: one for one in reversed(summary.points)}
    if policy not in named:
        what = f"no point with the policy {policy!r}"
        raise BadInput(what, where, nearest(policy, dict.fromkeys(named)))
    return named[policy]


class _Again:
    """The re-runs of one point. A change of the tier draws the same selections, so all run
    together."""

    def __init__(
        self, summary: LabSummary, info: PointInfo, where: str, progress: Progress
    ) -> None:
        spec = spec_of(summary, where)
        if not spec.tier.device and not spec.tier.below:
            tier = msgspec.structs.replace(spec.tier, device=IDEAL)
            spec = msgspec.structs.replace(spec, tier=tier)
        self._device = bool(info.device)
        self._spec, self._progress, self._where = spec, progress, where
        self._info, self._point = info, self._planned(info)
        self._ran: dict[tuple[str, ...], RunTotals | str] = {}

    def _planned(self, info: PointInfo) -> Point:
        for one in points_of(self._spec, 0, 0):
            if (one.label, one.eviction, one.buffer_over_k, one.cap or 0) == (
                info.policy,
                info.eviction,
                info.buffer_over_k,
                info.bandwidth_bytes_per_s,
            ):
                return one
        raise BadInput("the spec in the summary has other points", self._where, "run it again")

    def outcomes(self, rows: Sequence[tuple[str, ...]]) -> list[Outcome | str]:
        """A `Rerun`."""
        self._run([one for one in rows if not self._absent(one)])
        return [self._absent(one) or self._outcome(one) for one in rows]

    def totals(self, changed: tuple[str, ...]) -> RunTotals:
        """The sums of one re-run. BadInput where it failed."""
        self._run([changed])
        found = self._ran[changed]
        if isinstance(found, str):
            raise BadInput(found, self._where, "run the experiment again with this release")
        return found

    def figures(self, base: RunTotals) -> dict[str, Figure]:
        """Those that the sums of a re-run have: of compute, and of the parts of the device."""
        found = {
            name: Figure(absent=why) if (why := self._no_part(name)) else Figure(base.used[name])
            for name in PARTS
        }
        if len(base.stall_ns):
            found[COMPUTE] = at_pace(base.sessions_ns / 1e6 / len(base.stall_ns), self._spec)
        return found

    def _absent(self, changed: tuple[str, ...]) -> str:
        """Why a change cannot be run; empty: it can."""
        if HBM in changed and not self._spec.tier.hbm_pool_over_k:
            return NO_POOL
        if ARENA in changed and self._spec.tier.device:
            info, preset = self._info, read_preset(self._spec.tier.device)
            slots = info.slot_count * 2 ** changed.count(ARENA)
            if why := no_room(preset, slots, info.block_bytes):
                return why
        return next(filter(None, map(self._no_part, changed)), "")

    def _no_part(self, name: str) -> str:
        if name not in PARTS:
            return ""
        if self._spec.tier.below:
            return TIERS
        return "" if self._device or name == FLASH else NO_DEVICE

    def _outcome(self, changed: tuple[str, ...]) -> Outcome | str:
        found = self._ran[changed]
        if isinstance(found, str):
            return found
        waits = found.stall_ns
        if not len(waits) or not found.decoded_ns:
            return "no token was decoded"
        return Outcome(len(waits) / (found.decoded_ns / 1e9), float(waits.mean()) / 1e6)

    def _run(self, rows: Sequence[tuple[str, ...]]) -> None:
        """Run what has not run yet."""
        rows = [one for one in rows if one not in self._ran]
        tasks = [self._task(one, number) for number, one in enumerate(rows)]
        if not tasks:
            return
        code = parts.code_version()
        groups = together(tasks, default_jobs())
        self._progress.start(
            "again in virtual time", sum(steps_of(group) for group in groups), "decode steps"
        )
        with tempfile.TemporaryDirectory() as folder:
            failures = execute(groups, Path(folder), code, self._progress, jobs=default_jobs())
            failed = {one.point: one.message for one in failures}
            for number, (changed, task) in enumerate(zip(rows, tasks, strict=True)):
                (name,) = task.parts(code)
                self._ran[changed] = failed.get(number) or totals(
                    parts.read_run(Path(folder) / f"{name}.npz")
                )

    def _task(self, changed: tuple[str, ...], number: int) -> Task:
        """The point on its changed spec; its number tells it from the others."""
        spec, point = self._spec, self._point
        tier = spec.tier
        pace_ns = max(spec.layer_count, spec.time_per_token_ns // 2 ** changed.count(COMPUTE))
        device = tier.device
        for part in changed:
            if part in PARTS:
                device = _twice(device, part)
        tier = msgspec.structs.replace(
            tier,
            hbm_pool_over_k=tier.hbm_pool_over_k * 2 ** changed.count(HBM),
            time_per_token=f"{pace_ns}ns",
            device=device,
        )
        point = replace(
            point, number=number, buffer_over_k=point.buffer_over_k * 2 ** changed.count(ARENA)
        )
        return Task(msgspec.structs.replace(spec, tier=tier), spec.seeds[0], (point,))


def _twice(device: str, part: str) -> str:
    """The name of the preset with a part twice as fast: `NAME,block.key=VALUE,...`."""
    before = read_preset(device)
    was = dict(before.numbers())
    now = twice(before, part).numbers()
    changed = [f"{name}={one.value!r}" for name, one in now if one.value != was[name].value]
    return ",".join((device, *changed))
