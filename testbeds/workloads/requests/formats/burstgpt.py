"""BurstGPT: arrivals and token counts of ChatGPT and GPT-4 as CSV (HPMLL/BurstGPT).

`Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type`, in version 2 with
`Session ID` and `Elapsed time` after the first. Times are seconds from the first day's midnight.
Conversations of version 2 name their session, calls of the API do not. A request without response
tokens failed upstream; it is kept. There are no prefixes. Cite Wang et al., arXiv 2401.17644.
"""

import re

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.collector import Columns
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.formats.base import Format, Head, Source, numbered
from offstage.testbeds.workloads.requests.formats.table import has_columns, rows, tokens

__all__ = ["FORMAT"]

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
SESSION = "Session ID"
_TIME = re.compile(r"\d{1,18}(\.\d{1,9})?", flags=re.ASCII)
_EXPECTED = f"{', '.join(COLUMNS)} and a time in seconds such as 5.0 are expected"


def _knows(head: Head) -> bool:
    return has_columns(head, COLUMNS)


def _read(source: Source) -> Trace:
    columns = Columns(None, ordered=True)
    per_s = source.per_second("s")
    failed = of_sessions = 0
    for where, (time, asked, answered, session) in rows(source, COLUMNS, (SESSION,), _EXPECTED):
        if not _TIME.fullmatch(time):
            raise BadInput(
                f"Timestamp {time[:40]!r} is not a time of 0 s or later", where, _EXPECTED
            )
        outputs = tokens(answered, "Response tokens", where, _EXPECTED)
        columns.add(
            where,
            float(time) / per_s,
            tokens(asked, "Request tokens", where, _EXPECTED),
            outputs,
            session=session or None,
        )
        failed += not outputs
        of_sessions += bool(session)
        if source.full(len(columns)):
            break
    source.check_found(len(columns), _EXPECTED)
    notes = []
    if failed:
        notes.append(f"{numbered(failed, 'request')} without an answer: failed upstream, kept here")
    if 0 < of_sessions < len(columns):
        notes.append(
            f"sessions named by {of_sessions:,} of {len(columns):,} requests: no figures of them"
        )
    return columns.finish(source.origin(FORMAT, *notes))


FORMAT = Format(
    "burstgpt",
    "BurstGPT: arrivals and token counts as CSV, with sessions in version 2",
    "CC-BY 4.0 (HPMLL/BurstGPT; cite Wang et al., arXiv 2401.17644)",
    _knows,
    _read,
    "s",
)
