"""The points of a lab report in common terms: facets, series, names, colours, subject.

Points of one facet differ in policy and buffer only, so they may be drawn in one plot: workload,
HBM pool, bandwidth cap and storage are the facet's. A series is one policy, with its settings,
over buffers; it has one colour and one mark everywhere.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median_low

from offstage.bindings.units import format_rate
from offstage.testbeds.lab.results.summary import BoundSummary, Interval, PointInfo, PointSummary
from offstage.testbeds.table import Cell, Swatch

__all__ = [
    "BOUND_TIPS",
    "Facet",
    "Look",
    "Metric",
    "Series",
    "View",
    "bandwidth",
    "facets",
    "metric",
    "over_k",
    "view_of",
    "workload_words",
]

Key = tuple[str, str, bool, tuple[tuple[str, int], ...]]
Setting = tuple[str, float, int, str]
"""Workload, HBM pool, cap, storage."""

FIXED = {
    "none": "var(--set-none)",
    "window": "var(--set-window)",
    "ema": "var(--set-pattern)",
    "shared": "var(--set-shared)",
}
FREE = tuple(f"var(--set-{name})" for name in (1, 2, 5, 4, 3, "shared"))
MARKS = ("circle", "square", "triangle", "star", "diamond", "wedge")
AXES = ("hbm_pool_over_k=", "bandwidth=", "storage=")
BOUND_TIPS = {
    "compulsory": "An infinite buffer that reads on demand: it misses only first touches. A "
    "policy that prefetches can exceed it.",
    "belady": "The best without prefetch: it reads on demand, and evicts the block needed last. "
    "A policy that prefetches can exceed it.",
    "clairvoyant": "Knows all future demands, and reads ahead within buffer and cap: attainable "
    "if reads took no time.",
    "cap_limit": "No policy can exceed it within buffer and cap. It counts hits of the whole run, "
    "so it says nothing about non-trivial demands, single requests or traffic.",
    "last_step": "The best blocks by the scores of the previous step, as many as the buffer holds, "
    "read at no cost. A predictor, not a bound: a policy with more information can exceed it.",
    "two_averages": "The same by a regression on the last scores, a fast and a slow average: the "
    "strongest causal predictor from scores that we have. Not a bound either.",
}
"""Each bound in a sentence; docs/reference/bounds.md has the definitions."""


@dataclass(frozen=True)
class Metric:
    """The summary's figures that the plots show: the same for all points of a report."""

    hit: str
    traffic: str

    @property
    def hit_words(self) -> str:
        return "non-trivial demands" if self.hit == "nontrivial_hit" else "demands"

    @property
    def traffic_words(self) -> str:
        return "the reference" if self.traffic == "traffic_vs_reference" else "the same buffer"

    def hit_of(self, point: PointSummary | BoundSummary) -> Interval | None:
        found: Interval | None = getattr(point, self.hit)
        return found

    def traffic_of(self, point: PointSummary) -> Interval | None:
        found: Interval | None = getattr(point, self.traffic)
        return found

    def gap_of(self, point: PointSummary) -> Interval | None:
        nontrivial = self.hit == "nontrivial_hit"
        return point.nontrivial_gap_closed if nontrivial else point.gap_closed


@dataclass(frozen=True)
class Look:
    """How a series is drawn everywhere."""

    name: str
    colour: str
    mark: str

    @property
    def swatch(self) -> Swatch:
        """Its colour and mark, for use next to a name."""
        return self.colour, "dot" if self.mark == "circle" else self.mark

    def cell(self, name: str = "", *, terse: str = "") -> Cell:
        """The name of its row in a table."""
        return Cell(name or self.name, terse=terse, swatch=self.swatch)


@dataclass(frozen=True)
class Series:
    """One policy over buffers, in order of size."""

    look: Look
    points: tuple[PointSummary, ...]


@dataclass(frozen=True)
class Facet:
    """Points that one plot may show; `title` distinguishes it from the other facets. Series are
    ordered by hits at the middle buffer, the most first."""

    title: str
    series: tuple[Series, ...]

    @property
    def points(self) -> list[PointSummary]:
        return [point for one in self.series for point in one.points]

    @property
    def buffers(self) -> list[float]:
        """Sizes over k, ascending."""
        return sorted({point.info.buffer_over_k for point in self.points})

    @property
    def middle(self) -> float:
        """The buffer shown by figures of a single buffer: the lower of the two in the middle of
        those at which most policies ran."""
        counts = Counter(point.info.buffer_over_k for point in self.points)
        most = max(counts.values())
        return median_low(one for one, count in counts.items() if count == most)

    def at(self, buffer_over_k: float) -> list[tuple[Look, PointSummary]]:
        """One point per series, of those that have one."""
        return [
            (one.look, point)
            for one in self.series
            for point in one.points
            if point.info.buffer_over_k == buffer_over_k
        ]

    def bounds(self, buffer_over_k: float) -> list[BoundSummary]:
        """They are the same for every policy."""
        return next((point.bounds for _, point in self.at(buffer_over_k) if point.bounds), [])


@dataclass(frozen=True)
class View:
    """A summary's points as a report shows them."""

    facets: tuple[Facet, ...]
    metric: Metric

    @property
    def looks(self) -> list[Look]:
        """Every series once, in the order of the first facet that has it."""
        return list(dict.fromkeys(one.look for facet in self.facets for one in facet.series))


