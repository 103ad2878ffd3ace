"""Decode attention in torch, on the CPU or on a CUDA device.

The pool's storage is either a numpy array, which the CPU reads without a copy and from which a
CUDA device is sent the selected blocks, or a uint8 torch tensor, read where it lies. torch is
imported by the first call; its thread count is the caller's business.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.host.geometry import KvGeometry

__all__ = ["decode"]


def decode(
    query: npt.NDArray[np.float32],
    pool_storage: Any,
    block_indices: npt.NDArray[np.int32],
    token_counts: npt.NDArray[np.int32],
    geometry: KvGeometry,
    device: str = "",
) -> npt.NDArray[np.float32]:
    """See `offstage.host.attention.Decode`. No tokens at all give zeros.

    device: "" for where `pool_storage` lies, else "cpu", "cuda" or "cuda:<n>". Raises `BadInput`
    where torch has no such device."""
    import torch

    if not token_counts.any():
        return np.zeros(query.shape, np.float32)
    where = torch.device(_usable(torch, device or str(getattr(pool_storage, "device", "cpu"))))
    shape = _, kv_heads, block_tokens, head_dim = geometry.block_shape()
    # A block without tokens would only add columns that are masked.
    filled = token_counts > 0
    indices, counts = block_indices[filled], token_counts[filled]
    blocks = _blocks(torch, pool_storage, indices, geometry.block_bytes(0), where)
    # [2, kv_heads, blocks * block_tokens, head_dim]: reordered while it is still half as wide.
    paged = blocks.view(torch.float16).reshape(len(indices), *shape)
    keys, values = paged.permute(1, 2, 0, 3, 4).contiguous().flatten(2, 3).float()
    grouped = torch.from_numpy(query).to(where).reshape(kv_heads, -1, head_dim)
    logits = (grouped * head_dim**-0.5) @ keys.transpose(1, 2)
    if (counts < block_tokens).any():
        slots = np.arange(block_tokens) >= counts[:, None]
        absent = torch.from_numpy(slots.reshape(-1)).to(where)
        logits.masked_fill_(absent, -torch.inf)
        # A weight of zero does not silence what an unwritten slot may hold, say infinity.
        values[:, absent] = 0.0
    output = logits.softmax(dim=-1) @ values
    result: npt.NDArray[np.float32] = output.reshape(query.shape).cpu().numpy()
    return result


def _usable(torch: Any, device: str) -> str:
    if device != "cpu" and not torch.cuda.is_available():
        raise BadInput(
            f"torch has no device {device!r}", "torch kernel", "use device 'cpu', or install CUDA"
        )
    return device


def _blocks(
    torch: Any, pool_storage: Any, indices: npt.NDArray[np.int32], block_bytes: int, where: Any
) -> Any:
    """uint8 `[blocks, block_bytes]` on the device, gathered by the device that holds the pool."""
    held = torch.from_numpy(pool_storage) if isinstance(pool_storage, np.ndarray) else pool_storage
    rows = torch.from_numpy(indices.astype(np.int64)).to(held.device)
    return held.index_select(0, rows)[:, :block_bytes].contiguous().to(where)
