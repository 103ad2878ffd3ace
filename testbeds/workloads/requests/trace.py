"""A request trace on disk: the record of one request, its lines, and the window a run takes.

Owns nothing but the open file of one iterator. Every way in which a file can be wrong is a
`BadInput` that names the file and the line, because a trace is user input; nothing is skipped or
repaired silently, since a missing request changes every hit rate that follows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from offstage.bindings.errors import BadInput, printable
from offstage.bindings.outside import json_line
from offstage.testbeds.workloads.requests.containers import opened

__all__ = [
    "LINE_BYTES_MAX",
    "TRACE_BLOCK_TOKENS",
    "LeftOut",
    "Limits",
    "Request",
    "Unread",
    "Window",
    "choose",
    "decoded",
    "lines",
    "stored_tokens",
]

Row = TypeVar("Row")

TRACE_BLOCK_TOKENS = 512
"""Tokens behind one hash id in the Mooncake format (kvcache-ai/Mooncake, FAST25-release)."""

LINE_BYTES_MAX = 16 << 20
"""A longer line is refused before it is held in memory; 16 MiB is about a billion tokens."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One request: when it came, how long it was, and which prefix blocks it holds.

    `index` counts requests from 0 in order of arrival. `block_ids` has one id per
    `trace_block_tokens` input tokens, in some formats one more for what remains; an id stands for
    the whole prefix up to and including its block, so two requests share a prefix exactly as long
    as their ids agree from the front. `session` names the conversation and `turn` counts its
    requests from 0; None where the format has no sessions. `gap_s` is the time since the session's
    last request, `think_s` the client's part of it; None where not known.
    """

    index: int
    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]
    session: str | None = None
    turn: int | None = None
    gap_s: float | None = None
    think_s: float | None = None
    trace_block_tokens: int = TRACE_BLOCK_TOKENS

    def block_tokens(self, ordinal: int) -> int:
        """Tokens in block `ordinal` (0-based): a whole block, or what remains in the last one."""
        assert 0 <= ordinal < len(self.block_ids)
        left = self.input_tokens - self.trace_block_tokens * ordinal
        return max(0, min(self.trace_block_tokens, left))


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields (line number from 1, raw line with its end) of a file, packed or not.

    Raises BadInput for what `opened` refuses, and for an endless line.
    """
    number = 0

    def where() -> str:
        return f"{path}:{number + 1}"

    with opened(path, where) as file:
        while raw := file.readline(LINE_BYTES_MAX + 1):
            number += 1
            if len(raw) > LINE_BYTES_MAX:
                raise BadInput(
                    f"line longer than {LINE_BYTES_MAX >> 20} MiB",
                    f"{path}:{number}",
                    "a trace has one JSON object per line",
                )
            yield number, raw


class Unread:
    """Keys of a trace's objects that its reader does not take in, and how often each was there:
    they have no effect, and a note says so."""

    def __init__(self) -> None:
        self.times: dict[str, int] = {}

    def count(self, raw: bytes | msgspec.Raw, kind: Any) -> None:
        """Of one object that `kind` was made of, and of the objects in it."""
        known = _keys_of(kind)
        for key, value in _OBJECT.decode(raw).items():
            if key not in known:
                name = key if key in self.times or len(self.times) < KEYS_MAX else OTHERS
                self.times[name] = self.times.get(name, 0) + 1
            elif (inner := known[key]) is not None and bytes(value) != b"null":
                for one in _LIST.decode(value):
                    self.count(one, inner)

    def __str__(self) -> str:
        """Those in most objects first; empty where there is none."""
        most = sorted(self.times.items(), key=lambda one: (-one[1], one[0]))
        shown = [
            f"{_shown(key)} ({f'{count:,} times' if count > 1 else 'once'})"
            for key, count in most[:KEYS_SHOWN]
        ]
        more = [f"and {len(most) - KEYS_SHOWN:,} more"] if len(most) > KEYS_SHOWN else []
        return ", ".join([*shown, *more])


KEYS_MAX, KEYS_SHOWN, KEY_LENGTH_MAX = 256, 12, 40
"""Distinct keys that are counted by name, and named; characters that are shown of one."""
OTHERS = "any other"

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


@cache
def _keys_of(kind: Any) -> dict[str, Any]:
    """The keys that a struct reads, with the struct that each holds a list of, or None."""
    return {one.encode_name: _struct_in(one.type) for one in msgspec.structs.fields(kind)}


def _struct_in(kind: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((found for one in get_args(kind) if (found := _struct_in(one))), None)


def _shown(key: str) -> str:
    shown = printable(key) or '""'
    return shown if len(shown) <= KEY_LENGTH_MAX else shown[:KEY_LENGTH_MAX] + "..."


def decoded(
    decoder: msgspec.json.Decoder[Row], raw: bytes, where: str, expected: str, unread: Unread
) -> Row:
    """One line of a trace; the keys that its type does not have are counted in `unread`. BadInput
    distinguishes blank, torn, foreign and wrong lines."""
    try:
        row = json_line(decoder, raw, where, expected)
    except BadInput as bad:
        if not raw.strip():
            raise BadInput("blank line", where, "remove it") from None
        if bad.what.startswith("not JSON") and not raw.endswith(b"\n"):
            raise BadInput(
                "the last line is torn", where, "copy the file again, or delete that line"
            ) from None
        raise
    unread.count(raw, decoder.type)
    return row


# Which requests of a trace a run takes: a window, chosen by rule and recorded in full.
#
# A trace of an hour does not fit a run of seconds, so a run takes consecutive long requests from
# one point on. The rule has no chance in it: the same trace and options give the same window.
# Every request of the trace is accounted for: taken, left out with a reason, or before or after
# the window.

SHARING_SESSIONS_MIN = 4
"""A window in which fewer sessions share a prefix says nothing about sharing."""

CONTINUING_SESSIONS_MIN = 2
"""Turns of conversations whose earlier turn is in the window: they meet a store that has been
written to, which is what a context memory tier is for."""

_PASSED_OVER_PER_SESSION = 4
"""Requests passed over for the budget, per session wanted, before a window is closed: beyond that
it would be a selection and no longer a window."""


@dataclass(frozen=True)
class Limits:
    """What a run can hold. Tokens are input tokens; `budget_tokens` counts tokens to be stored."""

    sessions: int
    context_tokens_min: int
    context_tokens_max: int
    budget_tokens: int
    growth_tokens: int
    """Room that the decoded tokens of one session need, at most."""


@dataclass(frozen=True)
class LeftOut:
    """A request inside the window that was not taken, and why: "short" or "budget"."""

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
    """The floor in force: lower than asked where the trace has too few requests that long."""


def choose(requests: Sequence[Request], limits: Limits) -> Window:
    """The best window over all starting points.

    Better is, in this order: all wanted sessions are there; four of them share a first block; its
    longest prompt is within a sixteenth of the longest in the trace (after the cap); two of them
    continue an earlier one (half of their context or more is held already); it holds more context
    tokens in total; it starts earlier. Each count enters no further than the number named here.
    Raises BadInput where no request fits the budget.
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
