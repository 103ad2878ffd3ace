"""The drives that the NVMe model knows by name: one file each, every number with its tag.

Model: a file of `drives/` has `about`, and groups of numbers that share a tag, a date and a source:
`[[numbers]]` are parameters of `struct ofs_nvme_params` in its units (ps, bytes, bytes per second),
`[[published]]` what was said of the drive and the model is held against, `[[geometry]]` how many
blocks its planes have, which is what it keeps and no parameter: a model with all of them would
need gigabytes, and one without collects nothing. There a zoned drive has its zones, too. A drive
that is `like` another has that one's numbers where it gives none, as guesses. A date is that of the
source, and where it has none the day on which it was read.

What can fail: `BadInput`, one line with file and number, for a group without tag, date or source,
a number that no drive has, one that is missing or given twice, a geometry that does not keep the
capacity, and what the model refuses.
"""

import datetime
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from offstage.bindings.errors import BadInput
from offstage.bindings.firmware import ffi, lib, text_of
from offstage.bindings.settings import check_known, read_toml

__all__ = [
    "PUBLISHED",
    "TAGS",
    "Preset",
    "Tag",
    "Told",
    "params_wrong",
    "preset",
    "presets",
    "read_drive",
]

FOLDER = Path(__file__).resolve().parent / "drives"
Tag = Literal["measured", "synthesized", "cited", "derived", "vendor", "guess"]
TAGS: dict[str, str] = {
    "measured": "timed or computed by a tool on a machine of ours",
    "synthesized": "what our Verilog came to in a cell library, at most",
    "cited": "read in the named source",
    "derived": "computed from cited or measured numbers",
    "vendor": "a vendor's claim without independent confirmation",
    "guess": "unknown: the range is meant to be wide",
}
PUBLISHED = {
    "read_bytes_per_s": "128 KiB reads, saturated",
    "write_bytes_per_s": "128 KiB writes, sustained",
    "read_iops": "4 KiB random reads, saturated",
    "small_read_iops": "512 B random reads, saturated",
    "write_iops": "4 KiB random writes, steady state",
    "read_latency_ps": "a 4 KiB read alone",
    "write_latency_ps": "a 4 KiB write alone",
    "capacity_bytes": "capacity",
    "endurance_bytes": "bytes that may be written in all, at random",
}
"""What is published of drives, and of which I/O it is."""
PARAMETERS = tuple(
    name
    for name, _ in ffi.typeof("struct ofs_nvme_params").fields or ()
    if not name.startswith("zone_")
)
UNUSED_WHERE_AT_ONCE = PARAMETERS[PARAMETERS.index("scheduled") :]
"""Of drives with schedulers alone."""
OPTIONAL = (
    "blocks_per_plane",
    "commands_first",
    "erase_limit",
    "handle_count",
    "layout_fixed",
    "level_erases",
    "piece_bytes",
    "program_pages",
    "refresh_ps",
    "retry_age_ps",
    "small_firmware_ps",
    "small_read_ps",
    "stripe_pages",
    "suspend_ps",
    "write_each_ps",
    "write_firmware_ps",
)
"""0 says something: nvme_model.h."""
GEOMETRY = ("blocks_per_plane", "pages_per_block", "spare_permille")
"""Of a drive without schedulers all three; the others have the last two among their parameters."""
ZONES = ("zone_count", "zone_open_max", "zone_active_max")
"""Of a zoned drive all three: a zone is a block of each plane."""
KEPT_PERCENT_MAX = 1
"""More than the capacity, beside a block of each plane."""
GROUP = ("tag", "date", "source")
FIXES = {
    "tag": f"choose one of {', '.join(TAGS)}",
    "date": "give the day of the source, such as 2026-03-31",
    "source": "say where it is from",
}


@dataclass(frozen=True)
class Told:
    """A number, and what kind of knowledge it is, of when and from where."""

    value: int
    tag: Tag
    date: datetime.date
    source: str


