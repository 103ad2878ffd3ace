"""A lab run's finding, in two lines made from the figures, and its workload.

The subject is the middle buffer. The sentence names the policy with the most hits there among
those that read little more than the reference, since hits can be bought with traffic, and gives
the number of policies: the best of many is partly luck, which its interval does not show. For a
sweep it covers all settings. Text after the first semicolon is shown less prominently. Figures
shown below, such as interval, buffer and block, are not repeated.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from offstage.testbeds.lab.results.summary import Interval, LabSummary, PointInfo, PointSummary
from offstage.testbeds.lab.results.vacuous import why_vacuous
from offstage.testbeds.report.lab.requests import capacity, setting_name
from offstage.testbeds.report.lab.series import (
    Facet,
    Look,
    Metric,
    View,
    bandwidth,
    over_k,
    view_of,
)
from offstage.testbeds.report.page.numbers import count, percent, ratio, size

__all__ = [
    "best",
    "lab_sentence",
    "provenance",
    "reference_point",
    "setup",
    "span",
    "subject",
    "workload_facts",
]

EQUAL = 0.0005
"""Hit rates closer than this are called equal: half of the last digit shown."""
DEAR = 1.3
"""A policy that reads more than this many times the reference is the subject only if all do."""
CAPACITIES = 3
"""How many capacities of prefix caching are named: the ends and the middle."""


def lab_sentence(summary: LabSummary) -> str:
    """The finding, with the trace that all sessions follow; secondary findings follow the first
    semicolon."""
    found, trace = _found(summary), _trace(summary)
    return f"On {trace}, {found[0].lower()}{found[1:]}" if trace else found


def _trace(summary: LabSummary) -> str:
    """The only request trace of all points; empty if there is none or more than one."""
    names = {workload_facts(summary, one.info.workload).get("trace", "") for one in summary.points}
    return str(*names) if len(names) == 1 else ""


def _found(summary: LabSummary) -> str:
    view = view_of(summary.points)
    found = subject(view)
    if found is None:
        return _without_points(summary)
    if len(view.facets) > 1:
        return sweep_sentence(view)
    facet, look, point = found
    hit, metric = view.metric.hit_of(point), view.metric
    if hit is None:
        return f"Nothing was demanded of the staging buffer in {facet.title}."
    pieces = [
        _finding(facet, look, point, metric),
        _gap(facet, point, metric),
        _beyond(facet, point, metric),
    ]
    if why := why_vacuous(point):
        first, *others = pieces
        said = f"{first[0].lower()}{first[1:]}"
        pieces = [f"This says little about a policy: {_and(why)}", said, *others]
    return "; ".join(piece for piece in pieces if piece) + "."


def _without_points(summary: LabSummary) -> str:
    if not summary.requests:
        failed = len(summary.failed)
        return f"No point gave a result; {failed} failed." if failed else "Nothing was run."
    trace = summary.requests[0].trace
    rows = [row for row in summary.requests if row.trace == trace]
    shares = sorted({row.capacity_share for row in rows})
    if len(shares) > CAPACITIES:
        shares = [shares[0], shares[len(shares) // 2], shares[-1]]
    bests = [
        max(
            (row for row in rows if row.capacity_share == share), key=lambda row: row.block_hit_rate
        )
        for share in shares
    ]
    found = [
        f"{percent(best.block_hit_rate)}{' of the requested blocks' if at == 0 else ''} with "
        f"{'room for ' if at == 0 else ''}{capacity(best.capacity_share)}"
        f"{' of all distinct blocks' if at == 0 else ''} ({setting_name(best, rows)})"
        for at, best in enumerate(bests)
    ]
    settings = len({(row.eviction, row.admission, row.ttl_s) for row in rows})
    subject = f"the best of {settings} settings" if settings > 1 else "prefix caching"
    others = len({row.trace for row in summary.requests}) - 1
    more = f"; {_plural(others, 'more trace')} below" if others else ""
    return (
        f"On {trace}, {subject} found {_and(found)}; Belady finds "
        f"{_and([percent(best.opt) for best in bests])}, no limit at all {percent(rows[0].ideal)}"
        f"{more}."
    )


def _and(pieces: list[str]) -> str:
    return pieces[0] if len(pieces) == 1 else f"{', '.join(pieces[:-1])} and {pieces[-1]}"


def subject(view: View) -> tuple[Facet, Look, PointSummary] | None:
    """The first facet, and the policy with the most hits at its middle buffer within `DEAR`."""
    return (view.facets[0], *best(view.facets[0], view.metric)) if view.facets else None


def best(facet: Facet, metric: Metric) -> tuple[Look, PointSummary]:
    """The policy with the most hits at the middle buffer within `DEAR`."""
    rows = _affordable(facet, metric) or facet.at(facet.middle)
    return max(rows, key=lambda row: _value(metric.hit_of(row[1])))


def _affordable(facet: Facet, metric: Metric) -> list[tuple[Look, PointSummary]]:
    """Policies at the middle buffer within `DEAR` times the reference's traffic."""
    if metric.traffic != "traffic_vs_reference":
        return []
    spent = [(row, metric.traffic_of(row[1])) for row in facet.at(facet.middle)]
    return [row for row, traffic in spent if traffic is not None and traffic.value <= DEAR]


