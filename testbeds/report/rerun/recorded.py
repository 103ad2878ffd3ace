"""A recorded run again in virtual time: its log's requests, decided anew on its device's model.

Model: the base is the closed loop of the log on the model of the measured device, fitted to the run
as `offstage compare` fits it, so that base and change differ in one thing alone. The run's own
figures stand beside those of the base, and show how far it is off. A log has demands and no
selections, so that of another HBM pool nothing can be said.

What can fail: `BadInput` as in `compare.recorded`, for a log that is torn, has a hole or is of
another version. A run without a log has its figures only.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from offstage.asic_model.elsewhere import Elsewhere
from offstage.asic_model.load import work_of
from offstage.asic_model.parameters import Preset
from offstage.asic_model.replay import closed_loop
from offstage.asic_model.result import ChipRun
from offstage.asic_model.trace import Trace, read_trace
from offstage.asic_model.twice import PARTS, no_room, twice, used
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import ENDS
from offstage.bindings.notes import Note
from offstage.testbeds.progress import Progress
from offstage.testbeds.report.bottleneck.figures import (
    compute_share,
    figures_of_run,
    of_counts,
    run_by_figures,
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
from offstage.testbeds.report.compare.build import own_model, runs_of
from offstage.testbeds.report.compare.recorded import LOG_NAME, RECORDS, Recorded
from offstage.testbeds.report.page.files import SUMMARY_NAME, read_summary
from offstage.testbeds.report.run.runs import run_of

__all__ = ["FIX", "Again", "recorded_bottleneck"]

NO_POOL = "a log holds demands, and not what a larger pool would have held"
NO_LOG = "the run has no decision log; `offstage demo` and `offstage dpu serve --record` keep one"
FIX = (
    "name a folder of `demo` or `lab run`; of an engine or a pod that of each daemon's own "
    "`dpu serve --record`"
)
NO_HOST = "no host's summary.json lies beside the log"
STEPS = Note(
    "steps-for-tokens",
    "a token is here a step of a session, as of a serving engine a read or a look-up, and its "
    "pauses are the GPU's own time: no host's summary.json lies beside the log",
)


def recorded_bottleneck(folder: Path, policy: str, progress: Progress) -> Bottleneck:
    """What binds the run in `folder`, of a demo its arm `policy`, by default the first recorded."""
    if not _has_log(folder):
        return _by_figures(folder, policy)
    (run,) = runs_of([folder], policy)
    progress.start(f"decisions of {run.path.name}", 1, "")
    trace = read_trace(run.path)
    progress.advance(1)
    preset = own_model(run, trace).for_heads(trace.heads)
    again = Again(trace, preset, progress)
    base = again.run(())
    summary, result = run.summary, run.result
    figures = _figures(run, trace, base, preset)
    if result is None or summary is None:
        notes = [*run.notes, STEPS]
        return check(str(folder), _subject(run), figures, again.outcomes, notes)
    told = check(str(folder), _subject(run), figures, again.outcomes, run.notes)
    waits = result.stall_ms_by_token
    return msgspec.structs.replace(
        told,
        run_tokens_per_s=result.tokens_per_s,
        run_stall_ms=sum(waits) / len(waits) if waits else None,
        run_provenance=run.provenance,
    )


class Again:
    """The closed loops of one trace."""

    def __init__(self, trace: Trace, preset: Preset, progress: Progress) -> None:
        self._trace, self._preset, self._progress = trace, preset, progress
        self._ran: dict[tuple[str, ...], ChipRun] = {}

    def outcomes(self, rows: Sequence[tuple[str, ...]]) -> list[Outcome | str]:
        """A `Rerun`."""
        self._progress.start("again in virtual time, one thing changed", len(rows), "runs")
        return [self._outcome(changed) for changed in rows]

    def _outcome(self, changed: tuple[str, ...]) -> Outcome | str:
        if HBM in changed:
            self._progress.advance(1)
            return NO_POOL
        slots = self._trace.config.slot_count * 2 ** changed.count(ARENA)
        if ARENA in changed and (why := no_room(self._preset, slots, self._trace.block_bytes)):
            self._progress.advance(1)
            return why
        try:
            run = self.run(changed)
        except BadInput as error:  # the changed device contradicts itself
            return str(error)
        finally:
            self._progress.advance(1)
        return Outcome(run.tokens_per_s, run.stall_ns.mean / 1e6)

    def run(self, changed: tuple[str, ...]) -> ChipRun:
        """The closed loop with these steps changed; each once."""
        if changed not in self._ran:
            preset = self._preset
            for part in changed:
                if part in PARTS:
                    preset = twice(preset, part)
            arena = 2.0 ** changed.count(ARENA)
            elsewhere = Elsewhere(arena=arena, host=0.5 ** changed.count(COMPUTE))
            self._ran[changed] = closed_loop(self._trace, preset, elsewhere=elsewhere)
        return self._ran[changed]


def _figures(run: Recorded, trace: Trace, base: ChipRun, preset: Preset) -> dict[str, Figure]:
    """Those of the host's summary where there is one, and of the device those of its model."""
    parts = {name: Figure(share) for name, share in used(base, preset, trace).items()}
    if run.result is not None:
        return figures_of_run(run.result) | parts
    work = work_of(base, trace)
    ends = dict(zip(ENDS, trace.ends.tolist(), strict=False))
    demands = int(trace.ends.sum())
    found = of_counts(demands, demands, ends, run.provenance)
    return {
        **found,
        COMPUTE: compute_share(work.device_s * 1e3, (work.device_s + work.host_s) * 1e3),
        HBM: Figure(absent=NO_HOST),
        **parts,
    }


def _subject(run: Recorded) -> str:
    if run.result is None:
        return run.path.name
    return run.result.called


def _by_figures(folder: Path, policy: str) -> Bottleneck:
    """Of a summary without a log: the leading run's, or that of the arm."""
    summary = read_summary(folder)
    return run_by_figures(run_of(summary, policy, str(folder)), NO_LOG, str(folder))


def _has_log(folder: Path) -> bool:
    if (folder / LOG_NAME).is_file() or any(folder.glob(f"{RECORDS}/*/{LOG_NAME}")):
        return True
    if not (folder / SUMMARY_NAME).is_file():
        raise BadInput("holds no run", str(folder), FIX)
    return False
