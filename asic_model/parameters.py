"""Parameters of a modelled chip: every number with its value, unit, range, source and tag.

Model: a preset is a TOML file with one table for each hardware block. A number is written as

    lanes = { value = 16, unit = "1", low = 8, high = 16, source = "...", tag = "cited" }

and the tag says what kind of knowledge it is. The codec's ratio is not one number but that of a
dtype and of what layers store, read from the codec's own table and widened to a range:

    ratio = { measured = "bfloat16", form = "gqa", low = 0.37, high = 1, source = "..." }

`extends = "NAME"` takes whatever the file does not
say itself from another preset. Nothing here knows how the blocks are put together: that is
`units/` and `chip.py`.

What can fail: `BadInput`, one line with the file, the table and the key, for an unknown or missing
key, a number without tag or source, a wrong unit, a negative value, a range that does not hold the
value, and numbers that contradict each other.
"""

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from offstage.asic_model.codec.measured import block_ratio
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_known, declared, read_toml
from offstage.bindings.storage import presets as drives

__all__ = ["BLOCKS", "TAGS", "Number", "Preset", "names", "read_preset", "rows"]

FOLDER = Path(__file__).resolve().parent / "presets"

Tag = Literal["measured", "cited", "derived", "vendor", "guess"]
TAGS: dict[str, str] = {
    "measured": "timed or computed by a tool on a machine of ours",
    "cited": "read in the source that is named",
    "derived": "arithmetic on cited or measured numbers",
    "vendor": "a vendor's claim that nobody else has confirmed",
    "guess": "nobody knows: the range is meant to be wide",
}

DIMENSIONS: dict[str, dict[str, float]] = {
    "time": {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12},
    "size": {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40},
    "rate": {"B/s": 1, "MB/s": 10**6, "GB/s": 10**9, "TB/s": 10**12},
    "count": {"1": 1},
    "share": {"1": 1},
}
"""The units that a number of each dimension may have, and how many base units one is: ps, bytes,
bytes per second, and things."""


class Number(msgspec.Struct, frozen=True, kw_only=True):
    """One number with all that must be said of it. `scale`: base units of one unit."""

    value: float
    unit: str
    low: float
    high: float
    source: str
    tag: Tag
    scale: float = 1

    @property
    def base(self) -> float:
        """The value in base units."""
        return self.value * self.scale

    @property
    def whole(self) -> int:
        """The value in base units, rounded to nearest."""
        return round(self.base)

    def set(self, value: float) -> "Number":
        """With another value, in its unit; the range is widened to hold it."""
        return msgspec.structs.replace(
            self, value=value, low=min(self.low, value), high=max(self.high, value)
        )


def _of(dimension: str, help: str, low: float = 0, high: float = math.inf) -> Meta:
    """What a parameter is, and its least and greatest value in base units."""
    return Meta(extra={"unit": dimension, "help": help, "low": low, "high": high})


