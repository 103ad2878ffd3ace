"""Azure LLM inference traces: arrivals and token counts as CSV (Azure/AzurePublicDataset).

`TIMESTAMP,ContextTokens,GeneratedTokens`; the multimodal trace of 2025 has `NumImages` besides,
which is not read. Times are `2023-11-16 18:15:46.6805900` (2023), `2024-05-10 00:00:00.00993+00:00`
or without the fraction (2024), and `2024-10-15T12:00:00.269Z` (2025). There are no sessions and no
prefixes. Cite Patel et al., Splitwise, ISCA '24 (2023), Stojkovic et al., DynamoLLM, arXiv
2408.00741 (2024), Qiu et al., ModServe, SoCC '25 (2025).
"""

import re
from datetime import UTC, datetime

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.collector import Columns
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.formats.base import Format, Head, Source
from offstage.testbeds.workloads.requests.formats.table import has_columns, rows, tokens

__all__ = ["FORMAT"]

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?", flags=re.ASCII
)
_EXPECTED = f"{','.join(COLUMNS)} and a time such as 2023-11-16 18:15:46.6805900 are expected"


def _knows(head: Head) -> bool:
    return has_columns(head, COLUMNS)


def _seconds(text: str, where: str) -> tuple[float, bool]:
    """The time, and whether it names its zone; UTC if not."""
    match = _TIME.fullmatch(text)
    try:
        if match:
            zone = match[3] or ""
            whole = datetime.fromisoformat(match[1] + zone.replace("Z", "+00:00"))
            known = whole if zone else whole.replace(tzinfo=UTC)
            return known.timestamp() + float(match[2] or 0), bool(zone)
    except ValueError:
        pass  # invalid: such as a thirteenth month
    raise BadInput(f"{text[:60]!r} is not a time", where, _EXPECTED)


def _read(source: Source) -> Trace:
    columns = Columns(None, ordered=True)
    begin_s, with_zone = 0.0, False
    for where, (time, context, generated) in rows(source, COLUMNS, (), _EXPECTED):
        time_s, has_zone = _seconds(time, where)
        if not len(columns):
            begin_s, with_zone = time_s, has_zone
        if has_zone != with_zone:
            raise BadInput("only some times name a zone", where, "give it in all or in none")
        if time_s < begin_s:
            raise BadInput("earlier than the first request", where, "sort the trace by TIMESTAMP")
        columns.add(
            where,
            time_s - begin_s,
            tokens(context, "ContextTokens", where, _EXPECTED),
            tokens(generated, "GeneratedTokens", where, _EXPECTED),
        )
        if source.full(len(columns)):
            break
    source.check_found(len(columns), _EXPECTED)
    return columns.finish(source.origin(FORMAT))


FORMAT = Format(
    "azure",
    "Azure inference traces 2023, 2024 and 2025: arrivals and token counts as CSV",
    "CC-BY 4.0 (Azure/AzurePublicDataset; cite the paper of the year)",
    _knows,
    _read,
)
