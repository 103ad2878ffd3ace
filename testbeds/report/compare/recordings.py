"""The runs that a calibration needs: workloads to fit, workloads to predict, each several times.

They take turns, so that a machine that grows slower or faster does so for all of them; those to fit
run in every second round alone, spread over the whole recording, since one fit takes them all
together, and each repeat of the others counts for itself. Each is a demo of one arm, the one with
the most prefetchers, on this machine's disk, with its decision log; the repeats of a workload share
one prefill. The fits differ in the length of contexts, without which a command's cost and that of
its scores cannot be told apart, and in the number of sessions, by which commands follow each other
and find caches warm. What is predicted lies between them.

The reactor and the host have a core each, as on a testbed with a DPU. Where the scheduler chooses,
they may share one for a whole run, in which a single session's decisions took 20 to 40 % longer.
"""

import shutil
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path

from offstage.testbeds.live.demo import repeatable
from offstage.testbeds.live.demo_options import ARMS, DemoOptions
from offstage.testbeds.live.results import Summary
from offstage.testbeds.progress import Progress
from offstage.testbeds.report.page.files import SUMMARY_NAME, write_summary
from offstage.testbeds.report.run.sentence import in_words

__all__ = ["FITTED", "PREDICTED", "REPEATS", "phases", "record"]

FITTED = ((4, 32_768), (1, 32_768), (1, 131_072))
PREDICTED = ((2, 32_768), (2, 65_536))
"""Sessions, and tokens of each one's context."""
REPEATS = 14
STEPS = 300

Workload = tuple[int, int]


def phases(repeats: int) -> int:
    """Of a recording's progress: a prefill of each workload, and the runs."""
    return len((*FITTED, *PREDICTED)) + len(list(_order(repeats)))


def record(
    out: Path, progress: Progress, *, repeats: int, isolate: bool, command: str
) -> tuple[list[Path], list[Path]]:
    """Record each run to predict `repeats` times and each to fit half as often, into folders of
    `out`; returns those to fit to and those to predict. BadInput and RunFailed as the demo."""
    runs: dict[Workload, Callable[[Path], Summary]] = {}
    found: dict[Workload, list[Path]] = {one: [] for one in (*FITTED, *PREDICTED)}
    for workload in found:
        sessions, tokens = workload
        options = DemoOptions(
            out=out / _name(workload),
            sessions=sessions,
            context_tokens=tokens,
            steps=STEPS,
            storages=("measured",),
            arms=ARMS[-1:],
            cores="alone" if isolate else "apart",
            command=command,
        )
        runs[workload] = repeatable(options, progress)
    for round_, workload in _order(repeats):
        folder = out / f"{_name(workload)}-{round_}"
        write_summary(in_words(runs[workload](folder)), folder / SUMMARY_NAME)
        found[workload].append(folder)
    for workload in found:
        shutil.rmtree(out / _name(workload), ignore_errors=True)
    fits = [one for workload in FITTED for one in found[workload]]
    return fits, [one for workload in PREDICTED for one in found[workload]]


def _order(repeats: int) -> Iterator[tuple[int, Workload]]:
    """Rounds, from 1, and what runs in each: the workloads to predict between those to fit."""
    for round_ in range(1, repeats + 1):
        for pair in zip_longest(FITTED if round_ % 2 else (), PREDICTED):
            yield from ((round_, one) for one in pair if one is not None)


def _name(workload: Workload) -> str:
    return f"{workload[0]}x{workload[1] // 1024}k"
