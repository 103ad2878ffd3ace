"""Several sessions of a real model decode one selection in step, over one HBM pool.

Each is a `TextRun` with a context of its own, which it has written to the tier; all have as many
tokens. What they compute rounds otherwise than alone, so the blocks that decoding fills have names
of their own.
"""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from offstage.host.decode.layer import Decoder, SelectionRule
from offstage.host.decode.pool import HbmPool
from offstage.host.transformer.attention import installed
from offstage.host.transformer.batch import ManyKv, TieredBatch, going_on
from offstage.host.transformer.tiered import TieredAttention
from offstage.testbeds.live.model.text_run import TextRun
from offstage.testbeds.live.model_results import Position, compared

__all__ = ["beside_dense", "decoded"]

Outputs = tuple[
    TieredAttention | TieredBatch, Sequence[NDArray[np.float32]], Sequence[Sequence[int]]
]


def decoded(
    runs: Sequence[TextRun],
    chosen: int,
    followings: Sequence[list[int]],
    pool: HbmPool,
    arm: str = "",
) -> Outputs:
    """The attention that read from the tier; of each session the logits after each token, `[steps,
    vocabulary]`, and the tokens: those of `followings`, or the model's own. `arm`: of one."""
    if len(runs) > 1:
        return _together(runs, chosen, followings, pool)
    attention, logits, grown = runs[0].decoded(chosen, followings[0], pool, arm)
    return attention, [logits], [grown]


def beside_dense(
    runs: Sequence[TextRun],
    logits: Sequence[NDArray[np.float32]],
    grown: Sequence[Sequence[int]],
    followings: Sequence[list[int]],
) -> list[Position]:
    """What `decoded` gave, compared with each session's dense attention."""
    found = []
    for session, (run, own, tokens) in enumerate(zip(runs, logits, grown, strict=True)):
        dense, options = run.kv.logits(tokens).cpu().numpy(), run.options
        behind = [] if options.generate else followings[session][options.steps :][:1]
        found += compared(own, dense, [*tokens, *behind], len(run.tokens), session)
    return found


def _together(
    runs: Sequence[TextRun], chosen: int, followings: Sequence[list[int]], pool: HbmPool
) -> Outputs:
    one = runs[0]
    options, geometry, fabric = one.options, one.source.geometry, one.fabric
    rule = SelectionRule(one.selector, chosen, options.sink_blocks, options.window_blocks)
    kv = ManyKv({name: run.source for run in runs for name in run.context.identities}, geometry)
    decoder = Decoder(fabric, pool, kv, rule, options.kernel, sink_logits=one.sink_logits)
    grown: list[list[int]] = [[] for _ in runs]
    fabric.register(pool.memory.landing)
    try:
        sessions = [
            TieredAttention(
                one.control,
                decoder,
                run.context,
                lambda ordinal, at=at: runs[at].grown_name(  # type: ignore[misc]
                    grown[at], ordinal, chosen, len(runs)
                ),
                options.time_per_token_s,
                run.quantizer,
                begun=run.open_block,
                number=at,
            )
            for at, run in enumerate(runs)
        ]
        for session in sessions:
            session.ahead = options.ahead
        attention = TieredBatch(sessions, decoder)
        one.progress.start(
            f"decode {len(runs)} sessions, {chosen} of {one.room} blocks in each",
            options.steps,
            "steps",
        )
        begun = time.monotonic()
        logits = _steps(runs, attention, followings, grown)
        attention.record.wall_s = time.monotonic() - begun
        return attention, logits, grown
    finally:
        fabric.unregister(pool.memory.landing)


def _steps(
    runs: Sequence[TextRun],
    attention: TieredBatch,
    followings: Sequence[list[int]],
    grown: list[list[int]],
) -> list[NDArray[np.float32]]:
    """Decode token by token into `grown`; the same as `TextRun` does with one."""
    one, last = runs[0], [run.kv.last_logits for run in runs]
    sizes = one.options.steps, one.loaded.shape.vocabulary_size
    found = [np.empty(sizes, np.float32) for _ in runs]
    in_tier = one.options.index_keys == "tier"
    keys, layers = going_on([run.kv for run in runs], attention.index_keys if in_tier else None)
    with installed(one.loaded.model, attention, None, keys, layers) as decode:
        for step in range(one.options.steps):
            for at, run in enumerate(runs):
                chooses = one.options.generate
                grown[at].append(run.chosen_token(last[at]) if chooses else followings[at][step])
            attention.begin_token()
            logits = decode([tokens[-1] for tokens in grown], len(one.tokens) + step)
            attention.end_token()
            for own, row in zip(found, logits.cpu().numpy(), strict=True):
                own[step] = row
            last = [own[step] for own in found]
            one.progress.advance(1)
    attention.close()
    return found
