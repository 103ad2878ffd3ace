"""Requests of sessions for an engine: turns that follow each other after a pause.

The requests are those of `bench prefetch` (`lab.pod.requests`): of a trace, or generated. A block
of theirs becomes a number of tokens drawn from its number, such that the longest prompt fits the
model's context; what two prompts share of their front they share here. All times are scaled by one
factor, so that the engine would compute for a given share of the time without the tier.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from offstage.bindings.errors import BadInput
from offstage.testbeds.bench.engines.arrivals import SPECIAL
from offstage.testbeds.lab.pod.requests import Requests
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS

__all__ = ["Turn", "Turns", "turns_of"]


@dataclass(frozen=True)
class Turn:
    """One request; `at_s` is its arrival before scaling, and it waits for the end of the turn
    `before` it. `next`: the turn after it. -1: none."""

    at_s: float
    prompt: list[int]
    before: int
    next: int


@dataclass(frozen=True)
class Turns:
    """Requests in order of arrival. `scale`: tokens for each of the trace's."""

    turns: Sequence[Turn]
    trace: str
    scale: float

    def speed(self, load: float, cost_s: Callable[[int], float]) -> float:
        """Seconds of the trace in one here, with which computing every prompt takes `load` of the
        time in which they arrive."""
        span_s = max(one.at_s for one in self.turns)
        busy_s = sum(cost_s(len(one.prompt)) for one in self.turns)
        return max(span_s, 1e-9) * load / busy_s


def turns_of(requests: Requests, trace: str, *, longest: int, vocabulary: int, seed: int) -> Turns:
    """Turns of at most `longest` tokens. BadInput: no request has a prompt."""
    counts = np.diff(requests.offsets)
    most = int(counts.max(initial=0))
    if most == 0 or longest < most:
        raise BadInput(
            f"prompts of {most:,} blocks in {longest:,} tokens", trace, "give a longer --context"
        )
    tokens = min(TRACE_BLOCK_TOKENS, longest // most)

    def prompt(request: int) -> list[int]:
        made: list[int] = []
        for name in requests.of(request).tolist():
            rng = np.random.default_rng([seed, name])
            made += rng.integers(SPECIAL, vocabulary, tokens).tolist()
        return made

    kept = [one for one in range(len(requests)) if counts[one]]
    place = {one: at for at, one in enumerate(kept)}
    following = {
        one: int(requests.next_turn[one]) for one in kept if int(requests.next_turn[one]) in place
    }
    preceding = {after: one for one, after in following.items()}
    arrival_s = requests.arrival_ns / 1e9
    turns = [
        Turn(
            float(arrival_s[one] - arrival_s[kept[0]]),
            prompt(one),
            place[preceding[one]] if one in preceding else -1,
            place[following[one]] if one in following else -1,
        )
        for one in kept
    ]
    return Turns(turns, trace, tokens / TRACE_BLOCK_TOKENS)
