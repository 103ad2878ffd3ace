"""Do blocks of index keys hold every indexer's keys once, as many as fit beside entries?"""

from dataclasses import replace

import pytest

from offstage.bindings.errors import BadInput
from offstage.host.model.geometry import KvGeometry, LayerKv
from offstage.host.model.index_blocks import index_places, with_index_blocks
from offstage.host.model.models import geometry
from offstage.host.model.quantized_rows import rows_of


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(
    ("name", "indexers", "added"), [("deepseek-v3.2", 61, 16), ("glm-5.2", 21, 6)]
)
def test_published_models_need_a_quarter_as_many_layers_more(
    name: str, indexers: int, added: int, scaled: bool
) -> None:
    """Four keys of 256 B fit beside an entry of 1,152 B, and four of 132 B beside one of 656 B."""
    own = replace(geometry(name), scaled=scaled)
    found = with_index_blocks(own)
    assert found.layer_count == own.layer_count + added
    assert max(map(found.block_bytes, range(found.layer_count))) == own.block_bytes(0)
    assert found.bytes_per_token() == own.bytes_per_token(), "keys are counted once"
    places = index_places(found)
    assert [*places] == [n for n, one in enumerate(own.layers) if one.index_dim]
    assert len({*places.values()}) == len(places) == indexers
    for layer, head in places.values():
        assert layer >= own.layer_count and head < found.layers[layer].kv_heads


def test_rows_pack_keys_anew() -> None:
    """In FP8 more of them may fit than in the model's type, and no layer is added twice."""
    layer = LayerKv("mla", 1, 64, value_dim=48, rotary_dim=16, index_dim=24)
    plain = with_index_blocks(KvGeometry("t", 4, (layer,) * 3, 16, "float32"))
    assert [one.kv_heads for one in plain.layers[3:]] == [2, 1]
    rows = rows_of(plain, 512)
    assert [one.kv_heads for one in rows.geometry.layers[3:]] == [3]
    assert rows.payload_bytes == 1536 and rows.kinds == (("fp8",),) * 3
    assert with_index_blocks(rows.geometry) == rows.geometry
    assert not index_places(replace(plain, layers=plain.layers[:3]))


def test_keys_of_compressed_entries_span_the_chunks_of_their_entries() -> None:
    """Places are by layer of the model, of which the tier has two where one compresses."""
    csa = LayerKv("csa", 1, 64, 4, 40, index_dim=24)
    layers = (
        LayerKv("window", 1, 64, window_tokens=40, value_dim=64),
        csa,
        replace(csa, index_dim=0),
    )
    own = KvGeometry("t", 4, (*layers, csa), 16, "float32").in_tier(16, "float32")
    found = with_index_blocks(own)
    assert index_places(found) == {1: (own.layer_count, 0), 3: (own.layer_count, 1)}
    assert found.chunks_per_block(own.layer_count) == 4
    assert found.block_bytes(own.layer_count) == 2 * 16 * 24 * 4
    assert found.block_count(130, own.layer_count) == 2
    mixed = (*layers[:2], replace(csa, tokens_per_entry=8))
    with pytest.raises(BadInput, match="index keys of 2 kinds"):
        with_index_blocks(KvGeometry("t", 4, mixed, 16, "float32").in_tier(16, "float32"))
