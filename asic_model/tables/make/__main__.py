"""Writes the request lists of the DRAM table, and the table from the simulator's answers.

    python -m offstage.asic_model.tables.make pieces FOLDER
    python -m offstage.asic_model.tables.make table FOLDER > dram.toml
    python -m offstage.asic_model.tables.make held-out FOLDER > dram_held_out.toml

`pieces` writes NAME.pieces for every point whose saturated bandwidth is known, so call it before
and after running the saturated points. The simulator's driver answers with NAME.ends.
"""

import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from offstage.asic_model.tables.make.dram import (
    ALONE_LOAD,
    DEVICES,
    HELD_OUT,
    SATURATED,
    TABLE,
    Device,
    Point,
    arrivals,
)
from offstage.asic_model.tables.make.rows import Row, Server, reached, row_of
from offstage.bindings.errors import BadInput, OffstageError

HEAD = """# DRAM channels under load, by Ramulator 2.1 (github.com/CMU-SAFARI/ramulator2, commit
# c5b1c3a478b68853a61a0b8f99510d0dde7e6fd0, MIT) at the points and arrivals of make/dram.py.
# FR-FCFS with row hits first, open rows, all-bank refresh, pass-through address mapping.
# How to make it again: docs/reference/asic-tables.md. Not edited by hand.
"""


def ends_of(folder: Path, point: Point) -> npt.NDArray[np.int64] | None:
    """When each piece of `point` ended (ps), from the driver; None: not run yet."""
    path = folder / f"{point.name}.ends"
    if not path.is_file():
        return None
    return np.loadtxt(path, dtype=np.int64, ndmin=2)[:, 2]


def bandwidth(folder: Path, point: Point) -> float:
    """Bytes a second that a run reached; 0: not run yet."""
    ends = ends_of(folder, point)
    return 0.0 if ends is None else reached(point, ends)


def write_pieces(folder: Path) -> None:
    """Write NAME.pieces for every point that can be drawn by now and has none."""
    folder.mkdir(parents=True, exist_ok=True)
    for point in (*TABLE, *HELD_OUT):
        path = folder / f"{point.name}.pieces"
        cap = 0.0 if point.load_permille == SATURATED else bandwidth(folder, point.saturated)
        if path.is_file() or (point.load_permille != SATURATED and not cap):
            continue
        path.write_text("\n".join(arrivals(point, cap).lines()) + "\n", encoding="utf-8")
        print(path.name)


def server(folder: Path, point: Point) -> Server:
    """The queue of a curve: its rate between refreshes, and pauses that give the reached rate."""
    full = bandwidth(folder, point.saturated)
    between = bandwidth(folder, point.unrefreshed)
    if not full or not between:
        raise BadInput("not run yet", point.saturated.name, "run the driver on every .pieces file")
    device = DEVICES[point.device]
    every = device.refresh_clocks * device.clock_ps
    return Server(
        point.piece_bytes * 1e12 / between, every, round(every * max(0.0, 1 - full / between))
    )


def row(folder: Path, point: Point) -> Row:
    """The row of a completed point; without the access where its curve has no `unrefreshed`."""
    ends = ends_of(folder, point)
    if ends is None:
        raise BadInput("not run yet", f"{point.name}.ends", "run the driver on every .pieces file")
    pieces = arrivals(point, bandwidth(folder, point.saturated))
    queue = server(folder, point) if point.unrefreshed in TABLE else None
    return row_of(point, pieces, ends, queue)


def alone_ps(folder: Path, device: Device) -> int:
    """The median of one burst at a random row, without refresh."""
    point = Point(device.name, 100, device.burst_bytes, ALONE_LOAD, refresh=False)
    ends = ends_of(folder, point)
    if ends is None:
        raise BadInput("not run yet", f"{point.name}.ends", "run the driver on every .pieces file")
    return round(float(np.median(ends - arrivals(point, bandwidth(folder, point.saturated)).at_ps)))


