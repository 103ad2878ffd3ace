"""The runs below a folder as rows: every arm of a demo or a host's run, every point of a lab run.

A row is made from the `summary.json` that the run left, with the same checks as its report. What
cannot be read is skipped with a line that says so. Rows are filtered and sorted by the keys of
docs/reference/summary-json.md and lab-results.md; of a figure with an interval a row has the value.
"""

import csv
import io
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_known
from offstage.bindings.units import format_rate
from offstage.testbeds.lab.results.summary import Interval, PointInfo, PointSummary
from offstage.testbeds.live.results import RunResult, Summary
from offstage.testbeds.report.lab.definitions import LAB_DEFINITIONS
from offstage.testbeds.report.page.files import (
    SUMMARY_NAME,
    holds_lab_summary,
    read_lab_summary,
    read_summary,
)
from offstage.testbeds.report.page.numbers import percent, show
from offstage.testbeds.report.run.definitions import DEFINITIONS
from offstage.testbeds.table import Column, Table

__all__ = [
    "DATE_FORMAT",
    "SHOWN",
    "Row",
    "as_csv",
    "as_table",
    "chosen",
    "filtered",
    "rows_below",
    "shown_of",
    "sorted_by",
]

Value = bool | str | int | float | None
Row = dict[str, Value]
SHOWN = (
    "run",
    "arm",
    "setting",
    "hit",
    "nontrivial_hit",
    "traffic_ratio",
    "traffic_vs_reference",
    "tokens_per_s",
    "date",
)
"""Columns that nobody asked for by name; a figure only where a row has it."""
DATE_FORMAT = "%Y-%m-%d %H:%M"
"""Of `date`: when the run was done, in UTC."""
FIX = "name a folder that `offstage demo --out`, `host run --out` or `lab run --out` wrote into"
TESTS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
YES, NO = ("yes", "true"), ("no", "false")
CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|!=|=|>|<)\s*(.*?)\s*")
DEFINED = {one.key: one for one in (*LAB_DEFINITIONS, *DEFINITIONS)}
PERCENT = frozenset(one.key for one in DEFINED.values() if one.text.startswith("Share"))


def rows_below(folder: Path) -> tuple[list[Row], list[str]]:
    """The rows of every run below the folder, in the order of their paths, and a line for each
    file that was skipped. BadInput if there is no folder, or no run in it."""
    if not folder.is_dir():
        raise BadInput("is not a folder" if folder.exists() else "no such folder", str(folder), FIX)
    rows: list[Row] = []
    skipped: list[str] = []
    for path in sorted(folder.rglob(SUMMARY_NAME)):
        try:
            rows += _rows_of(path, folder)
        except BadInput as bad:
            skipped.append(str(bad))
    if not rows:
        told = f"no run can be read ({skipped[0]})" if skipped else "has no run"
        raise BadInput(told, str(folder), FIX)
    return rows, skipped


def filtered(rows: Sequence[Row], conditions: Sequence[str]) -> list[Row]:
    """The rows that meet every condition, `KEY=VALUE`, `!=`, `<`, `<=`, `>` or `>=`; a row without
    the figure meets none. BadInput for a key that no row has, and for a bound that is no number."""
    tests = [_condition(rows, text) for text in conditions]
    return [row for row in rows if all(test(row) for test in tests)]


def sorted_by(rows: Sequence[Row], key: str, of: Sequence[Row]) -> list[Row]:
    """The best first where one is better, else the least; rows without the figure last. `of`: all
    rows that there are. BadInput for a key that none of them has."""
    check_known(key, _keys(of), "--sort", "figure")
    there = [row for row in rows if row.get(key) is not None]
    best_first = key in DEFINED and DEFINED[key].better == "higher"
    there.sort(key=lambda row: _order(row[key]), reverse=best_first)
    return [*there, *(row for row in rows if row.get(key) is None)]


def chosen(rows: Sequence[Row], columns: Sequence[str], of: Sequence[Row]) -> list[Row]:
    """The rows with these columns alone; `of` as above. BadInput for a column that none of them
    has."""
    for column in columns:
        check_known(column, _keys(of), "--columns", "figure")
    return [{column: row.get(column) for column in columns} for row in rows]


def shown_of(rows: Sequence[Row]) -> list[str]:
    """The columns of `SHOWN` that a row has a figure for."""
    return [name for name in SHOWN if any(row.get(name) is not None for row in rows)]


