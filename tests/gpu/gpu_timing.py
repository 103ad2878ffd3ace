"""Times of work on a CUDA device, by its own events, and the roof that they are compared with.

A time is the median of several. Each is of enough calls to keep the device busy for a few
milliseconds, after its second-level cache was overwritten if the caller asks for cold data.
"""

import statistics
from collections.abc import Callable
from typing import Any

__all__ = ["copy_rate", "seconds_of"]

CACHE_BYTES = 256 << 20
"""More than the second-level cache of any device there is."""


def seconds_of(call: Callable[[], Any], *, repeats: int = 15, cold: bool = True) -> float:
    """Return the median time of one call on the device's current stream, idle before each."""
    import torch

    flush = torch.empty(CACHE_BYTES if cold else 1, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def copy_rate(size_bytes: int) -> float:
    """Return the bytes read and written per second by a copy within the device's memory."""
    import torch

    source = torch.ones(size_bytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size_bytes / seconds_of(lambda: target.copy_(source))
