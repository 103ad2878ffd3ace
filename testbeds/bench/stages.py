"""The cost of the stage timers, and that of noting every moment as a recorder has it.

Both are switched on one device, a batch with and a batch without in turn: two devices differ by
more than that, by where their memory lies. With moments all is timed, else one fetch in 31.

All fetches are hits, so that only the host, the ring and the reactor are timed. The ratio is
that of throughput in the fastest tenth of many short batches: other load on the machine slows
the rest, and two threads that share a core with it much more.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np

from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.driver import Driver
from offstage.bindings.errors import RunFailed
from offstage.bindings.fabric import Fetch, FetchRequest, PutRequest

__all__ = ["RATIO_MIN", "StageTimers", "stage_timers"]

KIB = 1 << 10
RATIO_MIN = 0.98
MOMENTS = 1 << 16
NEVER_NS = (1 << 64) - 1
SHAPES = ((1, 4 * KIB), (16, 32 * KIB))  # blocks of one fetch, and their bytes


class StageTimers(msgspec.Struct, frozen=True):
    """Fetches of one shape with timers on and off: ns each, and the ratio of throughput."""

    what: str
    blocks: int
    block_bytes: int
    on_ns: float
    off_ns: float
    ratio: float
    pairs: int
    fetches: int


def stage_timers(pairs: int, fetches: int, say: Callable[[str], None]) -> list[StageTimers]:
    """The timers for each shape of a fetch, then the moments."""
    found = []
    for what, moments in (("timers", 0), ("moments", MOMENTS)):
        for count, size in SHAPES:
            each = max(fetches // count, 1)  # batches as short: each fits between other work
            on_ns, off_ns = _alternated(moments, count, size, pairs * count, each)
            one = _row(what, count, size, on_ns, off_ns, each)
            say(
                f"{what}, fetches of {count} x {size // KIB} KiB: {one.on_ns:.0f} ns with, "
                f"{one.off_ns:.0f} ns without, throughput {one.ratio:.3f}"
            )
            found.append(one)
    return found


def _row(
    what: str, count: int, size: int, on_ns: list[float], off_ns: list[float], fetches: int
) -> StageTimers:
    fast_on_ns, fast_off_ns = (float(np.percentile(taken, 10)) for taken in (on_ns, off_ns))
    return StageTimers(
        what, count, size, fast_on_ns, fast_off_ns, fast_off_ns / fast_on_ns, len(on_ns), fetches
    )


def _config(count: int, size: int, moments: int = 0) -> BareConfig:
    return BareConfig(
        payload_size_bytes=size,
        slot_count=4 * count + 8,
        backend="emulated",
        block_max=64,
        spin_ns=NEVER_NS,
        moments=moments,
    )


@contextmanager
def _staged(config: BareConfig, count: int) -> Iterator[tuple[BareDevice, Driver, Fetch]]:
    """A device, its driver, and a fetch of `count` staged blocks."""
    with BareDevice(config) as device, device.driver() as driver:
        session = device.session(count)
        ordinals = np.arange(count, dtype=np.uint32)
        keys = np.ascontiguousarray(session.keys[0])
        target = np.zeros((count, config.payload_size_bytes), np.uint8)
        rcs = driver.put(PutRequest(session.number, 0, ordinals, target))
        fetch = driver.fetch_begin(FetchRequest(session.number, 0, 0, ordinals, keys, target))
        if rcs.any() or driver.fetch_end(fetch).rcs.any():
            raise RunFailed("the blocks could not be staged", "bench fabric", "see the errno")
        yield device, driver, fetch


def _alternated(
    moments: int, count: int, size: int, pairs: int, fetches: int
) -> tuple[list[float], list[float]]:
    """ns of a fetch with and without, a batch each in turn."""
    taken: tuple[list[float], list[float]] = ([], [])
    with _staged(_config(count, size, moments), count) as (device, driver, fetch):
        for number in range(2 * pairs + 2):
            on = (number // 2 + number) % 2 == 0  # on off, off on, on off: neither comes first
            device.time_stages(on)
            driver.time_stages(on, all=moments > 0)
            taken[not on].append(driver.bench_fetch(fetch, fetches) / fetches)
            if moments:
                device.moments(moments)
    return taken[0][1:], taken[1][1:]  # the first of each warms up
