"""Codec: lossless compression of KV on the way to the medium, decompression on the way back.

What it does: splits BF16 or FP8 values into bit planes, exponents apart, and codes each plane; a
table of its own for each head and layer, since their exponents differ. What the medium, its link
and the DMA move is smaller by `ratio`; memory and hosts see raw bytes.

Pipeline: `lanes` side by side, each 64 B or so a cycle; decoding and encoding lanes are apart.
Initiation interval: the piece's raw bytes at the lane's rate.
State: the coding tables of heads and layers in use, the piece at hand in each lane.
When full: pieces wait before the lanes; DMA, and behind it the drive's completions, are blocked.

One ratio stands for all heads and layers. What does not compress is stored raw, so a ratio never
exceeds 1.
"""

from typing import Any

from offstage.asic_model.parameters import Codec
from offstage.asic_model.units.cost import per_mib_ps
from offstage.bindings.network import Unit

__all__ = ["codec_lanes"]


def codec_lanes(codec: Codec) -> tuple[Unit, ...]:
    """Decoding and encoding."""
    shared: dict[str, Any] = {"servers": codec.lanes.whole, "queue_max": codec.queue.whole}
    return (
        Unit("decode", queue="priority", mib_ps=per_mib_ps(codec.decode_rate.base),
             latency_ps=codec.decode_latency.whole, **shared),
        Unit("encode", mib_ps=per_mib_ps(codec.encode_rate.base),
             latency_ps=codec.encode_latency.whole, **shared),
    )  # fmt: skip
