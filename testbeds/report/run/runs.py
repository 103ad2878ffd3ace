"""Shared by the sections of a report: groups, names and colours of runs.

A storage is a group: runs are compared inside it, and with the run without prefetch of the same
group. Measured groups come first. A set of prefetchers has one colour everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from offstage.bindings.errors import BadInput, nearest
from offstage.bindings.layouts import ENDS
from offstage.bindings.notes import Note
from offstage.testbeds.live.results import RunResult, Summary

__all__ = [
    "MISS_ENDS",
    "PROVENANCES",
    "Group",
    "groups",
    "in_order",
    "label",
    "labels",
    "reference_run",
    "run_of",
    "set_colours",
    "set_label",
    "subject",
]

PROVENANCES = ("measured", "emulated", "modelled")
MISS_ENDS = ENDS[6:]
# The demo's sets keep their colour in every report; others take the next free one.
FIXED_COLOURS = {
    (): "var(--set-none)",
    ("window",): "var(--set-window)",
    ("ema", "window"): "var(--set-pattern)",
    ("ema", "shared", "window"): "var(--set-shared)",
}
FREE_COLOURS = tuple(f"var(--set-{number})" for number in range(1, 6))


@dataclass(frozen=True)
class Group:
    """Runs on one storage, in the order they are shown. `notes` are those on every run."""

    storage: str
    provenance: str
    runs: tuple[RunResult, ...]
    notes: tuple[Note, ...] = ()

    @property
    def title(self) -> str:
        """The storage without the word that repeats its provenance."""
        return self.storage.removeprefix(f"{self.provenance} ")

    @property
    def where(self) -> str:
        """Its name in text: `io_uring (measured)`."""
        return f"{self.title} ({self.provenance})"


def in_order(runs: Sequence[RunResult]) -> list[RunResult]:
    """Measured before emulated before modelled; otherwise unchanged."""
    return [run for group in groups(runs) for run in group.runs]


def groups(runs: Sequence[RunResult], notes: Sequence[Note] = ()) -> list[Group]:
    """Runs by storage and provenance, measured first; `notes` are those on every run."""
    found: dict[tuple[str, str], list[RunResult]] = {}
    for run in runs:
        found.setdefault((run.storage, run.provenance), []).append(run)
    ordered = sorted(found.items(), key=lambda item: PROVENANCES.index(item[0][1]))
    return [Group(*of, tuple(rows), tuple(notes)) for of, rows in ordered]


def reference_run(group: Group) -> RunResult | None:
    """The group's run without prefetch, if it has one."""
    return next((run for run in group.runs if not run.prefetchers), None)


def set_label(prefetchers: Sequence[str]) -> str:
    """`window + ema`, or `no prefetch`."""
    return " + ".join(prefetchers) if prefetchers else "no prefetch"


def label(run: RunResult) -> str:
    """The run's set of prefetchers."""
    return set_label(run.prefetchers)


def labels(group: Group) -> list[str]:
    """One label per run of a group; the name is added if two runs have the same set."""
    names = [label(run) for run in group.runs]
    return [
        f"{name} ({run.name})" if names.count(name) > 1 else name
        for name, run in zip(names, group.runs, strict=True)
    ]


def set_colours(runs: Sequence[RunResult]) -> dict[tuple[str, ...], str]:
    """CSS colour of each set of prefetchers, by its sorted names."""
    colours: dict[tuple[str, ...], str] = {}
    free = 0
    for run in runs:
        key = tuple(sorted(run.prefetchers))
        if key not in colours and key not in FIXED_COLOURS:
            colours[key] = FREE_COLOURS[free % len(FREE_COLOURS)]
            free += 1
        elif key in FIXED_COLOURS:
            colours[key] = FIXED_COLOURS[key]
    return colours


def subject(group: Group) -> RunResult:
    """The run with the most prefetchers; the last of them if there are several."""
    return max(reversed(group.runs), key=lambda run: len(run.prefetchers))


def run_of(summary: Summary, policy: str, where: str) -> RunResult:
    """The first run with that policy, or the one that the report is about. BadInput: there is
    none."""
    found = groups(summary.runs, summary.notes)
    if not found:
        raise BadInput("the summary has no runs", where, "name a run in which hosts decode")
    named = {run.name: run for run in reversed(summary.runs)}
    policy = policy.replace(" + ", "+")  # a page spaces it out
    if policy and policy not in named:
        raise BadInput(
            f"no run with the policy {policy!r}", where, nearest(policy, dict.fromkeys(named))
        )
    return named[policy] if policy else subject(found[0])
