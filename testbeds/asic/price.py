"""What a device costs, drives included: DPUs by their price, chips by that of their parts.

Model: a chip is dies of a wafer, its stacks of HBM, package and board, times a markup; DIMMs and
drives come at their own price. Bounds are those of the parts, as if all erred in one direction.

What can fail: nothing but a catalog without these devices, which is a programming error.
"""

import math

from offstage.asic_model.energy import area
from offstage.asic_model.parameters import Preset
from offstage.asic_model.result import Range
from offstage.testbeds.prices import Catalog, catalog

__all__ = ["price"]

WAFER_MM = 300.0
WAFERS = {7: "wafer-7nm", 5: "wafer-5nm"}
GB = 1e9
ENDS = ("value", "low", "high")


def price(preset: Preset, known: Catalog | None = None) -> Range | None:
    """Dollars of one device with its drives; None for one that nobody sells."""
    prices = known or catalog()
    if preset.kind == "asic" and not preset.node_nm:
        return None
    if preset.kind == "dpu" and preset.name not in prices.devices:
        return None
    value, low, high = (_device(preset, prices, end) + _drives(preset, prices, end) for end in ENDS)
    return Range(name=preset.name, unit="$", value=value, low=low, high=high)


def _drives(preset: Preset, prices: Catalog, end: str) -> float:
    tlc = prices.numbers("tlc")
    each = _end(tlc["price"], end) * tlc["capacity"].base / GB
    return preset.nvme.drives.value * each


def _device(preset: Preset, prices: Catalog, end: str) -> float:
    if preset.kind == "dpu":
        return _end(prices.numbers(preset.name)["each"], end)
    asic = prices.numbers("asic")
    mm2 = sum(getattr(one, end) for one in area(preset))
    wafer = _end(prices.numbers(WAFERS[preset.node_nm])["each"], end)
    worse = {"value": "value", "low": "high", "high": "low"}[end]
    die = wafer / (_dies(mm2) * _end(asic["yielded"], worse))
    cost, dimms = die + _end(asic["each"], end), 0.0
    for name, device in (("hbm", "hbm"), ("ddr", "ddr5")):
        memory = getattr(preset, name)
        if memory is None or name not in (preset.staging, preset.spill):
            continue
        size = memory.capacity.base * memory.channels.value / GB
        dollars = size * _end(prices.numbers(device)["price"], end)
        cost, dimms = (cost + dollars, dimms) if name == "hbm" else (cost, dimms + dollars)
    return cost * _end(asic["markup"], end) + dimms


def _dies(mm2: float) -> float:
    """Whole dies of a round wafer: its area, less those that its edge cuts."""
    return max(1.0, math.pi * WAFER_MM**2 / 4 / mm2 - math.pi * WAFER_MM / math.sqrt(2 * mm2))


def _end(number: object, end: str) -> float:
    return float(getattr(number, end)) * float(getattr(number, "scale", 1.0))
