"""Codec: lossless compression of KV on the way to the medium, decompression on the way back.

What it does: gives the exponents of BF16 or FP8 values a prefix code, each 4 KiB one of its own,
since exponents differ by layer, head, keys and values; signs and mantissas stay. The format is
docs/reference/codec.md. What the medium, its link and the DMA move is smaller by `ratio`; memory
and hosts see raw bytes.

Pipeline: `lanes` side by side, each 64 B or so a cycle; decoding and encoding lanes are apart.
Initiation interval: the piece's raw bytes at the lane's rate. A piece lies within the keys or the
values of one head where those are no smaller, as in blocks of 64 tokens and 64 channels, so that
heads go through lanes of their own.
State: the piece at hand in each lane, and its table.
When full: pieces wait before the lanes; DMA, and behind it the drive's completions, are blocked.

The ratio is the measured one of a dtype and of what layers store: the mean of keys and values,
which a block holds in equal parts, in a range over all layers. How it differs from layer to layer
and from head to head is the table's, too (`coded_permille`): a block has the size that its layer
gives it, and a piece of it the one of its head. What does not compress is stored raw, so no part
exceeds 1.
"""

from typing import Any

from offstage.asic_model.blocks import Codec
from offstage.asic_model.units.cost import per_mib_ps
from offstage.bindings.network import Unit

__all__ = ["codec_lanes", "coded_permille"]


def coded_permille(codec: Codec) -> tuple[tuple[int, ...], ...]:
    """What the codec leaves of each part of a block, a row for each layer: the keys of all heads,
    then the values. One part where nothing was measured."""
    spread = codec.ratio.spread or ((1.0,),)
    return tuple(
        tuple(min(1000, max(1, round(codec.ratio.base * share * 1000))) for share in row)
        for row in spread
    )


def codec_lanes(codec: Codec) -> tuple[Unit, ...]:
    """Decoding and encoding."""
    shared: dict[str, Any] = {"servers": codec.lanes.whole, "queue_max": codec.queue.whole}
    return (
        Unit(
            "decode",
            queue="priority",
            mib_ps=per_mib_ps(codec.decode_rate.base),
            latency_ps=codec.decode_latency.whole,
            **shared,
        ),
        Unit(
            "encode",
            mib_ps=per_mib_ps(codec.encode_rate.base),
            latency_ps=codec.encode_latency.whole,
            **shared,
        ),
    )
