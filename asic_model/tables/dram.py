"""DRAM channels under load, from dram.toml: the parameters of a memory controller's unit.

A channel is a FIFO server at the bandwidth it reaches between refreshes. It pauses during each
refresh, and adds an access latency drawn from quantiles by the present load. The table has all of
this for three mixes of reads and writes and two sizes of the piece that lies on one channel.
Mixes are interpolated; the nearest size is taken. How the table was made, and how far a unit built
from it is from the simulator: docs/reference/asic-tables.md.

What can fail: `BadInput` for a name that is not in the table, and for a table that contradicts
itself: an unloaded access or a refresh that differs from the closed form, latency that falls with
load, more bandwidth than the bus has.
"""

from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from offstage.bindings.errors import BadInput
from offstage.bindings.network import Load, Unit
from offstage.bindings.settings import read_toml

__all__ = [
    "LOAD_SPAN_PS",
    "Channel",
    "Curve",
    "Device",
    "Table",
    "channel",
    "check_device",
    "devices",
    "mean_ps",
]

TABLE = Path(__file__).resolve().parent / "dram.toml"
ALONE_TOLERANCE = 0.05
REFRESH_TOLERANCE = 0.15
NOISE = 0.02  # of a mean over a few thousand pieces
NUMBERS = 13
LOAD_SPAN_PS = 20_000_000  # some hundred pieces, and five refreshes


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One mix and size. A row: load permille, bytes/s, mean latency, then minimum, p50, p90, p99
    and maximum of the latency and of the access."""

    read_percent: int
    piece_bytes: int
    bytes_per_s: int
    bytes_per_s_between_refreshes: int
    rows: list[list[int]]

    @property
    def paused(self) -> float:
        """The share of time that refreshes take."""
        return max(0.0, 1 - self.bytes_per_s / self.bytes_per_s_between_refreshes)

    def accesses(self) -> list[list[int]]:
        """Each row's load, as a share of a server without pauses, and its access."""
        return [[round(row[0] * (1 - self.paused)), *row[8:13]] for row in self.rows]


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One channel of a standard: the simulator's presets, the timings behind the closed form."""

    name: str
    organisation: str
    timing: str
    controller: str
    clock_ps: int
    precharge_clocks: int
    activate_clocks: int
    read_clocks: int
    burst_clocks: int
    refresh_clocks: int
    refresh_cost_clocks: int
    burst_bytes: int
    peak_bytes_per_s: int
    alone_ps: int
    interleave: list[str]
    curve: list[Curve]

    @property
    def closed_form_ps(self) -> int:
        """Precharge, activate, read, one burst."""
        clocks = self.precharge_clocks + self.activate_clocks + self.read_clocks
        return (clocks + self.burst_clocks) * self.clock_ps


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """dram.toml."""

    device: list[Device]


class Channel(msgspec.Struct, frozen=True):
    """The parameters of a unit: `bytes_per_s` between refreshes, `pause_ps` for each refresh, and
    the access by load."""

    name: str
    bytes_per_s: float
    peak_bytes_per_s: int
    closed_form_ps: int
    pause_every_ps: int
    pause_ps: int
    rows: tuple[Load, ...]

    @property
    def efficiency(self) -> float:
        """Bandwidth reached, refreshes deducted, over the peak."""
        return self.bytes_per_s * (1 - self.pause_ps / self.pause_every_ps) / self.peak_bytes_per_s

    def unit(self, name: str, *, channels: int = 1, queue_max: int = 1 << 20) -> Unit:
        """A unit of the engine: one server, or a bank for each of several channels."""
        return Unit(
            name,
            "server" if channels == 1 else "banks",
            servers=channels,
            queue_max=queue_max,
            mib_ps=round((1 << 20) * 1e12 / self.bytes_per_s),
            pause_every_ps=self.pause_every_ps,
            pause_ps=self.pause_ps,
            load_rows=self.rows,
            load_span_ps=LOAD_SPAN_PS,
        )


@lru_cache(maxsize=1)
def devices() -> dict[str, Device]:
    """The channels of the table by name, each checked."""
    table = msgspec.convert(read_toml(TABLE, "reinstall Offstage"), Table)
    for device in table.device:
        check_device(device, TABLE.name)
    return {device.name: device for device in table.device}


