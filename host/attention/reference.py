"""The oracle: dense softmax attention in float64 over the gathered tokens, one head at a time.

Nothing here is fast. Every other kernel is held to this one.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.geometry import KvGeometry

__all__ = ["decode"]


def decode(
    query: npt.NDArray[np.float32],
    pool_storage: Any,
    block_indices: npt.NDArray[np.int32],
    token_counts: npt.NDArray[np.int32],
    geometry: KvGeometry,
) -> npt.NDArray[np.float32]:
    """See `offstage.host.attention.Decode`. No tokens at all give zeros."""
    shape = geometry.block_shape()
    keys, values = [], []
    for index, count in zip(block_indices, token_counts, strict=True):
        row = pool_storage[index, : geometry.block_bytes(0)]
        block = row.view(np.float16).reshape(shape).astype(np.float64)
        keys.append(block[0, :, :count])
        values.append(block[1, :, :count])
    output = np.zeros(query.shape, np.float32)
    if not keys or sum(token_counts) == 0:
        return output
    all_keys, all_values = np.concatenate(keys, axis=1), np.concatenate(values, axis=1)
    group = geometry.q_heads // shape[1]
    for head in range(geometry.q_heads):
        logits = all_keys[head // group] @ query[head].astype(np.float64) / np.sqrt(shape[3])
        weights = np.exp(logits - logits.max())
        output[head] = (weights / weights.sum()) @ all_values[head // group]
    return output
