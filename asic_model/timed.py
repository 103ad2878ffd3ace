"""A recorded run as its hosts saw it, from asking for blocks until having them.

Model: a host times each fetch by its own clock, which is what a `ChipRun` does by the model's. A
run without a host's figures, one of a daemon alone, is put together. The log knows when the core
received a fetch and when it answered the last demand. The wait in the ring comes before that; the
answer and the copy of the last block come after it. A fetch that finds every block staged waits for
no answer and takes only the copies of its blocks. The timers record each stage as a distribution,
not per fetch, so each fetch gets the mean: the mean latency is right, and the spread is that of the
core and the store. Without the hosts' timers, copies and answer count as 0.

With a modelled device in the loop every fetch waits for its answer, which the model held until the
last block was handed over; it held the command, too. The host's own copy out of shared memory is
not part of the model, and takes next to none of the dilated time.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from offstage.asic_model.account import logged_of
from offstage.asic_model.result import Logged, times_of
from offstage.asic_model.trace import Fetch, Trace
from offstage.bindings.stages import Stages

__all__ = ["as_hosts_saw", "deadlines_missed", "mean_ns"]

MODEL = "model_command"
"""Timed only with a modelled device in the loop."""


def mean_ns(stages: Stages, *names: str) -> float:
    """The sum of the means of some stages; a stage that was not timed counts as 0."""
    return sum(stages[name].ns_mean for name in names if name in stages)


def as_hosts_saw(
    trace: Trace, stages: Stages, fetch_ms: Sequence[float] = (), fetch_count: int = 0
) -> Logged:
    """The run by the definitions of a `ChipRun`. `fetch_ms`: evenly spaced quantiles of the hosts'
    own times of the `fetch_count` fetches; empty: none is known."""
    fetches = [one for one in trace.fetches if one.demands and not one.retry]
    spans = np.array([_span_ns(one, stages) for one in fetches])
    waited = np.array([bool(one.waits) for one in fetches])
    tokens: dict[tuple[int, int], int] = {}
    token = np.array(
        [tokens.setdefault((one.session, one.step), len(tokens)) for one in fetches], np.int64
    )
    stall = np.bincount(token, spans * waited, minlength=len(tokens))
    fetch_ns = times_of(spans)
    if len(fetch_ms):
        fetch_ns = msgspec.structs.replace(times_of(np.array(fetch_ms) * 1e6), count=fetch_count)
    return msgspec.structs.replace(logged_of(trace), fetch_ns=fetch_ns, stall_ns=times_of(stall))


def deadlines_missed(trace: Trace, stages: Stages) -> int:
    """Tokens that took longer than their session's pace, from their first command to their last
    block."""
    spans: dict[tuple[int, int], tuple[float, float]] = {}
    for one in trace.fetches:
        if one.demands and not one.retry:
            begin, end = spans.get((one.session, one.step), (math.inf, 0.0))
            sent = one.at_ns - mean_ns(stages, "ring_wait", MODEL)
            spans[one.session, one.step] = (
                min(begin, sent),
                max(end, sent + _span_ns(one, stages)),
            )
    paces = trace.session_ns
    return sum(
        0 < paces.get(session, 0) < end - begin for (session, _), (begin, end) in spans.items()
    )


def _span_ns(one: Fetch, stages: Stages) -> float:
    if MODEL in stages:
        held = mean_ns(stages, "ring_wait", MODEL, "model_hit", "answer")
        return held + one.answered_ns - one.at_ns
    block = mean_ns(stages, "copy", "check")
    if not one.waits:
        return one.demands * block
    return mean_ns(stages, "ring_wait", "answer") + one.answered_ns - one.at_ns + block
