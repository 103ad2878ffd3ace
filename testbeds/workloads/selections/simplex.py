"""Nelder and Mead's search for the minimum of a function (Computer Journal 7(4), 1965).

A pure function of its arguments, so a search is repeatable; nothing can fail.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["CLOSE", "Vector", "minimise"]

CLOSE = 1e-3
"""In units of the cost, in which an error as large as its tolerance is 1."""

Vector = npt.NDArray[np.float64]


def minimise(
    function: Callable[[Vector], float], start: Vector, evaluations: int, size: float = 0.25
) -> tuple[Vector, float]:
    """Nelder and Mead's search from a simplex of edge `size`; the best point and its value.

    It ends when the values of the simplex are within CLOSE of each other, or after about
    `evaluations` evaluations."""
    points = [start] + [start + size * row for row in np.eye(len(start))]
    values = [function(point) for point in points]
    spent = len(points)
    while spent < evaluations and max(values) - min(values) > CLOSE:
        order = sorted(range(len(points)), key=values.__getitem__)
        points, values = [points[i] for i in order], [values[i] for i in order]
        centre = np.mean(points[:-1], axis=0)

        def at(factor: float, centre: Vector = centre, worst: Vector = points[-1]) -> Vector:
            moved: Vector = centre + factor * (centre - worst)
            return moved

        tried = at(1.0)
        value = function(tried)
        spent += 1
        if value < values[0]:
            further = at(2.0)
            beyond = function(further)
            spent += 1
            points[-1], values[-1] = (further, beyond) if beyond < value else (tried, value)
        elif value < values[-2]:
            points[-1], values[-1] = tried, value
        else:
            inside = at(0.5 if value < values[-1] else -0.5)
            nearer = function(inside)
            spent += 1
            if nearer < min(value, values[-1]):
                points[-1], values[-1] = inside, nearer
            else:
                points[1:] = [points[0] + 0.5 * (point - points[0]) for point in points[1:]]
                values[1:] = [function(point) for point in points[1:]]
                spent += len(points) - 1
    best = min(range(len(points)), key=values.__getitem__)
    return points[best], values[best]
