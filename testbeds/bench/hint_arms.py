"""Whether prefetch pays: the arms of `offstage bench prefetch`, and the line that says so.

An arm pays at a load where the mean time to the first token is at least PAYS_MIN shorter than
without hints, and with perfect hints too: no hint gains what those do not. Where requests were
timed, that holds for the whole 95 % interval of each gain. Virtual time has no such intervals;
arms that differ by less differ by the order of requests alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offstage.bindings.units import format_seconds, format_share

__all__ = ["BOUNDS", "NONE", "PERFECT", "RECOMPUTE", "HintArm", "HintCase", "range_text"]

RECOMPUTE, NONE, PERFECT = "recompute", "none", "perfect"
BOUNDS = (RECOMPUTE, NONE, PERFECT)
"""Arms that send no hint."""
PAYS_MIN = 0.02
"""Of the mean: without a queue, hints that come too late gain up to 0.8 %, and where nothing can be
gained arms differ by up to 0.5 % (docs/reference/prefetch-pays.md)."""


@dataclass(frozen=True, kw_only=True)
class HintArm:
    """One arm at one load: times to the first token in seconds, and shares. `gained`: by how much
    the mean is shorter than without hints. Of what was needed and not in a host's or engine's own
    memory `on_time`, `late`, `missing`, and `absent`, which nobody had; `wasted`: of what was read
    ahead. None: there was nothing."""

    name: str
    mean_s: float
    p50_s: float
    p99_s: float
    gained: float | None
    gained_range: tuple[float, float] | None = None
    on_time: float | None
    late: float | None
    missing: float | None
    absent: float | None = None
    wasted: float | None


@dataclass(frozen=True)
class HintCase:
    """The arms of one trace by load, in ascending order. `read`: what `wasted` is a share of."""

    title: str
    loads: Mapping[float, Sequence[HintArm]]
    read: str = "what was read for hints"

    @property
    def names(self) -> list[str]:
        """Every arm that ran."""
        return list(dict.fromkeys(one.name for arms in self.loads.values() for one in arms))

    def said(self) -> str:
        """Whether prefetch pays here, and the times that say so; of each load the best arm."""
        found = {load: _best(arms) for load, arms in self.loads.items()}
        judged = {load: one for load, one in found.items() if one is not None}
        if not judged:
            return f"No hint was sent and served, so nothing says if prefetch pays ({self.title})"
        paid = [load for load, (_, pays) in judged.items() if pays]
        unpaid = [load for load in judged if load not in paid]
        if paid and unpaid:
            head = f"Prefetch pays here at load {_listed(paid)}, and not at {_listed(unpaid)}"
        else:
            head = "Prefetch pays here" if paid else "Prefetch does not pay here"
        times = [_times(load, self.loads[load], best) for load, (best, _) in judged.items()]
        return "; ".join([f"{head} ({self.title})", *times])


def range_text(gained: float, ends: tuple[float, float] | None) -> str:
    """A share, with its interval where there is one: `6.5 % (2.1 to 9.8)`."""
    if ends is None:
        return format_share(gained)
    low, high = (format_share(one).removesuffix(" %") for one in ends)
    return f"{format_share(gained)} ({low} to {high})"


def _best(arms: Sequence[HintArm]) -> tuple[HintArm, bool] | None:
    """The arm with hints that gains most, of those that pay if any does, and whether it pays."""
    perfect = _named(arms, PERFECT)
    own = [one for one in arms if one.name not in BOUNDS and one.gained is not None]
    if not own or _named(arms, NONE) is None:
        return None
    paying = [one for one in own if _pays(one) and (perfect is None or _pays(perfect))]
    return max(paying or own, key=lambda one: one.gained or 0.0), bool(paying)


def _pays(one: HintArm) -> bool:
    least = one.gained if one.gained_range is None else one.gained_range[0]
    return least is not None and least >= PAYS_MIN


def _named(arms: Sequence[HintArm], name: str) -> HintArm | None:
    return next((one for one in arms if one.name == name), None)


def _times(load: float, arms: Sequence[HintArm], best: HintArm) -> str:
    none, perfect = _named(arms, NONE), _named(arms, PERFECT)
    assert none is not None and best.gained is not None
    said = (
        f"at load {load:g} hints {best.name} gain {range_text(best.gained, best.gained_range)}: a "
        f"first token takes {format_seconds(best.mean_s)} instead of {format_seconds(none.mean_s)}"
    )
    if perfect is None or perfect.gained is None:
        return said
    return f"{said}, and perfect hints gain {range_text(perfect.gained, perfect.gained_range)}"


def _listed(loads: Sequence[float]) -> str:
    *first, last = (f"{one:g}" for one in loads)
    return f"{', '.join(first)} and {last}" if first else last
