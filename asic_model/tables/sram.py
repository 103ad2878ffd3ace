"""SRAM from sram.toml: time, energy and area of an array by size and banks, by CACTI 7.

CACTI's newest node is 22 nm. Figures at 7 or 5 nm are scaled from there, with a range that ends at
the 22 nm figure itself: shrinking has helped wires little. Area at 7 and 5 nm is not scaled but
computed from the macro density that foundries publish (area.toml). Between sizes the figures are
interpolated on logarithmic axes; the nearest tabulated number of banks is used.

What can fail: `BadInput` for a node or a size that is not in the table, and for a table in which a
larger array is faster, smaller or cheaper to read.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import NamedTuple

import msgspec

from offstage.asic_model.blocks import Number
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import read_toml
from offstage.bindings.units import format_size

__all__ = ["NODES_NM", "Range", "Sram", "sram"]

TABLE = Path(__file__).resolve().parent / "sram.toml"
NODES_NM = (22, 7, 5)
NOISE = 0.12  # CACTI chooses another organisation for each size, so its figures are not smooth


class Range(NamedTuple):
    """A figure and its bounds."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Sram:
    """One array. `read_pj` and `write_pj` are of one access of 32 bytes."""

    size_bytes: int
    banks: int
    node_nm: int
    access_ps: Range
    cycle_ps: Range
    read_pj: Range
    write_pj: Range
    leakage_w: Range
    area_22nm_mm2: float


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """sram.toml. A row: bytes, banks, access ps, cycle ps, read pJ, write pJ, leakage mW of all
    banks, area mm2; `latency` and `energy`: factors on the 22 nm figure by node."""

    rows: list[tuple[int, int, int, int, float, float, float, float]]
    latency: dict[str, Number]
    energy: dict[str, Number]


@lru_cache(maxsize=1)
def _table() -> Table:
    table = msgspec.convert(read_toml(TABLE, "reinstall Offstage"), Table)
    for before, row in pairwise(sorted(table.rows, key=lambda row: (row[1], row[0]))):
        if before[1] != row[1]:
            continue
        for index in (2, 4, 7):
            if row[index] < before[index] * (1 - NOISE):
                raise BadInput(
                    f"{row[0]} B in {row[1]} banks are below {before[0]} B",
                    f"{TABLE.name}, number {index + 1}",
                    "make the table again: docs/reference/asic-tables.md",
                )
    return table


def sram(size_bytes: int, *, banks: int = 8, node_nm: int = 22) -> Sram:
    """The array of that size."""
    table = _table()
    if node_nm not in NODES_NM:
        raise BadInput(
            f"no {node_nm} nm node", "sram", f"choose one of {', '.join(map(str, NODES_NM))}"
        )
    count = min({row[1] for row in table.rows}, key=lambda one: (abs(log(one / banks)), one))
    rows = sorted(row for row in table.rows if row[1] == count)
    if not rows[0][0] <= size_bytes <= rows[-1][0]:
        raise BadInput(
            f"an array of {format_size(size_bytes)}",
            "sram",
            f"give {format_size(rows[0][0])} to {format_size(rows[-1][0])}",
        )
    low, high = next((a, b) for a, b in pairwise(rows) if a[0] <= size_bytes <= b[0])
    share = log(size_bytes / low[0]) / log(high[0] / low[0])
    access, cycle, read, write, leakage, area = (
        exp(log(a) + (log(b) - log(a)) * share) for a, b in zip(low[2:], high[2:], strict=True)
    )
    if node_nm == 22:
        latency = energy = Range(1.0, 1.0, 1.0)
    else:
        latency, energy = (
            Range(one.value, one.low, one.high)
            for one in (table.latency[f"n{node_nm}"], table.energy[f"n{node_nm}"])
        )
    return Sram(
        size_bytes,
        count,
        node_nm,
        _times(access, latency),
        _times(cycle, latency),
        _times(read, energy),
        _times(write, energy),
        _times(leakage / 1000, energy),
        area,
    )


def _times(value: float, factor: Range) -> Range:
    return Range(value * factor.value, value * factor.low, value * factor.high)
