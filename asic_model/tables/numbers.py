"""Files of numbers with their range, source and tag, for tables that are not the simulators'.

A file has one TOML table for each thing, and in it numbers as a preset writes them:

    per_bit = { value = 6.0, unit = "pJ/bit", low = 3.9, high = 9.0, source = "...", tag = "cited" }

What can fail: `BadInput` for a number without tag or source, with a unit that is not one of those
asked for, or outside its own range.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, get_args

from offstage.asic_model.parameters import Number, Tag
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_known, read_toml

__all__ = ["read_numbers"]

KEYS = ("value", "unit", "low", "high", "source", "tag")


def read_numbers(path: Path, units: Collection[str]) -> dict[str, dict[str, Number]]:
    """Every number of the file by table and key."""
    found: dict[str, dict[str, Number]] = {}
    for name, table in read_toml(path, "reinstall Offstage").items():
        if not isinstance(table, dict):
            raise BadInput(f"{name} is no table", path.name, f"write it as [{name}]")
        found[name] = {
            key: _number(entry, units, f"{path.name}: {name}.{key}") for key, entry in table.items()
        }
    return found


def _number(entry: Any, units: Collection[str], where: str) -> Number:
    if not isinstance(entry, Mapping):
        raise BadInput(f"{entry!r} says no unit, range, source and tag", where, "write all of them")
    for key in entry:
        check_known(key, KEYS, where)
    for key in KEYS:
        if entry.get(key, "") == "":
            raise BadInput(f"has no {key}", where, f"give its {key}")
    if entry["unit"] not in units:
        raise BadInput(
            f"{entry['unit']!r} is no unit here", where, f"choose one of {', '.join(units)}"
        )
    if entry["tag"] not in get_args(Tag):
        raise BadInput(f"{entry['tag']!r} is no tag", where, f"one of {', '.join(get_args(Tag))}")
    if not isinstance(entry["source"], str):
        raise BadInput(f"{entry['source']!r} is no source", where, "say where it is from")
    for key in ("value", "low", "high"):
        if isinstance(entry[key], bool) or not isinstance(entry[key], (int, float)):
            raise BadInput(f"{entry[key]!r} is not a number", f"{where} {key}", "write one")
    if not 0 <= entry["low"] <= entry["value"] <= entry["high"]:
        raise BadInput(
            f"{entry['value']} is not between {entry['low']} and {entry['high']}",
            where,
            "widen the range, or correct the value",
        )
    return Number(**entry)
