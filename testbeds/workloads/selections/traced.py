"""Generated selections under real requests: lengths, order and sharing are a trace's.

A request trace says how long a prompt is, how many tokens followed and which prefix it shares, and
nothing of what attention selects. So each session here is of its own length and drawn from the
fitted processes, and sessions of a group share the static part of the prefix that the trace says
they share. Everything follows from trace, part and seed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from offstage.testbeds.workloads.requests.trace_sessions import TraceSession
from offstage.testbeds.workloads.selections.generated import GeneratedOptions, GeneratedWorkload
from offstage.testbeds.workloads.selections.slab import SessionInfo, Slab

__all__ = ["TracedWorkload"]


class TracedWorkload:
    """A `slab.Workload`. `options` are those of all sessions; their lengths are not used, and
    `steps` is the most that a session decodes. `origin` names trace and part."""

    def __init__(
        self, options: GeneratedOptions, sessions: Sequence[TraceSession], origin: dict[str, object]
    ) -> None:
        self._origin = origin
        prefixes = _prefixes(sessions)
        self._each = [
            GeneratedWorkload(_options(options, number, one, prefix))
            for number, (one, prefix) in enumerate(zip(sessions, prefixes, strict=True))
        ]
        self.sessions = tuple(self._info(number, one) for number, one in enumerate(sessions))
        first = self._each[0]
        self.layer_count = first.layer_count
        self.select_blocks = first.select_blocks
        self.sink_blocks = first.sink_blocks
        self.window_blocks = first.window_blocks
        self.block_tokens = first.block_tokens
        self.index_source = first.index_source
        self.draft_agreement = first.draft_agreement

    def describe(self) -> dict[str, object]:
        """As the generated workload's, with the trace and each session's length."""
        told = self._each[0].describe()
        for name in ("context_tokens", "steps", "sessions", "shared_prefix_tokens", "group"):
            told.pop(name, None)
        return {
            **told,
            **self._origin,
            "kind": "generated, lengths of a trace",
            "context_tokens": [one.blocks * self.block_tokens for one in self.sessions],
            "steps": [one.steps for one in self.sessions],
        }

    def slabs(self, session: int, steps: int = 16) -> Iterator[Slab]:
        """The session's own draws."""
        return self._each[session].slabs(session, steps)

    def prefill(self, session: int) -> npt.NDArray[np.uint16]:
        """The process before step 0."""
        return self._each[session].prefill(session)

    def _info(self, number: int, one: TraceSession) -> SessionInfo:
        drawn = self._each[number].sessions[number]
        return replace(
            drawn,
            name=one.name,
            contents=np.ascontiguousarray(one.contents[: drawn.blocks]),
            group=one.group,
            arrival_s=one.arrival_s,
        )


def _options(
    options: GeneratedOptions, number: int, one: TraceSession, prefix: int
) -> GeneratedOptions:
    """Those of session `number`, the last of its own workload: its draws are its number's."""
    block = options.block_tokens
    return replace(
        options,
        context_tokens=one.context_tokens // block * block,
        steps=min(one.output_tokens, options.steps),
        sessions=number + 1,
        group=one.group if prefix else None,
        shared_prefix_tokens=prefix * options.unit_tokens // block * block,
    )


def _prefixes(sessions: Sequence[TraceSession]) -> list[int]:
    """Units from the front that each session shares with another of its group."""
    found = []
    for one in sessions:
        others = [two for two in sessions if two is not one and two.group == one.group >= 0]
        found.append(max((_common(one, two) for two in others), default=0))
    return found


def _common(one: TraceSession, two: TraceSession) -> int:
    count = min(len(one.contents), len(two.contents))
    differs = (one.contents[:count] != two.contents[:count]).any(axis=1)
    return int(differs.argmax()) if differs.any() else count
