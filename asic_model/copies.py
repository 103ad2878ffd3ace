"""Other loads from one trace: its beginning alone, or several copies side by side.

Model: the beginning of a trace is its first fetches, with the reads decided until then. A copy is
the same sessions under other numbers, on other chunks; copies start at the same moment and run
concurrently, and each fetch still follows those of its own copy. So a trace of four sessions
becomes one of 4 n with unchanged decisions per session. Nothing here changes a decision.
"""

from dataclasses import replace

from offstage.asic_model.trace import START, Fetch, Read, Trace

__all__ = ["begin", "copies"]


def begin(trace: Trace, fetch_max: int) -> Trace:
    """The first `fetch_max` fetches of a trace; the whole trace if it has no more."""
    if len(trace.fetches) <= fetch_max:
        return trace
    until_ns = trace.fetches[fetch_max].at_ns
    reads = [read for read in trace.reads if read.at_ns < until_ns]
    fetches = [
        replace(one, waits=[read for read in one.waits if read < len(reads)])
        for one in trace.fetches[:fetch_max]
    ]
    written = [one for one in trace.writes_ns if one[0] < until_ns]
    return replace(trace, fetches=fetches, reads=reads, writes_ns=written)


def copies(trace: Trace, count: int) -> Trace:
    """`count` copies of a trace side by side, in the order of the log's times."""
    order = sorted(
        (
            (one.at_ns, number, copy)
            for number, one in enumerate(trace.fetches)
            for copy in range(count)
        ),
    )
    place = {(number, copy): at for at, (_, number, copy) in enumerate(order)}
    sessions = 1 + max(one.session for one in trace.fetches)
    chunks = 1 + max((one.chunk for one in trace.reads), default=0)
    made = [
        _fetch(trace.fetches[number], copy, sessions, place, len(trace.reads))
        for _, number, copy in order
    ]
    return replace(
        trace,
        fetches=made,
        reads=[
            _read(one, copy, chunks, place, len(trace.reads))
            for copy in range(count)
            for one in trace.reads
        ],
        writes_ns=[
            (ns, chunk + copy * chunks, layer)
            for copy in range(count)
            for ns, chunk, layer in trace.writes_ns
        ],
        session_ns={
            number + copy * sessions: ns
            for copy in range(count)
            for number, ns in trace.session_ns.items()
        },
        ends=trace.ends * count,
    )


def _fetch(
    one: Fetch, copy: int, sessions: int, place: dict[tuple[int, int], int], reads: int
) -> Fetch:
    return replace(
        one,
        session=one.session + copy * sessions,
        after=tuple(place[number, copy] for number in one.after),
        waits=[wait if wait == START else wait + copy * reads for wait in one.waits],
    )


def _read(one: Read, copy: int, chunks: int, place: dict[tuple[int, int], int], reads: int) -> Read:
    kind, number = one.after
    if kind == "fetch":
        number = place[number, copy]
    elif kind == "read":
        number += copy * reads
    return replace(one, chunk=one.chunk + copy * chunks, after=(kind, number))
