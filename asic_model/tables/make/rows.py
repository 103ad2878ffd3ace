"""What is kept of a run: the row of the table, computed from the times at which its pieces ended.

A row splits a read's latency in two, as the chip's units do: the wait in a queue that is served at
the bandwidth between refreshes and pauses during each, and the **access**, which is the rest. A
unit draws the access independently of the wait, so its quantiles are not simply the observed ones:
they start there and are fitted until wait and drawn access together reproduce the mean and the
quantiles of the run's latencies.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offstage.asic_model.tables.make.dram import Arrivals, Point

__all__ = ["Row", "Server", "reached", "row_of"]

QUANTILES = (0.0, 0.5, 0.9, 0.99, 1.0)
ROUNDS = 14
DRAWS = 4  # of the access of each piece, for a fit
FIRST_STEP_PS = 4000.0
SEED = 7

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """The result of one point. Latencies are those of reads, picoseconds."""

    load_permille: int
    bytes_per_s: float
    mean_ps: int
    latency_ps: tuple[int, ...]  # at QUANTILES
    access_ps: tuple[int, ...]


@dataclass(frozen=True)
class Server:
    """The queue in front of a channel: `service_ps` per piece, and a pause of `pause_ps` every
    `pause_every_ps`."""

    service_ps: float
    pause_every_ps: int
    pause_ps: int

    def turns_ps(self, at_ps: npt.NDArray[np.int64]) -> Numbers:
        """When it has served each arrival."""
        every, pause = self.pause_every_ps, self.pause_ps
        free, turns = 0.0, []
        for at in at_ps.tolist():
            begin = max(at, free)
            if begin >= every and begin % every < pause:
                begin += pause - begin % every
            free = begin + self.service_ps
            edge = (begin // every + 1) * every
            while free > edge:
                free += pause
                edge += every
            turns.append(free)
        return np.array(turns)


def reached(point: Point, ends_ps: npt.NDArray[np.int64]) -> float:
    """Bytes a second, from the first tenth of the completions to the last."""
    order = np.sort(ends_ps)
    low, high = len(order) // 10, len(order) * 9 // 10
    return (high - low) * point.piece_bytes * 1e12 / float(order[high] - order[low])


def row_of(
    point: Point, pieces: Arrivals, ends_ps: npt.NDArray[np.int64], server: Server | None
) -> Row:
    """The row of a run; with the access beyond `server`, if given."""
    reads = pieces.write == 0
    latency = (ends_ps - pieces.at_ps)[reads].astype(np.float64)
    access = np.zeros(len(QUANTILES))
    if server is not None:
        turns = (server.turns_ps(pieces.at_ps) - pieces.at_ps)[reads]
        access = _fitted(turns, latency)
    return Row(
        point.load_permille,
        reached(point, ends_ps),
        round(float(latency.mean())),
        _whole(np.quantile(latency, QUANTILES)),
        _whole(access),
    )


def _figures(values: Numbers) -> Numbers:
    return np.array([values.mean(), *np.quantile(values, QUANTILES[1:4])])


def _fitted(turns: Numbers, latency: Numbers) -> Numbers:
    """Quantiles of the access, such that wait plus access reproduces the latencies."""
    shares = np.random.Generator(np.random.PCG64(SEED)).random((DRAWS, len(turns)))
    wanted = _figures(latency)
    seen = np.quantile(np.maximum(latency - turns, 0), QUANTILES)
    first = np.diff(seen, prepend=0.0)

    def cost(steps: Numbers) -> float:
        drawn = np.interp(shares, QUANTILES, np.cumsum(steps))
        off = _figures((turns + drawn).ravel()) / wanted - 1
        # The last term keeps values that the figures leave free near the observed ones.
        return float((off**2).sum() + 2e-9 * (((steps - first) / 1000) ** 2).sum())

    return np.cumsum(_descend(cost, first))


def _descend(cost: Callable[[Numbers], float], at: Numbers) -> Numbers:
    """Coordinate descent in steps that halve when none helps; nothing below 0."""
    best, step = cost(at), np.maximum(at / 2, FIRST_STEP_PS)
    for _ in range(ROUNDS):
        before = best
        for index in range(len(at)):
            for sign in (1, -1):
                there = at.copy()
                there[index] = max(0.0, at[index] + sign * step[index])
                if (found := cost(there)) < best:
                    best, at = found, there
                    break
        if best == before:
            step = step / 2
    return at


def _whole(values: Numbers) -> tuple[int, ...]:
    return tuple(round(float(value)) for value in values)
