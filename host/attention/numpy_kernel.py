"""Decode attention in numpy, float32: one online softmax over chunks of blocks.

A chunk is small enough that its float32 copy stays in a core's second-level cache: widening
float16 is the dominant cost, and the products then read what was just written. Running maximum,
sum and output are rescaled when a chunk raises the maximum (the online softmax of Milakov and
Gimelshein, arXiv:1805.02867).
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.geometry import KvGeometry

__all__ = ["decode"]

_CHUNK_BYTES = 512 * 1024


def decode(
    query: npt.NDArray[np.float32],
    pool_storage: Any,
    block_indices: npt.NDArray[np.int32],
    token_counts: npt.NDArray[np.int32],
    geometry: KvGeometry,
) -> npt.NDArray[np.float32]:
    """See `offstage.host.attention.Decode`. No tokens at all give zeros."""
    _, kv_heads, block_tokens, head_dim = shape = geometry.block_shape()
    used = pool_storage[:, : geometry.block_bytes(0)]
    pool = used.view(np.float16).reshape(len(pool_storage), *shape)
    scaled = query.reshape(kv_heads, -1, head_dim) * np.float32(head_dim**-0.5)
    chunk = max(1, _CHUNK_BYTES // (4 * int(np.prod(shape))))
    top = np.full((kv_heads, scaled.shape[1], 1), -np.inf, np.float32)
    total = np.zeros_like(top)
    output = np.zeros(scaled.shape, np.float32)
    for start in range(0, len(block_indices), chunk):
        indices = block_indices[start : start + chunk]
        counts = token_counts[start : start + chunk]
        if not counts.any():
            continue
        # [2, kv_heads, blocks, block_tokens, head_dim]: a head's tokens become one matrix.
        wide = np.empty((2, kv_heads, len(indices), block_tokens, head_dim), np.float32)
        for place, index in enumerate(indices):
            wide[:, :, place] = pool[index]
        keys, values = wide.reshape(2, kv_heads, -1, head_dim)
        logits = scaled @ keys.transpose(0, 2, 1)
        if (counts < block_tokens).any():
            absent = np.arange(block_tokens) >= counts[:, None]
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
    if total.any():
        output /= total
    return output.reshape(query.shape)
