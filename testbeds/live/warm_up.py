"""Predicts a session's first demands: the lab's `warmup`, from the live host's scores.

The last windows of the prefill, a block of tokens apart, are scored as decode scores: each
window's query against the blocks written by then. The lab's policy of that name makes guesses
from these scores, with the same code that runs in virtual time. The host sends them to the
daemon when it opens the session, and in every arm the first step follows `LEAD_S` later. The
curve passes the same guesses to the core in virtual time. One thread; nothing can fail except
selection.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from offstage.host.decode.session import Context
from offstage.host.selection import ScoreScale, quantize
from offstage.testbeds.lab.policies.policy import Setting
from offstage.testbeds.lab.policies.registry import parse
from offstage.testbeds.live.demo_options import DemoOptions
from offstage.testbeds.live.workload import Workload
from offstage.testbeds.workloads.selections.generated import PREFILL_WINDOWS

__all__ = ["LEAD_S", "first_guesses"]

LEAD_S = 0.05
"""Time between the end of a prefill and the first demand: the default of the lab's `[tier]
warmup`."""

Guesses = dict[int, NDArray[np.void]]


def first_guesses(
    options: DemoOptions, workload: Workload, contexts: Mapping[int, Context]
) -> Guesses:
    """Guesses by session number: `bindings.core.GUESS` `[n]`."""
    layers = options.geometry.layer_count
    policy = parse("warmup").open(
        Setting(
            layer_count=layers,
            select_blocks=options.select_blocks,
            buffer_blocks=options.buffer_blocks,
            sink_blocks=options.sink_blocks,
            window_blocks=options.window_blocks,
            block_tokens=options.geometry.block_tokens,
            # Every layer selects for itself: `DriveOptions.check` rejects other settings.
            index_source=np.arange(layers),
        )
    )
    found = {}
    for number, context in contexts.items():
        blocks = len(context.identities)
        scores = _windows(workload, number, context, blocks, layers)
        found[number] = policy.begin(number, blocks, scores)
    return found


def _windows(
    workload: Workload, number: int, context: Context, blocks: int, layers: int
) -> NDArray[np.uint16]:
    """Scores of a session's last windows, oldest first, uint16 `[windows, layers, blocks]`; 0
    for blocks not written by then."""
    count = min(PREFILL_WINDOWS, blocks)
    result = np.zeros((count, layers, blocks), np.uint16)
    for layer, selector in enumerate(context.selectors):
        queries = workload.synthetic_kv.windows(number, layer, count, blocks)
        for window, query in enumerate(queries):
            written = blocks - (count - 1 - window)
            scores = selector.scores(query)[:written]
            result[window, layer, :written] = quantize(scores, ScoreScale.fit(scores))
    return result
