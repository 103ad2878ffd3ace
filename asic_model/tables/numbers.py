"""Files of numbers with range, source and tag, for tables that no simulator makes.

A file has one TOML table per item, and in it numbers as a preset writes them:

    per_bit = { value = 6.0, unit = "pJ/bit", low = 3.9, high = 9.0, source = "...", tag = "cited" }

A number that changes with the market also has a `date`. `units` maps units to base units.

What can fail: `BadInput` for a number without tag or source, with a unit that is not accepted,
negative, or outside its own range; for a date that is invalid or in the future.
"""

import datetime
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from offstage.asic_model.blocks import Number, Tag
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_known, read_toml

__all__ = ["Dated", "dated_numbers", "finite", "read_number", "read_numbers"]

KEYS = ("value", "unit", "low", "high", "source", "tag")
VALUE_MIN, VALUE_MAX = 1e-18, 1e18
"""Of a number that is not 0, in its unit: what is computed from several of them stays finite."""


class Dated(Number, frozen=True, kw_only=True):
    """A market number, and its date."""

    date: datetime.date


def read_numbers(path: Path, units: Collection[str]) -> dict[str, dict[str, Number]]:
    """Every number of the file by table and key."""
    tables = read_toml(path, "reinstall Offstage")
    return {
        name: {
            key: read_number(entry, units, f"{path.name}: {name}.{key}")
            for key, entry in table.items()
        }
        for name, table in _tables(tables, path.name)
    }


def dated_numbers(
    tables: Mapping[str, Any], units: Collection[str], where: str
) -> dict[str, dict[str, Dated]]:
    """Every dated number of the tables, by table and key."""
    return {
        name: {key: _dated(entry, units, f"{where}: {name}.{key}") for key, entry in table.items()}
        for name, table in _tables(tables, where)
    }


def _tables(tables: Mapping[str, Any], where: str) -> list[tuple[str, dict[str, Any]]]:
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise BadInput(f"{name} is not a table", where, f"write it as [{name}]")
    return list(tables.items())


def read_number(
    entry: Any,
    units: Collection[str],
    where: str,
    keys: tuple[str, ...] = KEYS,
    noun: str = "unit here",
) -> Number:
    """A number from a file, checked. `units`: those accepted, or their scales by name."""
    if not isinstance(entry, Mapping):
        raise BadInput(
            f"{entry!r} has no unit, range, source and tag",
            where,
            f"write {{ {', '.join(keys)} }}",
        )
    for key in entry:
        check_known(key, keys, where)
    fixes = {"source": "say where it is from", "tag": f"choose one of {', '.join(get_args(Tag))}"}
    for key in keys:
        if entry.get(key, "") == "":
            raise BadInput(f"has no {key}", where, fixes.get(key, f"give its {key}"))
    if entry["tag"] not in get_args(Tag):
        raise BadInput(f"{entry['tag']!r} is not a tag", where, fixes["tag"])
    if not isinstance(entry["source"], str):
        raise BadInput(f"{entry['source']!r} is not a source", where, fixes["source"])
    if entry["unit"] not in units:
        raise BadInput(
            f"{entry['unit']!r} is not a {noun}", where, f"give it in one of {', '.join(units)}"
        )
    value, low, high = (finite(entry[key], f"{where}: {key}") for key in ("value", "low", "high"))
    if not low <= value <= high:
        raise BadInput(
            f"{value} is not between low = {low} and high = {high}",
            where,
            "widen the range, or correct the value",
        )
    return Number(
        value=value,
        unit=entry["unit"],
        low=low,
        high=high,
        source=entry["source"],
        tag=entry["tag"],
        scale=units[entry["unit"]] if isinstance(units, Mapping) else 1,
    )


def finite(value: Any, where: str) -> float:
    """A value from a file. BadInput unless it is a number, finite, not negative, and neither
    beyond `VALUE_MAX` nor below `VALUE_MIN`."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadInput(f"{value!r} is not a number", where, "write one such as 64 or 0.5")
    if not 0 <= value < math.inf:
        what = "negative" if value < 0 else "not a finite number"
        raise BadInput(f"{value} is {what}", where, "give 0 or more")
    if value and not VALUE_MIN <= value <= VALUE_MAX:
        what = "too large" if value > VALUE_MAX else "too small"
        fix = f"give 0, or {VALUE_MIN:g} to {VALUE_MAX:g}"
        raise BadInput(f"{str(value)[:24]} is {what}", where, fix)
    return value


def _dated(entry: Any, units: Collection[str], where: str) -> Dated:
    number = read_number(entry, units, where, (*KEYS, "date"))
    _check_date(entry["date"], where)
    return Dated(**msgspec.structs.asdict(number), date=entry["date"])


def _check_date(date: Any, where: str) -> None:
    if not isinstance(date, datetime.date) or isinstance(date, datetime.datetime):
        raise BadInput(f"{date!r} is not a date", f"{where} date", "write one such as 2026-03-31")
    if date > datetime.date.today() + datetime.timedelta(days=1):
        raise BadInput(f"{date} is in the future", f"{where} date", "give the day of the source")
