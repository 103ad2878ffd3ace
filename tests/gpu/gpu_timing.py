"""Times of work on a CUDA device, by its own events, and the roof that they are held to.

A time is the median of several: each is of enough calls that the device is busy for a few
milliseconds, with its second-level cache overwritten before, where the caller asks for cold data.
"""

import statistics
from collections.abc import Callable
from typing import Any

__all__ = ["copy_rate", "seconds_of"]

CACHE_BYTES = 256 << 20
"""More than the second-level cache of any device there is."""


def seconds_of(call: Callable[[], Any], *, repeats: int = 15, cold: bool = True) -> float:
    """Median time of one call on the device's current stream, which is idle before each."""
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
    """Bytes read and written in a second by a copy inside the device's memory."""
    import torch

    source = torch.ones(size_bytes, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * size_bytes / seconds_of(lambda: target.copy_(source))
