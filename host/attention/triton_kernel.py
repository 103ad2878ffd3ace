"""Decode attention in Triton: blocks are read where they lie in the pool, once, and never gathered.

The kernel is `offstage.host.gpu.attention`; here are the views that it takes of a pool, and the one
copy that takes the tables to the device. On the CPU it runs under Triton's interpreter alone.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.arrays.torch_arrays import to_device
from offstage.host.gpu import check_device
from offstage.host.gpu.attention import attend
from offstage.host.model.entries import vectors_of
from offstage.host.model.geometry import KvGeometry

__all__ = ["decode"]


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
    """See `offstage.host.attention.Decode`. Raises `BadInput` for a device it cannot run on."""
    import torch

    check_device(str(storage.device), "float8" if geometry.scaled else geometry.value_type)
    vectors = vectors_of(storage, geometry, layer)
    row = geometry.row(layer)
    if row is None:
        blocks = vectors.view(getattr(torch, geometry.value_type))
    else:
        blocks = vectors[..., : row.values].view(torch.float8_e4m3fn)
    keys, values = blocks[:, 0], blocks[:, -1, ..., : geometry.value_dim(layer)]
    batch, width = token_counts.shape
    filled = token_counts > 0
    lengths = np.where(filled.any(axis=1), width - filled[:, ::-1].argmax(axis=1), 0)
    given = [block_tables, token_counts, *([] if slots is None else [slots])]
    flat = [one.ravel() for one in given]
    moved = to_device(np.concatenate([lengths.astype(np.int32), *flat]), storage.device)
    tables, counts, *own = moved[batch:].view(len(given), batch, width)
    found = own[0] if own else None
    sinks = None if sink_logits is None else to_device(sink_logits, storage.device)
    pool = queries, keys, values, tables, counts, moved[:batch]
    return attend(
        *pool, slots=found, sink_logits=sinks, scale_values=row.scale_values if row else 0
    )
