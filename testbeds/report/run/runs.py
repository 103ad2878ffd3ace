"""What the sections of a report agree on about runs, and what happened in one sentence.

A storage is a group: runs are compared with each other inside it and with the run without prefetch
of the same group. Measured groups come first. A set of prefetchers has one colour everywhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from offstage.bindings.layouts import ENDS
from offstage.testbeds.live.results import RunResult, Summary
from offstage.testbeds.report.page.numbers import count, percent, ratio
from offstage.testbeds.report.run.definitions import as_text

__all__ = [
    "MISS_ENDS",
    "PROVENANCES",
    "Group",
    "baseline",
    "groups",
    "hits",
    "in_order",
    "in_words",
    "label",
    "labels",
    "sentence",
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
    """Runs on one storage, in the order they are shown."""

    storage: str
    provenance: str
    runs: tuple[RunResult, ...]

    @property
    def title(self) -> str:
        """The storage without the word that its provenance says anyway."""
        return self.storage.removeprefix(f"{self.provenance} ")

    @property
    def where(self) -> str:
        """How text calls it: `io_uring (measured)`."""
        return f"{self.title} ({self.provenance})"


def in_order(runs: Sequence[RunResult]) -> list[RunResult]:
    """Measured before emulated before modelled; otherwise as they came."""
    return [run for group in groups(runs) for run in group.runs]


def groups(runs: Sequence[RunResult]) -> list[Group]:
    """Runs by storage and provenance, measured first."""
    found: dict[tuple[str, str], list[RunResult]] = {}
    for run in runs:
        found.setdefault((run.storage, run.provenance), []).append(run)
    ordered = sorted(found.items(), key=lambda item: PROVENANCES.index(item[0][1]))
    return [Group(storage, provenance, tuple(rows)) for (storage, provenance), rows in ordered]


def baseline(group: Group) -> RunResult | None:
    """The group's run without prefetch, if it has one."""
    return next((run for run in group.runs if not run.prefetchers), None)


def hits(run: RunResult) -> int:
    """Demands that were on time."""
    return sum(run.ends.get(end, 0) for end in ENDS[:5])


def set_label(prefetchers: Sequence[str]) -> str:
    """`window + ema`, or `no prefetch`."""
    return " + ".join(prefetchers) if prefetchers else "no prefetch"


def label(run: RunResult) -> str:
    """The run's set of prefetchers."""
    return set_label(run.prefetchers)


def labels(group: Group) -> list[str]:
    """One label per run of a group; the name is added where two runs have the same set."""
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


# What happened, in one sentence made from the numbers alone.
#
# The subject is the run with the most prefetchers, not the one that came out best: where it did
# worse than no prefetch, or than a smaller set, the sentence says that.

EQUAL = 0.0005
"""Hit rates closer than this are called equal: half of the last digit shown."""


def sentence(runs: Sequence[RunResult]) -> str:
    """The sentence for all runs of a summary; the first group (measured, if any) leads."""
    if not runs:
        return "Nothing was run."
    leading, *others = groups(runs)
    pieces = [_finding(leading)]
    pieces += [_aside(group) for group in others]
    return f"{'; '.join(piece for piece in pieces if piece)}; {_verified(runs)}."


def in_words(summary: Summary) -> Summary:
    """The summary with its sentence and the meaning of every figure: a run itself has neither."""
    return msgspec.structs.replace(summary, sentence=sentence(summary.runs), definitions=as_text())


def subject(group: Group) -> RunResult:
    """The run with the most prefetchers; the last of them where several have as many."""
    return max(reversed(group.runs), key=lambda run: len(run.prefetchers))


def _finding(group: Group) -> str:
    run, without = subject(group), baseline(group)
    where = f" on {group.where}"
    if run.demands == 0:
        return f"Nothing was demanded of the DPU{where}: the HBM pool served every selection"
    rate = f"{percent(run.hit)} of the blocks the GPU demanded{where}"
    if run is without:
        return f"Without prefetch, {rate} were already in the DPU's DRAM"
    start = f"With {label(run)} prefetch, {rate} were already in the DPU's DRAM"
    if without is None:
        return f"{start}; there was no run without prefetch to compare with"
    return f"{start}, {_against(run, without)}, {_price(run)}{_better_one(group, run)}"


def _against(run: RunResult, without: RunResult) -> str:
    gain = run.hit - without.hit
    rate = percent(without.hit)
    if abs(gain) < EQUAL:
        return f"no more than without prefetch ({rate})"
    if gain < 0:
        return f"fewer than the {rate} without prefetch"
    return f"against {rate} without prefetch"


def _price(run: RunResult) -> str:
    if abs(run.traffic_ratio - 1.0) < 0.005:
        return "for as many bytes read"
    return f"for {ratio(run.traffic_ratio)} the bytes read"


def _better_one(group: Group, run: RunResult) -> str:
    best = max(group.runs, key=lambda other: other.hit)
    if best.hit - run.hit < EQUAL or not best.prefetchers:
        return ""
    return f" ({label(best)} did better: {percent(best.hit)})"


def _aside(group: Group) -> str:
    run, without = subject(group), baseline(group)
    if run.demands == 0:
        return f"on {group.where} nothing was demanded"
    text = f"on {group.where} {percent(run.hit)}"
    if without is None or run is without:
        return text
    return f"{text}, {_against(run, without)}{_better_one(group, run)}"


def _verified(runs: Sequence[RunResult]) -> str:
    verified = sum(run.blocks_verified for run in runs)
    corrupt = sum(run.blocks_corrupt for run in runs)
    if corrupt:
        return f"{count(corrupt)} of the {count(verified + corrupt)} blocks compared were corrupt"
    if verified == 0:
        return "no block was compared with what prefill wrote"
    return f"all {count(verified)} blocks compared were as prefill wrote them"
