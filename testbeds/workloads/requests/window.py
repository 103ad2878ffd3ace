"""The window of requests that a run takes from a trace, chosen by rule and recorded in full.

A trace of an hour does not fit a run of seconds, so a run takes consecutive long requests from one
point on. The rule is deterministic: the same trace and options give the same window. Every request
of the trace is accounted for: taken, left out with a reason, or before or after the window.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS, Request

__all__ = ["LeftOut", "Limits", "Window", "choose", "stored_tokens"]


SHARING_SESSIONS_MIN = 4
"""A window in which fewer sessions share a prefix says nothing about sharing."""

CONTINUING_SESSIONS_MIN = 2
"""Turns of conversations whose earlier turn is in the window: they find data in the store, which is
the purpose of a context memory tier."""

_PASSED_OVER_PER_SESSION = 4
"""Requests skipped for the budget, per session wanted, before a window is closed: with more it
would be a selection, not a window."""


@dataclass(frozen=True)
class Limits:
    """Limits of a run. Tokens are input tokens; `budget_tokens` counts tokens to be stored."""

    sessions: int
    context_tokens_min: int
    context_tokens_max: int
    budget_tokens: int
    growth_tokens: int
    """Room for the decoded tokens of one session, at most."""


@dataclass(frozen=True)
class LeftOut:
    """A request inside the window that was not taken, and the reason: "short" or "budget"."""

    index: int
    reason: str


@dataclass(frozen=True)
class Window:
    """The requests taken, in order of arrival, and the account of all others."""

    taken: tuple[Request, ...]
    left_out: tuple[LeftOut, ...]
    before_count: int
    after_count: int
    context_tokens_min: int
    """The applied minimum: below the requested one if the trace has too few requests that long."""


def choose(requests: Sequence[Request], limits: Limits) -> Window:
    """The best window over all starting points.

    Criteria, in this order: all wanted sessions are there; four of them share a first block; its
    longest prompt is within a sixteenth of the longest in the trace (after the cap); two of them
    continue an earlier one (half of their context or more is stored already); most context tokens
    in total; earliest start. Counts above the numbers named here do not matter.
    Raises BadInput if no request fits the budget.
    """
    floor, eligible = _eligible(requests, limits)
    longest = max((_context(request, limits) for request in eligible), default=0)
    best: tuple[tuple[int, ...], tuple[Request, ...]] | None = None
    for start in range(len(eligible)):
        taken = _walk(eligible, start, limits)
        if not taken:
            continue
        contexts = [_context(request, limits) for request in taken]
        key = (
            len(taken),
            min(_sharing_sessions(taken), SHARING_SESSIONS_MIN),
            int(16 * max(contexts) >= 15 * longest),
            min(_continuing_sessions(taken, limits), CONTINUING_SESSIONS_MIN),
            sum(contexts),
        )
        if best is None or key > best[0]:
            best = key, taken
    if best is None:
        raise BadInput(
            f"no request of {len(requests)} fits a budget of {limits.budget_tokens} tokens",
            "workload",
            "give a larger byte budget, or a smaller context_tokens_max",
        )
    return _account(requests, best[1], floor, limits)


def stored_tokens(request: Request, held: set[int], limits: Limits) -> int:
    """Tokens that taking `request` adds to the store, given the trace ids `held` already."""
    tokens = 0
    for ordinal in range(-(-_context(request, limits) // TRACE_BLOCK_TOKENS)):
        if request.block_ids[ordinal] not in held:
            tokens += TRACE_BLOCK_TOKENS
    return tokens + limits.growth_tokens


def _eligible(requests: Sequence[Request], limits: Limits) -> tuple[int, list[Request]]:
    floor = limits.context_tokens_min
    while True:
        long = [request for request in requests if request.input_tokens >= max(1, floor)]
        if len(long) >= limits.sessions or floor == 0:
            return floor, long
        floor //= 2


def _walk(eligible: list[Request], start: int, limits: Limits) -> tuple[Request, ...]:
    taken: list[Request] = []
    held: set[int] = set()
    used_tokens = passed_over = 0
    for request in eligible[start:]:
        tokens = stored_tokens(request, held, limits)
        if used_tokens + tokens > limits.budget_tokens:
            if not taken:
                break  # The window would start later: another starting point covers it.
            passed_over += 1
            if passed_over > _PASSED_OVER_PER_SESSION * limits.sessions:
                break
            continue
        used_tokens += tokens
        held.update(request.block_ids[: -(-_context(request, limits) // TRACE_BLOCK_TOKENS)])
        taken.append(request)
        if len(taken) == limits.sessions:
            break
    return tuple(taken)


def _account(
    requests: Sequence[Request], taken: tuple[Request, ...], floor: int, limits: Limits
) -> Window:
    chosen = {request.index for request in taken}
    first, last = taken[0].index, taken[-1].index
    inside = [request for request in requests if first <= request.index <= last]
    left_out = tuple(
        LeftOut(request.index, "short" if request.input_tokens < max(1, floor) else "budget")
        for request in inside
        if request.index not in chosen
    )
    before = sum(request.index < first for request in requests)
    return Window(taken, left_out, before, len(requests) - before - len(inside), floor)


def _context(request: Request, limits: Limits) -> int:
    return min(request.input_tokens, limits.context_tokens_max)


def _sharing_sessions(taken: Sequence[Request]) -> int:
    firsts = [request.block_ids[0] for request in taken]
    return max(firsts.count(first) for first in firsts)


def _continuing_sessions(taken: Sequence[Request], limits: Limits) -> int:
    held: set[int] = set()
    count = 0
    for request in taken:
        ids = request.block_ids[: -(-_context(request, limits) // TRACE_BLOCK_TOKENS)]
        count += 2 * sum(block in held for block in ids) >= len(ids)
        held.update(ids)
    return count
