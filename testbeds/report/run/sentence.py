"""What happened, in one sentence made from the numbers alone.

The subject is the run with the most prefetchers, not the one that came out best: where it did worse
than no prefetch, or than a smaller set, the sentence says that.
"""

from collections.abc import Sequence

from offstage.testbeds.live.results import RunResult
from offstage.testbeds.report.page.numbers import count, percent, ratio
from offstage.testbeds.report.run.runs import Group, baseline, groups, label

__all__ = ["sentence", "subject"]

EQUAL = 0.0005
"""Hit rates closer than this are called equal: half of the last digit shown."""


def sentence(runs: Sequence[RunResult]) -> str:
    """The sentence for all runs of a summary; the first group (measured, if any) leads."""
    if not runs:
        return "Nothing was run."
    leading, *others = groups(runs)
    parts = [_finding(leading)]
    parts += [_aside(group) for group in others]
    return f"{'; '.join(part for part in parts if part)}; {_verified(runs)}."


def subject(group: Group) -> RunResult:
    """The run with the most prefetchers; the last of them where several have as many."""
    return max(reversed(group.runs), key=lambda run: len(run.prefetchers))


def _finding(group: Group) -> str:
    run, without = subject(group), baseline(group)
    where = f" on {group.where}"
    if run.demands == 0:
        return f"Nothing was demanded of the DPU{where}: the HBM pool served every selection"
    rate = f"{percent(run.hit_rate)} of the blocks the GPU demanded{where}"
    if run is without:
        return f"Without prefetch, {rate} were already in the DPU's DRAM"
    start = f"With {label(run)} prefetch, {rate} were already in the DPU's DRAM"
    if without is None:
        return f"{start}; there was no run without prefetch to compare with"
    return f"{start}, {_against(run, without)}, {_price(run)}{_better_one(group, run)}"


def _against(run: RunResult, without: RunResult) -> str:
    gain = run.hit_rate - without.hit_rate
    rate = percent(without.hit_rate)
    if abs(gain) < EQUAL:
        return f"no more than without prefetch ({rate})"
    if gain < 0:
        return f"fewer than the {rate} without prefetch"
    return f"against {rate} without prefetch"


def _price(run: RunResult) -> str:
    if abs(run.traffic_ratio - 1.0) < 0.005:
        return "for as many bytes read"
    return f"for {ratio(run.traffic_ratio).replace('×', '')} times the bytes read"


def _better_one(group: Group, run: RunResult) -> str:
    best = max(group.runs, key=lambda other: other.hit_rate)
    if best.hit_rate - run.hit_rate < EQUAL or not best.prefetchers:
        return ""
    return f" ({label(best)} did better: {percent(best.hit_rate)})"


def _aside(group: Group) -> str:
    run, without = subject(group), baseline(group)
    if run.demands == 0:
        return f"on {group.where} nothing was demanded"
    text = f"on {group.where} {percent(run.hit_rate)}"
    if without is None or run is without:
        return text
    return f"{text}, {_against(run, without)}, {_price(run)}{_better_one(group, run)}"


def _verified(runs: Sequence[RunResult]) -> str:
    verified = sum(run.blocks_verified for run in runs)
    corrupt = sum(run.blocks_corrupt for run in runs)
    if corrupt:
        return f"{count(corrupt)} of the {count(verified)} blocks compared were corrupt"
    if verified == 0:
        return "no block was compared with what prefill wrote"
    return f"every one of the {count(verified)} blocks compared was as prefill wrote it"
