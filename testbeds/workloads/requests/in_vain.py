"""The parts of a request trace that a run of decode sessions ignores, as notes of its result."""

from collections.abc import Sequence

import numpy as np

from offstage.bindings.notes import Note
from offstage.testbeds.workloads.requests.columns import Trace

__all__ = ["unused"]


def unused(
    trace: Trace,
    contexts: Sequence[int],
    steps: Sequence[int],
    *,
    context_tokens_max: int,
    steps_max: int,
    lengths_of_outputs: bool,
) -> list[Note]:
    """Notes on the unused parts of a trace whose requests became sessions of these tokens and
    decode steps `[sessions]`, cut to the maxima. `lengths_of_outputs`: whether the trace's output
    lengths apply where they are shorter."""
    name, count = trace.origin.name, len(contexts)
    notes = []
    if count > 1 and all(one == context_tokens_max for one in contexts):
        notes.append(
            Note(
                "cut-alike",
                f"all {count} requests taken from {name} are cut to {context_tokens_max:,} tokens: "
                "their lengths have no effect, and any long requests give the same contexts",
                "raise the context, or give a trace of shorter requests",
            )
        )
    if not lengths_of_outputs:
        notes.append(
            Note(
                "outputs-unused",
                f"each session decodes {steps_max:,} steps: the output "
                f"lengths of {name} have no effect",
            )
        )
    elif count > 1 and all(one == steps_max for one in steps):
        notes.append(
            Note(
                "outputs-cut-alike",
                f"all {count} sessions decode {steps_max:,} steps: "
                f"the output lengths of {name} are longer, and have no effect",
                "raise the steps",
            )
        )
    if trace.has_sessions:
        notes.append(
            Note(
                "sessions-unused",
                f"the sessions of {name} are ignored: each "
                "request taken decodes as a separate session",
            )
        )
    if np.isfinite(trace.think_s).any():
        notes.append(
            Note(
                "think-unused",
                f"the think times (delays) of {name} have no effect: "
                "requests arrive at the trace's times",
            )
        )
    return notes
