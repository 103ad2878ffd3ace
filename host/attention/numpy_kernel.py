"""Decode attention in numpy, float32: per session one online softmax over chunks of blocks.

A core gains nothing from a batch, so the sessions come one after another. A chunk is small enough
that its float32 copy stays in a core's second-level cache: widening is the dominant cost,
and the products then read what was just written. Running maximum, sum and output are rescaled when
a chunk raises the maximum (the online softmax of Milakov and Gimelshein, arXiv:1805.02867).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.model.entries import numbers_of, unpacked
from offstage.host.model.geometry import KvGeometry

__all__ = ["decode"]

_CHUNK_BYTES = 512 * 1024

Floats = npt.NDArray[np.float32]


def decode(
    queries: Floats,
    storage: npt.NDArray[np.uint8],
    block_tables: npt.NDArray[np.int32],
    token_counts: npt.NDArray[np.int32],
    geometry: KvGeometry,
    layer: int = 0,
    slots: npt.NDArray[np.int32] | None = None,
    sink_logits: npt.NDArray[np.float32] | None = None,
) -> Floats:
    """See `offstage.host.attention.Decode`."""
    _, kv_heads, _, head_dim = geometry.block_shape(layer)
    pool = numbers_of(storage, geometry, layer)
    output = np.zeros((*queries.shape[:2], geometry.value_dim(layer)), np.float32)
    for session, query in enumerate(queries):
        filled = token_counts[session] > 0
        if filled.any():
            grouped = query.reshape(kv_heads, -1, head_dim) * np.float32(head_dim**-0.5)
            tables = block_tables[session, filled], token_counts[session, filled]
            own = None if slots is None else slots[session, filled]
            attended = _attend(grouped, pool, *tables, own, geometry, layer, sink_logits)
            output[session] = attended.reshape(output[session].shape)
    return output


def _attend(
    scaled: Floats,
    pool: npt.NDArray[Any],
    indices: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int32],
    slots: npt.NDArray[np.int32] | None,
    geometry: KvGeometry,
    layer: int,
    sink_logits: Floats | None,
) -> Floats:
    """One session: float32 `[kv_heads, group, value_dim]` from its scaled query `[kv_heads, group,
    head_dim]`, the pool as `numbers_of` gives it, and entries of a token or more, each of one where
    `slots` are given."""
    planes, kv_heads, block_tokens, head_dim = geometry.block_shape(layer)
    value_dim = geometry.value_dim(layer)
    entry_tokens = block_tokens if slots is None else 1
    chunk = max(1, _CHUNK_BYTES // (4 * planes * kv_heads * entry_tokens * head_dim))
    top = np.full((kv_heads, scaled.shape[1], 1), -np.inf, np.float32)
    total = np.zeros_like(top)
    if sink_logits is not None:  # as a token that has been read, whose value is 0
        top, total = sink_logits.reshape(top.shape), np.ones_like(top)
    output = np.zeros((*scaled.shape[:2], value_dim), np.float32)
    for start in range(0, len(indices), chunk):
        taken = indices[start : start + chunk]
        # [planes, kv_heads, entries, entry_tokens, head_dim]: a head's tokens become one matrix.
        wide = np.empty((planes, kv_heads, len(taken), entry_tokens, head_dim), np.float32)
        if slots is None:
            for column, index in enumerate(taken):
                unpacked(wide[:, :, column], pool[index], geometry, layer)
        else:
            tokens = pool[taken, :, :, slots[start : start + chunk]]
            unpacked(wide[:, :, :, 0], tokens.transpose(1, 2, 0, 3), geometry, layer)
        flat = wide.reshape(planes, kv_heads, -1, head_dim)
        keys, values = flat[0], flat[-1, :, :, :value_dim]
        logits = scaled @ keys.transpose(0, 2, 1)
        absent = np.arange(entry_tokens) >= counts[start : start + chunk, None]
        if absent.any():
            logits[:, :, absent.reshape(-1)] = -np.inf
            # A weight of zero does not silence what an unwritten slot may hold, say infinity.
            values[:, absent.reshape(-1)] = 0.0
        raised = np.maximum(top, logits.max(axis=2, keepdims=True))
        np.subtract(logits, raised, out=logits)
        weights = np.exp(logits, out=logits)
        keep = np.exp(top - raised)
        total = total * keep + weights.sum(axis=2, keepdims=True)
        output = output * keep + weights @ values
        top = raised
    output /= total
    return output
