"""Traces as tables: CSV with a header of names, a line for each request.

Columns that a format reads are found by their names, in any order; the others are counted as
unread. A table of lengths has no prefixes.
"""

import csv
import re
from collections.abc import Iterator, Sequence

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.formats.base import Head, Source

__all__ = ["has_columns", "rows", "tokens"]

_COUNT = re.compile(r"\d{1,15}")


def has_columns(head: Head, names: Sequence[str]) -> bool:
    """Whether the first line of a file is a header with all these names."""
    try:
        return "," in head.text and set(names) <= set(_fields(head.text.encode(), "", ""))
    except BadInput:  # a comma in a file of another kind
        return False


def _fields(raw: bytes, where: str, expected: str) -> list[str]:
    try:
        return next(csv.reader([raw.decode("utf-8-sig").strip("\r\n")]), [])
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadInput(f"not CSV ({error})", where, expected) from None


def rows(
    source: Source, names: Sequence[str], optional: Sequence[str], expected: str
) -> Iterator[tuple[str, list[str]]]:
    """Place and fields of each request: those of `names`, then of `optional`, "" where the table
    has no such column. BadInput for a table without a column of `names`, a cut line, or a blank
    one."""
    header: list[str] = []
    places: list[int | None] = []
    for where, raw in source.lines():
        fields = _fields(raw, where, expected)
        if not header:
            header = fields
            if missing := [name for name in names if name not in header]:
                raise BadInput(f"has no column {', '.join(missing)}", where, expected)
            places = [
                header.index(name) if name in header else None for name in (*names, *optional)
            ]
            source.unread.called = "columns"
            continue
        if len(fields) != len(header):
            cut = "" if raw.endswith(b"\n") else ": the last line is torn"
            raise BadInput(
                f"{len(fields)} fields, the header has {len(header)}{cut}", where, expected
            )
        for name in header:
            if name not in names and name not in optional:
                source.unread.times[name] = source.unread.times.get(name, 0) + 1
        yield where, ["" if place is None else fields[place] for place in places]


def tokens(text: str, name: str, where: str, expected: str) -> int:
    """A number of tokens. BadInput: it is none."""
    if not _COUNT.fullmatch(text):
        raise BadInput(f"{name} {text[:40]!r} is not a number of tokens", where, expected)
    return int(text)
