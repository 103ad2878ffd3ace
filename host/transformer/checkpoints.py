"""Checkpoints of states in the tier, and a session that comes back at the last of them.

A block of KV holds its own tokens and is of use to any session with the same tokens before it. A
recurrent state holds all tokens up to one position, and a compressor's the tokens of an entry not
yet full, so a prefix can be gone on with only where its states were kept: every so many blocks they
are stored as one value (`host.values`), under a key that names the model and all tokens so far, as
a block is named. With those of compressors are the window and the entries that are in no whole
block. A session that comes back, or shares a front with another, takes the last position that has
states, and KV of every token before it; what lies behind is read again, and at least one token,
since its logits are not kept.

One thread. Values want a fabric of their own, so a checkpoint has a connection while it is read or
written. A value that cannot be read, and a block that is lost, are as if they were not there; a
store that is full raises StoreFull.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from offstage.bindings.errors import RunFailed
from offstage.bindings.fabric import FetchRequest
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics import Fabric
from offstage.host.link.control import Control
from offstage.host.link.tier_sessions import append_chunks
from offstage.host.model.geometry import KvGeometry
from offstage.host.transformer.dense import DenseKv
from offstage.host.transformer.index_keys import index_tensors
from offstage.host.transformer.recurrent import States
from offstage.host.values import Values

__all__ = ["VOLUME", "Checkpoints", "Returned", "returned"]

VOLUME = b"recurrent states"
"""The volume of a tenant that they are in: 16 bytes."""

BATCH_BLOCKS = 64


class Checkpoints:
    """Of one context. `every`: tokens from one to the next, 0: none are kept. `name`: names all
    that determines the states after so many tokens, in 16 bytes."""

    def __init__(self, link: Endpoint, every: int, name: Callable[[int], bytes]) -> None:
        self._link, self._every, self._name = link, every, name
        self.written = self.bytes_written = 0
        """Those that the tier did not have."""

    def put(self, tokens: int, states: States) -> None:
        """Keep the states after `tokens` tokens, where it is a multiple, and they are not there."""
        if not self._every or tokens % self._every:
            return
        from safetensors.torch import save

        whole = {name: one.contiguous().cpu() for name, one in states.items()}
        value = save(whole)
        key = self._name(tokens)
        with self._opened() as values:
            if values.lengths([key]) != [len(value)]:  # none, or one that cannot be states
                values.store(key, value)
                self.written += 1
                self.bytes_written += len(value)

    def latest(self, tokens_max: int) -> tuple[int, States]:
        """The last states after at most `tokens_max` tokens, and after how many; 0: none."""
        if not self._every or tokens_max < self._every:
            return 0, {}
        from safetensors import SafetensorError
        from safetensors.torch import load

        places = range(self._every, tokens_max + 1, self._every)
        with self._opened() as values:
            lengths = values.lengths([self._name(one) for one in places])
            for tokens, length in reversed([*zip(places, lengths, strict=True)]):
                if length > 0:
                    try:
                        if value := values.retrieve(self._name(tokens)):
                            return tokens, load(value)
                    except (RunFailed, SafetensorError):
                        continue
        return 0, {}

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Values]:
        with self._link.attached() as (_, fabric):
            yield Values(fabric, VOLUME)


@dataclass(frozen=True)
class Returned:
    """Where a context goes on: after `tokens`. `kept_tokens`: how many the tier had the KV of."""

    tokens: int
    kept_tokens: int


def returned(
    kv: DenseKv,
    control: Control,
    fabric: Fabric,
    geometry: KvGeometry,
    identities: Sequence[int],
    checkpoints: Checkpoints,
    tokens_max: int,
) -> Returned:
    """Restore `kv` from the tier, up to the last checkpoint of at most `tokens_max` tokens before
    which it has all blocks. `geometry`: of the tier, with index keys; `identities`: of the
    context's chunks. Where a block cannot be read, nothing is restored."""
    size, forms = geometry.block_tokens, enumerate(geometry.layers)
    layers = [n for n, one in forms if not (kv.compresses and one.form == "window")]
    handle = control.session_open(select_blocks=1)
    appended = append_chunks(control, handle, identities, geometry.layer_count)
    ended = np.arange(len(identities))[:, None] + 1
    wanted = (ended % [geometry.chunks_per_block(one) for one in layers] == 0).sum(axis=1)
    whole = appended.stored_layers >= wanted
    kept = len(whole) if whole.all() else int(whole.argmin())
    tokens, states = checkpoints.latest(min(kept * size, tokens_max))
    # Only a chunk that ends a block shows what the tier has.
    kept_tokens = max(tokens, int((ended[:kept, 0] * (wanted[:kept] > 0)).max(initial=0)) * size)
    batch = max(1, min(BATCH_BLOCKS, control.geometry.slot_count // 4))
    landing = np.zeros((batch, control.geometry.payload_size_bytes), np.uint8)
    found, step = dict(states), 0
    fabric.register(landing)
    try:
        for layer in layers if tokens else ():
            count = geometry.entries(layer, tokens) // size
            blocks = np.empty((count, geometry.block_bytes(layer)), np.uint8)
            for first in range(0, count, batch):
                some = np.arange(first, min(first + batch, count))
                chunks = geometry.chunks_of(layer, some).astype(np.uint32)
                keys = np.ascontiguousarray(appended.keys[layer, chunks])
                request = FetchRequest(handle, step, layer, chunks, keys, landing)
                if fabric.fetch(request).rcs.any():
                    return Returned(0, kept_tokens)
                blocks[some] = landing[: len(some), : blocks.shape[1]]
                step += 1
            if count and geometry.layers[layer].form == "index":
                found |= index_tensors(blocks, geometry, layer)
            elif count:  # of an entry of many tokens no block may be full
                found |= kv.stored_tensors(layer, blocks)
    finally:
        fabric.unregister(landing)
        control.session_close(handle, keep=True)
    if tokens:
        kv.restore(found, tokens)
    return Returned(tokens, kept_tokens)
