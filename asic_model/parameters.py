"""Parameters of a modelled chip: every number with value, unit, range, source and tag.

Model: a preset is a TOML file with one table for each hardware block. A number is written as

    lanes = { value = 16, unit = "1", low = 8, high = 16, source = "...", tag = "cited" }

The tag says what kind of knowledge it is. The codec's ratio depends on the dtype and on what layers
store; it is read from the codec's table and widened to a range:

    ratio = { measured = "bfloat16", form = "gqa", low = 0.37, high = 1, source = "..." }

`extends = "NAME"` takes every key that the file does not set from another preset. Wherever a preset
is named, `NAME,block.key=VALUE,...` is that preset with other values, in its units. How the blocks
are combined is in `units/` and `chip.py`.

What can fail: `BadInput`, one line with the file, the table and the key, for an unknown or missing
key, a number without tag or source, a wrong unit, a negative value, a range that excludes the
value, and numbers that contradict each other.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from offstage.asic_model.blocks import (
    BLOCKS,
    DIMENSIONS,
    Block,
    Codec,
    Cores,
    Dedup,
    Disk,
    Dma,
    FrontEnd,
    Logic,
    Memory,
    Metadata,
    Number,
    Nvme,
    Qos,
    Scheduler,
    Tag,
)
from offstage.asic_model.codec.measured import block_ratio
from offstage.asic_model.hardware import synthesis
from offstage.asic_model.services import OTHER
from offstage.asic_model.tables.numbers import finite, read_number
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_known, declared, read_toml
from offstage.bindings.storage import presets as drives

__all__ = ["Preset", "Row", "names", "read_preset", "rows"]

FOLDER = Path(__file__).resolve().parent / "presets"
ORDER = (
    *("dpu_x86_measured", "bluefield3", "bluefield4", "host_cxl", "gh200"),
    *("asic_7nm", "asic_7nm_pcie4", "asic_7nm_pcie6", "asic_7nm_cxl", "asic_7nm_hbm3e"),
    *("asic_5nm_hbm4", "asic_5nm_c2c", "ideal"),
)
"""Of the presets: the measured machine first, the best last."""

MEMORIES = ("hbm", "ddr", "cxl")
NEEDED = {
    "asic": ("front_end", "dma", "codec", "metadata", "dedup", "scheduler", "qos", "logic", "nvme"),
    "dpu": ("front_end", "cores", "nvme"),
}
HEAD: dict[str, type[str] | type[int]] = {
    "title": str,
    "kind": str,
    "staging": str,
    "spill": str,
    "calibrated": bool,
    "extends": str,
    "about": str,
    "node_nm": int,
}


class Preset(msgspec.Struct, frozen=True, kw_only=True):
    """One chip. `staging`: the memory that holds the arena; `spill`: the one below the metadata
    table. `calibrated`: it was fitted to a recorded run; results of an uncalibrated preset are
    marked. `node_nm`: the process of an ASIC, for its area and the energy of its SRAM."""

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
    logic: Logic | None = None
    cores: Cores | None = None
    hbm: Memory | None = None
    ddr: Memory | None = None
    cxl: Memory | None = None
    disk: Disk | None = None

    def memory(self, name: str) -> Memory:
        """One of its memories; the check has verified that it exists."""
        found: Memory = getattr(self, name)
        return found

    @property
    def arena_bytes(self) -> int:
        """The total capacity of the staging memory."""
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
        """A copy with other values, by `block.key` and in the preset's unit.
        `BadInput` as for a file."""
        known = dict(self.numbers())
        tables: dict[str, Block] = {}
        for name, value in changes.items():
            check_known(name, known, f"preset {self.name}", "parameter")
            block, _, key = name.partition(".")
            table = tables.get(block, getattr(self, block))
            where = f"preset {self.name}: {name}"
            number = known[name].set(finite(value, where))
            _check_number(number, declared(type(table))[key], where)
            tables[block] = msgspec.structs.replace(table, **{key: number})
        found = msgspec.structs.replace(self, **tables)
        _check(found, f"preset {self.name}")
        return found

    def refuse_unused(self, names: Iterable[str], where: str) -> None:
        """BadInput where one of these parameters is of a memory in which nothing lies: to change it
        would change no figure."""
        used = [one for one in (self.staging, self.spill) if one]
        for name in names:
            block = name.partition(".")[0]
            if block in MEMORIES and block not in used:
                raise BadInput(
                    f"{name} has no effect: {self.name} keeps nothing in its {block}",
                    where,
                    f"change {' or '.join(used)}, or name {block} as staging or spill in a file",
                )

    def for_heads(self, count: int) -> "Preset":
        """A copy for blocks of `count` KV heads, as a run says, with no range to draw from. Itself
        where the run does not say, or entries are not per head."""
        if not count or self.metadata is None:
            return self
        heads = self.with_({"metadata.heads": count}).numbers()
        said = msgspec.structs.replace(
            dict(heads)["metadata.heads"],
            low=count,
            high=count,
            tag="measured",
            source="the geometry of the run",
        )
        table = msgspec.structs.replace(self.metadata, heads=said)
        return msgspec.structs.replace(self, metadata=table)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A number as `offstage asic presets NAME` lists it."""

    parameter: str
    value: float
    unit: str
    low: float
    high: float
    source: str
    tag: Tag
    help: str


