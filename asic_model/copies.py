"""Other loads from one trace: its beginning alone, or several copies side by side.

Model: the beginning of a trace is its first fetches, with the reads decided until then. A copy is
the same sessions under other numbers, on other chunks; copies run concurrently, and each fetch
still follows those of its own copy. Each begins at a moment of its own, drawn from a seed within
one step, since GPUs do not decode in unison: the first copy at once. So a trace of four sessions
becomes one of 4 n with unchanged decisions per session. Nothing here changes a decision.
"""

from dataclasses import replace
from itertools import accumulate

import numpy as np

from offstage.asic_model.trace import START, Fetch, Read, Trace

__all__ = ["begin", "copies"]

DEMANDS_MAX = 20_000
"""Of a beginning: a fetch of single entries has thousands."""


def begin(trace: Trace, fetch_max: int, demands_max: int = DEMANDS_MAX) -> Trace:
    """The first `fetch_max` fetches of a trace, or as many as have `demands_max` demands together;
    the whole trace if it has no more."""
    demands = accumulate(one.demands for one in trace.fetches)
    fetch_max = max(1, min(fetch_max, sum(one <= demands_max for one in demands)))
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


def copies(trace: Trace, count: int, seed: int = 1, tenants: int = 1) -> Trace:
    """`count` copies of a trace side by side, in the order of their times. With several `tenants`
    of equal weight, each copy belongs to the next of them."""
    later = _phases(trace, count, seed)
    order = sorted(
        (
            (one.at_ns + later[copy], number, copy)
            for number, one in enumerate(trace.fetches)
            for copy in range(count)
        ),
    )
    place = {(number, copy): at for at, (_, number, copy) in enumerate(order)}
    sessions = 1 + max(one.session for one in trace.fetches)
    chunks = 1 + max((one.chunk for one in trace.reads), default=0)
    made = [
        replace(
            _fetch(trace.fetches[number], copy, sessions, place, len(trace.reads)),
            at_ns=at_ns,
            tenant=trace.fetches[number].tenant if tenants == 1 else copy % tenants,
        )
        for at_ns, number, copy in order
    ]
    return replace(
        trace,
        fetches=made,
        reads=[
            replace(
                _read(one, copy, chunks, place, len(trace.reads)),
                at_ns=one.at_ns + later[copy],
                deadline_ns=one.deadline_ns + later[copy],
                tenant=one.tenant if tenants == 1 else copy % tenants,
            )
            for copy in range(count)
            for one in trace.reads
        ],
        writes_ns=[
            (ns + later[copy], chunk + copy * chunks, layer)
            for copy in range(count)
            for ns, chunk, layer in trace.writes_ns
        ],
        session_ns={
            number + copy * sessions: ns
            for copy in range(count)
            for number, ns in trace.session_ns.items()
        },
        ends=trace.ends * count,
        weights=trace.weights if tenants == 1 else (1,) * tenants,
    )


def _phases(trace: Trace, count: int, seed: int) -> list[int]:
    """When each copy begins, in ns after the first: within the mean time of a step."""
    steps = len({(one.session, one.step) for one in trace.fetches})
    sessions = len({one.session for one in trace.fetches})
    span_ns = trace.fetches[-1].at_ns - trace.fetches[0].at_ns
    drawn = np.random.default_rng(seed).random(count) * span_ns * sessions / max(steps, 1)
    return [0, *(round(one) for one in drawn.tolist()[1:])]


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
