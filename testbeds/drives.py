"""The card of a drive: what the NVMe model says of it, beside what was published of it.

Model: everything is computed from the preset's parameters in virtual time, with random addresses
out of a counter, so a card is the same on every machine. Loads are Poisson arrivals at shares of
what the drive serves when its queue is full; the write cliff is a slice of the drive, `PLANES` of
its planes on one channel with their share of link, controller and buffer, blocks that are smaller
and erased as much sooner, overwritten at random in a closed loop. Nothing can fail.
"""

import heapq
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.drives import Preset
from offstage.bindings.storage import LATER, NvmeModel

__all__ = [
    "CliffRow",
    "DriveCard",
    "FigureRow",
    "LoadRow",
    "NumberRow",
    "SizeRow",
    "card",
    "random_amplification",
]

S_PS = 10**12
KIB = 1 << 10
SPAN_BYTES = 64 << 30
"""Of the addresses that are read."""
LOADS = tuple(range(10, 100, 10))
"""Percent of saturation."""
SIZES = tuple(512 << shift for shift in range(9))
ARRIVALS = 12_000
LARGE = 128 * KIB
LARGE_PLACES = range(0, 1280 << 20, LARGE)
"""Of a sustained write; the first half fills the write buffer."""
PLANES, BLOCKS, PAGES = 4, 256, 64
"""Of the slice, and what its planes and blocks have."""
WINDOWS, ROUNDS = 4, 8
"""Points of the cliff for each time that the slice's pages are written, and how often they are."""
AT_ONCE = "a drive without schedulers: nothing is collected, so writes keep the rate of the flash"
GATHERED = (
    "a drive that gathers programs: nothing is collected, so writes keep the rate of the flash"
)