def names() -> list[str]:
    """The presets shipped with Offstage, the measured machine first, the best last."""
    found = {path.stem for path in FOLDER.glob("*.toml")}
    return [name for name in ORDER if name in found] + sorted(found - set(ORDER))


@lru_cache(maxsize=64)
def read_preset(name: str) -> Preset:
    """The preset of that name, or from that TOML file, with the values that follow it."""
    base, *settings = name.split(",")
    tables, where = _tables(base)
    found = _built(Path(base).stem, tables, where)
    if not settings:
        return found
    values = dict(_setting(one, f"preset {base}") for one in settings)
    changed = found.with_(values)
    found.refuse_unused(values, f"preset {base}")
    return msgspec.structs.replace(changed, name=",".join((found.name, *settings)))


def _setting(text: str, where: str) -> tuple[str, float]:
    key, _, value = text.partition("=")
    try:
        return key.strip(), float(value)
    except ValueError:
        raise BadInput(
            f"{text!r} sets no number", where, "write NAME,block.key=VALUE, such as codec.lanes=4"
        ) from None


def rows(preset: Preset) -> list[Row]:
    """The rows of `offstage asic presets NAME`: one for each number."""
    found = []
    for name, number in preset.numbers():
        block, _, key = name.partition(".")
        found.append(
            Row(
                parameter=name,
                value=number.value,
                unit=number.unit,
                low=number.low,
                high=number.high,
                source=number.source,
                tag=number.tag,
                help=declared(BLOCKS[block])[key].help,
            )
        )
    return found


def _tables(
    name: str, seen: tuple[Path, ...] = (), beside: Path = Path()
) -> tuple[dict[str, Any], str]:
    """A file's tables merged over those of the preset that it extends. `seen`: the files on the way
    to it; `beside`: the folder from which a file is named."""
    path = beside / name if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not name.endswith(".toml") and not path.is_file():
        raise BadInput(
            f"no preset {name!r}",
            "asic",
            f"choose one of {', '.join(names())}, or give a TOML file",
        )
    where = path.name
    raw = read_toml(path, "give a preset's TOML file")
    for key in raw:
        check_known(key, (*HEAD, *BLOCKS), where, "table or key")
    base = raw.pop("extends", "")
    if not isinstance(base, str) or base == path.stem or path.resolve() in seen:
        raise BadInput(f"extends = {base!r}", where, "name another preset, without a cycle")
    if not base:
        return raw, where
    tables, _ = _tables(base, (*seen, path.resolve()), path.parent)
    for key, value in raw.items():
        whole = isinstance(value, dict) and isinstance(tables.get(key), dict)
        tables[key] = {**tables[key], **value} if whole else value
    tables["calibrated"] = raw.get("calibrated", False)
    return tables, where


def _built(name: str, tables: dict[str, Any], where: str) -> Preset:
    head: dict[str, Block | str | int] = {"name": name}
    for key, value in tables.items():
        if key in HEAD:
            is_bool = HEAD[key] is bool  # which Python takes for an int
            if not isinstance(value, HEAD[key]) or isinstance(value, bool) is not is_bool:
                raise BadInput(
                    f"{value!r} is not a {HEAD[key].__name__}", f"{where}: {key}", "correct it"
                )
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
    found = msgspec.convert(head, Preset)
    _check(found, where)
    return found


def _block(kind: type[Block], table: dict[str, Any], where: str) -> Block:
    known = declared(kind)
    values: dict[str, Number | str] = {}
    for key, value in table.items():
        check_known(key, known, where, "parameter")
        if known[key].kind is Number:
            values[key] = _read_number(value, known[key], f"{where} {key}")
        elif not isinstance(value, str):
            raise BadInput(f"{value!r} is not text", f"{where} {key}", "write it in quotes")
        elif known[key].choices and value not in known[key].choices:
            raise BadInput(
                f"{value!r} is not one of {', '.join(known[key].choices)}",
                f"{where} {key}",
                "choose one of them",
            )
        else:
            values[key] = value
    for one in msgspec.structs.fields(kind):
        key = one.encode_name
        if one.required and key not in values:
            raise BadInput("is missing", f"{where} {key}", "give value, unit, range, source")
    return msgspec.convert(values, kind)


