"""Does a session go on from what was kept of a DeepSeek-V4's compressors, wherever it was cut?

Against transformers' own cache layers, which keep no past to cut.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offstage.host.model.geometry import KvGeometry, LayerKv

torch = pytest.importorskip("torch", reason="needs the extra capture")
pytest.importorskip("transformers", reason="needs the extra capture")

RATE, DIM, TOKENS, WINDOW, BLOCK = 4, 6, 30, 8, 2
NAMES = "compressor", "indexer"


def inputs() -> dict[str, Any]:
    random = torch.Generator().manual_seed(1)
    return {name: torch.randn(2, 1, TOKENS, 2 * DIM, generator=random) for name in NAMES}


def theirs() -> Any:
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4CSACache

    rates = {"heavily_compressed_attention": 128, "compressed_sparse_attention": RATE}
    return DeepseekV4CSACache(SimpleNamespace(sliding_window=WINDOW, compress_rates=rates))


def feed(layer: Any, name: str, given: Any) -> list[Any]:
    """What a compressor is handed for some tokens; the sum of an entry's inputs stands for it."""
    kv, gate, first = layer.store_compression_weights(name, *given)
    found = [kv, gate, torch.tensor(first)]
    if kv.shape[1]:
        kv, gate = (one.unflatten(1, (-1, RATE)) for one in (kv, gate))
        found += layer.update_overlap_state(name, kv, gate, DIM)
    entries = kv[..., :DIM].sum(dim=2) if kv.ndim == 4 else kv.new_zeros(1, 0, DIM)
    return [*found, layer.update_compressor_states(name, entries)]


def same(own: list[Any], other: list[Any]) -> bool:
    return len(own) == len(other) and all(
        a is b or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(own, other, strict=True)
    )


@pytest.mark.parametrize("kept", [False, True], ids=["cut", "checkpoint"])
@pytest.mark.parametrize("cut", range(2, TOKENS, 3))
def test_a_cut_context_goes_on_as_transformers_own(cut: int, kept: bool) -> None:
    """Fed in pieces, cut, made a session's and fed token by token: at each token the compressor
    gets what transformers' layer gives, but the entries of attention, of which it gets new ones.
    So of a layer that has whole blocks of entries and a checkpoint, of which each window is read as
    long and has what it would have had."""
    from offstage.host.transformer.compressed import WholeCache

    cache, reference = WholeCache([RATE], WINDOW), theirs()
    (own,) = cache.layers
    keys = torch.arange(1.0, TOKENS + 1)[None, None, :, None].expand(1, 1, TOKENS, DIM)
    own.update(keys, keys)
    for name, every in inputs().items():
        for begin in range(0, TOKENS, 7):
            feed(own, name, every[:, :, begin : begin + 7])
        feed(reference, name, every[:, :, :cut])
    cache.crop(cut - TOKENS)
    if kept:
        before, (own, other) = own, WholeCache([RATE] * 2, WINDOW).layers
        for one in (own, other):
            one.restore(before.whole_blocks(cut, BLOCK) | before.checkpoint(BLOCK), cut)
        first = max(0, cut + 1 - WINDOW) // BLOCK * BLOCK
        assert torch.equal(own.window(slice(first, cut)), keys[:, :, first:cut])
        assert not own.window(slice(0, first)).any() and own.tokens == cut
        new = keys[:, :, cut : cut + 3]
        assert torch.equal(other.update(new, new)[0], before.update(new, new)[0])
    session = own.session()
    assert session.index_keys.shape == (1, cut // RATE, DIM)
    assert session.state_bytes <= 2 * 4 * 2 * (RATE * DIM + (RATE - 1) * 2 * DIM)
    for at in range(cut, TOKENS):
        for name, every in inputs().items():
            here, there = (
                feed(one, name, every[:, :, at : at + 1]) for one in (session, reference)
            )
            if name == "compressor":
                assert here[-1] is session.closed and here[-1].shape[1] == ((at + 1) % RATE == 0)
                assert torch.equal(here[-1], there[-1][:, there[-1].shape[1] - here[-1].shape[1] :])
                here, there = here[:-1], there[:-1]
            assert same(here, there), (name, at)


def test_tokens_and_entries_are_read_together_in_one_order() -> None:
    """Whole blocks become single tokens, a partly filled one as far as it is filled; the second
    layer's blocks follow the first's."""
    from offstage.host.decode.attended import Attended, together

    whole = Attended(np.array([0, 1]), np.array([2, 1], np.int32))
    tokens = Attended(np.array([1, 0]), np.ones(2, np.int32), np.array([3, 2], np.int32))
    found = together(whole, tokens, 5)
    assert found.entries.tolist() == [0, 0, 1, 6, 5]
    assert found.slots is not None and found.slots.tolist() == [0, 1, 0, 3, 2]
    assert found.counts.tolist() == [1] * 5
    empty = Attended(np.empty(0, np.intp), np.empty(0, np.int32))
    assert together(whole, empty, 5).entries.tolist() == [0, 0, 1]


def test_hints_name_the_chunk_in_which_a_block_ends() -> None:
    """Entries of 4 tokens in blocks of 4: of ten chunks, the fourth and eighth end one. All of a
    window that is left is certain, and what lies behind it is never read again."""
    from offstage.host.decode.certain import CERTAIN, indexed, whole

    csa = LayerKv("csa", 1, 8, tokens_per_entry=4, window_tokens=6, top_k=3)
    shape = KvGeometry("small", 1, (csa,), 4).in_tier(4, "float32")
    session: Any = SimpleNamespace(
        length_tokens=41,
        keys=np.zeros((2, 10, 2), np.uint64),
        tokens={1: np.array([1, 5, 6, 9], np.int32)},
        quantizers=[None, lambda counts: counts.astype(np.uint16)],
        stored_blocks=lambda geometry, layer: 10 // geometry.chunks_per_block(layer),
        block_count=lambda geometry, layer: geometry.block_count(41, layer),
    )
    hint, ordinals = whole(shape, session, 0)
    assert hint.tolist() == [0] * 8 + [CERTAIN] * 2 and ordinals.tolist() == [8, 9, 10]
    hint, ordinals = indexed(shape, session, 1)
    assert hint.tolist() == [0, 0, 0, 1, 0, 0, 0, 2, 0, 0] and ordinals.tolist() == [0, 1, 2]
