"""Which figures of a lab run's points say little about a policy, beside those figures.

A note under the headline says it once for the run; here it is said point by point, and facet by
facet.
"""

from collections.abc import Sequence

from offstage.testbeds.lab.results.summary import PointSummary
from offstage.testbeds.lab.results.vacuous import notes_of, why_vacuous

__all__ = ["OF_POLICY", "reasons", "why_void"]

OF_POLICY = (
    *("nontrivial_hit", "nontrivial_hit_without_cold", "nontrivial_selection_hit"),
    *("nontrivial_gap_closed", "hit", "hit_without_cold", "selection_hit", "gap_closed"),
    *("coverage", "accuracy", "late"),
)
"""What few requests, or a buffer that holds everything, leave without meaning."""


def why_void(point: PointSummary, key: str) -> str:
    """What is said against a figure of the point; empty if nothing is."""
    return "; ".join(why_vacuous(point)) if key in OF_POLICY else ""


def reasons(points: Sequence[PointSummary]) -> list[str]:
    """What is said against some of the points, and against how many."""
    return [note.what for note in notes_of(points)]