def reference_point(facet: Facet, buffer_over_k: float) -> PointSummary | None:
    """No prefetch with LRU at that buffer, if the spec has it."""
    rows = [point for _, point in facet.at(buffer_over_k)]
    return next((p for p in rows if p.info.policy == "none" and p.info.eviction == "lru"), None)


def _value(interval: Interval | None) -> float:
    return -1.0 if interval is None else interval.value


def _finding(facet: Facet, look: Look, point: PointSummary, metric: Metric) -> str:
    """The hits of the best policy, their cost, the number of policies, and the reference."""
    near, rows = _affordable(facet, metric), facet.at(facet.middle)
    within = f" within {DEAR:g}× the bytes read" if near else ""
    policies = f"{len(near or rows)} policies" + (
        f" (of {len(rows)})" if near and len(near) < len(rows) else ""
    )
    hit, spent, gained = (
        metric.hit_of(point),
        metric.traffic_of(point),
        _gained(facet, point, metric),
    )
    none = reference_point(facet, point.info.buffer_over_k)
    assert hit is not None, "the subject has hits"
    had = f"{percent(hit.value)} of the {metric.hit_words} were staged in time"
    if none is point:
        others = f", and none of the {policies}{within} had more" if len(rows) > 1 else ""
        if len(near) == 1 < len(rows):
            others = f", and no other of the {len(rows)} policies is{within}"
        return f"Without prefetch, {had}{others}"
    limit = f" that read at most {DEAR:g}×" if near and spent else within
    rank = f", the highest of {policies}{limit}" if len(rows) > 1 else ""
    price = f", for {ratio(spent.value)} the bytes read" if spent else ""
    if spent and metric.traffic == "traffic_vs_reference":
        price = f", for {ratio(spent.value)} the bytes that the reference read"
    without = None if none is None else metric.hit_of(none)
    against = ""
    if without is not None and gained is not None and gained < EQUAL:
        against = f", no more than without prefetch ({percent(without.value)})"
    elif without is not None:
        against = f", against {percent(without.value)} without prefetch"
    return f"With {look.name}, {had}{against}{price}{rank}"


def _gained(facet: Facet, point: PointSummary, metric: Metric) -> float | None:
    """Hits beyond no prefetch at the same buffer; None if that was not run."""
    none = reference_point(facet, point.info.buffer_over_k)
    without = None if none is None else metric.hit_of(none)
    return None if without is None else _value(metric.hit_of(point)) - without.value


def _gap(facet: Facet, point: PointSummary, metric: Metric) -> str:
    """The share of the attainable hits that was attained, or why there is none."""
    gap, gained = metric.gap_of(point), _gained(facet, point, metric)
    bound_of = next((metric.hit_of(b) for b in point.bounds if b.name == "clairvoyant"), None)
    if bound_of is None:
        return ""
    if gap is None or (gained is not None and gained < EQUAL):
        return f"the clairvoyant bound is {percent(bound_of.value)}"
    bound = f"the clairvoyant bound ({percent(bound_of.value)})"
    return f"{percent(gap.value)} of the gap to {bound} is closed"


def _beyond(facet: Facet, point: PointSummary, metric: Metric) -> str:
    """Policies with more hits for more traffic."""
    rows = [row for row in facet.at(facet.middle) if metric.hit_of(row[1]) is not None]
    look, most = max(rows, key=lambda row: _value(metric.hit_of(row[1])))
    hit, spent = metric.hit_of(most), metric.traffic_of(most)
    if hit is None or spent is None or hit.value - _value(metric.hit_of(point)) < EQUAL:
        return ""
    return f"{look.name} had {percent(hit.value)} for {ratio(spent.value)}"


# A sweep: the findings common to all settings, and the differences.


