"""Decode attention in torch, on the CPU or on a CUDA device, for a whole batch at once.

The selected blocks of the sessions are gathered into one padded array on the device that holds
the pool, as many sessions at a time as its memory should hold; a padded entry repeats a block that
the batch selected anyway, and is masked. Tables come from host memory, the output stays on the
device, and nothing here waits for it. torch is imported where it is used; the caller sets its
thread count.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.arrays.torch_arrays import to_device
from offstage.host.model.geometry import KvGeometry

__all__ = ["decode"]

# Gathered blocks at once: on a CPU what its caches hold, on a device a small share of its memory.
_GATHER_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}


def decode(
    queries: Any,
    storage: Any,
    block_tables: npt.NDArray[np.int32],
    token_counts: npt.NDArray[np.int32],
    geometry: KvGeometry,
    layer: int = 0,
) -> Any:
    """See `offstage.host.attention.Decode`."""
    output = queries.new_zeros((*queries.shape[:2], geometry.value_dim(layer)))
    batch = np.flatnonzero(token_counts.any(axis=1))
    if batch.size == 0:
        return output
    row_bytes = token_counts.shape[1] * geometry.block_bytes(layer)
    at_once = max(1, _GATHER_BYTES.get(storage.device.type, 0) // row_bytes)
    for start in range(0, len(batch), at_once):
        some = batch[start : start + at_once]
        tables, counts = _compact(block_tables[some], token_counts[some])
        chosen = to_device(some, storage.device)
        output[chosen] = _attend(queries[chosen], storage, tables, counts, geometry, layer)
    return output


def _compact(
    tables: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Blocks with tokens first, as wide as the longest table; other entries name a selected one."""
    order = np.argsort(counts == 0, axis=1, kind="stable")[:, : (counts > 0).sum(axis=1).max()]
    counts = np.take_along_axis(counts, order, axis=1)
    tables = np.take_along_axis(tables, order, axis=1).astype(np.int64)
    return np.where(counts > 0, tables, tables[:, :1]), counts


def _attend(
    queries: Any,
    storage: Any,
    tables: npt.NDArray[np.int64],
    counts: npt.NDArray[np.int32],
    geometry: KvGeometry,
    layer: int,
) -> Any:
    """`decode` for sessions that all have a token in their first block."""
    import torch

    batch, blocks = tables.shape
    _, kv_heads, block_tokens, head_dim = shape = geometry.block_shape(layer)
    device = storage.device
    rows = storage.index_select(0, to_device(tables.reshape(-1), device))
    paged = rows[:, : geometry.block_bytes(layer)].view(getattr(torch, geometry.value_type))
    # [planes, batch, kv_heads, blocks * block_tokens, head_dim]: reordered while half as wide.
    paged = paged.reshape(batch, blocks, *shape).permute(2, 0, 3, 1, 4, 5)
    wide = paged.contiguous().flatten(3, 4).float()
    keys, values = wide[0], wide[-1, ..., : geometry.value_dim(layer)]
    grouped = queries.reshape(batch, kv_heads, -1, head_dim)
    logits = (grouped * head_dim**-0.5) @ keys.transpose(2, 3)
    absent = (np.arange(block_tokens) >= counts[:, :, None]).reshape(batch, -1)
    if absent.any():
        logits.masked_fill_(to_device(absent, device)[:, None, None], -torch.inf)
        # A weight of zero does not silence what an unwritten slot may hold, say infinity.
        session, slot = (to_device(axis, device) for axis in np.nonzero(absent))
        values[session, :, slot] = 0.0
    return (logits.softmax(dim=-1) @ values).reshape(batch, queries.shape[1], -1)
