"""Decode attention in torch, on the CPU or on a CUDA device, for a whole batch at once.

The selected blocks or tokens of the sessions are gathered into one padded array on the device that
holds the pool, as many sessions at a time as its memory should hold; a padded entry repeats one
that the batch selected anyway, and is masked. Tables come from host memory, the output stays on the
device, and nothing here waits for it. torch is imported where it is used; the caller sets its
thread count.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.arrays.torch_arrays import to_device
from offstage.host.arrays.torch_rows import unpack
from offstage.host.model.entries import vectors_of
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
    slots: npt.NDArray[np.int32] | None = None,
    sink_logits: npt.NDArray[np.float32] | None = None,
) -> Any:
    """See `offstage.host.attention.Decode`."""
    output = queries.new_zeros((*queries.shape[:2], geometry.value_dim(layer)))
    batch = np.flatnonzero(token_counts.any(axis=1))
    if batch.size == 0:
        return output
    entry_bytes = geometry.block_bytes(layer) if slots is None else geometry.entry_bytes(layer)
    row_bytes = token_counts.shape[1] * entry_bytes
    at_once = max(1, _GATHER_BYTES.get(storage.device.type, 0) // row_bytes)
    for start in range(0, len(batch), at_once):
        some = batch[start : start + at_once]
        order = _filled_first(token_counts[some])
        counts = np.take_along_axis(token_counts[some], order, axis=1)
        tables = _compact(block_tables[some], order, counts)
        own = None if slots is None else _compact(slots[some], order, counts)
        chosen = to_device(some, storage.device)
        paged = _gathered(storage, tables, own, geometry, layer)
        output[chosen] = _attend(queries[chosen], paged, counts, geometry, layer, sink_logits)
    return output


def _filled_first(counts: npt.NDArray[np.int32]) -> npt.NDArray[np.intp]:
    """The order that puts entries with tokens first, as wide as the longest table."""
    order = np.argsort(counts == 0, axis=1, kind="stable")
    return order[:, : (counts > 0).sum(axis=1).max()]


def _compact(
    rows: npt.NDArray[np.int32], order: npt.NDArray[np.intp], counts: npt.NDArray[np.int32]
) -> npt.NDArray[np.int64]:
    """The rows in this order; entries without tokens name what the first names."""
    rows = np.take_along_axis(rows, order, axis=1)
    return np.where(counts > 0, rows, rows[:, :1]).astype(np.int64)


def _gathered(
    storage: Any,
    tables: npt.NDArray[np.int64],
    slots: npt.NDArray[np.int64] | None,
    geometry: KvGeometry,
    layer: int,
) -> Any:
    """What the entries name, `[planes, batch, kv_heads, tokens, head_dim]` in the pool's type; of
    FP8 rows their bytes."""
    import torch

    device = storage.device
    value_type = torch.uint8 if geometry.scaled else getattr(torch, geometry.value_type)
    if slots is None:
        rows = storage.index_select(0, to_device(tables.reshape(-1), device))
        vectors = vectors_of(rows, geometry, layer).view(value_type).unflatten(0, tables.shape)
        return vectors.permute(2, 0, 3, 1, 4, 5).contiguous().flatten(3, 4)
    used = vectors_of(storage, geometry, layer)
    tokens = used[to_device(tables, device), :, :, to_device(slots, device)]
    return tokens.permute(2, 0, 3, 1, 4).contiguous().view(value_type)


def _attend(
    queries: Any,
    paged: Any,
    counts: npt.NDArray[np.int32],
    geometry: KvGeometry,
    layer: int,
    sink_logits: npt.NDArray[np.float32] | None,
) -> Any:
    """`decode` over gathered tokens, for sessions that all have one in their first entry."""
    import torch

    _, batch, kv_heads, tokens, _ = paged.shape
    device, entry_tokens = paged.device, tokens // counts.shape[1]
    row, head_dim = geometry.row(layer), queries.shape[2]
    wide = paged.float() if row is None else unpack(row, paged)  # reordered while half as wide
    keys, values = wide[0], wide[-1, ..., : geometry.value_dim(layer)]
    grouped = queries.reshape(batch, kv_heads, -1, head_dim)
    logits = (grouped * head_dim**-0.5) @ keys.transpose(2, 3)
    absent = (np.arange(entry_tokens) >= counts[:, :, None]).reshape(batch, -1)
    if absent.any():
        logits.masked_fill_(to_device(absent, device)[:, None, None], -torch.inf)
        # A weight of zero does not silence what an unwritten slot may hold, say infinity.
        session, slot = (to_device(axis, device) for axis in np.nonzero(absent))
        values[session, :, slot] = 0.0
    if sink_logits is not None:
        sinks = to_device(sink_logits.reshape(1, kv_heads, -1, 1), device)
        logits = torch.cat([logits, sinks.expand(batch, -1, -1, -1)], dim=-1)
    weights = logits.softmax(dim=-1)[..., :tokens]
    return (weights @ values).reshape(batch, queries.shape[1], -1)