def view_of(points: Sequence[PointSummary]) -> View:
    """Everything that a report derives from the points before it draws them."""
    shown = metric(points)
    return View(tuple(facets(points, shown)), shown)


def metric(points: Sequence[PointSummary]) -> Metric:
    """Non-trivial hits if they are counted; the reference's traffic if all have it."""
    nontrivial = any(point.nontrivial_hit is not None for point in points)
    reference = all(point.traffic_vs_reference is not None for point in points)
    return Metric(
        "nontrivial_hit" if nontrivial else "hit",
        "traffic_vs_reference" if reference else "traffic_ratio",
    )


def facets(points: Sequence[PointSummary], shown: Metric) -> list[Facet]:
    """Points by everything except policy and buffer, in the order of the spec."""
    looks = _looks(points)
    settings = dict.fromkeys(_setting(point.info) for point in points)
    caps = dict.fromkeys(
        _setting(point.info) for point in points if not _cap_is_nothing_to(point, settings)
    )
    varying = [len({setting[at] for setting in caps or settings}) > 1 for at in range(4)]
    found = []
    for setting in settings:
        if all(
            _cap_is_nothing_to(point, settings)
            for point in points
            if _setting(point.info) == setting
        ):
            continue
        series: dict[Key, list[PointSummary]] = {}
        for point in points:
            own = _setting(point.info)
            beside = _but_for_the_cap(own) == _but_for_the_cap(setting)
            if own == setting or (beside and _cap_is_nothing_to(point, settings)):
                series.setdefault(_key(point.info), []).append(point)
        ordered = tuple(
            Series(looks[key], tuple(sorted(rows, key=lambda row: row.info.buffer_over_k)))
            for key, rows in series.items()
        )
        found.append(_ranked(Facet(_title(setting, varying), ordered), shown))
    return found


def _ranked(facet: Facet, shown: Metric) -> Facet:
    """Gives legend, table and bars the same order; ties keep the spec's."""
    hits = {look: shown.hit_of(point) for look, point in facet.at(facet.middle)}

    def rank(series: Series) -> float:
        hit = hits.get(series.look)
        return math.inf if hit is None else -hit.value

    return Facet(facet.title, tuple(sorted(facet.series, key=rank)))


def workload_words(name: str) -> str:
    """A workload's name in text: a kind alone, as in `on generated`, would say nothing."""
    return "generated sessions" if name == "generated" else name


def over_k(value: float) -> str:
    """A size over the selection: `2 k`, with a space that does not break."""
    return f"{value:g}\u00a0k"


def bandwidth(bytes_per_s: int) -> str:
    """A cap in decimal units, as drives are sold."""
    return format_rate(bytes_per_s).replace(" ", "\u00a0") if bytes_per_s else "none"


def _setting(info: PointInfo) -> Setting:
    return info.workload, info.hbm_pool_over_k, info.bandwidth_bytes_per_s, info.storage


def _but_for_the_cap(setting: Setting) -> tuple[str, float, str]:
    return setting[0], setting[1], setting[3]


def _cap_is_nothing_to(point: PointSummary, settings: Collection[Setting]) -> bool:
    """A policy that reads nothing ahead has no cap: it is shown with the others under each cap."""
    own = _setting(point.info)
    capped = any(one[2] and _but_for_the_cap(one) == _but_for_the_cap(own) for one in settings)
    return capped and not own[2] and not point.fates


def _title(setting: Setting, varying: Sequence[bool]) -> str:
    """What distinguishes a facet from the others. A sweep puts its axes into the workload's
    name: parts that the facet has already are not repeated."""
    workload, pool, bytes_per_s, storage = setting
    cap = f"cap {bandwidth(bytes_per_s)}" if bytes_per_s else "no cap"
    own = (f"HBM pool {over_k(pool)}", cap, storage)
    shown = [piece for piece, varies in zip(own, varying[1:], strict=True) if varies]
    said = tuple(axis for axis, varies in zip(AXES, varying[1:], strict=True) if varies)
    words = [word for word in workload.split(", ") if not word.startswith(said)]
    return ", ".join([*map(workload_words, words[:1]), *words[1:], *shown])


def _key(info: PointInfo) -> Key:
    return info.policy, info.eviction, info.granule, tuple(sorted(info.parameters.items()))


def _looks(points: Sequence[PointSummary]) -> dict[Key, Look]:
    keys = list(dict.fromkeys(_key(point.info) for point in points))
    looks: dict[Key, Look] = {}
    used: dict[str, int] = {}
    free = 0
    for key in keys:
        name = _name(key, keys)
        colour = FIXED.get(name) or FREE[free % len(FREE)]
        free += name not in FIXED
        mark = MARKS[min(used.get(colour, 0), len(MARKS) - 1)]
        used[colour] = used.get(colour, 0) + 1
        looks[key] = Look(name, colour, mark)
    return looks


def _name(key: Key, keys: Sequence[Key]) -> str:
    """The policy, and what distinguishes it from the others of the same policy."""
    policy, eviction, granule, parameters = key
    same = [other for other in keys if other[0] == policy]
    pieces = [eviction] if len({other[1] for other in same}) > 1 else []
    if len({other[2] for other in same}) > 1:
        pieces.append("granules" if granule else "whole blocks")
    for name, value in parameters:
        if len({dict(other[3]).get(name) for other in same}) > 1:
            pieces.append(f"{name} {value}")
    return f"{policy}, {', '.join(pieces)}" if pieces else policy
