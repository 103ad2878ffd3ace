"""Paired differences as a table: for the terminal, as CSV for a program, as LaTeX for a paper.

A row is one figure of one pair of points. Shares are in percent and their differences in
percentage points; reads are per demand, waits in ms for a token. CSV has every number unrounded,
in the unit of its figure.
"""

import csv
import io
from collections.abc import Sequence

from offstage.testbeds.lab.results.paired import FIGURES, Difference
from offstage.testbeds.lab.results.summary import Interval
from offstage.testbeds.report.lab.series import over_k, workload_words
from offstage.testbeds.table import Column, Table

__all__ = [
    "HEAD",
    "NAMES",
    "as_csv",
    "as_latex",
    "cells_of",
    "differences_sentence",
    "differences_table",
    "scale_of",
    "unit_of",
]

NAMES = {
    "nontrivial_hit": "non-trivial hits",
    "nontrivial_selection_hit": "non-trivial hits of all selections",
    "hit": "hits",
    "selection_hit": "hits of all selections",
    "late": "late",
    "pollution": "pollution",
    "reads_per_demand": "reads per demand",
    "stall_ms_mean": "mean stall of a token",
}
assert set(NAMES) == set(FIGURES)
UNITS = {"reads_per_demand": "", "stall_ms_mean": " ms"}
NOTHING = "–"
HEAD = (
    "figure",
    "workload",
    "buffer",
    "first",
    "second",
    "first is",
    "second is",
    "second − first",
)
ESCAPED = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
    "−": "$-$",
    "×": r"$\times$",
    "–": "--",
}


def unit_of(figure: str) -> str:
    """The unit of a figure's difference: points for a share, else the figure's unit."""
    return UNITS.get(figure, " points")


def scale_of(figure: str) -> float:
    """The factor from a value to its displayed unit."""
    return 1.0 if figure in UNITS else 100.0


def differences_sentence(rows: Sequence[Difference]) -> str:
    """The first row's finding, and whether the interval includes zero."""
    one = rows[0]
    if one.difference is None:
        return f"{NAMES[one.figure].capitalize()} have no value on both sides."
    shown = _interval(one.difference, one.figure, signed=True)
    low, high = one.difference.low, one.difference.high
    known = low is not None and high is not None
    equal = known and low is not None and high is not None and low <= 0 <= high
    doubt = (
        "; one request gives no interval"
        if not known
        else "; the interval includes 0, so neither is better"
        if equal
        else ""
    )
    return (
        f"{_side(one, 'second')} has {shown}{unit_of(one.figure)} of {NAMES[one.figure]} "
        f"over {_side(one, 'first')}, at {over_k(one.buffer_over_k)} on "
        f"{workload_words(one.workload)}, paired over {one.requests} requests{doubt}."
    )


def _side(row: Difference, side: str) -> str:
    name: str = getattr(row, side)
    if row.first_run == row.second_run:
        return name
    return f"{name} of {getattr(row, f'{side}_run')}"


def cells_of(row: Difference) -> list[str]:
    """A row as text, in the order of `HEAD`."""
    unit = UNITS.get(row.figure, " %")
    return [
        NAMES[row.figure],
        workload_words(row.workload),
        over_k(row.buffer_over_k),
        _side(row, "first"),
        _side(row, "second"),
        _value(row.first_value, row.figure) + (unit if row.first_value else ""),
        _value(row.second_value, row.figure) + (unit if row.second_value else ""),
        _interval(row.difference, row.figure, signed=True)
        + (unit_of(row.figure) if row.difference else ""),
    ]


def _value(found: Interval | None, figure: str, signed: bool = False) -> str:
    return NOTHING if found is None else _number(found.value, figure, signed)


def _number(value: float, figure: str, signed: bool) -> str:
    shown = value * scale_of(figure)
    digits = 3 if figure in UNITS else 2
    return f"{shown:{'+' if signed else ''}.{digits}f}".replace("-", "−")


def _interval(found: Interval | None, figure: str, signed: bool) -> str:
    if found is None:
        return NOTHING
    text = _number(found.value, figure, signed)
    if found.low is None or found.high is None:
        return text
    ends = (_number(end, figure, signed) for end in (found.low, found.high))
    return f"{text} ({' to '.join(ends)})"


def differences_table(rows: Sequence[Difference]) -> Table:
    """The rows as a table, without columns that are equal in all rows."""
    body = [cells_of(row) for row in rows]
    brief = [
        name not in ("workload", "buffer", "first") or len({cells[at] for cells in body}) > 1
        for at, name in enumerate(HEAD)
    ]
    columns = [Column(name, left=at < 5, brief=brief[at]) for at, name in enumerate(HEAD)]
    return Table.of(columns, body)


def as_csv(rows: Sequence[Difference]) -> str:
    """One line a row; an interval is three columns, empty if unknown."""
    out = io.StringIO()
    plain = [
        name
        for name in Difference.__struct_fields__
        if name not in ("first_value", "second_value", "difference")
    ]
    values = ("first_value", "second_value", "difference")
    ends = ("value", "low", "high")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*plain, *(f"{name}_{end}" for name in values for end in ends)])
    for row in rows:
        found = [getattr(row, name) for name in values]
        writer.writerow(
            [
                *(getattr(row, name) for name in plain),
                *(
                    "" if one is None or getattr(one, end) is None else repr(getattr(one, end))
                    for one in found
                    for end in ends
                ),
            ]
        )
    return out.getvalue()


def as_latex(rows: Sequence[Difference]) -> str:
    """A `tabular` with the rules of booktabs; no table environment and no caption around it."""
    lines = [
        r"% \usepackage{booktabs}",
        rf"\begin{{tabular}}{{{'l' * 5}{'r' * 3}}}",
        r"\toprule",
        " & ".join(map(_tex, HEAD)) + r" \\",
        r"\midrule",
        *(" & ".join(map(_tex, cells_of(row))) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    return "".join(ESCAPED.get(char, char) for char in text)
