"""The variants of a spec: every combination of its sweep's axes.

An axis is a key and its values, or a name of its own and tables: each of these changes several keys
together, and has a `label`. Of a spec with weights each combination is a variant, and behind all
of them come those without: KV alone on the same arbiter, each once. Pure but for reading the file.
A bad axis is `BadInput`.
"""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import msgspec

from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_known, declared, read_toml
from offstage.testbeds.lab.spec.load import built
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.lab.spec.weights import OF_STREAM, undisturbed

__all__ = ["variants"]

LABEL = "label"
"""Of a value that changes several keys: what it is called in tables."""


def variants(
    path: Path, changes: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, Spec | BadInput]]:
    """Every combination of the spec's sweep axes, as (label, spec). A combination that contradicts
    itself yields its error instead of a spec, so that the sweep continues."""
    raw = read_toml(path, "give a spec's TOML file")
    base = built(raw, str(path), changes or {})
    for axis, values in base.sweep.items():
        _check_axis(axis, values, f"{path}: [sweep]")
    short = [axis.rpartition(".")[2] for axis in base.sweep]
    names = short if len(set(short)) == len(short) else list(base.sweep)
    without: list[tuple[str, Spec | BadInput]] = []
    for combination in itertools.product(*base.sweep.values()):
        chosen: dict[str, Any] = {}
        for axis, value in zip(base.sweep, combination, strict=True):
            chosen |= _changes(value) if isinstance(value, dict) else {axis: value}
        labels = {
            axis: f"{name}={value[LABEL] if isinstance(value, dict) else value}"
            for axis, name, value in zip(base.sweep, names, combination, strict=True)
        }
        label = ", ".join(labels.values())
        try:
            spec = built(raw, str(path), {**(changes or {}), **chosen})
        except BadInput as error:
            yield label, error
            continue
        alone = undisturbed(spec)
        yield label if alone is spec else _joined(label, "weights"), spec
        if alone is not spec and all(alone != one for _, one in without):
            kept = ", ".join(one for axis, one in labels.items() if axis not in OF_STREAM)
            without.append((_joined(kept, "no weights"), alone))
    yield from without


def _joined(label: str, more: str) -> str:
    return f"{label}, {more}" if label else more


def _changes(value: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that a table of an axis changes; a table in it changes keys of that table."""
    found: dict[str, Any] = {}
    for name, inner in value.items():
        if isinstance(inner, dict):
            found |= {f"{name}.{key}": one for key, one in inner.items()}
        elif name != LABEL:
            found[name] = inner
    return found


def _check_axis(axis: str, values: tuple[Any, ...], where: str) -> None:
    """BadInput unless the axis is a key that may vary, with values that differ."""
    alone = axis in ("name", "sweep")
    if values and not alone and all(isinstance(value, dict) for value in values):
        _check_tables(axis, values, where)
        return
    table, dot, name = axis.rpartition(".")
    tables = declared(Spec)
    check_known(table if dot else axis, tables, where)
    if dot:
        kind = tables[table].type
        kind = next((one for one in get_args(kind) if one is not type(None)), kind)
        if not (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
            raise BadInput(f"axis {axis!r} is not a key of a table", where, "sweep `table.key`")
        check_known(name, declared(kind), f"{where}: [{table}]")
    elif alone:
        raise BadInput(f"{axis!r} cannot be an axis", where, "sweep `table.key`")
    if not values:
        raise BadInput(f"axis {axis!r} has no values", where, "list one or more")
    for value in values:
        if values.count(value) > 1:
            raise BadInput(f"axis {axis!r} has {value!r} twice", where, "list each value once")


def _check_tables(axis: str, values: tuple[dict[str, Any], ...], where: str) -> None:
    """BadInput unless each table has a label of its own, and names what a spec has."""
    labels = [value.get(LABEL) for value in values]
    for value, label in zip(values, labels, strict=True):
        if not isinstance(label, str) or not label or labels.count(label) > 1:
            raise BadInput(
                f"a table of axis {axis!r} has no label of its own",
                where,
                f'give each a {LABEL} = "..."',
            )
        for name in value.keys() - {LABEL}:
            check_known(name, declared(Spec), f"{where}: {axis} {label!r}")
            if name in ("name", "sweep", "seeds"):
                raise BadInput(
                    f"{name!r} cannot vary", f"{where}: {axis} {label!r}", "leave it out"
                )
