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

from offstage.asic_model.blocks import Number, Tag
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_known, read_toml

__all__ = ["Dated", "dated_numbers", "read_numbers"]

KEYS = ("value", "unit", "low", "high", "source", "tag")


class Dated(Number, frozen=True, kw_only=True):
    """A market number, and its date."""

    date: datetime.date


def read_numbers(path: Path, units: Collection[str]) -> dict[str, dict[str, Number]]:
    """Every number of the file by table and key."""
    tables = read_toml(path, "reinstall Offstage")
    return {
        name: {
            key: Number(**_number(entry, units, f"{path.name}: {name}.{key}", KEYS))
            for key, entry in table.items()
        }
        for name, table in _tables(tables, path.name)
    }


def dated_numbers(
    tables: Mapping[str, Any], units: Collection[str], where: str
) -> dict[str, dict[str, Dated]]:
    """Every dated number of the tables, by table and key."""
    return {
        name: {
            key: Dated(**_number(entry, units, f"{where}: {name}.{key}", (*KEYS, "date")))
            for key, entry in table.items()
        }
        for name, table in _tables(tables, where)
    }


def _tables(tables: Mapping[str, Any], where: str) -> list[tuple[str, dict[str, Any]]]:
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise BadInput(f"{name} is not a table", where, f"write it as [{name}]")
    return list(tables.items())


def _number(
    entry: Any, units: Collection[str], where: str, keys: tuple[str, ...]
) -> dict[str, Any]:
    """The fields of a number, checked."""
    if not isinstance(entry, Mapping):
        raise BadInput(f"{entry!r} has no unit, range, source and tag", where, "write all of them")
    for key in entry:
        check_known(key, keys, where)
    for key in keys:
        if entry.get(key, "") == "":
            raise BadInput(f"has no {key}", where, f"give its {key}")
    if entry["unit"] not in units:
        raise BadInput(
            f"{entry['unit']!r} is not a unit here", where, f"choose one of {', '.join(units)}"
        )
    if entry["tag"] not in get_args(Tag):
        raise BadInput(
            f"{entry['tag']!r} is not a tag", where, f"choose one of {', '.join(get_args(Tag))}"
        )
    if not isinstance(entry["source"], str):
        raise BadInput(f"{entry['source']!r} is not a source", where, "say where it is from")
    for key in ("value", "low", "high"):
        value = entry[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise BadInput(f"{value!r} is not a number", f"{where} {key}", "write one")
        if not math.isfinite(value) or value < 0:
            what = "negative" if value < 0 else "not a finite number"
            raise BadInput(f"{value} is {what}", f"{where} {key}", "give 0 or more")
    if not entry["low"] <= entry["value"] <= entry["high"]:
        raise BadInput(
            f"{entry['value']} is not between {entry['low']} and {entry['high']}",
            where,
            "widen the range, or correct the value",
        )
    if "date" in keys:
        _check_date(entry["date"], where)
    scale = units[entry["unit"]] if isinstance(units, Mapping) else 1
    return {**entry, "scale": scale}


def _check_date(date: Any, where: str) -> None:
    if not isinstance(date, datetime.date) or isinstance(date, datetime.datetime):
        raise BadInput(f"{date!r} is not a date", f"{where} date", "write one such as 2026-03-31")
    if date > datetime.date.today() + datetime.timedelta(days=1):
        raise BadInput(f"{date} is in the future", f"{where} date", "give the day of the source")
