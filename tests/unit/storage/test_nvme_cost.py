"""Does the cost of a read match the drive's model under full load, and does it tell when a partial
block saves media time, and when only bytes?"""

import numpy as np
import pytest

from offstage.bindings.errors import OffstageError
from offstage.bindings.storage import NvmeModel, nvme_cost, preset, presets

KIB = 1 << 10
AT_ONCE = [name for name in presets() if not preset(name).params["scheduled"]]
"""Drives that say at the request when it ends."""
SPAN = 1 << 34


def saturated_ns(name: str, size_bytes: int, align: int, count: int = 20_000) -> float:
    """Time per random read of a drive's model with 1,024 reads in flight."""
    params, draw = preset(name).params, np.random.default_rng(1)
    model, ends = NvmeModel(params, 1), [0] * 1024
    last = 0
    for number in range(count):
        slot = number % len(ends)
        now = max(ends[slot], last)  # when the oldest has ended
        last = now
        ends[slot] = model.submit(now, int(draw.integers(SPAN // align)) * align, size_bytes)
    return max(ends) / count / 1e3


@pytest.mark.parametrize("name", AT_ONCE)
@pytest.mark.parametrize("size_bytes", [512, 4 * KIB, 36 * KIB, 128 * KIB])
def test_the_model_is_as_fast_as_its_slowest_resource(name: str, size_bytes: int) -> None:
    """The model never beats the cost of random reads, and comes near it. A read that crosses pages
    pays for each, so the cost uses the same random offsets."""
    params, draw = preset(name).params, np.random.default_rng(1)
    starts = draw.integers(SPAN // size_bytes, size=2_000) * size_bytes
    costs = nvme_cost(params, [(int(start), size_bytes) for start in starts])
    bound_ns = costs.ns / len(starts)
    took_ns = saturated_ns(name, size_bytes, size_bytes)
    assert 0.97 * bound_ns < took_ns < 1.6 * bound_ns, costs


@pytest.mark.parametrize("name", [name for name in AT_ONCE if name != "xl-flash-10m"])
def test_a_sector_takes_as_long_as_4_kib(name: str) -> None:
    """On drives that are not made for sectors the command or the media is the limit, and neither is
    less for 512 B; a sector only saves bytes on channel and link."""
    params = preset(name).params
    sector, page = nvme_cost(params, [(0, 512)]), nvme_cost(params, [(0, 4 * KIB)])
    assert sector.ns == page.ns and sector.bound in ("command", "media")
    assert sector.media == page.media and sector.command == page.command
    assert sector.link * 8 == pytest.approx(page.link, rel=0.01)


def test_a_drive_made_for_sectors_reads_them_faster() -> None:
    """Commands limit its sectors, and the link its pages."""
    params = preset("xl-flash-10m").params
    sector, page = nvme_cost(params, [(0, 512)]), nvme_cost(params, [(0, 4 * KIB)])
    assert (sector.bound, page.bound) == ("command", "link") and page.ns > 2 * sector.ns


def test_two_commands_for_a_part() -> None:
    """A part saves link time where a block is link-bound, but costs time where commands limit."""
    params = preset("gen5-tlc").params
    whole = nvme_cost(params, [(0, 36 * KIB)])
    part = nvme_cost(params, [(0, 8 * KIB), (32 * KIB, 4 * KIB)])
    assert part.link == pytest.approx(whole.link / 3, rel=0.01)
    assert part.command == 2 * whole.command
    slow = {**params, "command_interval_ps": 10**9}
    assert (
        nvme_cost(slow, [(0, 8 * KIB), (32 * KIB, 4 * KIB)]).ns
        == 2 * nvme_cost(slow, [(0, 36 * KIB)]).ns
    )
    with pytest.raises(OffstageError):
        nvme_cost(params, [(0, 0)])
