"""The cost of the stage timers, and that of noting every moment as a recorder has it.

Timers are switched, a batch with and a batch without in turn. Moments are a device's from its open
on, so that devices with and without take turns; their fetches stamp and time everything, where the
others time one in 31.

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
MOMENTS, TURNS = 1 << 16, 4
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
    for what, sample in (("timers", _timers), ("moments", _moments)):
        for count, size in SHAPES:
            on_ns, off_ns = sample(count, size, pairs, fetches)
            one = _row(what, count, size, on_ns, off_ns, fetches)
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


def _moments(count: int, size: int, pairs: int, fetches: int) -> tuple[list[float], list[float]]:
    """ns of a fetch with moments and without."""
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(2 * TURNS):
        on = (turn // 2 + turn) % 2 == 0
        with _staged(_config(count, size, MOMENTS if on else 0), count) as (device, driver, fetch):
            driver.time_stages(True, all=on)
            for number in range(max(pairs // TURNS, 1) + 1):
                ns = driver.bench_fetch(fetch, fetches) / fetches
                if on:
                    device.moments(MOMENTS)
                if number:  # the first warms up
                    taken[not on].append(ns)
    return taken


def _timers(count: int, size: int, pairs: int, fetches: int) -> tuple[list[float], list[float]]:
    """ns of a fetch with timers and without."""
    on_ns: list[float] = []
    off_ns: list[float] = []
    with _staged(_config(count, size), count) as (device, driver, fetch):
        for number in range(2 * pairs + 2):
            on = (number // 2 + number) % 2 == 0  # on off, off on, on off: neither comes first
            device.time_stages(on)
            driver.time_stages(on)
            (on_ns if on else off_ns).append(driver.bench_fetch(fetch, fetches) / fetches)
    return on_ns[1:], off_ns[1:]  # the first of each warms up