class NumberRow(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter of the model, in ps, bytes or bytes per second; nvme_model.h says which."""

    parameter: str
    value: int
    tag: str
    date: str
    source: str


class FigureRow(msgspec.Struct, frozen=True, kw_only=True):
    """A published figure beside the model's, in bytes per second, I/Os per second or ps.
    `difference`: of the model's, as a share of the published; null where nothing was collected."""

    figure: str
    published: int
    tag: str
    date: str
    source: str
    modelled: float | None
    difference: float | None


class LoadRow(msgspec.Struct, frozen=True, kw_only=True):
    """4 KiB random reads at a share of saturation."""

    percent: int
    per_second: float
    latency_ps_mean: float
    latency_ps_p50: float
    latency_ps_p99: float


class SizeRow(msgspec.Struct, frozen=True, kw_only=True):
    """Random reads of one size with the queue full."""

    size_bytes: int
    per_second: float
    bytes_per_s: float


class CliffRow(msgspec.Struct, frozen=True, kw_only=True):
    """4 KiB random writes since the last row. `written`: since the drive was fresh, in capacities;
    `amplification`: pages programmed for each that the host wrote."""

    written: float
    per_second: float
    amplification: float


class DriveCard(msgspec.Struct, frozen=True, kw_only=True):
    """One drive. `cliff` is empty where `cliff_absent` says why. `numbers`: its geometry, too, of
    which it keeps `kept_bytes`; null: nobody says how many blocks it has."""

    name: str
    about: str
    scheduled: bool
    kept_bytes: int | None
    numbers: list[NumberRow]
    figures: list[FigureRow]
    saturated_per_second: float
    load: list[LoadRow]
    sizes: list[SizeRow]
    cliff: list[CliffRow]
    cliff_absent: str
    provenance: str = "modelled"


def card(drive: Preset) -> DriveCard:
    """Everything that the model says of the drive. It takes seconds."""
    sizes = [_sized(drive.params, size) for size in SIZES]
    rates = {one.size_bytes: one for one in sizes}
    cliff = _cliff(drive.params) if drive.collects else []
    gathered, absent = None, AT_ONCE
    if drive.params["program_pages"]:
        gathered = _write_rate(drive.params, _places(4 * KIB, 1 << 16), 4 * KIB, 128)
        absent = GATHERED
    modelled: dict[str, float | None] = {
        "read_bytes_per_s": rates[LARGE].bytes_per_s,
        "write_bytes_per_s": LARGE * _write_rate(drive.params, LARGE_PLACES, LARGE, 64),
        "read_iops": rates[4 * KIB].per_second,
        "small_read_iops": rates[512].per_second,
        "write_iops": _steady(cliff) if cliff else gathered,
        "read_latency_ps": _alone(drive.params, write=False),
        "write_latency_ps": _alone(drive.params, write=True),
    }
    figures = []
    for key, told in drive.published.items():
        if key not in modelled:  # what it holds and endures is no figure of the model
            continue
        got = modelled[key]
        figures.append(
            FigureRow(
                figure=key,
                published=told.value,
                tag=told.tag,
                date=told.date.isoformat(),
                source=told.source,
                modelled=got,
                difference=None if got is None else got / told.value - 1,
            )
        )
    return DriveCard(
        name=drive.name,
        about=drive.about,
        scheduled=bool(drive.params["scheduled"]),
        kept_bytes=drive.kept_bytes,
        numbers=[
            NumberRow(
                parameter=key,
                value=one.value,
                tag=one.tag,
                date=one.date.isoformat(),
                source=one.source,
            )
            for key, one in (*drive.numbers.items(), *drive.geometry.items())
        ],
        figures=figures,
        saturated_per_second=rates[4 * KIB].per_second,
        load=[_loaded(drive.params, rates[4 * KIB].per_second, percent) for percent in LOADS],
        sizes=sizes,
        cliff=cliff,
        cliff_absent="" if cliff else absent,
    )


def _draws(seed: int, count: int) -> npt.NDArray[np.float64]:
    """Uniform in (0, 1), the same with every NumPy: splitmix64."""
    x = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x += np.uint64(seed * 0xD1342543DE82EF95 % 2**64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) / 2**53 + 2**-54


def _places(size_bytes: int, count: int, span_bytes: int = SPAN_BYTES) -> list[int]:
    """Random offsets, aligned to the size."""
    drawn = (_draws(size_bytes, count) * (span_bytes // size_bytes)).astype(np.int64)
    places: list[int] = (drawn * size_bytes).tolist()
    return places


def _closed(
    model: NvmeModel, offsets: Sequence[int], size_bytes: int, depth: int, *, write: bool = False
) -> Iterator[int]:
    """The ends, in ps, of a closed loop of `depth`: each begins the next."""
    inside: list[int] = []  # ends that are known
    now_ps = 0
    for index, offset in enumerate(offsets):
        if index >= depth:
            now_ps = heapq.heappop(inside) if inside else _first(model)
            yield now_ps
        end_ps = model.submit(now_ps, offset, size_bytes, write)
        if end_ps != LATER:
            heapq.heappush(inside, end_ps)


def _first(model: NvmeModel) -> int:
    found = model.first()
    assert found is not None  # as many are on their way as the loop is deep
    return found[1]


def _per_second(ends: Sequence[int]) -> float:
    """Of a closed loop, behind its first fifth."""
    first = len(ends) // 5
    return (len(ends) - 1 - first) * S_PS / (ends[-1] - ends[first])


def _sized(params: dict[str, int], size_bytes: int) -> SizeRow:
    depth = params["queue_depth_max"]
    if size_bytes > 4 * KIB:  # as much data as of 4 KiB, in fewer reads
        depth = max(128, depth * 4 * KIB // size_bytes)
    offsets = _places(size_bytes, 12 * depth)
    rate = _per_second(list(_closed(NvmeModel(params), offsets, size_bytes, depth)))
    return SizeRow(size_bytes=size_bytes, per_second=rate, bytes_per_s=rate * size_bytes)


def _write_rate(
    params: dict[str, int], offsets: Sequence[int], size_bytes: int, depth: int
) -> float:
    """Writes per second, when the buffer is full."""
    ends = list(_closed(NvmeModel(params), offsets, size_bytes, depth, write=True))
    half = len(ends) // 2
    return (len(ends) - 1 - half) * S_PS / (ends[-1] - ends[half])


def _alone(params: dict[str, int], *, write: bool) -> float:
    """The median latency of 4 KiB at depth 1, in ps."""
    ends = list(_closed(NvmeModel(params), _places(4 * KIB, 400), 4 * KIB, 1, write=write))
    return float(np.median(np.diff(np.array(ends))))


def _loaded(params: dict[str, int], saturated: float, percent: int) -> LoadRow:
    """Poisson arrivals; one that finds the queue full waits outside, and its wait counts."""
    per_second, depth = saturated * percent / 100, params["queue_depth_max"]
    gaps = -np.log(_draws(percent, ARRIVALS)) * S_PS / per_second
    at_ps = np.cumsum(np.round(gaps).astype(np.int64)).tolist()
    model, found, inside = NvmeModel(params), np.zeros(ARRIVALS), 0
    last_ps = 0
    for tag, (arrived_ps, offset) in enumerate(zip(at_ps, _places(4 * KIB, ARRIVALS), strict=True)):
        last_ps = max(last_ps, arrived_ps)
        ended = model.poll(last_ps)
        while params["scheduled"] and inside - len(ended) >= depth:
            end = model.first()
            assert end is not None
            ended.append(end)
            last_ps = max(last_ps, end[1])
        for other, end_ps in ended:
            found[other] = end_ps - at_ps[other]
        inside += 1 - len(ended)
        end_ps = model.submit(last_ps, offset, 4 * KIB, tag=tag)
        if end_ps != LATER:
            found[tag], inside = end_ps - arrived_ps, 0
    for other, end_ps in model.poll(LATER - 1):
        found[other] = end_ps - at_ps[other]
    kept = found[ARRIVALS // 10 :]
    p50, p99 = np.quantile(kept, [0.5, 0.99])
    return LoadRow(
        percent=percent,
        per_second=per_second,
        latency_ps_mean=float(kept.mean()),
        latency_ps_p50=float(p50),
        latency_ps_p99=float(p99),
    )


def _slice(params: dict[str, int]) -> tuple[dict[str, int], float]:
    """The slice of the drive, and how many of them it is."""
    planes = params["channel_count"] * params["dies_per_channel"] * params["planes_per_die"]
    share = planes / PLANES
    changed = {
        "channel_count": 1,
        "dies_per_channel": PLANES,
        "planes_per_die": 1,
        "link_bytes_per_s": round(params["link_bytes_per_s"] / share),
        "command_interval_ps": round(params["command_interval_ps"] * share),
        "write_buffer_bytes": max(
            round(params["write_buffer_bytes"] / share), params["page_size_bytes"]
        ),
        "blocks_per_plane": BLOCKS,
        "pages_per_block": PAGES,
        "erase_ps": max(1, params["erase_ps"] * PAGES // params["pages_per_block"]),
    }
    return params | changed, share


def _cliff(params: dict[str, int]) -> list[CliffRow]:
    """From fresh to steady, in `WINDOWS` steps for each time that all pages are written."""
    small, share = _slice(params)
    kept = BLOCKS * PAGES * (1000 - params["spare_permille"]) // 1000 * PLANES
    capacity_bytes = kept * params["page_size_bytes"]
    model = NvmeModel(small)
    depth = 2 * small["write_buffer_bytes"] // params["page_size_bytes"] + 64
    depth = min(depth, params["queue_depth_max"])
    offsets = _places(4 * KIB, ROUNDS * kept + depth, capacity_bytes)
    every, since_ps = kept // WINDOWS, 0
    written, moved, rows = 0, 0, []
    for number, end_ps in enumerate(_closed(model, offsets, 4 * KIB, depth, write=True), start=1):
        if number % every:
            continue
        wear = model.wear()
        by_host, by_drive = wear["written_pages"] - written, wear["moved_pages"] - moved
        rows.append(
            CliffRow(
                written=number * 4 * KIB / capacity_bytes,
                per_second=every * share * S_PS / (end_ps - since_ps),
                amplification=1 + by_drive / by_host,
            )
        )
        written, moved, since_ps = wear["written_pages"], wear["moved_pages"], end_ps
    return rows


def random_amplification(params: dict[str, int]) -> float:
    """Of 4 KiB random writes onto a drive with schedulers, in steady state."""
    last = [one.amplification for one in _cliff(params)[-WINDOWS:]]
    return sum(last) / len(last)


def _steady(cliff: Sequence[CliffRow]) -> float:
    """Writes a second over the last time that all pages were written."""
    last = [one.per_second for one in cliff[-WINDOWS:]]
    return len(last) / sum(1 / one for one in last)
