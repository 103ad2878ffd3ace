"""The result of `offstage bench storage`: cases against fio with aims, and emulated drives."""

from dataclasses import dataclass

import msgspec

from offstage.bindings.storage import NvmeCost
from offstage.bindings.units import format_size
from offstage.testbeds.bench.rows import BenchResult, Row, aimed

__all__ = [
    "BLOCK_BYTES",
    "CASES",
    "ENTRY_CASES",
    "GRANULES",
    "GRANULE_CASES",
    "Case",
    "CaseFigures",
    "Cited",
    "Drive",
    "EntryFigures",
    "GranuleDrive",
    "GranuleFigures",
    "Granules",
    "Moved",
    "Sample",
    "StorageResult",
    "ValueFigures",
    "rows_of",
    "rows_of_drive",
    "rows_of_values",
]

KIB = 1 << 10
VALUE_LOAD_RATIO_MIN = 0.95
LATE_SHARE_MIN = 0.01  # from this share of reads later than the model's time on, a note says so


@dataclass(frozen=True)
class Case:
    """One row: the read, and its aim if any (ratio of ours to fio). `other_bytes`: of every
    second read, if reads have two sizes."""

    block_bytes: int
    queue_depth: int
    count: int
    bandwidth_ratio_min: float | None = None
    latency_ratio_max: float | None = None
    other_bytes: int = 0