def _count(help: str, high: float = 1 << 24) -> Meta:
    return _of("count", help, 1, high)


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of one hardware block."""


class FrontEnd(Block, frozen=True, kw_only=True):
    """The link to the hosts: PCIe, CXL or NVLink."""

    protocol: Literal["pcie", "cxl", "nvlink", "memory"]
    lane_rate: Annotated[Number, _of("rate", "of one lane and direction, after line coding", 1)]
    lanes: Annotated[Number, _count("lanes that are used")]
    lanes_max: Annotated[Number, _count("lanes that the link has")]
    efficiency: Annotated[Number, _of("share", "payload of what crosses the link", 1e-3, 1)]
    latency: Annotated[Number, _of("time", "one way, of an idle link")]
    credits: Annotated[Number, _count("transfers on their way at once")]


class Dma(Block, frozen=True, kw_only=True):
    """The engines that move blocks between memory and link or medium."""

    engines: Annotated[Number, _count("engines")]
    rate: Annotated[Number, _of("rate", "of one engine", 1)]
    setup: Annotated[Number, _of("time", "a descriptor read and started")]
    piece: Annotated[Number, _of("size", "what a block is cut into", 512, 1 << 30)]
    queue: Annotated[Number, _count("descriptors that wait")]


class Codec(Block, frozen=True, kw_only=True):
    """Compression on the way to the medium, decompression on the way back."""

    lanes: Annotated[Number, _count("lanes that work at once")]
    decode_rate: Annotated[Number, _of("rate", "of one lane, counted in bytes that come out", 1)]
    encode_rate: Annotated[Number, _of("rate", "of one lane, counted in bytes that go in", 1)]
    decode_latency: Annotated[Number, _of("time", "from the first byte in to the first out")]
    encode_latency: Annotated[Number, _of("time", "the same, compressing")]
    ratio: Annotated[Number, _of("share", "compressed over raw size; 1: off", 1e-3, 1)]
    queue: Annotated[Number, _count("blocks that wait")]


class Metadata(Block, frozen=True, kw_only=True):
    """The on-die table of blocks: a cache over DRAM."""

    sram: Annotated[Number, _of("size", "of the table on the die", 1)]
    entry: Annotated[Number, _of("size", "of one block's entry", 1, 4096)]
    ways: Annotated[Number, _count("entries of one set", 64)]
    banks: Annotated[Number, _count("banks that are read at once")]
    cycle: Annotated[Number, _of("time", "a bank is busy with one access")]
    latency: Annotated[Number, _of("time", "from address to data")]
    queue: Annotated[Number, _count("lookups that wait")]


class Dedup(Block, frozen=True, kw_only=True):
    """Hashes of what is written, and the table that finds equal prefixes."""

    instances: Annotated[Number, _count("hash pipelines")]
    rate: Annotated[Number, _of("rate", "of one pipeline", 1)]
    latency: Annotated[Number, _of("time", "of the pipeline")]
    key_bits: Annotated[Number, _of("count", "bits of the key that the table compares", 8, 512)]
    entries: Annotated[Number, _count("prefixes that are known", 2**40)]
    queue: Annotated[Number, _count("blocks that wait")]


class Scheduler(Block, frozen=True, kw_only=True):
    """What decides on prefetch: scores in, a bounded table of candidates."""

    candidates: Annotated[Number, _count("candidates of one tenant that may wait")]
    command: Annotated[Number, _of("time", "a command is taken and answered")]
    score: Annotated[Number, _of("time", "between two scores that go in")]
    demand: Annotated[Number, _of("time", "between two demands")]
    latency: Annotated[Number, _of("time", "of the pipeline behind that")]
    queue: Annotated[Number, _count("commands that wait")]


class Qos(Block, frozen=True, kw_only=True):
    """Who is served next: turns of tenants, token buckets, rounds of sessions, urgency."""

    queue: Annotated[Number, _count("requests that wait")]
    interval: Annotated[Number, _of("time", "between two grants")]
    latency: Annotated[Number, _of("time", "from a grant to the request's way on")]
    quantum: Annotated[Number, _of("size", "that a tenant of weight 1 may send in a round", 1)]
    session_share: Annotated[Number, _of("share", "of a tenant's queue for one session", 1e-3, 1)]
    sessions: Annotated[Number, _count("sessions with an entry of their own")]
    session_rounds: Annotated[Number, _count("quanta that a session may send in a round")]


class Memory(Block, frozen=True, kw_only=True):
    """A memory of one kind: HBM, DDR, or memory behind CXL. `device`: its standard in the table of
    DRAM, whose spread of latency it has; empty: a constant latency."""

    device: str = ""
    channels: Annotated[Number, _count("stacks, channels or ports")]
    rate: Annotated[Number, _of("rate", "peak of one of them", 1)]
    efficiency: Annotated[Number, _of("share", "of the peak that is reached", 1e-3, 1)]
    latency: Annotated[Number, _of("time", "of an access, without load")]
    capacity: Annotated[Number, _of("size", "of one of them", 1)]
    queue: Annotated[Number, _count("accesses that wait")]


class Nvme(Block, frozen=True, kw_only=True):
    """Controllers of the drives, and the drives behind them: a model of one, or `disk`."""

    drive: str
    drives: Annotated[Number, _count("drives", 4096)]
    command: Annotated[Number, _of("time", "a command is put together and started")]
    completion: Annotated[Number, _of("time", "a completion is taken in")]
    queue: Annotated[Number, _count("commands that one drive has at once")]
    reads: Annotated[Number, _count("reads in flight", 1 << 20)]


class Disk(Block, frozen=True, kw_only=True):
    """A disk of which only its service times are known: their mean, and quantiles over it."""

    service: Annotated[Number, _of("time", "of one read or write, on average", 1)]
    least: Annotated[Number, _of("share", "the shortest service over the mean")]
    p50: Annotated[Number, _of("share", "the median over the mean")]
    p90: Annotated[Number, _of("share", "the 90th percentile over the mean")]
    p99: Annotated[Number, _of("share", "the 99th percentile over the mean")]
    most: Annotated[Number, _of("share", "the longest service over the mean")]
    together: Annotated[Number, _of("time", "I/Os that begin within it take alike")]
    depth: Annotated[Number, _count("of them that it serves side by side", 65536)]


class Cores(Block, frozen=True, kw_only=True):
    """The general-purpose cores of a DPU that run the firmware."""

    cores: Annotated[Number, _count("cores in the package", 4096)]
    reactors: Annotated[Number, _count("cores that run a reactor, one for each tenant's queue",
                                       4096)]  # fmt: skip
    command: Annotated[Number, _of("time", "a command is taken, decided and answered")]
    demand: Annotated[Number, _of("time", "more of that for each demand")]
    score: Annotated[Number, _of("time", "more of that for each score")]
    read: Annotated[Number, _of("time", "a read is put together, submitted and checked")]
    publish: Annotated[Number, _of("time", "a staged block is made visible and answered")]
    hash_rate: Annotated[Number, _of("rate", "of the checksum and hash of one core", 1)]
    codec_rate: Annotated[Number, _of("rate", "of a codec in software, on one core", 1)]
    ratio: Annotated[Number, _of("share", "compressed over raw size; 1: off", 1e-3, 1)]
    queue: Annotated[Number, _count("commands that wait")]


BLOCKS: dict[str, type[Block]] = {
    "front_end": FrontEnd, "dma": Dma, "codec": Codec, "metadata": Metadata, "dedup": Dedup,
    "scheduler": Scheduler, "qos": Qos, "cores": Cores, "hbm": Memory, "ddr": Memory,
    "cxl": Memory, "nvme": Nvme, "disk": Disk,
}  # fmt: skip
MEMORIES = ("hbm", "ddr", "cxl")
NEEDED = {
    "asic": ("front_end", "dma", "codec", "metadata", "dedup", "scheduler", "qos", "nvme"),
    "dpu": ("front_end", "cores", "nvme"),
}
HEAD = {"title": str, "kind": str, "staging": str, "spill": str, "calibrated": bool,
        "extends": str, "about": str, "node_nm": int}  # fmt: skip


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One chip. `staging`: the memory that holds the arena; `spill`: the one below the table of
    metadata. `calibrated`: it was fitted to a recorded run; what is not says so everywhere.
    `node_nm`: the process of an ASIC, for its area and the energy of its SRAM."""

    name: str
    title: str
    kind: Literal["asic", "dpu"]
    staging: str
    spill: str = ""
    calibrated: bool = False
    about: str = ""
    node_nm: int = 0
    front_end: FrontEnd
    nvme: Nvme
    dma: Dma | None = None
    codec: Codec | None = None
    metadata: Metadata | None = None
    dedup: Dedup | None = None
    scheduler: Scheduler | None = None
    qos: Qos | None = None
    cores: Cores | None = None
    hbm: Memory | None = None
    ddr: Memory | None = None
    cxl: Memory | None = None
    disk: Disk | None = None

    def memory(self, name: str) -> Memory:
        """One of its memories, which the check has seen to be there."""
        found: Memory = getattr(self, name)
        return found

    @property
    def arena_bytes(self) -> int:
        """What the staging memory holds in all."""
        memory = self.memory(self.staging)
        return memory.capacity.whole * memory.channels.whole

    def numbers(self) -> Iterator[tuple[str, Number]]:
        """Every number by `block.key`, in the order of the tables."""
        for block in BLOCKS:
            table = getattr(self, block)
            if table is not None:
                for key in declared(type(table)):
                    if isinstance(getattr(table, key), Number):
                        yield f"{block}.{key}", getattr(table, key)

    def with_(self, changes: Mapping[str, float]) -> "Preset":
        """A copy with other values, by `block.key` and in the unit that the preset has there.
        `BadInput` as for a file."""
        known = dict(self.numbers())
        tables: dict[str, Any] = {}
        for name, value in changes.items():
            check_known(name, known, f"preset {self.name}", "parameter")
            block, _, key = name.partition(".")
            table = tables.get(block, getattr(self, block))
            where = f"preset {self.name}: {name}"
            number = known[name].set(_number(value, where))
            _check_number(number, declared(type(table))[key], where)
            tables[block] = msgspec.structs.replace(table, **{key: number})
        found = msgspec.structs.replace(self, **tables)
        _check(found, f"preset {self.name}")
        return found


