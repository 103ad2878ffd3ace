"""Find the figures of a run that say nothing about a policy, and the reason.

If the buffer, the HBM pool or the selection holds the whole context, every demand after the first
touch hits, with any prefetch policy. With few requests, or with seeds that all give the same
result, an interval has no meaning. Pure functions of the points; nothing can fail.
"""

from collections.abc import Iterable, Sequence

from offstage.bindings.notes import Note
from offstage.testbeds.lab.results.summary import WEAK_REQUESTS, PointSummary

__all__ = ["notes_of", "seeds_alike", "why_vacuous"]


def why_vacuous(point: PointSummary) -> list[str]:
    """Reasons why the point's figures say little, the worst first; empty if there are none."""
    info, found = point.info, []
    context, k = info.context_blocks, info.buffer_blocks / info.buffer_over_k
    if context and k >= context:
        found.append(f"k selects the whole context of {context:,} blocks")
    elif context and info.buffer_blocks >= context:
        found.append(
            f"a buffer of {info.buffer_blocks:,} blocks holds the whole context of {context:,}"
        )
    elif context and info.hbm_pool_over_k * k >= context:
        found.append(f"the HBM pool holds the whole context of {context:,} blocks")
    if point.requests < WEAK_REQUESTS:
        word = "request" if point.requests == 1 else "requests"
        found.append(f"{point.requests} {word} only")
    return found


def notes_of(points: Sequence[PointSummary]) -> list[Note]:
    """Each reason once, with the number of points that it applies to."""
    found: dict[str, int] = {}
    for point in points:
        for why in why_vacuous(point):
            found[why] = found.get(why, 0) + 1
    return [
        Note("says-little", f"says little about a policy: {why} ({count} of {len(points)} points)")
        for why, count in found.items()
    ]


def seeds_alike(points: Iterable[Sequence[bytes]]) -> list[Note]:
    """A note if seeds have no effect. `points`: for each point, the encoded result of each seed."""
    several = [gave for gave in points if len(gave) > 1]
    alike = sum(len(set(gave)) == 1 for gave in several)
    if not alike:
        return []
    return [
        Note(
            "seeds-unused",
            "all seeds give the same result, because nothing is drawn: "
            f"intervals over them mean nothing ({alike} of {len(several)} points)",
            "give one seed",
        )
    ]
