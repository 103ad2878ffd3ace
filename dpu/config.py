"""The daemon's configuration: who said what, and one frozen value for each option.

Precedence: command line, then `OFFSTAGE_<SECTION>_<KEY>`, then the file, then the default. An
unknown key is an error that names the nearest one. Nothing here touches the firmware.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, replace
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_known, read_toml
from offstage.bindings.units import (
    format_rate,
    format_size,
    format_time,
    parse_rate,
    parse_size,
    parse_time,
)
from offstage.dpu.options import (
    SECTIONS,
    Arena,
    Daemon,
    Limits,
    Memory,
    PolicyOptions,
    Storage,
    Store,
    Tenant,
    declared,
)

__all__ = ["Config", "change_policy", "load", "rows", "show_value"]

MEND = "give --config an existing TOML file"
TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Config:
    """Every option's value. `sources` says by `section.key` who gave it, `file` the file read."""

    daemon: Daemon = field(default_factory=Daemon)
    arena: Arena = field(default_factory=Arena)
    memory: Memory = field(default_factory=Memory)
    storage: Storage = field(default_factory=Storage)
    store: Store = field(default_factory=Store)
    policy: PolicyOptions = field(default_factory=PolicyOptions)
    limits: Limits = field(default_factory=Limits)
    tenants: tuple[Tenant, ...] = (Tenant(),)
    sources: Mapping[str, str] = field(default_factory=dict)
    file: str = ""