def sweep_sentence(view: View) -> str:
    """The range over settings of the best policy's hits, and the range of its gain over no
    prefetch."""
    metric, rows = view.metric, []
    for facet in view.facets:
        look, point = best(facet, view.metric)
        if hit := metric.hit_of(point):
            rows.append((facet, look, point, hit.value))
    if not rows:
        return f"Nothing was demanded of the staging buffer in any of {len(view.facets)} settings."
    limited = all(_affordable(facet, metric) for facet, _, _, _ in rows)
    limit = f" within {DEAR:g}×" if limited else ""
    staged = span([hit for _, _, _, hit in rows])
    text = (
        f"Over {len(rows)} settings, the best policy of each{limit} staged {staged} of the "
        f"{metric.hit_words} in time"
    )
    gains = [
        (gain, facet)
        for facet, _, point, _ in rows
        if (gain := _gained(facet, point, metric)) is not None
    ]
    if gains:
        text += f", {_points([gain for gain, _ in gains])} more than no prefetch"
    spent = [t.value for _, _, point, _ in rows if (t := metric.traffic_of(point))]
    if spent:
        ends = dict.fromkeys((ratio(min(spent)), ratio(max(spent))))
        whose = "that the reference read" if metric.traffic == "traffic_vs_reference" else "read"
        text += f", for {' to '.join(ends)} the bytes {whose}"
    names = [look.name for _, look, _, _ in rows]
    often = max(dict.fromkeys(names), key=names.count)
    pieces = [text, f"the best in {names.count(often)} of {len(rows)} was {often}"]
    if gains and max(gains, key=lambda one: one[0])[0] >= EQUAL:
        most = max(gains, key=lambda one: one[0])
        pieces.append(f"prefetch gained the most in {most[1].title}")
    vacuous = sum(bool(why_vacuous(point)) for _, _, point, _ in rows)
    if vacuous:
        pieces.insert(1, f"{vacuous} of them say little about a policy")
    return "; ".join(pieces) + "."


def span(shares: Sequence[float]) -> str:
    """`80.1 to 96.2 %`; one value if both ends show the same."""
    low, high = percent(min(shares)), percent(max(shares))
    return high if low == high else f"{low.removesuffix(' %')} to {high}"


def _points(shares: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{100 * end:.1f}".replace("-", "−") for end in (min(shares), max(shares)))
    return f"{' to '.join(ends)} points"


def _what(summary: LabSummary, workload: str) -> str:
    words = {"synthetic": "selections synthetic", "captured": "selections captured"}
    phrase = words.get(provenance(summary, workload), "")
    return f"{phrase}, times modelled" if phrase else "times modelled"


def workload_facts(summary: LabSummary, workload: str) -> Mapping[str, Any]:
    """The manifest's facts of a workload; empty if it has none."""
    return summary.manifest.workloads.get(workload, {})


def provenance(summary: LabSummary, workload: str) -> str:
    """`synthetic`, `captured`, or empty if the manifest does not say."""
    synthetic = workload_facts(summary, workload).get("synthetic")
    if not isinstance(synthetic, bool):
        return ""
    return "synthetic" if synthetic else "captured"


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
    pieces = [
        f"Lab run {summary.name}",
        f"Each layer selects k = {_list(selections)} blocks in a step"
        + (f", blocks of {tokens} tokens" if isinstance(tokens, int) else "")
        + (f", selector {selector}" if isinstance(selector, str) else ""),
        f"block {_list(dict.fromkeys(size(one.block_bytes) for one in infos))}",
        f"buffer {_numbers(infos, 'buffer_over_k')}",
        f"HBM pool {_numbers(infos, 'hbm_pool_over_k')}",
        f"prefetch cap {_list([bandwidth(cap) for cap in caps])}",
        _reference(summary),
        f"storage {_list(dict.fromkeys(one.storage for one in infos))}",
        _what(summary, first.info.workload),
        f"{_plural(len(first.seeds), 'seed')}, {_plural(first.requests, 'request')}",
    ]
    return ". ".join(piece[:1].upper() + piece[1:] for piece in pieces if piece) + "."


def _reference(summary: LabSummary) -> str:
    """The reference of traffic, in the spec's words."""
    stated = summary.spec.get("reference")
    if not isinstance(stated, Mapping) or not {"use", "eviction", "buffer_over_k"} <= set(stated):
        return ""
    buffer = stated["buffer_over_k"]
    shown = over_k(buffer) if isinstance(buffer, int | float) else str(buffer)
    return f"reference: {stated['use']} with {stated['eviction']} at {shown}"


def _plural(number: int, word: str) -> str:
    return f"{count(number)} {word}" + ("" if number == 1 else "s")


def _numbers(infos: list[PointInfo], name: str) -> str:
    return _list([over_k(value) for value in sorted({getattr(one, name) for one in infos})])


def _list(values: Any) -> str:
    return ", ".join(str(value) for value in values)