def names() -> list[str]:
    """The presets that come with Offstage, the measured machine first, the best last."""
    order = ("dpu_x86_measured", "bluefield3", "bluefield4", "asic_7nm", "asic_5nm_hbm4", "ideal")
    found = {path.stem for path in FOLDER.glob("*.toml")}
    return [name for name in order if name in found] + sorted(found - set(order))


@lru_cache(maxsize=64)
def read_preset(name: str) -> Preset:
    """The preset of that name, or in that TOML file."""
    tables, where = _tables(name, ())
    return _built(Path(name).stem, tables, where)


def rows(preset: Preset) -> list[dict[str, Any]]:
    """What `offstage asic presets NAME` shows: a row for each number."""
    found = []
    for name, number in preset.numbers():
        block, _, key = name.partition(".")
        help = declared(BLOCKS[block])[key].help
        found.append({"parameter": name, **msgspec.to_builtins(number), "help": help})
        del found[-1]["scale"]
    return found


def _tables(name: str, seen: tuple[str, ...]) -> tuple[dict[str, Any], str]:
    """The tables of a file over those of the preset that it extends."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not name.endswith(".toml") and not path.is_file():
        raise BadInput(f"no preset {name!r}", "asic",
                       f"choose one of {', '.join(names())}, or give a TOML file")  # fmt: skip
    where = path.name
    raw = read_toml(path, "give a preset's TOML file")
    for key in raw:
        check_known(key, (*HEAD, *BLOCKS), where, "table or key")
    base = raw.pop("extends", "")
    if not isinstance(base, str) or base in (*seen, path.stem):
        raise BadInput(f"extends = {base!r}", where, "name another preset, and no circle")
    if not base:
        return raw, where
    tables, _ = _tables(base, (*seen, path.stem))
    for key, value in raw.items():
        whole = isinstance(value, dict) and isinstance(tables.get(key), dict)
        tables[key] = {**tables[key], **value} if whole else value
    tables["calibrated"] = raw.get("calibrated", False)
    return tables, where


def _built(name: str, tables: dict[str, Any], where: str) -> Preset:
    head: dict[str, Any] = {"name": name}
    for key, value in tables.items():
        if key in HEAD:
            if not isinstance(value, HEAD[key]):
                raise BadInput(f"{value!r} is no {HEAD[key].__name__}", f"{where}: {key}",
                               "correct it")  # fmt: skip
            head[key] = value
        elif not isinstance(value, dict):
            raise BadInput(f"{key} is a value", where, f"write it as a table [{key}]")
        else:
            head[key] = _block(BLOCKS[key], value, f"{where}: [{key}]")
    kind = head.get("kind")
    if kind not in NEEDED:
        raise BadInput(f"kind = {kind!r}", where, f"choose one of {', '.join(NEEDED)}")
    for key in ("title", "staging", *NEEDED[kind]):
        if key not in head:
            raise BadInput(f"{key} is missing", where, "add it, or extend a preset that has it")
    found = Preset(**head)
    _check(found, where)
    return found


def _block(kind: type[Block], table: dict[str, Any], where: str) -> Block:
    known = declared(kind)
    values: dict[str, Any] = {}
    for key, value in table.items():
        check_known(key, known, where, "parameter")
        if known[key].kind is Number:
            values[key] = _read_number(value, known[key], f"{where} {key}")
        elif not isinstance(value, str):
            raise BadInput(f"{value!r} is not text", f"{where} {key}", "write it in quotes")
        elif known[key].choices and value not in known[key].choices:
            raise BadInput(f"{value!r} is none of {', '.join(known[key].choices)}",
                           f"{where} {key}", "choose one of them")  # fmt: skip
        else:
            values[key] = value
    for one in msgspec.structs.fields(kind):
        key = one.encode_name
        if one.required and key not in values:
            raise BadInput("is missing", f"{where} {key}", "say it: value, unit, range, source")
    return kind(**values)


def _read_number(table: Any, option: Any, where: str) -> Number:
    """A number as a file has it, checked."""
    if isinstance(table, dict) and "measured" in table:
        table = block_ratio(table, where)
    if not isinstance(table, dict):
        raise BadInput(f"{table!r} says no unit, range, source and tag", where,
                       "write { value, unit, low, high, source, tag }")  # fmt: skip
    keys = ("value", "unit", "low", "high", "source", "tag")
    for key in table:
        check_known(key, keys, where)
    mends = {"source": "say where it is from", "tag": f"choose one of {', '.join(TAGS)}"}
    for key in keys:
        if table.get(key, "") == "":
            raise BadInput(f"has no {key}", where, mends.get(key, f"give its {key}"))
    if table["tag"] not in get_args(Tag):
        raise BadInput(f"{table['tag']!r} is no tag", where, mends["tag"])
    if not isinstance(table["source"], str):
        raise BadInput(f"{table['source']!r} is no source", where, mends["source"])
    units = DIMENSIONS[option.unit]
    if table["unit"] not in units:
        raise BadInput(f"{table['unit']!r} is no unit of a {option.unit}", where,
                       f"give it in one of {', '.join(units)}")  # fmt: skip
    value, low, high = (_number(table[key], f"{where}: {key}") for key in ("value", "low", "high"))
    number = Number(value=value, unit=table["unit"], low=low, high=high, source=table["source"],
                    tag=table["tag"], scale=units[table["unit"]])  # fmt: skip
    _check_number(number, option, where)
    return number


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise BadInput(f"{value!r} is not a number", where, "write one such as 64 or 0.5")
    if value < 0:
        raise BadInput(f"{value} is negative", where, "give 0 or more")
    return value


def _check_number(number: Number, option: Any, where: str) -> None:
    if not number.low <= number.value <= number.high:
        raise BadInput(f"{number.value} is not between low = {number.low} and high = {number.high}",
                       where, "widen the range, or correct the value")  # fmt: skip
    if option.unit == "count" and number.value != int(number.value):
        raise BadInput(f"{number.value} is no whole number", where, "give one such as 64")
    least, most = option.low, option.high
    if not least <= number.base <= most:
        zero = number.base == 0
        what = f"{number.value:g} {number.unit}".removesuffix(" 1")
        raise BadInput("is 0" if zero else f"{what} is out of range", where,
                       f"give {least:g} or more" if number.base < least else f"give {most:g} at "
                       "most")  # fmt: skip


def _check(preset: Preset, where: str) -> None:
    """BadInput for the first two things that contradict each other."""
    for broken, what, key, mend in _contradictions(preset):
        if broken:
            raise BadInput(what, f"{where}: {key}", mend)


def _contradictions(preset: Preset) -> Iterator[tuple[bool, str, str, str]]:
    """Broken or not, what is wrong, the key, the mend."""
    for key in ("staging", "spill"):
        name = getattr(preset, key)
        absent = name not in MEMORIES or getattr(preset, name) is None
        yield (absent and (key == "staging" or bool(name) or preset.kind == "asic"),
               f"{name!r} is no memory that it has", key,
               f"name one of {', '.join(MEMORIES)}, and give its table")  # fmt: skip
    link = preset.front_end
    yield (link.lanes.value > link.lanes_max.value,
           f"{link.lanes.value:g} lanes of a link that has {link.lanes_max.value:g}",
           "[front_end] lanes", "use fewer")  # fmt: skip
    nvme = preset.nvme
    yield (nvme.drive not in ("disk", *drives()), f"no drive {nvme.drive!r}", "[nvme] drive",
           f"choose one of disk, {', '.join(drives())}")  # fmt: skip
    yield (nvme.drive == "disk" and preset.disk is None, "a disk without its times", "[disk]",
           "add the table, or name a model of a drive")  # fmt: skip
    table = preset.metadata
    if table is not None:
        least = table.entry.base * table.ways.base * table.banks.base
        yield (table.sram.base < least, "the SRAM holds no set in each of its banks",
               "[metadata] sram", f"give {least:g} B or more")  # fmt: skip
        yield (table.latency.base < table.cycle.base, "data comes before the access has ended",
               "[metadata] latency", "give the cycle or more")  # fmt: skip
    cores = preset.cores
    if cores is not None:
        yield (cores.reactors.value > cores.cores.value,
               f"{cores.reactors.value:g} reactors on {cores.cores.value:g} cores",
               "[cores] reactors", "give no more than cores")  # fmt: skip
    if preset.dma is not None:
        capacity = preset.memory(preset.staging).capacity
        yield (preset.dma.piece.base > capacity.base, "a piece is larger than the staging memory",
               "[dma] piece", "cut smaller")  # fmt: skip
    own = ("dma", "codec", "metadata", "dedup", "scheduler", "qos")  # of a chip, and of no DPU
    for block in {"asic": ("cores",), "dpu": own}[preset.kind]:
        yield (getattr(preset, block) is not None, f"a {preset.kind} has no {block}",
               f"[{block}]", "leave it out")  # fmt: skip
