"""The cost of the stage timers: fetches with them on and off, a batch of each in turn.

All fetches are hits, so that only the host, the ring and the reactor are timed. The ratio is
that of throughput in the fastest tenth of many short batches: other load on the machine slows
the rest, and two threads that share a core with it much more.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.errors import RunFailed
from offstage.bindings.fabric import FetchRequest, PutRequest

__all__ = ["RATIO_MIN", "StageTimers", "stage_timers"]

KIB = 1 << 10
RATIO_MIN = 0.98
NEVER_NS = (1 << 64) - 1
SHAPES = ((1, 4 * KIB), (16, 32 * KIB))  # blocks of one fetch, and their bytes


class StageTimers(msgspec.Struct, frozen=True):
    """Fetches of one shape with timers on and off: ns each, and the ratio of throughput."""

    blocks: int
    block_bytes: int
    on_ns: float
    off_ns: float
    ratio: float
    pairs: int
    fetches: int


def stage_timers(pairs: int, fetches: int, say: Callable[[str], None]) -> list[StageTimers]:
    """One for each shape of a fetch."""
    return [_row(count, size, pairs, fetches, say) for count, size in SHAPES]


def _row(
    count: int, size: int, pairs: int, fetches: int, say: Callable[[str], None]
) -> StageTimers:
    config = BareConfig(
        payload_size_bytes=size,
        slot_count=4 * count + 8,
        backend="emulated",
        block_max=64,
        spin_ns=NEVER_NS,
    )
    on_ns: list[float] = []
    off_ns: list[float] = []
    with BareDevice(config) as device, device.driver() as driver:
        session = device.session(count)
        ordinals = np.arange(count, dtype=np.uint32)
        keys = np.ascontiguousarray(session.keys[0])
        target = np.zeros((count, size), np.uint8)
        rcs = driver.put(PutRequest(session.number, 0, ordinals, target))
        fetch = driver.fetch_begin(FetchRequest(session.number, 0, 0, ordinals, keys, target))
        if rcs.any() or driver.fetch_end(fetch).rcs.any():
            raise RunFailed("the blocks could not be staged", "bench fabric", "see the errno")
        for number in range(2 * pairs + 2):
            on = (number // 2 + number) % 2 == 0  # on off, off on, on off: neither comes first
            device.time_stages(on)
            driver.time_stages(on)
            (on_ns if on else off_ns).append(driver.bench_fetch(fetch, fetches) / fetches)
    del on_ns[0], off_ns[0]  # the first of each warms up
    fast_on_ns, fast_off_ns = (float(np.percentile(taken, 10)) for taken in (on_ns, off_ns))
    ratio = fast_off_ns / fast_on_ns
    say(
        f"stage timers, fetches of {count} x {size // KIB} KiB: {fast_on_ns:.0f} ns with, "
        f"{fast_off_ns:.0f} ns without, throughput {ratio:.3f}"
    )
    return StageTimers(count, size, fast_on_ns, fast_off_ns, ratio, pairs, fetches)
