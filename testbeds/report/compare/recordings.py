"""The runs that a calibration needs: workloads to fit, workloads to predict, each several times.

They take turns, so that a machine that grows slower or faster does so for all of them. Each is a
demo of one arm, the one with the most prefetchers, on this machine's disk, with its decision log.
The fits differ in the length of contexts, without which a command's cost and that of its scores
cannot be told apart, and in the number of sessions, by which commands follow each other and find
caches warm. What is predicted lies between them.

The reactor and the host have a core each, as on a testbed with a DPU. Where the scheduler chooses,
they may share one for a whole run, in which a single session's decisions took 20 to 40 % longer.
"""

from pathlib import Path

from offstage.testbeds.live.demo import run
from offstage.testbeds.live.demo_options import ARMS, DemoOptions
from offstage.testbeds.progress import Progress
from offstage.testbeds.report.page.files import SUMMARY_NAME, write_summary
from offstage.testbeds.report.run.sentence import in_words

__all__ = ["FITTED", "PREDICTED", "REPEATS", "record"]

FITTED = ((4, 32_768), (1, 32_768), (1, 131_072))
PREDICTED = ((2, 32_768), (2, 65_536))
"""Sessions, and tokens of each one's context."""
REPEATS = 9
STEPS = 300


def record(
    out: Path, progress: Progress, *, repeats: int, isolate: bool, command: str
) -> tuple[list[Path], list[Path]]:
    """Record each run `repeats` times into folders of `out`; returns those to fit to and those to
    predict. BadInput and RunFailed as the demo."""
    found: dict[tuple[int, int], list[Path]] = {one: [] for one in (*FITTED, *PREDICTED)}
    for repeat in range(repeats):
        for workload, folders in found.items():
            sessions, tokens = workload
            folder = out / f"{sessions}x{tokens // 1024}k-{repeat + 1}"
            options = DemoOptions(
                out=folder,
                sessions=sessions,
                context_tokens=tokens,
                steps=STEPS,
                storages=("measured",),
                arms=ARMS[-1:],
                cores="alone" if isolate else "apart",
                command=command,
            )
            write_summary(in_words(run(options, progress)), folder / SUMMARY_NAME)
            folders.append(folder)
    fits = [one for workload in FITTED for one in found[workload]]
    return fits, [one for workload in PREDICTED for one in found[workload]]