def channel(name: str, *, read_percent: float = 100, piece_bytes: int = 4096) -> Channel:
    """A channel whose accesses are `read_percent` reads, in pieces of `piece_bytes`."""
    device = devices().get(name)
    if device is None:
        raise BadInput(f"no DRAM {name!r}", "dram", f"choose one of {', '.join(devices())}")
    curves = _nearest(device.curve, piece_bytes)
    mixes = [curve.read_percent for curve in curves]
    if not mixes[0] <= read_percent <= mixes[-1]:
        raise BadInput(
            f"{read_percent:g} % reads in pieces of {piece_bytes} B are not in the table",
            f"dram: {name}",
            f"give {mixes[0]} to {mixes[-1]}",
        )
    above = next(index for index, mix in enumerate(mixes) if mix >= read_percent)
    high = curves[above]
    low = curves[max(above - 1, 0)]
    width = high.read_percent - low.read_percent
    share = (read_percent - low.read_percent) / width if width else 0.0
    loads = sorted({row[0] for row in (*low.accesses(), *high.accesses())})
    rows = tuple(
        Load(load, *(round(_between(x, y, share)) for x, y in zip(a, b, strict=True)))
        for load, a, b in zip(loads, _at(low, loads), _at(high, loads), strict=True)
    )
    rate = _between(low.bytes_per_s_between_refreshes, high.bytes_per_s_between_refreshes, share)
    every_ps = device.refresh_clocks * device.clock_ps
    pause_ps = round(every_ps * _between(low.paused, high.paused, share))
    return Channel(
        name, rate, device.peak_bytes_per_s, device.closed_form_ps, every_ps, pause_ps, rows
    )


def _at(curve: Curve, loads: list[int]) -> list[list[float]]:
    """The access of a curve at the given loads: linear between its rows, constant beyond them."""
    rows = np.array(curve.accesses(), dtype=np.float64)
    columns = [np.interp(loads, rows[:, 0], rows[:, index]) for index in range(1, rows.shape[1])]
    return [[float(value) for value in row] for row in np.stack(columns, axis=1)]


def _between(low: float, high: float, share: float) -> float:
    return low + (high - low) * share


def mean_ps(row: Load) -> float:
    """The mean of the draws from a row: linear between its quantiles."""
    steps = (
        (row.min_ps, row.p50_ps, 0.5),
        (row.p50_ps, row.p90_ps, 0.4),
        (row.p90_ps, row.p99_ps, 0.09),
        (row.p99_ps, row.max_ps, 0.01),
    )
    return sum((low + high) / 2 * share for low, high, share in steps)


def _nearest(curves: list[Curve], piece_bytes: int) -> list[Curve]:
    """The curves of the size nearest by ratio, in order of their mixes."""
    if piece_bytes < 1:
        raise BadInput(f"a piece of {piece_bytes} B", "dram", "give its size in bytes")
    sizes = {curve.piece_bytes for curve in curves}
    size = min(sizes, key=lambda one: (max(one, piece_bytes) / min(one, piece_bytes), one))
    return sorted(
        (curve for curve in curves if curve.piece_bytes == size), key=lambda one: one.read_percent
    )


def check_device(device: Device, where: str) -> None:
    """`BadInput` for the first impossible value in a device's curves."""
    where = f"{where}: {device.name}"
    fix = "make the table again: docs/reference/asic-tables.md"
    off = device.alone_ps / device.closed_form_ps - 1
    if abs(off) > ALONE_TOLERANCE:
        raise BadInput(
            f"an unloaded access takes {device.alone_ps} ps, the closed form says "
            f"{device.closed_form_ps} ps",
            where,
            fix,
        )
    for curve in device.curve:
        here = f"{where}, {curve.read_percent} % reads, {curve.piece_bytes} B"
        between = curve.bytes_per_s_between_refreshes
        if not 0 < curve.bytes_per_s <= between <= device.peak_bytes_per_s:
            raise BadInput(f"{curve.bytes_per_s} B/s, {between} between refreshes", here, fix)
        cost = device.refresh_cost_clocks / device.refresh_clocks
        if abs(curve.paused / cost - 1) > REFRESH_TOLERANCE:
            raise BadInput(
                f"refreshes take {curve.paused:.1%}, the closed form says {cost:.1%}", here, fix
            )
        _check_rows(curve.rows, here, fix)


def _check_rows(rows: list[list[int]], where: str, fix: str) -> None:
    if not rows or any(len(row) != NUMBERS for row in rows):
        raise BadInput(f"a row has {NUMBERS} numbers, and at least one is needed", where, fix)
    for before, row in zip([None, *rows[:-1]], rows, strict=True):
        if sorted(row[3:8]) != row[3:8] or sorted(row[8:13]) != row[8:13]:
            raise BadInput(f"quantiles fall at load {row[0]}", where, fix)
        if before is None:
            continue
        if row[0] <= before[0]:
            raise BadInput(f"load {row[0]} follows {before[0]}", where, fix)
        if row[2] < before[2] * (1 - NOISE):
            raise BadInput(f"latency falls from load {before[0]} to {row[0]}", where, fix)
