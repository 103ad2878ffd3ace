"""The oracle: dense softmax attention in float64 over the gathered tokens, one head at a time.

It is slow. Every other kernel is compared with it.
"""

import numpy as np
import numpy.typing as npt

from offstage.host.model.entries import numbers_of, unpacked
from offstage.host.model.geometry import KvGeometry

__all__ = ["decode"]


def decode(
    queries: npt.NDArray[np.float32],
    storage: npt.NDArray[np.uint8],
    block_tables: npt.NDArray[np.int32],
    token_counts: npt.NDArray[np.int32],
    geometry: KvGeometry,
    layer: int = 0,
    slots: npt.NDArray[np.int32] | None = None,
    sink_logits: npt.NDArray[np.float32] | None = None,
) -> npt.NDArray[np.float32]:
    """See `offstage.host.attention.Decode`."""
    shape = geometry.block_shape(layer)
    group = geometry.q_heads // shape[1]
    value_dim = geometry.value_dim(layer)
    output = np.zeros((*queries.shape[:2], value_dim), np.float32)
    begins = np.zeros_like(token_counts) if slots is None else slots
    for session, query in enumerate(queries.astype(np.float64)):
        keys, values = [], []
        entries = zip(block_tables[session], begins[session], token_counts[session], strict=True)
        for index, begin, count in entries:
            if count == 0:
                continue
            block = numbers_of(storage[index : index + 1], geometry, layer)[0]
            numbers = block[:, :, begin : begin + count]
            tokens = np.empty((*numbers.shape[:3], shape[3]), np.float64)
            unpacked(tokens, numbers, geometry, layer)
            keys.append(tokens[0])
            values.append(tokens[-1, :, :, :value_dim])
        if not keys:
            continue
        all_keys, all_values = np.concatenate(keys, axis=1), np.concatenate(values, axis=1)
        for head in range(geometry.q_heads):
            logits = all_keys[head // group] @ query[head] / np.sqrt(shape[3])
            sink = -np.inf if sink_logits is None else np.float64(sink_logits[head])
            top = max(logits.max(), sink)
            weights = np.exp(logits - top)
            weights /= weights.sum() + np.exp(sink - top)
            output[session, head] = weights @ all_values[head // group]
    return output
