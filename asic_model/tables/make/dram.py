"""The points of the DRAM table, and the pieces that arrive at each.

A **piece** is the part of a KV block that lies on one channel: `piece_bytes` at consecutive
addresses, at a random place in the channel. Pieces arrive as a Poisson stream and enter the memory
controller burst by burst in order of arrival; the head waits while the controller's buffer is
full. A read ends when its last burst is on the bus, a write when the controller has issued its last
burst.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

__all__ = [
    "ALONE_LOAD",
    "DEVICES",
    "HELD_OUT",
    "SATURATED",
    "TABLE",
    "Arrivals",
    "Device",
    "Point",
    "arrivals",
]

SEED = 20260
KIB = 1024
BYTES_A_POINT = 12 << 20
PIECES_MAX = 4000
SATURATED = 0
ALONE_LOAD = 10
LOADS = (50, 250, 500, 650, 800, 900)
FEW_LOADS = (250, 500, 800)


@dataclass(frozen=True)
class Device:
    """One channel of a DRAM standard, as the simulator's presets have it.

    `levels` says where consecutive bursts lie: name, index in the simulator's address vector,
    count and step, from the level that changes first to the one that changes last.
    """

    name: str
    organisation: str
    timing: str
    controller: str
    clock_ps: int
    precharge_clocks: int  # nRP
    activate_clocks: int  # nRCD
    read_clocks: int  # nCL
    burst_clocks: int  # nBL
    refresh_clocks: int  # nREFI
    refresh_cost_clocks: int  # nRTP + nRP + nRFC + nRCD
    burst_bytes: int
    burst_ps: int  # of the whole channel: its peak bandwidth is burst_bytes / burst_ps
    levels: tuple[tuple[str, int, int, int], ...]

    @property
    def bursts(self) -> int:
        """Number of bursts in the channel."""
        count = 1
        for _, _, size, _ in self.levels:
            count *= size
        return count


def _hbm_levels(bank_groups: int, banks: int) -> tuple[tuple[str, int, int, int], ...]:
    """Levels of an HBM channel: two pseudo channels alternate, then the bank groups."""
    return (
        ("PseudoChannel", 1, 2, 1),
        ("BankGroup", 3, bank_groups, 1),
        ("Column", 6, 32, 8),
        ("Bank", 4, banks, 1),
        ("Sid", 2, 2, 1),
        ("Row", 5, 16384, 1),
    )


HBM_CONTROLLER = "HBM34, read buffer of 128, write buffer of 64"
DEVICES = {
    one.name: one
    for one in (
        Device(
            "ddr5_6400",
            "DDR5_16Gb_x8",
            "DDR5_6400AN",
            "GenericDDR, read and write buffer of 64",
            312,
            46,
            46,
            46,
            8,
            12500,
            24 + 46 + 946 + 46,
            64,
            8 * 312,
            (
                ("BankGroup", 2, 8, 1),
                ("Column", 5, 64, 16),
                ("Bank", 3, 4, 1),
                ("Row", 4, 65536, 1),
            ),
        ),
        Device(
            "hbm3_6400",
            "HBM3_16Gb_8hi",
            "HBM3_6400Mbps",
            HBM_CONTROLLER,
            625,
            26,
            31,
            20,
            2,
            6240,
            9 + 26 + 560 + 31,
            32,
            625,
            _hbm_levels(4, 4),
        ),
        Device(
            "hbm4_8000",
            "HBM4_32Gb_8Hi",
            "HBM4_8000Mbps",
            HBM_CONTROLLER,
            500,
            33,
            39,
            20,
            2,
            7800,
            12 + 33 + 900 + 39,
            32,
            500,
            _hbm_levels(2, 8),
        ),
    )
}


@dataclass(frozen=True)
class Point:
    """One run: `load_permille` of the saturated bandwidth of the same mix; 0 is saturated."""

    device: str
    read_percent: int
    piece_bytes: int
    load_permille: int
    refresh: bool = True

    @property
    def name(self) -> str:
        end = "" if self.refresh else "-norefresh"
        load = self.load_permille
        return f"{self.device}-r{self.read_percent}-p{self.piece_bytes}-l{load}{end}"

    @property
    def saturated(self) -> "Point":
        """The run that defines 1000 permille."""
        return replace(self, load_permille=SATURATED)

    @property
    def unrefreshed(self) -> "Point":
        """The run that measures the channel's rate between two refreshes."""
        return replace(self, load_permille=SATURATED, refresh=False)


def _curve(
    device: str, read_percent: int, piece_bytes: int, loads: tuple[int, ...]
) -> Iterator[Point]:
    point = Point(device, read_percent, piece_bytes, SATURATED)
    yield point
    for load in loads:
        yield replace(point, load_permille=load)


def _table() -> Iterator[Point]:
    for device, one in DEVICES.items():
        for read_percent, piece_bytes, loads in (
            (100, 4 * KIB, LOADS),
            (67, 4 * KIB, FEW_LOADS),
            (50, 4 * KIB, LOADS),
            (100, 16 * KIB, (500,)),
        ):
            curve = tuple(_curve(device, read_percent, piece_bytes, loads))
            yield from (curve[0].unrefreshed, *curve)
        # An unloaded access without refresh, for comparison with the closed form.
        alone = Point(device, 100, one.burst_bytes, ALONE_LOAD, refresh=False)
        yield from (alone.saturated, alone)


def _held_out() -> Iterator[Point]:
    for device in DEVICES:
        for read_percent, piece_bytes, loads in (
            (100, 4 * KIB, (150, 450, 750)),
            (80, 4 * KIB, (650,)),
            (58, 4 * KIB, (400,)),
            (100, 64 * KIB, (300,)),
        ):
            yield from _curve(device, read_percent, piece_bytes, loads)


TABLE = tuple(_table())
HELD_OUT = tuple(point for point in _held_out() if point not in TABLE)


@dataclass(frozen=True)
class Arrivals:
    """The pieces of one point: when (ps), 1 for a write, first burst, and how many bursts each."""

    at_ps: npt.NDArray[np.int64]
    write: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    bursts: int

    def lines(self) -> Iterator[str]:
        """`at_ps write first bursts`, one line per piece: the driver's input."""
        for at, write, first in zip(
            self.at_ps.tolist(), self.write.tolist(), self.first.tolist(), strict=True
        ):
            yield f"{at} {write} {first} {self.bursts}"


def arrivals(point: Point, bytes_per_s: float) -> Arrivals:
    """The same pieces on every machine; `bytes_per_s`: the saturated bandwidth, if loaded."""
    device = DEVICES[point.device]
    count = min(PIECES_MAX, BYTES_A_POINT // point.piece_bytes)
    key = (SEED, point.read_percent, point.piece_bytes, point.load_permille)
    draws = np.random.Generator(np.random.PCG64(key)).random((3, count))
    if point.load_permille == SATURATED:
        at = np.zeros(count, dtype=np.int64)
    else:
        gap_ps = point.piece_bytes * 1e12 / (bytes_per_s * point.load_permille / 1000)
        at = np.rint(np.cumsum(-np.log1p(-draws[0]) * gap_ps)).astype(np.int64)
    write = (draws[1] * 100 >= point.read_percent).astype(np.int64)
    bursts = point.piece_bytes // device.burst_bytes
    first = (draws[2] * (device.bursts // bursts)).astype(np.int64) * bursts
    return Arrivals(at, write, first, bursts)
