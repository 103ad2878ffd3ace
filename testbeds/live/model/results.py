"""What a real model's run found, as data: positions, passes, and what was foretold.

Every figure here was computed from logits, or counted by the agent's record or the daemon's
ledger. Logarithms are natural; KL is that of dense attention to the tier's, in nats.
"""

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.notes import Note, gathered
from offstage.host.decode.foretold import LayerAgreement

__all__ = [
    "ModelIdentity",
    "ModelPass",
    "ModelSummary",
    "Position",
    "TextWorkload",
    "TierUsed",
    "compared",
]


class Position(msgspec.Struct, kw_only=True):
    """One decoded token: what the model says after it, with the tier and with dense attention."""

    position: int
    token: int
    top1: int
    dense_top1: int
    kl: float
    nll: float | None
    """Of the token that follows; None behind the last of a generated text."""
    dense_nll: float | None
    logit_error: float
    """Largest difference of a logit."""


class ModelPass(msgspec.Struct, kw_only=True):
    """One selection: the same tokens from the same context."""

    select_blocks: int
    """What was asked for; blocks of a layer, sinks and window included."""
    share_read: float
    """Blocks that attention read over blocks that were there, over all steps and layers."""
    perplexity: float
    top1_agreement: float
    kl_mean: float
    kl_max: float
    logit_error_max: float
    bit_equal: bool | None
    """To the same kernel over the same blocks in memory; None where not every block was read."""
    demands: int
    hit: float
    late: float
    stall_ms_p50: float
    stall_ms_p99: float
    token_ms_p50: float
    blocks_verified: int
    blocks_corrupt: int
    blocks_recomputed: int
    ends_differ: int
    """Demands, at the least, that ended otherwise by the host's counts than by the ledger."""
    pace_overruns: float
    """Share of requests that ended later than the modelled device would have ended them; -1 where
    none was, or its counters are not this user's to see."""
    positions: list[Position]
    foretold: list[LayerAgreement]
    guesses: int
    """Blocks of the next layer that the tier was told of ahead."""
    guesses_used: int
    """Of those it read, staged before their demand; `late`: demanded on their way; `unused`:
    they went without a demand."""
    guesses_late: int
    guesses_unused: int
    text: str
    """What was generated; empty where the text was given."""
    notes: list[Note]
    """Of this selection; what is true of all is the summary's."""


class ModelIdentity(msgspec.Struct, kw_only=True, frozen=True):
    """Which model it was, and in which numbers it computed."""

    name: str
    architecture: str
    dtype: str
    value_type: str
    layers: int
    config_sha256: str
    weights: str
    """Their digest."""
    weights_read: str
    """How long reading them for it took, in words."""


class TextWorkload(msgspec.Struct, kw_only=True, frozen=True):
    """What was decoded, and how blocks were selected and attended to."""

    text: str
    context_tokens: int
    steps: int
    block_tokens: int
    block_bytes: int
    selector: str
    kernel: str
    device: str
    sink_blocks: int
    window_blocks: int
    generated: bool
    ahead: str
    prefill_blocks_written: int


class TierUsed(msgspec.Struct, kw_only=True, frozen=True):
    """The daemon that it was decoded through; `policy`: as that told it."""

    fabric: str
    storage: str
    policy: dict[str, Any]


class ModelSummary(msgspec.Struct, kw_only=True):
    """What `--format json` prints."""

    model: ModelIdentity
    workload: TextWorkload
    tier: TierUsed
    dense_perplexity: float
    passes: list[ModelPass]
    notes: list[Note]
    """What is true of every pass."""
    machine: dict[str, Any]
    command: str
    version: str

    def noted(self) -> dict[Note, str]:
        """Every note once, with the selections that it is true of."""
        return gathered(
            self.notes, [(f"{one.select_blocks} blocks", one.notes) for one in self.passes]
        )


def compared(
    logits: NDArray[np.float32],
    dense: NDArray[np.float32],
    tokens: list[int],
    first_position: int,
) -> list[Position]:
    """Position by position; `tokens` are those decoded and, where it is known, the one after."""
    found = []
    for step, (own, other) in enumerate(zip(logits, dense, strict=True)):
        log_own, log_other = _log_softmax(own), _log_softmax(other)
        following = tokens[step + 1] if step + 1 < len(tokens) else None
        found.append(
            Position(
                position=first_position + step,
                token=tokens[step],
                top1=int(own.argmax()),
                dense_top1=int(other.argmax()),
                kl=max(0.0, float(np.exp(log_other) @ (log_other - log_own))),
                nll=None if following is None else -float(log_own[following]),
                dense_nll=None if following is None else -float(log_other[following]),
                logit_error=float(np.abs(own - other).max()),
            )
        )
    return found


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    found: NDArray[np.float64] = wide - np.log(np.exp(wide).sum())
    return found
