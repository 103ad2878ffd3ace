"""Prompts from a trace: shared prefixes and arrival times are the trace's.

A trace has no tokens, only names of prefix blocks. Each block becomes a number of tokens drawn
from its name, such that the longest prompt fits into the model's context and two prompts share
as much of their prefix as in the trace; every figure states this scale. The time between
arrivals is scaled too, by one factor.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from offstage.bindings.errors import BadInput
from offstage.bindings.ledger import share
from offstage.bindings.notes import Note
from offstage.testbeds.workloads.requests.importer import open_trace

__all__ = ["Arrival", "Arrivals", "arrivals_of"]

SPECIAL = 16  # special tokens at the beginning of a tokenizer's table


@dataclass(frozen=True)
class Arrival:
    """One request."""

    at_s: float
    prompt: list[int]
    outputs: int


@dataclass(frozen=True)
class Arrivals:
    """Requests in order, and how they were made."""

    requests: list[Arrival]
    trace: str
    scale: float
    """Tokens for each of the trace's."""
    hurry: float
    """Seconds of the trace in one second here."""
    notes: tuple[Note, ...] = ()
    """Notes on what its reader skipped, changed or found doubtful."""

    @property
    def reuse(self) -> float:
        """Share of tokens that are a prefix of an earlier request: the upper bound of hits."""
        seen: set[int] = set()
        found = total = 0
        for one in self.requests:
            names, shared = list(_prefixes(one.prompt)), 0
            while shared < len(names) and names[shared] in seen:
                shared += 1
            found, total = found + shared * PIECE, total + len(one.prompt)
            seen.update(names)
        return share(found, total)


PIECE = 32  # tokens: of vLLM's blocks on a CPU


def _prefixes(prompt: list[int]) -> Iterator[int]:
    name = 0
    for at in range(0, len(prompt) - PIECE + 1, PIECE):
        name = hash((name, *prompt[at : at + PIECE]))
        yield name


def arrivals_of(
    path: Path,
    *,
    count: int,
    context_tokens: int,
    vocabulary: int,
    seconds: float,
    outputs: int,
    seed: int,
    time_unit: str | None = None,
) -> Arrivals:
    """The first `count` requests of a trace, in `seconds`. BadInput: it names no prefixes, or has
    none of them."""
    trace = open_trace(path, limit=count, time_unit=time_unit)
    block = trace.need_blocks("prompts for an engine")
    rows = list(trace.requests())
    longest = max((len(one.block_ids) for one in rows), default=0)
    if longest == 0 or context_tokens <= outputs + PIECE:
        raise BadInput(
            "no request with a prompt", str(path), "choose another trace, or more requests"
        )
    tokens = max(1, min(block, (context_tokens - outputs - 1) // longest))
    blocks = (context_tokens - outputs - 1) // tokens
    first_s = rows[0].timestamp_ms / 1e3
    span_s = max(rows[-1].timestamp_ms / 1e3 - first_s, 1e-9)

    def prompt(ids: tuple[int, ...]) -> list[int]:
        made: list[int] = []
        for name in ids[:blocks]:
            rng = np.random.default_rng([seed, name & 0xFFFFFFFF, name >> 32])
            made += rng.integers(SPECIAL, vocabulary, tokens).tolist()
        return made

    requests = [
        Arrival(
            (one.timestamp_ms / 1e3 - first_s) * seconds / span_s, prompt(one.block_ids), outputs
        )
        for one in rows
        if one.block_ids
    ]
    return Arrivals(requests, path.name, tokens / block, span_s / seconds, trace.notes)
