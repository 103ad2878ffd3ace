"""Stage timers: where a block's time is spent, from the firmware's histograms.

One block in 31 is timed; a quantile is at most an eighth too large. `enum ofs_stage` in ofs_base.h
defines the stages, and where each begins and ends.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.figures import absent
from offstage.bindings.firmware import check_rc, ffi, lib
from offstage.bindings.layouts import names

__all__ = [
    "PARTS",
    "STAGES",
    "StageTimes",
    "Stages",
    "StepTimes",
    "device_stages",
    "driver_stages",
    "show",
    "step_times",
    "switch_device",
]

QUANTILES = {"ns_p50": 500, "ns_p90": 900, "ns_p99": 990}  # name -> permille


class StageTimes(msgspec.Struct, kw_only=True):
    """One stage: how many were timed, and how long they took. `buckets`: those that are not empty,
    each as `[largest value in ns, count]`; unset where they are not told."""

    count: int = 0
    ns_mean: float = 0.0
    ns_p50: int = 0
    ns_p90: int = 0
    ns_p99: int = 0
    ns_max: int = 0
    overflow: int = 0
    buckets: list[list[int]] | msgspec.UnsetType = msgspec.UNSET


class StepTimes(msgspec.Struct, kw_only=True, frozen=True):
    """Where the time of steps went that waited for a block: means of all and of the slowest percent
    (at least one), by part (`enum ofs_step_part`). Of none there is the count alone."""

    count: int
    ns_p50: int = absent()
    ns_p90: int = absent()
    ns_p99: int = absent()
    mean: dict[str, float] = absent()
    slowest_percent: dict[str, float] = absent()


Stages = Mapping[str, StageTimes]
"""By the names of `enum ofs_stage`; what was not timed is left out."""

STAGES = names("enum ofs_stage", "OFS_STAGE_")
PARTS = names("enum ofs_step_part", "OFS_STEP_PART_")


def device_stages(device: Any) -> dict[str, StageTimes]:
    """The stages that the reactor of `device` (a `struct ofs_device *`) has timed."""
    stages: Any = ffi.new("struct ofs_histogram[]", lib.OFS_STAGE_COUNT)
    check_rc(lib.ofs_device_stages_get(device, stages), "reading the stage timers")
    return show(stages)


def switch_device(device: Any, on: bool) -> None:
    """Its timers on or off, from now on."""
    check_rc(lib.ofs_device_stages_set(device, int(on)), "switching the stage timers")


def step_times(device: Any, tenant: int) -> StepTimes:
    """Of a tenant's steps that were timed."""
    times: Any = ffi.new("struct ofs_step_times *")
    check_rc(lib.ofs_device_step_times_get(device, tenant, times), "reading the times of steps")
    counts = np.array(list(times.steps.buckets), np.float64)
    sums = np.array([list(times.sums[part]) for part in range(len(PARTS))], np.float64)
    total = int(times.steps.count)
    if not total:
        return StepTimes(count=0)
    faster = np.maximum(counts.cumsum() - (total - max(total // 100, 1)), 0)
    slow = np.minimum(counts, faster) / np.maximum(counts, 1)  # part of a bucket that is among them
    return StepTimes(
        count=total,
        **_quantiles(ffi.addressof(times.steps)),
        mean=_by_part(sums.sum(axis=1) / total),
        slowest_percent=_by_part((sums * slow).sum(axis=1) / (counts * slow).sum()),
    )


def _by_part(means_ns: NDArray[np.float64]) -> dict[str, float]:
    return {f"{name}_ns": float(mean) for name, mean in zip(PARTS, means_ns, strict=True)}


def driver_stages(driver: Any) -> dict[str, StageTimes]:
    """The stages that the host's driver (a `struct ofs_driver *`) has timed."""
    stages: Any = ffi.new("struct ofs_histogram[]", lib.OFS_STAGE_COUNT)
    lib.ofs_driver_stages_get(driver, stages)
    return show(stages)


def show(stages: Any) -> dict[str, StageTimes]:
    """`struct ofs_histogram[OFS_STAGE_COUNT]` by stage; stages without samples are left out."""
    shown = {}
    for index, name in enumerate(STAGES):
        if stages[index].count:
            shown[name] = _show(stages[index])
    return shown


def _show(histogram: Any) -> StageTimes:
    address = ffi.addressof(histogram)
    return StageTimes(
        count=int(histogram.count),
        ns_mean=histogram.sum / histogram.count,
        **_quantiles(address),
        ns_max=int(histogram.max),
        overflow=int(histogram.overflow),
        buckets=[
            [int(lib.ofs_histogram_bucket_max(index)), int(count)]
            for index, count in enumerate(histogram.buckets)
            if count
        ],
    )


def _quantiles(histogram: Any) -> dict[str, int]:
    return {
        name: int(lib.ofs_histogram_quantile(histogram, permille))
        for name, permille in QUANTILES.items()
    }