def load(
    path: Path | None = None,
    overrides: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Config:
    """The configuration from a TOML file, `OFFSTAGE_*` and `section.key` -> text overrides.

    Raises BadInput for a file that does not read or parse, an unknown section or key, and a value
    of the wrong kind or out of range. Relations between values are checked by `derive`.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    tables = read_toml(path, MEND) if path is not None else {}
    tenants = _tenants(tables.pop("tenant", None), str(path))
    for where, value, source in _given(tables, str(path), environ, overrides):
        section, key = where.split(".")
        one = declared(SECTIONS[section])[key]
        values[where] = _parse(one, value, f"{source}: [{section}] {key}")
        sources[where] = source
    built = {}
    for section, kind in SECTIONS.items():
        chosen = {
            one.name: values[f"{section}.{key}"]
            for key, one in declared(kind).items()
            if f"{section}.{key}" in values
        }
        built[section] = kind(**chosen)
    return Config(**built, tenants=tenants, sources=sources, file=str(path) if path else "")


def change_policy(
    policy: PolicyOptions, changes: Mapping[str, str], where: str = "[policy]"
) -> PolicyOptions:
    """`policy` with some keys replaced, each given as text. BadInput names the key at fault."""
    known = declared(PolicyOptions)
    chosen = {}
    for key, text in changes.items():
        key = key.removeprefix("policy.")
        check_known(key, known, where)
        chosen[known[key].name] = _parse(known[key], text, f"{where} {key}")
        # The two windows are one option in two units: the one set last counts.
        if key == "window_tokens" and "window_blocks" not in changes:
            chosen["window_blocks"] = 0
    return replace(policy, **chosen)


def rows(config: Config) -> Iterable[tuple[str, str, str]]:
    """`(section.key, value as it would be typed, source)` of every option, in order."""
    for section, kind in SECTIONS.items():
        for key, one in declared(kind).items():
            where = f"{section}.{key}"
            value = getattr(getattr(config, section), one.name)
            yield where, show_value(one, value), config.sources.get(where, "default")
    for index, tenant in enumerate(config.tenants):
        source = config.file if config.file and tenant != Tenant() else "default"
        for key, one in declared(Tenant).items():
            shown = show_value(one, getattr(tenant, one.name))
            if key == "secret" and shown:
                shown = "(hidden)"
            yield f"tenant.{index}.{key}", shown, source


def show_value(one: "Field[Any]", value: Any) -> str:
    """A value as a person would type it; parsing it gives the same value again."""
    kind = one.metadata["kind"]
    if kind == "choices":
        return ",".join(value)
    if kind == "flag":
        return "true" if value else "false"
    formats = {"size": (format_size, parse_size), "time": (format_time, parse_time),
               "rate": (format_rate, parse_rate)}  # fmt: skip
    if kind in formats:
        show, parse = formats[kind]
        short = show(value).replace(" ", "")
        try:
            return short if parse(short) == value else str(value)
        except BadInput:  # a rounded figure that is no whole number of base units
            return str(value)
    return str(value)


def _given(
    tables: Mapping[str, Any],
    file: str,
    environ: Mapping[str, str] | None,
    overrides: Mapping[str, str] | None,
) -> Iterable[tuple[str, Any, str]]:
    """Every `(section.key, raw value, source)` that was given, weakest source first."""
    for section, table in tables.items():
        check_known(section, [*SECTIONS, "tenant"], file, "section")
        if not isinstance(table, dict):
            raise BadInput(f"{section!r} is a value", file, f"write it as a table [{section}]")
        for key, value in table.items():
            check_known(key, declared(SECTIONS[section]), f"{file}: [{section}]")
            yield f"{section}.{key}", value, file
    for name, text in (os.environ if environ is None else environ).items():
        words = name.split("_", 2)
        if words[0] == "OFFSTAGE" and len(words) == 3 and words[1].lower() in SECTIONS:
            section, key = words[1].lower(), words[2].lower()
            check_known(key, declared(SECTIONS[section]), f"environment: {name}")
            yield f"{section}.{key}", text, name
    for where, text in (overrides or {}).items():
        section, dot, key = where.partition(".")
        if not dot:
            raise BadInput(f"{where!r} is no option", "command line", "write section.key=value")
        check_known(section, SECTIONS, "command line", "section")
        check_known(key, declared(SECTIONS[section]), f"command line: [{section}]")
        yield where, text, "command line"


def _tenants(tables: Any, file: str) -> tuple[Tenant, ...]:
    if tables is None:
        return (Tenant(),)
    if not isinstance(tables, list) or not all(isinstance(one, dict) for one in tables):
        raise BadInput("tenant is not a list of tables", file, "write [[tenant]] for each")
    known = declared(Tenant)
    tenants = []
    for index, table in enumerate(tables):
        where = f"{file}: [[tenant]] {index + 1}"
        chosen = {}
        for key, value in table.items():
            check_known(key, known, where)
            chosen[known[key].name] = _parse(known[key], value, f"{where} {key}")
        tenants.append(Tenant(**chosen))
    return tuple(tenants)


def _parse(one: "Field[Any]", value: Any, where: str) -> Any:
    """The typed value of what a file, a variable or a person gave."""
    meta = one.metadata
    kind = meta["kind"]
    if kind == "flag":
        return _flag(value, where)
    if kind == "text" or kind == "choice":
        if not isinstance(value, str):
            raise BadInput(f"{value!r} is not text", where, f'write it as "{one.default}"')
        if kind == "choice":
            _check_choice(value, meta["choices"], where)
        return value
    if kind == "choices":
        return _names(value, meta["choices"], where)
    number = _number(kind, value, where)
    if not meta["low"] <= number <= meta["high"]:
        low, high = (show_value(one, meta[end]) for end in ("low", "high"))
        raise BadInput(f"{value!r} is out of range", where, f"choose {low} to {high}")
    return number


def _number(kind: str, value: Any, where: str) -> int:
    if kind == "size":
        return parse_size(value, where)
    if kind == "time":
        return parse_time(value, where)
    if kind == "rate":
        return int(parse_rate(value, where))
    try:
        if isinstance(value, str):
            return int(value.replace("_", ""), 10)
    except ValueError:
        pass
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{value!r} is not a whole number", where, "write one such as 64")
    return value


def _flag(value: Any, where: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in TRUE + FALSE:
        return value.lower() in TRUE
    raise BadInput(f"{value!r} is neither true nor false", where, "write true or false")


def _names(value: Any, choices: tuple[str, ...], where: str) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"{value!r} is not a list of names", where, f'write ["{choices[0]}"]')
    names = [name.strip() for name in names if name.strip() not in ("", "none")]
    for name in names:
        _check_choice(name, choices, where)
    return tuple(dict.fromkeys(names))


def _check_choice(value: str, choices: tuple[str, ...], where: str) -> None:
    if value not in choices:
        shown = ", ".join(choice or '""' for choice in choices)
        raise BadInput(f"{value!r} is not one of {shown}", where, "choose one of them")
