"""Codec: lossless compression of KV on the way to the medium, decompression on the way back.

What it does: encodes the exponents of BF16 or FP8 values with a prefix code. Each 4 KiB piece has a
separate code, since exponents differ by layer, head, keys and values. Signs and mantissas stay as
they are. The format is docs/reference/codec.md. The bytes on the medium, its link and the DMA
shrink by `ratio`; memory and hosts see raw bytes.

Pipeline: parallel `lanes`, each about 64 B a cycle, as published; decoding and encoding lanes are
separate. Those of `rtl/codec_lane.v` and `rtl/encode_lane.v` are others: a value a cycle at most.
Initiation interval: the piece's raw bytes at the lane's rate. A piece lies within the keys or the
values of one head where those are at least a piece long, as in blocks of 64 tokens and 64 channels,
so the heads use different lanes.
State: the current piece in each lane, and its table.
When full: pieces wait before the lanes; DMA, and behind it the drive's completions, are blocked.

The ratio is measured for a dtype and for what layers store: the mean of keys and values, which a
block holds in equal parts, with a range over all layers. Its variation by layer and head comes from
the same table (`coded_permille`): a block has the size of its layer, and a piece of it that of its
head. Incompressible data is stored raw, so no part exceeds 1.
"""

from offstage.asic_model.blocks import Codec
from offstage.asic_model.units.cost import per_mib_ps
from offstage.bindings.network import Unit

__all__ = ["codec_lanes", "coded_permille"]


def coded_permille(codec: Codec) -> tuple[tuple[int, ...], ...]:
    """The coded size of each part of a block, in permille, one row per layer: the keys of all
    heads, then the values. A single part where nothing was measured."""
    spread = codec.ratio.spread or ((1.0,),)
    return tuple(
        tuple(min(1000, max(1, round(codec.ratio.base * share * 1000))) for share in row)
        for row in spread
    )


def codec_lanes(codec: Codec) -> tuple[Unit, ...]:
    """The decoding and the encoding lanes."""
    servers, queue_max = codec.lanes.whole, codec.queue.whole
    return (
        Unit(
            "decode",
            queue="priority",
            mib_ps=per_mib_ps(codec.decode_rate.base),
            latency_ps=codec.decode_latency.whole,
            servers=servers,
            queue_max=queue_max,
        ),
        Unit(
            "encode",
            mib_ps=per_mib_ps(codec.encode_rate.base),
            latency_ps=codec.encode_latency.whole,
            servers=servers,
            queue_max=queue_max,
        ),
    )
