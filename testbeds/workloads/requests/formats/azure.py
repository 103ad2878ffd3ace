"""Azure LLM inference traces: arrivals and token counts as CSV (Azure/AzurePublicDataset, 2023).

`TIMESTAMP,ContextTokens,GeneratedTokens`, with times such as `2023-11-16 18:15:46.6805900`. There
are no sessions and no prefixes. Cite Patel et al., Splitwise, ISCA '24.
"""

import csv
import re
from datetime import UTC, datetime

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.collector import Columns
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.formats.base import Format, Head, Source
from offstage.testbeds.workloads.requests.trace import lines

__all__ = ["FORMAT"]

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(\.\d{1,9})?(?:\+00:00)?")
_COUNT = re.compile(r"\d{1,15}")
_EXPECTED = f"{','.join(COLUMNS)} and a time such as 2023-11-16 18:15:46.6805900 are expected"


def _knows(head: Head) -> bool:
    return tuple(head.text.strip().split(",")) == COLUMNS


def _seconds(text: str, where: str) -> float:
    match = _TIME.fullmatch(text)
    try:
        if match:
            whole = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
            return whole.timestamp() + float(match[2] or 0)
    except ValueError:
        pass  # invalid: such as a thirteenth month
    raise BadInput(f"{text!r} is not a time", where, _EXPECTED)


def _read(source: Source) -> Trace:
    path = source.path
    columns = Columns(None, ordered=True)
    begin_s = 0.0
    header = False
    for number, raw in lines(path):
        where = f"{path}:{number}"
        try:
            fields = next(csv.reader([raw.decode("utf-8-sig")]), [])
        except (csv.Error, UnicodeDecodeError) as error:
            raise BadInput(f"not CSV ({error})", where, _EXPECTED) from None
        if not header:
            if tuple(fields) != COLUMNS:
                raise BadInput("has no header of this format", where, _EXPECTED)
            header = True
            continue
        if len(fields) != 3 or not all(_COUNT.fullmatch(field) for field in fields[1:]):
            raise BadInput(f"{len(fields)} fields, or invalid token counts", where, _EXPECTED)
        time_s = _seconds(fields[0], where)
        begin_s = begin_s if len(columns) else time_s
        if time_s < begin_s:
            raise BadInput("earlier than the first request", where, "sort the trace by TIMESTAMP")
        columns.add(where, time_s - begin_s, int(fields[1]), int(fields[2]))
        if source.full(len(columns)):
            break
    if not len(columns):
        raise BadInput("the file holds no request", str(path), _EXPECTED)
    return columns.finish(source.origin(FORMAT))


FORMAT = Format(
    "azure",
    "Azure LLM inference traces 2023: arrivals and token counts as CSV",
    "CC-BY 4.0 (Azure/AzurePublicDataset; cite Patel et al., Splitwise, ISCA '24)",
    _knows,
    _read,
)
