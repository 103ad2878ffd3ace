"""Quantized blocks as the model's own numbers again, in torch, on the device that holds them.

What crosses to the device is what the tier stores. The numbers are those of
`BlockQuantizer.dequantize` to the bit: FP8 is one product in float32; a level times its step needs
19 bits, so that the product is exact and one addition rounds, fused or not. torch is imported where
it is used; nothing here waits for the device.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.arrays.torch_arrays import to_device
from offstage.host.model.lossy import FP8
from offstage.host.model.quantized import BlockQuantizer, HeadType

__all__ = ["dequantize"]


def dequantize(quantizer: BlockQuantizer, blocks: Any, codes: npt.NDArray[np.uint8]) -> Any:
    """uint8 `[n, bytes]` of quantized blocks uint8 `[n, payload]`, both on one device. `codes`: the
    first bytes of each block, `[n, kv_heads]`, in host memory, so that none come back from the
    device to say what to launch."""
    import torch

    geometry = quantizer.geometry
    _, _, tokens, width = shape = geometry.block_shape(0)
    value_type = getattr(torch, geometry.value_type)
    found = torch.zeros((len(blocks), *shape), dtype=value_type, device=blocks.device)
    for rows, parts in quantizer.parts(codes):
        every = len(rows) == len(blocks)
        where = slice(None) if every else to_device(rows.astype(np.int64), blocks.device)
        content = blocks[where]
        for part in parts:
            planes = content[:, part.begin : part.end].reshape(len(rows), part.count, -1)
            for plane, span in enumerate(part.planes):
                own = planes[..., span]
                if part.kind == "model":
                    numbers = _aligned(own).view(value_type).unflatten(-1, (tokens, width))
                else:
                    numbers = _narrowed(_values(own, part.kind, plane, (tokens, width)), value_type)
                found[where, plane, part.heads] = numbers
    return found.flatten(1).view(torch.uint8)


def _values(own: Any, kind: HeadType, plane: int, shape: tuple[int, int]) -> Any:
    """float32 `[n, heads, tokens, width]` of one plane's bytes `[n, heads, bytes]`."""
    import torch

    tokens, width = shape
    if kind in ("fp8-e4m3", "fp8-e5m2"):
        of_kind = torch.float8_e4m3fn if kind == "fp8-e4m3" else torch.float8_e5m2
        scale = _aligned(own[..., -4:]).view(torch.float32)
        return (own[..., :-4].view(of_kind).float() * scale).unflatten(-1, shape)
    shared = (width, tokens)[plane]
    scales = _aligned(own[..., -4 * shared :]).view(torch.float16).float()
    along = (1, width) if plane == 0 else (tokens, 1)
    low, step = (half.unflatten(-1, along) for half in scales.split(shared, dim=-1))
    levels = own[..., : -4 * shared]
    if kind == "int4":
        levels = torch.stack([levels & 15, levels >> 4], dim=-1).flatten(-2)
    return low + levels.unflatten(-1, shape).float() * step


def _aligned(own: Any) -> Any:
    """A copy in memory of its own: a head begins at any byte, wider numbers may not."""
    import torch

    return own.clone(memory_format=torch.contiguous_format)


def _narrowed(values: Any, value_type: Any) -> Any:
    """Rounded to nearest; 8 bits saturate, as `offstage.host.model.values.narrowed` has it."""
    import torch

    if value_type == torch.float8_e4m3fn:
        most = FP8["fp8_e4m3"].largest
        values = values.clamp(-most, most)
    return values.to(value_type)
