"""The requests of a pod's hosts and their times: prompts of chunks of 512 tokens.

They are generated or a trace's. Generated: a popular set of documents of unequal length by
Zipf's law, and now and then one that is requested once. The same seed gives the same requests in
every phase, so that two phases can be compared request by request; only the one-time documents
differ by phase.
"""

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from offstage.bindings.errors import BadInput
from offstage.bindings.notes import Note
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.in_blocks import requests_in_blocks
from offstage.testbeds.workloads.requests.sessions import generated_chunks, root, trace_chunks
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS as CHUNK_TOKENS

__all__ = ["CHUNK_TOKENS", "Ask", "Documents", "Traced", "of_trace"]

DOCUMENTS = 160
CHUNKS_MEAN = 32
ZIPF = 0.9
ONCE_SHARE = 0.05


@dataclass(frozen=True)
class Ask:
    """One request: a prompt, by the identities of its chunks from the first on."""

    at_s: float
    chunks: tuple[int, ...]


class Documents:
    """Generated from a seed."""

    def __init__(self, seed: int) -> None:
        """Documents of 4 to twice the mean of chunks."""
        rng = np.random.default_rng([seed, 1])
        self._seed, self._root = seed, root(seed, "pod")
        counts = rng.integers(4, 2 * CHUNKS_MEAN - 4, DOCUMENTS, endpoint=True)
        self.all = [self._made(f"document {n}", int(count)) for n, count in enumerate(counts)]
        popularity = np.arange(1, DOCUMENTS + 1) ** -ZIPF
        self._popularity = popularity / popularity.sum()

    def asks(self, phase: str, seconds: float, rate_hz: float) -> list[Ask]:
        """Requests of one phase, evenly spaced."""
        rng = np.random.default_rng([self._seed, 2])
        count = max(1, int(seconds * rate_hz))
        chosen = rng.choice(DOCUMENTS, count, p=self._popularity)
        once = rng.random(count) < ONCE_SHARE
        return [
            Ask(
                number / rate_hz,
                self._made(f"once {phase} {number}", CHUNKS_MEAN)
                if once[number]
                else self.all[chosen[number]],
            )
            for number in range(count)
        ]

    def _made(self, name: str, count: int) -> tuple[int, ...]:
        return tuple(generated_chunks(self._root, name, count * CHUNK_TOKENS, CHUNK_TOKENS))


@dataclass(frozen=True)
class Traced:
    """Requests of a trace: `span_s` of its time, from `begin_s` on, compressed into fewer
    seconds."""

    asks: list[Ask]
    trace: str
    begin_s: float
    span_s: float
    seconds: float
    notes: tuple[Note, ...] = ()
    """Notes on what its reader skipped, changed or found doubtful."""

    @property
    def compression(self) -> float:
        """Seconds of the trace in one second here."""
        return self.span_s / self.seconds


def of_trace(
    path: Path, *, begin_s: float, span_s: float, seconds: float, time_unit: str | None = None
) -> Traced:
    """BadInput: the trace names no prefixes, or has nothing in that time."""
    trace = open_trace(path, time_unit=time_unit)
    trace.need_blocks("prompts for a pod")
    arrivals = trace.arrival_s
    first_s = float(arrivals[0]) + begin_s
    begin, end = np.searchsorted(arrivals, [first_s, first_s + span_s])
    if begin == end:
        last_s = float(arrivals[-1] - arrivals[0])
        raise BadInput(
            f"no request after {begin_s:g} s",
            str(path),
            f"the trace ends after {last_s:g} s: choose an earlier --begin",
        )
    lasted_s = max(min(span_s, float(arrivals[-1]) - first_s), 1e-9)  # all may arrive together
    parent, asks = root(0, "pod trace"), []
    for request in islice(requests_in_blocks(trace), int(begin), int(end)):
        chunks = trace_chunks(parent, request, request.input_tokens, CHUNK_TOKENS)
        if chunks:
            at_s = (request.timestamp_ms / 1e3 - first_s) * seconds / lasted_s
            asks.append(Ask(at_s, tuple(chunks)))
    return Traced(asks, path.name, begin_s, lasted_s, seconds, trace.notes)
