"""Where the time of a tick went: spans on lanes, in nanoseconds of the host's clock.

Owned by the decode loop's thread. Every tick is recorded, up to `TICKS_MAX` of them; the one that
is shown is chosen afterwards, by its stall and not by its looks. What a lane holds:

- compute: the attention kernel, which really runs;
- pace: what is left of the given time of a GPU, in which nothing runs;
- copy: the host copies and checks blocks that are there, or a device takes them in;
- fetch: a fetch in flight, one for each session: what the fabric and the drive do meanwhile;
- stall: the kernel could not begin, because blocks were not there.

The host's time: the machine's, or slower by as much as that of the tier it decodes against.

Against a modelled device in dilated time everything a host waits for takes `dilation` times longer
on the machine: the device's own times, the GPU's, every deadline. Figures are in the device's time.
"""

import time
from dataclasses import dataclass

__all__ = ["LANES", "Clock", "Span", "Timeline"]

LANES = ("compute", "pace", "stall", "copy", "fetch")
TICKS_MAX = 400
SHOWN_SHARE = 0.9
"""The tick that is shown has this quantile of the stall."""


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
        """What follows belongs to a new tick; nothing is kept once there are enough."""
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
    """Reads and waits; one of its nanoseconds takes `dilation` of the machine's."""

    def __init__(self, dilation: int = 1) -> None:
        self.dilation = dilation

    def now_ns(self) -> int:
        """Nanoseconds that never go back."""
        return time.monotonic_ns() // self.dilation

    def sleep_until_ns(self, then_ns: int) -> None:
        """Returns at once when that has passed."""
        left_ns = then_ns - self.now_ns()
        if left_ns > 0:
            time.sleep(left_ns * self.dilation / 1e9)
