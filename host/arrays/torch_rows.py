"""FP8 rows in torch, on the device that holds them. Nothing here waits for the device."""

from typing import Any

from offstage.host.model.rows import Row

__all__ = ["unpack"]


def _split(row: Row, rows: Any) -> tuple[Any, Any, Any]:
    """Views of uint8 rows `[..., size_bytes]`, each row at a multiple of 4 B: values in FP8,
    scales in float32, rotary values in bfloat16."""
    import torch

    values, scales, rotary = rows.split(row.parts, dim=-1)
    return values.view(torch.float8_e4m3fn), scales.view(torch.float32), rotary.view(torch.bfloat16)


def unpack(row: Row, rows: Any) -> Any:
    """The vectors of rows, float32 `[..., values + rotary]`, to the bit as `Row.unpack`."""
    import torch

    values, scales, rotary = _split(row, rows)
    each = scales.repeat_interleave(row.scale_values, dim=-1)[..., : row.values]
    return torch.cat([values.float() * each, rotary.float()], dim=-1)
