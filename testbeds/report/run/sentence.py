"""The result, in one sentence made from the numbers alone.

The subject is the run with the most prefetchers, not the best one: if it did worse than no
prefetch, or than a smaller set, the sentence says that.
"""

from collections.abc import Sequence

import msgspec

from offstage.testbeds.live.results import RunResult, Summary
from offstage.testbeds.report.page.numbers import count, percent, ratio, show
from offstage.testbeds.report.run.definitions import as_text
from offstage.testbeds.report.run.runs import Group, groups, label, reference_run, subject
from offstage.testbeds.report.run.void import why_void

__all__ = ["in_words", "sentence"]

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
    """The summary with its sentence and the definition of every figure; a run itself has
    neither."""
    return msgspec.structs.replace(summary, sentence=sentence(summary.runs), definitions=as_text())


def _finding(group: Group) -> str:
    run, without = subject(group), reference_run(group)
    where = f" on {group.where}"
    if run.demands == 0:
        return f"Nothing was demanded from the DPU{where}: the HBM pool served every selection"
    rate = f"{percent(run.hit)} of the blocks the GPU demanded{where}"
    if run is without:
        return f"Without prefetch, {rate} were already in the DPU's DRAM"
    start = f"With {label(run)} prefetch, {rate} were already in the DPU's DRAM"
    if without is None:
        return f"{start}; there is no run without prefetch to compare with"
    found = f"{start}, {_against(run, without)}, {_price(run)}{_better_one(group, run)}"
    return f"{found}{_speed(group, run, without)}"


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


def _speed(group: Group, run: RunResult, without: RunResult) -> str:
    """What the hits are for, unless a note makes it void: they may cost more than they gain."""
    runs = (run, without)
    if not all(one.tokens_per_s and not why_void(group, one, "tokens_per_s") for one in runs):
        return ""
    mine, others = (show("tokens_per_s", one.tokens_per_s) for one in runs)
    return f"; {mine} tokens/s were decoded, {others} without prefetch"


def _better_one(group: Group, run: RunResult) -> str:
    best = max(group.runs, key=lambda other: other.hit)
    if best.hit - run.hit < EQUAL or not best.prefetchers:
        return ""
    return f" ({label(best)} did better: {percent(best.hit)})"


def _aside(group: Group) -> str:
    run, without = subject(group), reference_run(group)
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
        return f"{count(corrupt)} of the {count(verified + corrupt)} compared blocks were corrupt"
    if verified == 0:
        return "no block was compared with its original"
    return f"all {count(verified)} compared blocks matched what prefill wrote"
