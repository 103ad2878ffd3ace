"""The states of a run's contexts: where a context goes on from, and what is kept of it.

A context is read from the last checkpoint that the tier has of it (`host.transformer.checkpoints`),
and leaves more of them there. A pass of the model ends at each, so that a session that comes back
computes the same sums, to the bit. A shorter context is a front of the KV of the longest; its
states are computed again from the checkpoint before its end, unless they can be cut from what was
read, as those of compressors.
"""

from collections.abc import Callable, Sequence

import msgspec

from offstage.bindings.errors import BadInput
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics import Fabric
from offstage.host.link.control import Control
from offstage.host.model.geometry import KvGeometry
from offstage.host.transformer.checkpoints import Checkpoints, returned
from offstage.host.transformer.dense import DenseKv
from offstage.testbeds.capture.model import Shape
from offstage.testbeds.live.model.options import CHECKPOINT_BLOCKS, ModelOptions
from offstage.testbeds.live.model_results import StatesKept
from offstage.testbeds.progress import Progress

__all__ = ["ContextStates", "check_checkpoints", "in_pieces", "keeps_states", "kept_of"]


def keeps_states(shape: Shape, options: ModelOptions) -> bool:
    """Whether a context can go on behind the blocks of the tier once its states are there: not
    where it also needs index keys, which are in no block."""
    keys_elsewhere = shape.top_k and options.index_keys != "tier"
    return shape.is_recurrent or (shape.compresses and not keys_elsewhere)


def check_checkpoints(shape: Shape, options: ModelOptions) -> None:
    """BadInput for checkpoints of a model that keeps no states, or needs more than them."""
    if options.checkpoint_blocks == CHECKPOINT_BLOCKS or keeps_states(shape, options):
        return
    if shape.compresses:
        raise BadInput(
            f"a context of {shape.name} goes on from a checkpoint with its index keys, which are "
            "resident",
            "--checkpoint-blocks",
            "add --index-keys tier",
        )
    raise BadInput(
        f"layers of {shape.name} keep no states, of which there could be checkpoints",
        "--checkpoint-blocks",
        "leave it out",
    )


def in_pieces(options: ModelOptions, block_tokens: int) -> ModelOptions:
    """The options, with passes of a prefill that end at each checkpoint."""
    every = options.checkpoint_blocks * block_tokens
    piece = options.prefill_piece
    if every:
        piece = max(one for one in range(1, min(piece, every) + 1) if every % one == 0)
    return msgspec.structs.replace(options, prefill_piece=piece)


class ContextStates:
    """Those of one run, whose longest context `kv` reads."""

    def __init__(self, options: ModelOptions, kv: DenseKv, progress: Progress) -> None:
        self._blocks, self._piece = options.checkpoint_blocks, options.prefill_piece
        self._kv, self._progress = kv, progress
        self._tokens: Sequence[int] = ()
        self._checkpoints: Checkpoints | None = None
        self._kept_tokens = self._first = 0

    def read(
        self,
        tokens: Sequence[int],
        link: Endpoint,
        control: Control,
        fabric: Fabric,
        geometry: KvGeometry,
        names: Sequence[int],
        key_of: Callable[[int], bytes],
    ) -> None:
        """Read a context, after what the tier has of it. `geometry`: of the tier; `names`: of the
        context's chunks, in the model's own type; `key_of`: names the states after so many
        tokens."""
        kv, self._tokens = self._kv, tokens
        every = self._blocks * kv.geometry.block_tokens
        own = self._checkpoints = Checkpoints(link, every, key_of)
        if every:
            there = returned(kv, control, fabric, geometry, names, own, len(tokens) - 1)
            self._first, self._kept_tokens = there.tokens, there.kept_tokens
            self._progress.advance(self._first)
        advance = self._progress.advance
        kv.prefill(tokens, self._piece, advance, self._first, lambda read: own.put(read, kv.states))

    def front(self, tokens: int) -> DenseKv:
        """The first `tokens` tokens of what was read, with the states after them."""
        assert self._checkpoints is not None, "something was read"
        kv, cut, end = self._kv, self._kv.compresses, tokens
        if cut and tokens >= self._first:
            return kv.front(tokens)
        first, states = self._checkpoints.latest(tokens)
        if first < tokens:
            if cut:  # by whole passes, since what is cut has the bits of the longest context
                end = min(-(-tokens // self._piece) * self._piece, len(self._tokens))
            again = kv.front(first, states) if first else kv.anew()
            again.prefill(self._tokens[:end], self._piece, lambda _: None, first)
            if cut:
                return again.front(tokens)
            states = again.states
        return kv.front(tokens, states)

    def kept(self) -> StatesKept:
        """For the results: of this context."""
        own, geometry = self._checkpoints, self._kv.geometry
        assert own is not None, "something was read"
        return StatesKept(
            layers=len(geometry.absent) or len(geometry.parts),
            state_bytes=sum(one.nbytes for one in self._kv.states.values()),
            every_blocks=self._blocks,
            checkpoints_written=own.written,
            bytes_written=own.bytes_written,
            kept_tokens=self._kept_tokens,
            returned_tokens=self._first,
        )


def kept_of(contexts: Sequence[ContextStates | None]) -> StatesKept | None:
    """For the results, of all sessions; None of a model that keeps no states."""
    each = [one.kept() for one in contexts if one is not None]
    if not each:
        return None
    summed = "state_bytes", "checkpoints_written", "bytes_written", "kept_tokens", "returned_tokens"
    return msgspec.structs.replace(
        each[0], **{name: sum(getattr(one, name) for one in each) for name in summed}
    )