def device_lines(folder: Path, device: Device) -> Iterator[str]:
    """The head of one device: its presets, its timings, and its unloaded access."""
    yield ""
    yield "[[device]]"
    for key in ("name", "organisation", "timing", "controller"):
        yield f'{key} = "{getattr(device, key)}"'
    for key in (
        "clock_ps",
        "precharge_clocks",
        "activate_clocks",
        "read_clocks",
        "burst_clocks",
        "refresh_clocks",
        "refresh_cost_clocks",
        "burst_bytes",
    ):
        yield f"{key} = {getattr(device, key)}"
    yield f"peak_bytes_per_s = {round(device.burst_bytes * 1e12 / device.burst_ps)}"
    yield f"alone_ps = {alone_ps(folder, device)} # p50 of one burst at a random row, no refresh"
    levels = ", ".join(f'"{name} {count}"' for name, _, count, _ in device.levels)
    yield f"interleave = [{levels}] # what changes first stands first"


def curve_lines(folder: Path, points: list[Point]) -> Iterator[str]:
    """One curve of the table: the saturated bandwidths, then a row for each load."""
    first = points[0]
    yield ""
    yield "[[device.curve]]"
    yield f"read_percent = {first.read_percent}"
    yield f"piece_bytes = {first.piece_bytes}"
    yield f"bytes_per_s = {round(bandwidth(folder, first.saturated))}"
    yield f"bytes_per_s_between_refreshes = {round(bandwidth(folder, first.unrefreshed))}"
    yield "# load permille, bytes/s, mean latency (ps); of the latency, then of the fitted access"
    yield "# (ps): least, p50, p90, p99, greatest"
    yield "rows = ["
    for point in points:
        one = row(folder, point)
        head = (one.load_permille, round(one.bytes_per_s), one.mean_ps)
        yield f"    [{', '.join(map(str, (*head, *one.latency_ps, *one.access_ps)))}],"
    yield "]"


def curves(points: tuple[Point, ...], device: str) -> Iterator[list[Point]]:
    """The loaded points of a device, curve by curve."""
    own = [
        point
        for point in points
        if point.device == device and point.refresh and point.load_permille != SATURATED
    ]
    for _, curve in groupby(own, lambda point: (point.read_percent, point.piece_bytes)):
        yield list(curve)


def table(folder: Path) -> Iterator[str]:
    """dram.toml."""
    yield HEAD.rstrip()
    for device in DEVICES.values():
        yield from device_lines(folder, device)
        for curve in curves(TABLE, device.name):
            yield from curve_lines(folder, curve)


def held_out(folder: Path) -> Iterator[str]:
    """The held-out points, which the table was not made from: only what the simulator reported."""
    yield HEAD.rstrip()
    yield "# No number of the table comes from these runs."
    for device in DEVICES:
        for points in curves(HELD_OUT, device):
            first = points[0]
            yield ""
            yield "[[curve]]"
            yield f'device = "{device}"'
            yield f"read_percent = {first.read_percent}"
            yield f"piece_bytes = {first.piece_bytes}"
            yield f"bytes_per_s = {round(bandwidth(folder, first.saturated))}"
            yield "# load permille, bytes/s, latency (ps): mean, p50, p90, p99"
            yield "rows = ["
            for point in points:
                one = row(folder, point)
                numbers = (round(one.bytes_per_s), one.mean_ps, *one.latency_ps[1:4])
                yield f"    [{', '.join(map(str, (one.load_permille, *numbers)))}],"
            yield "]"


def main(words: list[str]) -> None:
    """One of the three verbs, on one folder."""
    if len(words) != 2 or words[0] not in ("pieces", "table", "held-out"):
        raise BadInput("needs a verb and a folder", "make", "pieces, table or held-out FOLDER")
    folder = Path(words[1])
    if words[0] == "pieces":
        write_pieces(folder)
    else:
        print("\n".join(table(folder) if words[0] == "table" else held_out(folder)))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OffstageError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
