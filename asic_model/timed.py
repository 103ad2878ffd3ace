"""A recorded run as its hosts saw it: the log's times, and what the stage timers add to them.

Model: the log knows when the core was told of a fetch and when it answered the last demand. Before
lies the wait in the ring, after it the answer and the copy of the last block; a fetch that finds
all staged waits for no answer and is the copies of its blocks alone. The timers know each of these
stages as a distribution and not by fetch, so each fetch gets its mean: the mean latency is right,
and the spread is that of the core and the store. A run whose hosts' timers are not known has no
copies and no answer.

With a modelled device in the loop every fetch waits for its answer, which the model held until the
last block was handed over; it held the command, too. The host's own copy out of shared memory is no
part of what the model says, and of the dilated time it takes next to none.
"""

import math

import msgspec
import numpy as np

from offstage.asic_model.account import logged_of
from offstage.asic_model.result import Logged, times_of
from offstage.asic_model.trace import Fetch, Trace
from offstage.bindings.stages import Stages

__all__ = ["as_hosts_saw", "deadlines_missed", "mean_ns"]

MODEL = "model_command"
"""Timed only where a modelled device is in the loop."""


def mean_ns(stages: Stages, *names: str) -> float:
    """The means of some stages together; one that was not timed takes no time."""
    return sum(stages[name].ns_mean for name in names if name in stages)


def as_hosts_saw(trace: Trace, stages: Stages) -> Logged:
    """The run by the definitions of a `ChipRun`."""
    fetches = [one for one in trace.fetches if one.demands and not one.retry]
    spans = np.array([_span_ns(one, stages) for one in fetches])
    waited = np.array([bool(one.waits) for one in fetches])
    tokens: dict[tuple[int, int], int] = {}
    token = np.array(
        [tokens.setdefault((one.session, one.step), len(tokens)) for one in fetches], np.int64
    )
    stall = np.bincount(token, spans * waited, minlength=len(tokens))
    return msgspec.structs.replace(
        logged_of(trace), fetch_ns=times_of(spans), stall_ns=times_of(stall)
    )


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