def _read_number(table: Any, option: Any, where: str) -> Number:
    """A number from a file, checked."""
    units = DIMENSIONS[option.unit]
    spread: tuple[tuple[float, ...], ...] = ()
    if isinstance(table, dict) and "spread" in table:
        spread = _read_spread(table["spread"], where)
        table = {key: value for key, value in table.items() if key != "spread"}
    if not isinstance(table, dict) or "measured" not in table:
        number = read_number(table, units, where, noun=f"unit of {option.unit}")
    elif "1" in units:
        number = block_ratio(table, where)
    else:
        raise BadInput(f"a ratio is no {option.unit}", where, f"give one in {', '.join(units)}")
    _check_number(number, option, where)
    return msgspec.structs.replace(number, spread=spread) if spread else number


def _read_spread(rows: Any, where: str) -> tuple[tuple[float, ...], ...]:
    """Rows of a measured distribution (`services.py`), checked."""
    fix = "write it by `offstage asic validate --out`"
    if not where.endswith("[disk] service"):
        raise BadInput("has no spread", where, "only the service of a disk has one")
    if not isinstance(rows, list) or not all(isinstance(row, list) for row in rows):
        raise BadInput("spread is no list of rows", where, fix)
    found = tuple(tuple(finite(one, f"{where}: spread") for one in row) for row in rows)
    if not found or any(len(row) < 3 or min(row[1:]) < 0 for row in found) or found[0][0] != OTHER:
        raise BadInput("a row of its spread is not one of a cause and its times", where, fix)
    return found


def _check_number(number: Number, option: Any, where: str) -> None:
    if option.unit == "count" and number.value != int(number.value):
        raise BadInput(f"{number.value} is not a whole number", where, "give one such as 64")
    least, most = option.low, option.high
    if not least <= number.base <= most:
        zero = number.base == 0
        what = f"{number.value:g} {number.unit}".removesuffix(" 1")
        raise BadInput(
            "is 0" if zero else f"{what} is out of range",
            where,
            f"give {least:g} or more" if number.base < least else f"give {most:g} at most",
        )


def _check(preset: Preset, where: str) -> None:
    """BadInput for the first contradiction."""
    for broken, what, key, fix in itertools.chain(_contradictions(preset), _of_the_clock(preset)):
        if broken:
            raise BadInput(what, f"{where}: {key}", fix)


def _contradictions(preset: Preset) -> Iterator[tuple[bool, str, str, str]]:
    """Yields whether it is broken, what is wrong, the key, the fix."""
    for key in ("staging", "spill"):
        name = getattr(preset, key)
        absent = name not in MEMORIES or getattr(preset, name) is None
        yield (
            absent and (key == "staging" or bool(name) or preset.kind == "asic"),
            f"{name!r} is not one of its memories",
            key,
            f"name one of {', '.join(MEMORIES)}, and add its table",
        )
    link = preset.front_end
    yield (
        link.lanes.value > link.lanes_max.value,
        f"{link.lanes.value:g} lanes on a link that has {link.lanes_max.value:g}",
        "[front_end] lanes",
        "use fewer",
    )
    nvme = preset.nvme
    yield (
        nvme.drive not in ("disk", *drives()),
        f"no drive {nvme.drive!r}",
        "[nvme] drive",
        f"choose one of disk, {', '.join(drives())}",
    )
    yield (
        nvme.drive == "disk" and preset.disk is None,
        "drive = disk without a [disk] table",
        "[disk]",
        "add the table, or name a model of a drive",
    )
    table = preset.metadata
    if table is not None:
        least = table.entry.base * table.ways.base * table.banks.base
        yield (
            table.sram.base < least,
            "the SRAM is too small for one set in each bank",
            "[metadata] sram",
            f"give {least:g} B or more",
        )
        yield (
            table.latency.base < table.cycle.base,
            "the latency is shorter than the cycle",
            "[metadata] latency",
            "give the cycle or more",
        )
    cores = preset.cores
    if cores is not None:
        yield (
            cores.reactors.value > cores.cores.value,
            f"{cores.reactors.value:g} reactors on {cores.cores.value:g} cores",
            "[cores] reactors",
            "give no more than cores",
        )
    if preset.dma is not None:
        capacity = preset.memory(preset.staging).capacity
        yield (
            preset.dma.piece.base > capacity.base,
            "a piece is larger than the staging memory",
            "[dma] piece",
            "cut smaller",
        )
    own = (*NEEDED["asic"][1:-1],)  # of a chip, and of no DPU
    for block in {"asic": ("cores",), "dpu": own}[preset.kind]:
        yield (
            getattr(preset, block) is not None,
            f"a {preset.kind} has no {block}",
            f"[{block}]",
            "leave it out",
        )


def _of_the_clock(preset: Preset) -> Iterator[tuple[bool, str, str, str]]:
    """The same of a clock that no synthesis has closed."""
    if preset.logic is not None and preset.node_nm:
        clock, closed_ghz = preset.logic.clock, synthesis().clock_ghz
        yield (
            clock.tag != "guess" and clock.base > closed_ghz * 1e9,
            f"{clock.value:g} {clock.unit}, where synthesis closed {closed_ghz:.2f} GHz at most",
            "[logic] clock",
            "lower it, or tag it as the guess that it is",
        )
