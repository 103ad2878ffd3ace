"""What a lab run found, in one sentence made from the figures, and what it was run on.

The subject is the first workload at the middle buffer. It names the policy with the most hits there
and says of how many: the best of many is partly luck, which its interval does not show.
"""

from collections.abc import Mapping
from typing import Any

from offstage.testbeds.lab.results import Interval, LabSummary, PointInfo, PointSummary
from offstage.testbeds.report.lab_marks import interval_text
from offstage.testbeds.report.lab_series import (
    Facet,
    Look,
    Metric,
    View,
    bandwidth,
    over_k,
    view_of,
)
from offstage.testbeds.report.numbers import count, percent, ratio, size

__all__ = ["baseline", "lab_sentence", "provenance", "setup", "subject", "workload_facts"]

EQUAL = 0.0005
"""Hit rates closer than this are called equal: half of the last digit shown."""


def lab_sentence(summary: LabSummary) -> str:
    """The finding; what else is to be said of it stands behind the first semicolon."""
    view = view_of(summary.points)
    found = subject(view)
    if found is None:
        return _without_points(summary)
    facet, look, point = found
    hit, metric = view.metric.hit_of(point), view.metric
    if hit is None:
        return f"On {facet.title} nothing was demanded of the staging buffer."
    policies = len(facet.at(facet.middle))
    rank = "" if policies < 2 else f", the most of {policies} policies"
    info = point.info
    start = (
        f"On {facet.title}, with a staging buffer of {over_k(info.buffer_over_k)} "
        f"({count(info.buffer_blocks)} blocks of {size(info.block_bytes)} a layer), {look.name} "
        f"had {interval_text(hit)} of the {metric.hit_words} staged in time{rank}"
    )
    parts = [start + _against(facet, look, point, metric), _gap(point, metric)]
    parts += [_spread(facet, look, metric), *_what(summary, info.workload)]
    return "; ".join(part for part in parts if part) + "."


def _without_points(summary: LabSummary) -> str:
    if summary.requests:
        best = max(summary.requests, key=lambda row: row.block_hit_rate)
        return (
            f"On {best.trace}, {best.eviction} with admission {best.admission} found "
            f"{percent(best.block_hit_rate)} of the blocks asked for, the most of "
            f"{len(summary.requests)} settings; without any limit it is {percent(best.ideal)}."
        )
    failed = len(summary.failed)
    return f"No point gave a result; {failed} failed." if failed else "Nothing was run."


def subject(view: View) -> tuple[Facet, Look, PointSummary] | None:
    """The facet, and the policy with the most hits at its middle buffer."""
    if not view.facets:
        return None
    facet = view.facets[0]
    look, point = max(facet.at(facet.middle), key=lambda row: _value(view.metric.hit_of(row[1])))
    return facet, look, point


def baseline(facet: Facet, buffer_over_k: float) -> PointSummary | None:
    """No prefetch with LRU at that buffer, if the spec has it."""
    rows = [point for _, point in facet.at(buffer_over_k)]
    return next((p for p in rows if p.info.policy == "none" and p.info.eviction == "lru"), None)


def _value(interval: Interval | None) -> float:
    return -1.0 if interval is None else interval.value


def _against(facet: Facet, look: Look, point: PointSummary, metric: Metric) -> str:
    none = baseline(facet, point.info.buffer_over_k)
    without = None if none is None else metric.hit_of(none)
    hit = metric.hit_of(point)
    if none is None or without is None or hit is None or none is point:
        return "" if none is not point else ": nothing did better than no prefetch"
    if hit.value - without.value < EQUAL:
        return f", no more than without prefetch ({percent(without.value)})"
    price = (
        f", for {ratio(point.traffic_ratio.value)} the bytes read" if point.traffic_ratio else ""
    )
    return f", against {percent(without.value)} without prefetch{price}"


def _gap(point: PointSummary, metric: Metric) -> str:
    gap = metric.gap_of(point)
    best = next((metric.hit_of(b) for b in point.bounds if b.name == "clairvoyant"), None)
    if gap is None or best is None:
        return ""
    return f"{percent(gap.value)} of the gap to the attainable {percent(best.value)} is closed"


def _spread(facet: Facet, look: Look, metric: Metric) -> str:
    """The same policy at the smallest and the largest buffer."""
    own = next(one for one in facet.series if one.look == look).points
    ends = [(p.info.buffer_over_k, metric.hit_of(p)) for p in (own[0], own[-1])]
    if len(own) < 2 or any(hit is None for _, hit in ends):
        return ""
    told = [f"{percent(hit.value)} at {over_k(b)}" for b, hit in ends if hit is not None]
    return f"the same policy has {' and '.join(told)}"


def _what(summary: LabSummary, workload: str) -> list[str]:
    words = {"synthetic": "the selections are synthetic", "captured": "the selections are captured"}
    told = words.get(provenance(summary, workload), "")
    return [f"{told}, the times modelled" if told else "times are modelled"]


def workload_facts(summary: LabSummary, workload: str) -> Mapping[str, Any]:
    """What the manifest says of a workload; empty where it says nothing."""
    found = summary.manifest.get("workloads", {})
    facts = found.get(workload, {}) if isinstance(found, Mapping) else {}
    return facts if isinstance(facts, Mapping) else {}


def provenance(summary: LabSummary, workload: str) -> str:
    """`synthetic`, `captured`, or empty where the manifest does not say."""
    told = workload_facts(summary, workload).get("synthetic")
    return {True: "synthetic", False: "captured"}.get(told, "") if isinstance(told, bool) else ""


def setup(summary: LabSummary) -> str:
    """Selection, block, buffer, pool, cap, storage, seeds and requests, in one line."""
    if not summary.points:
        return f"Lab run {summary.name}."
    infos = [point.info for point in summary.points]
    first = summary.points[0]
    tokens = workload_facts(summary, first.info.workload).get("block_tokens")
    selector = workload_facts(summary, first.info.workload).get("selector")
    selections = sorted({round(one.buffer_blocks / one.buffer_over_k) for one in infos})
    caps = sorted({one.bandwidth_bytes_per_s for one in infos})
    parts = [
        f"Lab run {summary.name}",
        f"Each layer selects k = {_list(selections)} blocks in a step"
        + (f", blocks of {tokens} tokens" if isinstance(tokens, int) else "")
        + (f", selector {selector}" if isinstance(selector, str) else ""),
        f"block {_list(dict.fromkeys(size(one.block_bytes) for one in infos))}",
        f"buffer {_numbers(infos, 'buffer_over_k')}",
        f"HBM pool {_numbers(infos, 'hbm_pool_over_k')}",
        f"prefetch cap {_list([bandwidth(cap) for cap in caps])}",
        f"storage {_list(dict.fromkeys(one.storage for one in infos))}, modelled",
        f"{_plural(len(first.seeds), 'seed')}, {_plural(first.requests, 'request')}",
    ]
    return ". ".join(part[:1].upper() + part[1:] for part in parts) + "."


def _plural(number: int, word: str) -> str:
    return f"{count(number)} {word}" + ("" if number == 1 else "s")


def _numbers(infos: list[PointInfo], name: str) -> str:
    return _list([over_k(value) for value in sorted({getattr(one, name) for one in infos})])


def _list(values: Any) -> str:
    return ", ".join(str(value) for value in values)