@dataclass(frozen=True)
class Preset:
    """One drive. `numbers`: of its parameters, in ps, bytes and bytes per second; `published`: what
    was said of it, by the keys of `PUBLISHED`; `geometry`: by those of `GEOMETRY` and `ZONES`, or
    empty."""

    name: str
    about: str
    numbers: Mapping[str, Told]
    published: Mapping[str, Told]
    geometry: Mapping[str, Told]

    @property
    def kept_bytes(self) -> int | None:
        """What its over-provisioning leaves of its blocks; None: nobody says how many it has."""
        one = self.whole
        if not all(one[key] for key in GEOMETRY[:2]):
            return None
        flash = one["blocks_per_plane"] * self.unit_bytes
        return flash * (1000 - one["spare_permille"]) // 1000

    @property
    def unit_bytes(self) -> int:
        """A block of each plane."""
        one = self.whole
        planes = one["channel_count"] * one["dies_per_channel"] * one["planes_per_die"]
        return planes * one["pages_per_block"] * one["page_size_bytes"]

    @property
    def whole(self) -> dict[str, int]:
        """Parameters and geometry."""
        return self.params | {key: told.value for key, told in self.geometry.items()}

    @property
    def params(self) -> dict[str, int]:
        """As the model takes them; what is not given is 0."""
        return dict.fromkeys(PARAMETERS, 0) | {key: one.value for key, one in self.numbers.items()}

    @property
    def collects(self) -> bool:
        """Whether the model can collect its blocks, and so has a write cliff."""
        return bool(self.params["scheduled"]) and not self.params["program_pages"]

    @property
    def zoned(self) -> dict[str, int] | None:
        """Parameters with its zones, and a few blocks for a conventional namespace; None: it has no
        zones. `params` write anywhere, as a daemon's store does."""
        if not any(key in self.geometry for key in ZONES):
            return None
        beside = 2 * self.params["collect_blocks"] + 4
        return self.params | {
            **{key: self.geometry[key].value for key in ZONES if key in self.geometry},
            "blocks_per_plane": self.geometry["blocks_per_plane"].value + beside,
            "zone_size_bytes": self.unit_bytes,
            "zone_capacity_bytes": self.unit_bytes,
        }

    @property
    def cited(self) -> dict[str, int]:
        """The values of what was published of it."""
        return {key: one.value for key, one in self.published.items()}

    @property
    def read_bytes_per_s(self) -> int:
        """What large reads reach: as published, or what the link carries."""
        return self.cited.get("read_bytes_per_s", self.numbers["link_bytes_per_s"].value)

    @property
    def source(self) -> str:
        """Everything that its numbers are from, each once."""
        told = [*self.published.values(), *self.numbers.values()]
        return "; ".join(dict.fromkeys(f"{one.tag}: {one.source}" for one in told))