def as_table(rows: Sequence[Row], columns: Sequence[str]) -> Table:
    """The rows for a terminal, with units; those of `SHOWN` by the names that reports give them,
    others by their keys."""
    heads = [
        Column(
            DEFINED[name].label if name in SHOWN and name in DEFINED else name,
            left=any(isinstance(row[name], str) for row in rows),
            wrap=name == "arm",
        )
        for name in columns
    ]
    return Table.of(heads, [[_shown(name, row[name]) for name in columns] for row in rows])


def as_csv(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A line each, in full precision; empty where a run has no such figure."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = [row[name] for name in columns]
        writer.writerow([repr(one) if isinstance(one, float) else one for one in values])
    return out.getvalue()


def _rows_of(path: Path, folder: Path) -> Iterator[Row]:
    changed_s = path.stat().st_mtime
    head: Row = {
        "run": str(path.parent.relative_to(folder)) if path.parent != folder else folder.name,
        "date": datetime.fromtimestamp(changed_s, UTC).strftime(DATE_FORMAT),
    }
    if holds_lab_summary(path):
        for point in read_lab_summary(path).points:
            yield head | _of_point(point)
    else:
        yield from (head | row for row in _of_summary(read_summary(path)))


def _of_summary(summary: Summary) -> Iterator[Row]:
    parts = {"": summary.runs, ", a layer ahead": summary.ahead, ", no DPU": summary.baselines}
    for words, runs in parts.items():
        for run in runs:
            own: Row = {"kind": "run", "arm": run.name, "setting": run.storage + words}
            yield _figures(run) | own


def _of_point(point: PointSummary) -> Row:
    info = point.info
    setting = f"{info.workload}, {info.buffer_over_k:g} k"
    if info.bandwidth_bytes_per_s:
        setting += f", cap {format_rate(info.bandwidth_bytes_per_s)}"
    own: Row = {"kind": "lab", "arm": info.policy, "setting": setting}
    return _figures(info) | _figures(point) | own


def _figures(of: RunResult | PointSummary | PointInfo) -> Row:
    """Every figure that is one value."""
    found: Row = {}
    for key, value in _fields(of):
        one = value.value if isinstance(value, Interval) else value
        if one is None or isinstance(one, str | int | float):
            found[key] = one
    return found


def _fields(of: RunResult | PointSummary | PointInfo) -> Iterator[tuple[str, object]]:
    names = of.__struct_fields__ if isinstance(of, msgspec.Struct) else vars(of)
    for name in names:
        yield name, getattr(of, name)


def _keys(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))


def _condition(rows: Sequence[Row], text: str) -> Callable[[Row], bool]:
    found = CONDITION.fullmatch(text)
    if found is None:
        raise BadInput(f"{text!r} is not a condition", "--where", "write KEY=VALUE or KEY>NUMBER")
    key, sign, value = found.groups()
    check_known(key, _keys(rows), "--where", "figure")
    had = [row[key] for row in rows if row.get(key) is not None]
    if sign in ("=", "!="):
        _check_value(rows, had, text, value)
        return lambda row: (row.get(key) is not None and _same(row[key], value)) == (sign == "=")
    bound = _number(value)
    if bound is None:
        raise BadInput(f"{value!r} is not a number", f"--where {text}", "give a number, or use =")
    if had and all(isinstance(one, str) for one in had):
        raise BadInput(f"{key} is no number", f"--where {text}", "use = or !=")
    test = TESTS[sign]

    def met(row: Mapping[str, Value]) -> bool:
        had = row.get(key)
        return isinstance(had, int | float) and test(had, bound)

    return met


def _check_value(rows: Sequence[Row], had: Sequence[Value], text: str, value: str) -> None:
    """BadInput for what none of the values `had` can be, of which no row would be told."""
    if any(isinstance(one, str) for one in had):
        return
    if had and all(isinstance(one, bool) for one in had):
        if value.lower() not in (*YES, *NO):
            raise BadInput(f"{value!r} is neither yes nor no", f"--where {text}", "give one")
    elif _number(value) is None:
        named = next((key for row in rows for key in row if row[key] == value), "")
        fix = f"did you mean {named}={value}?" if named else "give a number"
        raise BadInput(f"{value!r} is not a number", f"--where {text}", fix)


def _same(had: Value, asked: str) -> bool:
    if isinstance(had, bool):
        return asked.lower() in (YES if had else NO)
    if isinstance(had, int | float):
        return had == _number(asked)
    return had == asked


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return None if math.isnan(number) else number  # nothing is above, below or like it


def _order(value: Value) -> tuple[int, float, str]:
    """Numbers before words, each in their order."""
    return (0, value, "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _shown(key: str, value: Value) -> str:
    if key in PERCENT and isinstance(value, float):
        return percent(value)
    return show(key, value)