CASES = (
    Case(64 * KIB, 32, 16_384, bandwidth_ratio_min=0.98),
    Case(64 * KIB, 1, 4_096, latency_ratio_max=1.15),
    Case(256 * KIB, 32, 4_096, bandwidth_ratio_min=0.98),
    Case(256 * KIB, 1, 2_048),
    Case(4 * KIB, 32, 65_536, bandwidth_ratio_min=0.95),
    Case(4 * KIB, 1, 8_192),
)
BLOCK_BYTES, GRANULES = 32 * KIB, 4
GRANULE_CASES = (
    Case(BLOCK_BYTES + 4 * KIB, 32, 8_192),
    Case(BLOCK_BYTES // GRANULES, 32, 16_384, other_bytes=4 * KIB),
)
"""A demo block as stored on the drive, and one of its four granules with the logical block that
has their checksums: two reads a block."""


ENTRY_CASES = {
    512: Case(512, 128, 65_536),
    1_152: Case(3 * 512, 128, 65_536),
    4 * KIB: Case(4 * KIB, 128, 65_536),
}
"""Entries of a model that selects single ones, by their bytes, as a drive is asked for them: in
whole sectors of 512 B."""


@dataclass(frozen=True)
class Sample:
    """One run of one side: bytes/s over the run, ns from submit to completion."""

    bytes_per_s: float
    latency_ns_p50: float
    latency_ns_p99: float


class CaseFigures(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One case: medians of both sides, and the ratios of a round with their least and largest."""

    block_bytes: int
    queue_depth: int
    pages: str
    count: int
    ours: Sample
    fio: Sample
    bandwidth_ratio: float
    bandwidth_ratio_range: tuple[float, float]
    latency_ratio: float
    latency_ratio_range: tuple[float, float]
    latency_ratio_fio_spinning: float | None = None
    """At depth 1, against an fio that spins too."""


class GranuleFigures(CaseFigures, kw_only=True, omit_defaults=True):
    """A block, or a part of it with its checksums, as reads of a drive."""

    reads_per_block: int = 0
    bytes_per_block: int = 0
    blocks_per_s: float = 0.0


class EntryFigures(CaseFigures, kw_only=True, omit_defaults=True):
    """An entry in whole sectors. `modelled_reads_per_s`: of the presets' drives, never idle."""

    entry_bytes: int
    reads_per_s: float
    fio_reads_per_s: float
    modelled_reads_per_s: dict[str, float]


class Moved(msgspec.Struct, frozen=True):
    """Bytes/s of the drive, ours and fio's, medians; and the ratios of a round."""

    ours: float
    fio: float
    ratio: float
    ratio_range: tuple[float, float]


class ValueFigures(msgspec.Struct, kw_only=True):
    """Values loaded and stored past the page cache, and fio's reads and writes of as many records
    at the same depth."""

    value_bytes: int
    record_bytes: int
    queue_depth: int
    count: int
    load: Moved
    store: Moved


class GranuleDrive(msgspec.Struct, frozen=True):
    """A part of a block against the whole, on a preset's drive."""

    preset: str
    whole: NvmeCost
    whole_bound: str
    part: NvmeCost
    part_bound: str
    times_the_blocks: float
    media_saved: float
    provenance: str = "modelled"


class Granules(msgspec.Struct, frozen=True):
    """A part of a block against the whole: on this machine, and on the drives of the presets."""

    cases: list[GranuleFigures] = []
    drives: list[GranuleDrive] = []


class Cited(msgspec.Struct, frozen=True):
    """A figure of an emulated drive and the published one."""

    got: float
    cited: float
    ratio: float
    late_share: float


class Drive(msgspec.Struct, frozen=True):
    """An emulated drive: its figures by name."""

    preset: str
    figures: dict[str, Cited]
    source: str = ""
    provenance: str = "emulated"


class StorageResult(BenchResult, kw_only=True):
    """Reads against fio, and the emulated drives against their published figures."""

    cases: list[CaseFigures]
    emulated: list[Drive]
    granules: Granules
    entries: list[EntryFigures] = msgspec.field(default_factory=list)
    """Empty where the file system reads no sectors of 512 B with O_DIRECT; a note says so."""
    values: ValueFigures | None = None
    """None where the bench may only read; a note says so."""
    reference: str
    path: str
    rounds: int

    def about(self) -> list[str]:
        return [
            f"measured against {self.reference} on {self.path}, seed {self.seed}: the "
            f"ratio is the median of {self.rounds} rounds; both read into the same memory, base "
            "pages or huge ones",
            "* emulated, against the figures published for the drive; late: reads that ended later "
            "than the model says; where many did, the figure is this machine's",
        ]


def rows_of(one: CaseFigures) -> list[Row]:
    """Bandwidth and latency of a case, each with its aim where it has one."""
    case = next(
        (x for x in CASES if (x.block_bytes, x.queue_depth) == (one.block_bytes, one.queue_depth)),
        Case(one.block_bytes, one.queue_depth, one.count),
    )
    least, most = case.bandwidth_ratio_min, case.latency_ratio_max
    name = f"{format_size(one.block_bytes)} depth {one.queue_depth}"
    name += "" if one.pages == "base pages" else ", huge"
    return [
        Row(
            f"{name} bandwidth",
            "bytes/s",
            one.ours.bytes_per_s,
            one.fio.bytes_per_s,
            one.bandwidth_ratio,
            None if least is None else aimed(one.bandwidth_ratio, ">=", least),
        ),
        Row(
            f"{name} latency p50",
            "ns",
            one.ours.latency_ns_p50,
            one.fio.latency_ns_p50,
            one.latency_ratio,
            None if most is None else aimed(one.latency_ratio, "<=", most),
        ),
    ]


def rows_of_values(one: ValueFigures) -> list[Row]:
    """Loads, with their aim, and stores."""
    name = f"values of {format_size(one.value_bytes)} depth {one.queue_depth},"
    return [
        Row(
            f"{name} load",
            "bytes/s",
            one.load.ours,
            one.load.fio,
            one.load.ratio,
            aimed(one.load.ratio, ">=", VALUE_LOAD_RATIO_MIN),
        ),
        Row(f"{name} store", "bytes/s", one.store.ours, one.store.fio, one.store.ratio),
    ]


CITED = {
    "read_bytes_per_s": ("bandwidth", "bytes/s"),
    "read_iops": ("reads/s", "count"),
    "read_latency_ns_p50": ("latency p50", "ns"),
}
"""The name of a drive's figure, and its unit."""


def rows_of_drive(drive: Drive) -> list[Row]:
    """Its figures against the published ones."""
    rows = []
    for key, one in drive.figures.items():
        name, unit = CITED[key]
        late = f"{one.late_share:.0%} late" if one.late_share >= LATE_SHARE_MIN else ""
        rows.append(Row(f"{drive.preset}* {name}", unit, one.got, one.cited, one.ratio, None, late))
    return rows