def presets() -> list[str]:
    """Names of the drives."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@cache
def preset(name: str) -> Preset:
    """The drive `name`; `BadInput` names those there are."""
    known = presets()
    if name not in known:
        raise BadInput(f"no NVMe preset {name!r}", "nvme", f"choose one of {', '.join(known)}")
    return read_drive(FOLDER / f"{name}.toml")


def read_drive(path: Path) -> Preset:
    """The drive of a file, checked."""
    where, table = path.name, read_toml(path, "reinstall Offstage")
    for key in table:
        check_known(key, ("about", "like", "numbers", "published", "geometry"), where)
    if not isinstance(table.get("about"), str) or not table["about"]:
        raise BadInput("does not say what it is", where, 'write about = "..."')
    numbers = _told(table.get("numbers", []), PARAMETERS, f"{where} numbers")
    geometry = _told(table.get("geometry", []), GEOMETRY + ZONES, f"{where} geometry")
    if "like" in table:
        other, said = _like(table["like"], f"{where} like")
        numbers = _guesses(other.numbers, said) | numbers
        geometry = _guesses(other.geometry, said) | geometry
    found = Preset(
        path.stem,
        table["about"],
        numbers,
        _told(table.get("published", []), tuple(PUBLISHED), f"{where} published"),
        geometry,
    )
    _check_whole(found, where)
    _check_capacity(found, where)
    return found


def _told(groups: Any, names: tuple[str, ...], where: str) -> dict[str, Told]:
    """The numbers of all groups by name."""
    if not isinstance(groups, list) or not all(isinstance(one, dict) for one in groups):
        raise BadInput("are no groups", where, f"write [[{where.split()[-1]}]]")
    found: dict[str, Told] = {}
    for group in groups:
        tag, date, source = _knowledge(group, where)
        for key, value in group.items():
            if key in GROUP:
                continue
            check_known(key, names, where)
            if key in found:
                raise BadInput(f"{key} is given twice", where, "keep one of them")
            if isinstance(value, bool) or not isinstance(value, int) or value < 0:
                raise BadInput(
                    f"{key} = {value!r} is not a count from 0",
                    where,
                    "write it in the units of nvme_model.h, such as 43_000_000",
                )
            found[key] = Told(value, tag, date, source)
    return found


def _knowledge(group: Mapping[str, Any], where: str) -> tuple[Tag, datetime.date, str]:
    """Tag, date and source of a group."""
    named = ", ".join(key for key in group if key not in GROUP)
    for key in GROUP:
        if not group.get(key):
            raise BadInput(f"{named or 'a group'}: no {key}", where, FIXES[key])
    tag, date, source = (group[key] for key in GROUP)
    if tag not in get_args(Tag):
        raise BadInput(f"{named}: {tag!r} is not a tag", where, FIXES["tag"])
    if not isinstance(date, datetime.date):
        raise BadInput(f"{named}: {date!r} is not a date", where, FIXES["date"])
    if not isinstance(source, str):
        raise BadInput(f"{named}: {source!r} is not a source", where, FIXES["source"])
    return tag, date, source


def _like(table: Any, where: str) -> tuple[Preset, Told]:
    """The drive that this one is like, and how its numbers are known for this one."""
    if not isinstance(table, dict):
        raise BadInput(f"{table!r} is not a table", where, "write [like] with preset, date, source")
    name = table.get("preset")
    if name not in presets() or "like" in read_toml(FOLDER / f"{name}.toml", "reinstall Offstage"):
        raise BadInput(
            f"preset {name!r} is not a drive with numbers of its own",
            where,
            f"choose one of {', '.join(presets())}",
        )
    _, date, source = _knowledge({"tag": "guess", **table}, where)
    return preset(name), Told(0, "guess", date, f"{source}; as {name}")


def _guesses(numbers: Mapping[str, Told], said: Told) -> dict[str, Told]:
    """The numbers of another drive, known as `said` is."""
    return {key: replace(said, value=one.value) for key, one in numbers.items()}


def _check_whole(found: Preset, where: str) -> None:
    """Every parameter is given that such a drive has, and the model takes them."""
    for name in _needed(found.params["scheduled"] == 1):
        if name not in found.numbers:
            raise BadInput(
                f"has no {name}", where, "give it in a group with tag, date and source, or as like"
            )
    for params in filter(None, (found.params, found.zoned)):
        if wrong := params_wrong(params):
            what, _, fix = wrong.partition("; ")
            raise BadInput(what, where, fix)


def params_wrong(params: Mapping[str, int]) -> str:
    """What the model refuses of a drive's parameters and, behind a semicolon, what to do; "":
    nothing."""
    wrong = lib.ofs_nvme_params_wrong(ffi.new("struct ofs_nvme_params *", dict(params)))
    return "" if wrong == ffi.NULL else text_of(wrong)


def _needed(scheduled: bool) -> Iterator[str]:
    for name in PARAMETERS:
        if name not in OPTIONAL and (scheduled or name not in UNUSED_WHERE_AT_ONCE):
            yield name


def _check_capacity(found: Preset, where: str) -> None:
    """The blocks keep the capacity, and little more."""
    kept, capacity = found.kept_bytes, found.cited.get("capacity_bytes")
    if kept is None or capacity is None:
        return
    row, kept_permille = found.unit_bytes, 1000 - found.whole["spare_permille"]
    if capacity <= kept <= capacity * (100 + KEPT_PERCENT_MAX) // 100 + row:
        return
    raise BadInput(
        f"its geometry keeps {kept / 1e12:.2f} TB, and its capacity is {capacity / 1e12:.2f} TB",
        where,
        f"with {-(-capacity * 1000 // (row * max(1, kept_permille))):,} blocks_per_plane it keeps "
        "that; change those, spare_permille or capacity_bytes",
    )
