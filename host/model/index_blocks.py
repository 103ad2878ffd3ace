"""Blocks of index keys: a model's indexers in the tier, behind the model's own layers.

The key by which an indexer scores a token is small beside the token's entry, and a tier's blocks
have one size. So a block of index keys holds those of several layers for the same tokens: in the
place of KV heads it has one indexer each, as many as fit; of compressed entries as many keys as a
chunk has tokens. To the tier these are further layers of
the session, which a daemon's `arena.layers` counts.

Pure functions of immutable objects, any thread. A key larger than an entry raises `BadInput`.
"""

from dataclasses import replace

from offstage.bindings.errors import BadInput
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.layer_kv import LayerKv

__all__ = ["index_places", "with_index_blocks"]


def with_index_blocks(geometry: KvGeometry) -> KvGeometry:
    """The geometry with layers of index keys behind its own. BadInput for a model without indexers,
    for keys of several sizes or of entries of several lengths, and for a key that no block of an
    entry's size holds. A model that compresses is given as its tier holds it."""
    own = tuple(one for one in geometry.layers if one.form != "index")
    keys = [(one.index_dim, one.tokens_per_entry) for one in own if one.index_dim]
    if len({*keys}) != 1:
        problem = f"index keys of {len({*keys})} kinds" if keys else "no indexer"
        raise BadInput(
            f"{geometry.name} has {problem}", "--index-keys tier", "leave it out, or use resident"
        )
    ((dim, tokens),) = {*keys}
    one = replace(geometry, layers=(*own, LayerKv("index", 1, dim, tokens)))
    fit = max(map(one.block_bytes, range(len(own)))) // one.block_bytes(len(own))
    if fit == 0:
        raise BadInput(
            f"an index key of {geometry.name} has {dim} values, more bytes than an entry",
            "--index-keys tier",
            "leave it out, or use resident",
        )
    heads = [min(fit, len(keys) - first) for first in range(0, len(keys), fit)]
    return replace(geometry, layers=(*own, *(LayerKv("index", n, dim, tokens) for n in heads)))


def index_places(geometry: KvGeometry) -> dict[int, tuple[int, int]]:
    """By layer of the model with an indexer, where its keys are: layer of the tier, and head there.
    Empty where the geometry has no layers of index keys."""
    layers = list(enumerate(geometry.layers))
    there = [(n, head) for n, one in layers if one.form == "index" for head in range(one.kv_heads)]
    parts = enumerate(geometry.parts)
    own = [n for n, each in parts if any(geometry.layers[one].index_dim for one in each)]
    return dict(zip(own, there, strict=False))
