"""Does a memory unit with the table's numbers match Ramulator at points held out of the table?

The held-out points are other loads, other mixes of reads and writes, and another piece size. Engine
and simulator get the same pieces at the same times, so that only the model differs.
"""

import copy
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from offstage.asic_model.tables.dram import Device, channel, check_device, devices
from offstage.asic_model.tables.make.dram import HELD_OUT, TABLE, Arrivals, Point, arrivals
from offstage.asic_model.tables.make.rows import reached
from offstage.bindings.chip import Chip, Limits, make_requests
from offstage.bindings.errors import BadInput
from offstage.bindings.network import Network, Stage

FIGURES = Path(__file__).parent / "figures/dram_held_out.toml"
BANDWIDTH = 0.05
LATENCY = {"mean": 0.10, "p50": 0.12, "p90": 0.10, "p99": 0.15}
"""p50 lies where a piece that did not wait ends and one that did begins; p99 is some 20 pieces."""
LOAD_MAX = 800


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Held-out points of one mix and size; a row: load, bytes/s, mean, p50, p90, p99 (ps)."""

    device: str
    read_percent: int
    piece_bytes: int
    bytes_per_s: int
    rows: list[list[int]]

    def point(self, load_permille: int) -> Point:
        return Point(self.device, self.read_percent, self.piece_bytes, load_permille)


class HeldOut(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    curve: list[Curve]


@lru_cache(maxsize=1)
def held_out() -> list[Curve]:
    return msgspec.toml.decode(FIGURES.read_bytes(), type=HeldOut).curve


def modelled(point: Point, pieces: Arrivals) -> npt.NDArray[np.int64]:
    """Return when each piece ends on a unit of the chip's engine with the table's numbers."""
    memory = channel(point.device, read_percent=point.read_percent, piece_bytes=point.piece_bytes)
    network = Network((memory.unit("dram"),), {"piece": (Stage("dram"),)})
    chip = Chip(network, limits=Limits(in_flight_max=len(pieces.at_ps) + 1))
    done = chip.run(
        make_requests(len(pieces.at_ps), at_ps=pieces.at_ps, size_bytes=point.piece_bytes)
    )
    ends = np.zeros(len(pieces.at_ps), dtype=np.int64)
    ends[done["tag"]] = done["end_ps"]
    return ends


LOADED = [(curve, row) for curve in held_out() for row in curve.rows]


@pytest.mark.parametrize(("curve", "row"), LOADED)
def test_held_out_latency_and_bandwidth_below_80_percent_load(curve: Curve, row: list[int]) -> None:
    """Mean and p90 of reads within 10 %, p50 within 12 %, p99 within 15 %; bandwidth within 5 %."""
    point = curve.point(row[0])
    assert point in HELD_OUT and point not in TABLE and point.load_permille < LOAD_MAX
    pieces = arrivals(point, curve.bytes_per_s)
    ends = modelled(point, pieces)
    latency = (ends - pieces.at_ps)[pieces.write == 0]
    found = [latency.mean(), *np.quantile(latency, (0.5, 0.9, 0.99))]
    errors = dict(
        zip(
            LATENCY,
            (ours / theirs - 1 for ours, theirs in zip(found, row[2:], strict=True)),
            strict=True,
        )
    )
    assert reached(point, ends) == pytest.approx(row[1], rel=BANDWIDTH)
    assert not {
        name: f"{error:+.1%}" for name, error in errors.items() if abs(error) > LATENCY[name]
    }


@pytest.mark.parametrize("curve", held_out(), ids=lambda one: f"{one.device}-{one.read_percent}")
def test_held_out_bandwidth_when_it_is_full(curve: Curve) -> None:
    """All pieces at time 0, at mixes and sizes that are not in the table: within 5 %."""
    point = curve.point(0)
    assert reached(point, modelled(point, arrivals(point, 0))) == pytest.approx(
        curve.bytes_per_s, rel=BANDWIDTH
    )


@pytest.mark.parametrize("name", ["ddr5_6400", "hbm3_6400", "hbm4_8000"])
def test_an_access_alone_is_the_closed_form(name: str) -> None:
    """(nRP + nRCD + nCL + nBL) x tCK; half-clock ticks taken for clocks give a factor of two."""
    device = devices()[name]
    clocks = device.precharge_clocks + device.activate_clocks + device.read_clocks
    assert device.alone_ps == pytest.approx(
        (clocks + device.burst_clocks) * device.clock_ps, rel=0.02
    )


def broken(**changes: object) -> Device:
    return msgspec.structs.replace(copy.deepcopy(devices()["ddr5_6400"]), **changes)


def test_a_table_that_contradicts_itself_is_refused() -> None:
    """A doubled tick, latency that falls with load, refreshes that cost nothing."""
    device = devices()["ddr5_6400"]
    check_device(device, "here")
    with pytest.raises(BadInput, match="closed form says"):
        check_device(broken(alone_ps=2 * device.alone_ps), "here")
    curve = device.curve[0]
    rows = [[*row[:2], 10**9 - 10**5 * row[0], *row[3:]] for row in curve.rows]
    with pytest.raises(BadInput, match="latency falls"):
        check_device(broken(curve=[msgspec.structs.replace(curve, rows=rows)]), "here")
    free = msgspec.structs.replace(curve, bytes_per_s=curve.bytes_per_s_between_refreshes)
    with pytest.raises(BadInput, match="refreshes take"):
        check_device(broken(curve=[free]), "here")


def test_what_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(BadInput, match="no DRAM 'ddr4'"):
        channel("ddr4")
    with pytest.raises(BadInput, match="not in the table"):
        channel("ddr5_6400", read_percent=10)
