"""What is kept of a run: the row of the table that comes of the times at which its pieces ended.

A row splits a read's latency in two, as the chip's units do: its turn in a queue that is served
at the bandwidth between refreshes and stands still during each, and the **access**, everything
beyond that. A unit draws the access by itself, not knowing whether the piece had to wait, so its
quantiles are not simply those that were seen: they start there and are then fitted, until turn
and drawn access together have the mean and the quantiles of the latencies of the run.
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
    """What came of one point. Latencies are those of reads, picoseconds."""

    load_permille: int
    bytes_per_s: float
    mean_ps: int
    latency_ps: tuple[int, ...]  # at QUANTILES
    access_ps: tuple[int, ...]


@dataclass(frozen=True)
class Server:
    """The queue in front of a channel: `service_ps` a piece, and from `pause_every_ps` on it stands
    still for `pause_ps` each so often."""

    service_ps: float
    pause_every_ps: int
    pause_ps: int

    def turns_ps(self, at_ps: npt.NDArray[np.int64]) -> Numbers:
        """When it has served each of those that arrive."""
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
    """Bytes a second, from the first tenth of the ends to the last."""
    order = np.sort(ends_ps)
    low, high = len(order) // 10, len(order) * 9 // 10
    return (high - low) * point.piece_bytes * 1e12 / float(order[high] - order[low])


def row_of(
    point: Point, pieces: Arrivals, ends_ps: npt.NDArray[np.int64], server: Server | None
) -> Row:
    """The row of a run; with the access beyond `server`, where there is one."""
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
    """Quantiles of the access, so that turns and access together come out as the latencies."""
    shares = np.random.Generator(np.random.PCG64(SEED)).random((DRAWS, len(turns)))
    wanted = _figures(latency)
    seen = np.quantile(np.maximum(latency - turns, 0), QUANTILES)
    first = np.diff(seen, prepend=0.0)

    def cost(steps: Numbers) -> float:
        drawn = np.interp(shares, QUANTILES, np.cumsum(steps))
        off = _figures((turns + drawn).ravel()) / wanted - 1
        # The last term keeps what the figures leave free near what was seen.
        return float((off**2).sum() + 2e-9 * (((steps - first) / 1000) ** 2).sum())

    return np.cumsum(_descend(cost, first))


def _descend(cost: Callable[[Numbers], float], at: Numbers) -> Numbers:
    """Coordinate by coordinate, in steps that halve when none helps; nothing below 0."""
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
