"""Where the time of a tick went: spans on lanes, in nanoseconds of the host's clock.

Owned by the decode loop's thread. Every tick is recorded, up to `TICKS_MAX` of them; the tick to
show is chosen afterwards, by its stall. The lanes:

- compute: the attention kernel runs;
- pace: the rest of the GPU's given time, in which nothing runs;
- copy: the host copies and checks blocks that have arrived, or a device takes them in;
- fetch: a fetch is in flight, one for each session, in the fabric and the drive;
- stall: the kernel could not start, because blocks were missing.

Times are of the host's clock, which runs slower by the dilation of the tier it decodes against.
Against a modelled device in dilated time every wait takes `dilation` times longer on the machine:
the device's times, the GPU's, every deadline. Figures are in the device's time.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["LANES", "Clock", "Span", "Timeline", "merged"]

LANES = ("compute", "pace", "stall", "copy", "fetch")
TICKS_MAX = 400
SHOWN_SHARE = 0.9
"""Quantile of the stall by which the shown tick is chosen."""


def merged(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The union of the spans (begin, end), in order; overlaps are merged."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


@dataclass(frozen=True, slots=True)
class Span:
    """What one lane did for one layer."""

    lane: str
    layer: int
    begin_ns: int
    end_ns: int


class Timeline:
    """The spans of the first ticks of a run. `source`: what measured them."""

    def __init__(self) -> None:
        self.source = "the host's clock"
        self.ticks: list[list[Span]] = []
        self._open = False

    def begin_tick(self) -> None:
        """Start a new tick; beyond `TICKS_MAX` nothing is recorded."""
        self._open = len(self.ticks) < TICKS_MAX
        if self._open:
            self.ticks.append([])

    def add(self, lane: str, layer: int, begin_ns: int, end_ns: int) -> None:
        """A span of the open tick."""
        if self._open and end_ns > begin_ns:
            self.ticks[-1].append(Span(lane, layer, begin_ns, end_ns))

    def shown(self) -> tuple[int, list[Span]]:
        """Number and spans of the tick that is shown; (0, []) where there is none."""
        stalls = sorted(
            (sum(one.end_ns - one.begin_ns for one in spans if one.lane == "stall"), number)
            for number, spans in enumerate(self.ticks)
        )
        if not stalls:
            return 0, []
        number = stalls[min(len(stalls) - 1, int(SHOWN_SHARE * len(stalls)))][1]
        return number, self.ticks[number]


class Clock:
    """A clock of which one nanosecond takes `dilation` of the machine's."""

    def __init__(self, dilation: int = 1) -> None:
        self.dilation = dilation

    def now_ns(self) -> int:
        """Nanoseconds that never go back."""
        return time.monotonic_ns() // self.dilation

    def sleep_until_ns(self, then_ns: int) -> None:
        """Sleep until `then_ns`; returns immediately if it has passed."""
        left_ns = then_ns - self.now_ns()
        if left_ns > 0:
            time.sleep(left_ns * self.dilation / 1e9)
