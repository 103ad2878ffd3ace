"""When a shard is copied and where to, which copy is read, and when one is deleted: pure code.

A shard that many sessions read is hot, and its only home a bottleneck. So it gets copies at the
next members in its ranking. Copies serve load, never durability: a lost block is recomputed.
Copies of a few items are enough: the O(N log N) hottest balance N members (Fan et al., SoCC 2011),
and each session reads from the less loaded of two places drawn at random.

A shard is hot when it has a large share of a member's traffic, so the rule needs no bandwidth of
links or drives. Rates are demanded blocks per second; times are ns of one clock, given by the
caller.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from offstage.bindings.settings import within

__all__ = [
    "COLD",
    "HALF_LIFE_NS",
    "CopyRule",
    "Heat",
    "copies_wanted",
    "hot_rate",
    "is_quiet",
    "is_spent",
    "less_loaded",
    "next_place",
    "rate",
    "read_places",
    "warmed",
]

HALF_LIFE_NS = 5_000_000_000
"""A heat halves in so long: about the window of 10 s of Mooncake's hot copies (RFC 3388)."""
Place = TypeVar("Place")
QUIET_SHARE = 0.5
"""A copy is one too many where twice the rate would not call for it: a rate near the bound does not
make and drop copies in turn."""


class CopyRule(msgspec.Struct, frozen=True, kw_only=True):
    """`[copies]` of the map: what makes a shard hot, the same for all members and hosts."""

    copies_max: Annotated[int, within(0, 16, "copies of a shard besides its home; 0: none")] = 3
    hot_percent: Annotated[
        int, within(1, 1000, "of a member's mean load: what one place serves of one shard")
    ] = 50
    hot_blocks_per_s: Annotated[
        int, within(1, 2**40, "demanded blocks a second below which no shard is hot")
    ] = 1000
    cool_s: Annotated[int, within(0, 86_400, "a copy goes that was one too many for so long")] = 30


@dataclass(frozen=True, slots=True)
class Heat:
    """A decayed count of demands, as of `at_ns`."""

    count: float
    at_ns: int


COLD = Heat(0.0, 0)


def warmed(heat: Heat, demands: int, now_ns: int, half_life_ns: int = HALF_LIFE_NS) -> Heat:
    """The heat after `demands` more demands. A clock that went back causes no decay."""
    return Heat(_decayed(heat, now_ns, half_life_ns) + demands, max(now_ns, heat.at_ns))


def rate(heat: Heat, now_ns: int, half_life_ns: int = HALF_LIFE_NS) -> float:
    """Demands per second: their rate where they came steadily, else a little behind it."""
    return _decayed(heat, now_ns, half_life_ns) * math.log(2) / (half_life_ns / 1e9)


def _decayed(heat: Heat, now_ns: int, half_life_ns: int) -> float:
    return float(heat.count * 0.5 ** (max(0, now_ns - heat.at_ns) / half_life_ns))


def hot_rate(loads: Sequence[float], rule: CopyRule) -> float:
    """Demands per second of one shard that one place serves before it is to get another, by the
    members' loads, demands per second."""
    mean = sum(loads) / len(loads) if loads else 0.0
    return max(float(rule.hot_blocks_per_s), mean * rule.hot_percent / 100)


def copies_wanted(rate_per_s: float, hot_per_s: float, copies_max: int) -> int:
    """How many copies besides its home a shard of that rate should have."""
    return max(0, math.ceil(min(rate_per_s / hot_per_s, copies_max + 1)) - 1)


def is_quiet(rate_per_s: float, held: int, hot_per_s: float, copies_max: int) -> bool:
    """Whether one of the `held` copies is one too many."""
    return copies_wanted(rate_per_s / QUIET_SHARE, hot_per_s, copies_max) < held


def is_spent(quiet_since_ns: int, now_ns: int, cool_ns: int) -> bool:
    """Whether a copy is deleted: one has been surplus since then; 0: none is now."""
    return quiet_since_ns > 0 and now_ns - quiet_since_ns >= cool_ns


def next_place(ranking: Sequence[str], taken: Sequence[str]) -> str:
    """Who gets the next copy: the best of the ranking that has none; "" where all have it."""
    return next((name for name in ranking if name not in taken), "")


def less_loaded(places: Sequence[int], loads: Sequence[float], draw: int) -> int:
    """Which place to read: the less loaded of two drawn by the number `draw`, which is enough to
    balance (Mitzenmacher 2001). `places` are indices into `loads`."""
    if len(places) == 1:
        return places[0]
    first, second = draw % len(places), draw // len(places) % (len(places) - 1)
    second += second >= first
    one, other = places[first], places[second]
    return one if loads[one] <= loads[other] else other


def read_places(
    home: Place, copies: Sequence[Place], before: Iterable[Place], loads: Sequence[float], draw: int
) -> Iterator[Place]:
    """Where a shard is read: places in the order in which they are asked for what those before
    them lack. First the less loaded of two drawn of its home and its copies (`loads` of these, in
    this order), then its home, then who may have it from before a change of the map."""
    places = [home, *copies]
    first = places[less_loaded(range(len(places)), loads, draw)]
    yield first
    if first is not home:
        yield home
    yield from before
