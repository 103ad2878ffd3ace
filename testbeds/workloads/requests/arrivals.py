"""When sessions arrive and when they may start: pure functions over lists of seconds.

Traces carry coarse clocks (Mooncake's ticks are about 3 s apart), so requests of one tick arrive
together and keep the order of the file; nothing finer than a tick may be concluded.
"""

import heapq
import math
from collections.abc import Sequence

__all__ = ["admit", "compress", "compression_for", "lockstep"]


def lockstep(session_count: int) -> list[float]:
    """All sessions arrive at once and decode step by step together."""
    return [0.0] * session_count


def compress(timestamps_ms: Sequence[float], factor: float) -> list[float]:
    """Arrivals in seconds after the first one, every gap divided by `factor`."""
    assert factor > 0
    return [(stamp - timestamps_ms[0]) / 1e3 / factor for stamp in timestamps_ms]


def compression_for(span_s: float, target_s: float) -> float:
    """The factor that brings a span down to `target_s` or a little less; at least 1.

    Rounded up to two significant digits, so that a report can say it exactly.
    """
    assert target_s > 0
    factor = span_s / target_s
    if factor <= 1:
        return 1.0
    unit = 10.0 ** (math.floor(math.log10(factor)) - 1)
    return round(math.ceil(factor / unit - 1e-9) * unit, 9)


def admit(
    arrivals_s: Sequence[float], durations_s: Sequence[float], sessions_max: int
) -> list[float]:
    """Start times when at most `sessions_max` sessions run at once, first come, first served.

    `arrivals_s` must not decrease. A session that finds no place waits for the first one to end.
    """
    assert sessions_max >= 1
    ends: list[float] = []
    starts = []
    for arrival_s, duration_s in zip(arrivals_s, durations_s, strict=True):
        start_s = arrival_s
        if len(ends) == sessions_max:
            start_s = max(arrival_s, heapq.heappop(ends))
        heapq.heappush(ends, start_s + duration_s)
        starts.append(start_s)
    return starts
