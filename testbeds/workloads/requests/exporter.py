"""Writes a trace in the forms that load generators read, so that a live run is given the requests
of a lab run. One JSON object a line, `timestamp` (ms, from the first arrival), `input_length`,
`output_length` and `hash_ids`; the forms, `FORMS`, differ in what else they hold:

- `mooncake`: blocks of 512 tokens, as kvcache-ai/Mooncake published them; no sessions;
- `aiperf`: `mooncake_trace` of ai-dynamo/aiperf, with `session_id`, `delay` and `context_mode`, in
  the trace's own blocks, or without `hash_ids`;
- `vllm`: `timed_trace` of `vllm bench serve`, in the trace's own blocks; no sessions. Its prompts
  are as long as their ids, so every block has one.

A block that the trace names no id for gets one that no other block has: nothing is shared that the
trace does not share. Ids of 2^53 and more, which not every reader of JSON keeps, are numbered anew.
What a form cannot hold is in the notes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.durable import replacing
from offstage.bindings.errors import BadInput
from offstage.testbeds.progress import Progress
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.formats.base import numbered
from offstage.testbeds.workloads.requests.formats.mooncake import WHOLE_PROMPTS
from offstage.testbeds.workloads.requests.formats.offstage import PACKED
from offstage.testbeds.workloads.requests.in_blocks import requests_in_blocks
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS

__all__ = ["FORMS", "Exported", "export_trace"]

IDS_MAX = 1 << 53


@dataclass(frozen=True)
class _Form:
    """`command`: what sends the requests of a file, of its path, block size and number of
    requests."""

    sessions: bool
    needs_ids: bool
    block_tokens: int | None
    command: Callable[[str, int, int], list[str]]


def _aiperf(path: str, block_tokens: int, _: int) -> list[str]:
    return [
        *("aiperf", "profile", "--model", "MODEL", "--url", "URL", "--endpoint-type", "chat"),
        *("--streaming", "--input-file", path, "--custom-dataset-type", "mooncake_trace"),
        *("--fixed-schedule", "--isl-block-size", str(block_tokens)),
        *("--extra-inputs", "ignore_eos:true"),
    ]


def _vllm(path: str, block_tokens: int, requests: int) -> list[str]:
    return [
        *("env", "PYTHONHASHSEED=0", "vllm", "bench", "serve", "--model", "MODEL"),
        *("--base-url", "URL", "--dataset-name", "timed_trace", "--dataset-path", path),
        *("--num-prompts", str(requests), "--self-timed", "--ignore-eos"),
        *("--timed-trace-chunk-hash-size", str(block_tokens)),
        *("--timed-trace-sec-multiplier", "0.001"),
    ]


FORMS = {
    "mooncake": _Form(False, True, TRACE_BLOCK_TOKENS, _aiperf),
    "aiperf": _Form(True, False, None, _aiperf),
    "vllm": _Form(False, True, None, _vllm),
}


@dataclass(frozen=True)
class Exported:
    """What a file holds. `block_tokens`: None without ids; `sessions`: 0 without; `command`: the
    words that send its requests, with MODEL and URL to be filled in."""

    requests: int
    sessions: int
    block_tokens: int | None
    command: tuple[str, ...]
    notes: tuple[str, ...]


class _Ids:
    """The ids of each request's blocks, one for every `block_tokens` tokens or part of it."""

    def __init__(self, trace: Trace, block_tokens: int) -> None:
        self._trace, self.block_tokens = trace, block_tokens
        self.owned = self.dropped = 0
        self._free = int((-(-trace.input_tokens // block_tokens)).sum())
        self._first: npt.NDArray[Any] = trace.run_first
        if self.are_the_traces:
            ends = trace.run_first + trace.run_count.astype(np.uint64)
            self._free = int(ends.max(initial=0))
            if self._free > IDS_MAX:
                self._first, self._free = trace.runs.first, trace.runs.block_count

    @property
    def are_the_traces(self) -> bool:
        """Whether the blocks are those of the trace."""
        return self._trace.block_tokens == self.block_tokens

    def all(self) -> Iterator[list[int]]:
        """The ids of all requests in order."""
        if self.are_the_traces:
            return map(self._fitted, range(len(self._trace)))
        return (self._named(one.block_ids) for one in requests_in_blocks(self._trace))

    def _fitted(self, index: int) -> list[int]:
        count = -(-int(self._trace.input_tokens[index]) // self.block_tokens)
        runs = slice(*self._trace.offsets[index : index + 2].tolist())
        spans = zip(self._first[runs].tolist(), self._trace.run_count[runs].tolist(), strict=True)
        ids = [first + n for first, blocks in spans for n in range(blocks)]
        self.dropped += max(0, len(ids) - count)
        return [*ids[:count], *(self._own() for _ in range(count - len(ids)))]

    def _named(self, ids: tuple[int, ...]) -> list[int]:
        return [one if one >= 0 else self._own() for one in ids]

    def _own(self) -> int:
        self.owned += 1
        self._free += 1
        return self._free - 1

    def of_two_lengths(self) -> int:
        """Ids that name a part of a block in one prompt, and more or less of it in another."""
        trace = self._trace
        if not self.are_the_traces:
            return 0
        partly = (trace.last_tokens > 0) & (trace.last_tokens < self.block_tokens)
        at = trace.offsets[1:][partly] - 1
        tails = trace.run_first[at] + (trace.run_count[at] - 1).astype(np.uint64)
        lengths = np.unique(np.stack([tails, trace.last_tokens[partly].astype(np.uint64)]), axis=1)
        ids, times = np.unique(lengths[0], return_counts=True)
        whole = trace.run_count.copy()
        whole[at] -= 1
        first, last = trace.run_first[whole > 0], whole[whole > 0].astype(np.uint64)
        order = np.argsort(first, kind="stable")
        first, reach = first[order], np.maximum.accumulate((first + last)[order])
        before = np.searchsorted(first, ids, side="right") - 1
        inside = (before >= 0) & (reach[before] > ids) if len(first) else np.zeros(len(ids), bool)
        return int(((times > 1) | inside).sum())


def export_trace(trace: Trace, path: Path, form: str, progress: Progress) -> Exported:
    """Write the trace in a form of `FORMS`. BadInput: there is no such form, a packed name, or a
    file that cannot be written."""
    if form not in FORMS:
        raise BadInput(f"no form {form!r}", "--to", f"choose one of {', '.join(FORMS)}")
    if path.suffix in PACKED:
        raise BadInput(
            f"a file named {path.suffix}", str(path), "load generators read plain .jsonl files"
        )
    chosen = FORMS[form]
    block_tokens = chosen.block_tokens or trace.block_tokens
    if block_tokens is None and chosen.needs_ids:
        block_tokens = TRACE_BLOCK_TOKENS
    ids = None if block_tokens is None else _Ids(trace, block_tokens)
    grouped = chosen.sessions and bool((trace.session >= 0).any())
    encoder = msgspec.json.Encoder()
    progress.start("write", len(trace), "requests")
    with replacing(path) as part, part.open("wb") as file:
        for row in _rows(trace, ids, grouped):
            file.write(encoder.encode(row) + b"\n")
            progress.advance(1)
    sessions = trace.session_count
    return Exported(
        len(trace),
        sessions + int((trace.session < 0).sum()) if grouped else 0,
        block_tokens,
        tuple(chosen.command(str(path), block_tokens or TRACE_BLOCK_TOKENS, len(trace))),
        tuple(_notes(trace, ids, sessions, grouped)),
    )


def _rows(trace: Trace, ids: _Ids | None, grouped: bool) -> Iterator[dict[str, Any]]:
    of_blocks = iter(()) if ids is None else ids.all()
    lone = "request-"
    while any(name.startswith(lone) for name in trace.session_names):
        lone += "-"
    begin_s = float(trace.arrival_s[0])
    for index in range(len(trace)):
        row: dict[str, Any] = {}
        if grouped:
            session = int(trace.session[index])
            row["session_id"] = trace.session_names[session] if session >= 0 else f"{lone}{index}"
        if not (grouped and trace.follows[index]):
            row["timestamp"] = _ms(float(trace.arrival_s[index]) - begin_s)
        if grouped and not np.isnan(trace.think_s[index]):
            row["delay"] = _ms(float(trace.think_s[index]))
        row["input_length"] = int(trace.input_tokens[index])
        row["output_length"] = int(trace.output_tokens[index])
        if ids is not None:
            row["hash_ids"] = next(of_blocks)
        if grouped:
            row["context_mode"] = WHOLE_PROMPTS
        yield row


def _ms(seconds: float) -> int | float:
    """Milliseconds, to a nanosecond; a whole number as Mooncake has them."""
    found = round(seconds * 1e3, 6)
    return int(found) if found.is_integer() else found


def _notes(trace: Trace, ids: _Ids | None, sessions: int, grouped: bool) -> Iterator[str]:
    if grouped and len(trace) > sessions:
        yield (
            "sessions need an AIPerf that reads context_mode, newer than 0.13.0: an older one puts "
            "the turns before in front of every prompt once more"
        )
    if grouped and (lone := int((trace.session < 0).sum())):
        yield f"{numbered(lone, 'request')} without a session: each is one of its own"
    if sessions and not grouped:
        yield f"{numbered(sessions, 'session')} left out, with all delays: this form has none"
    if (followed := int(trace.follows.sum())) and not grouped:
        yield (
            f"{numbered(followed, 'turn')} without an arrival: sent as if the turns before took no "
            "time"
        )
    if ids is not None and ids.owned:
        yield f"{numbered(ids.owned, 'block')} without an id: given one that nothing shares"
    if ids is not None and (differ := ids.of_two_lengths()):
        yield f"{numbered(differ, 'id')} of blocks of two lengths: AIPerf refuses such a trace"
    if ids is not None and ids.dropped:
        yield f"{numbered(ids.dropped, 'id')} beyond the length of a prompt left out"
    if ids is not None and trace.block_tokens not in (None, ids.block_tokens):
        yield (
            f"blocks of {trace.block_tokens} tokens became blocks of {ids.block_tokens}: what is "
            "shared is rounded down to these"
        )
    empty = int(((trace.input_tokens == 0) | (trace.output_tokens == 0)).sum())
    if empty:
        yield f"{numbered(empty, 'request')} without a prompt or an answer: a server may refuse it"
