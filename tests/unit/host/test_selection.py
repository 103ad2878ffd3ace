"""Do scores bound and follow the real q.k, and does a selection follow its rule?"""

import itertools
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.host.model.geometry import KvGeometry, LayerKv
from offstage.host.model.models import geometry
from offstage.host.selection import (
    SELECTORS,
    Mass,
    ScoreQuantizer,
    ScoreScale,
    best_tokens,
    quantize,
    select,
)
from offstage.host.selection import selector as make_selector


def shape(kv_heads: int, group: int) -> KvGeometry:
    layer = LayerKv("gqa", kv_heads, head_dim=8)
    return replace(geometry("tiny"), q_heads=kv_heads * group, layers=(layer,), block_tokens=6)


def material(
    kind: KvGeometry, blocks: int, seed: int
) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.float32]]:
    """Return keys `[blocks, kv_heads, tokens, head_dim]` and a query `[q_heads, head_dim]`."""
    random = np.random.default_rng(seed)
    _, kv_heads, tokens, head_dim = kind.block_shape()
    keys = random.standard_normal((blocks, kv_heads, tokens, head_dim)).astype(np.float16)
    return keys, random.standard_normal((kind.q_heads, head_dim), dtype=np.float32)


def dots(
    kind: KvGeometry, keys: npt.NDArray[np.float16], query: npt.NDArray[np.float32]
) -> npt.NDArray[np.float64]:
    """Return q.k of every query head and token, `[blocks, q_heads, tokens]`, head by head."""
    group = kind.q_heads // keys.shape[1]
    heads = [keys[:, head // group].astype(np.float64) @ query[head] for head in range(len(query))]
    return np.stack(heads, axis=1)


SHAPES = st.builds(shape, st.sampled_from([1, 2, 3]), st.sampled_from([1, 4]))


@settings(deadline=None)
@given(kind=SHAPES, blocks=st.integers(1, 40), seed=st.integers(0, 99))
def test_quest_bounds_every_token_and_mean_key_is_the_mean(
    kind: KvGeometry, blocks: int, seed: int
) -> None:
    """Quest's score is at least the mean over heads of the best token's q.k, and equals the sum
    over channels written out; mean_key's is the mean of q.k over heads and tokens."""
    keys, query = material(kind, blocks, seed)
    exact = dots(kind, keys, query)
    quest, mean = make_selector("quest", kind), make_selector("mean_key", kind)
    quest.write(0, keys)
    mean.write(0, keys)
    assert (quest.scores(query) >= exact.max(axis=2).mean(axis=1) - 1e-4).all()
    group = kind.q_heads // keys.shape[1]
    wide = np.repeat(keys.astype(np.float64), group, axis=1)
    products = np.stack([wide.min(axis=2) * query, wide.max(axis=2) * query])
    np.testing.assert_allclose(
        quest.scores(query), products.max(axis=0).sum(axis=2).mean(axis=1), atol=1e-4
    )
    np.testing.assert_allclose(mean.scores(query), exact.mean(axis=(1, 2)), atol=2e-3)


@settings(deadline=None, max_examples=30)
@given(kind=SHAPES, blocks=st.integers(1, 20), seed=st.integers(0, 99))
def test_mass_is_the_attention_that_falls_on_a_block(
    kind: KvGeometry, blocks: int, seed: int
) -> None:
    """It equals the softmax of every head over all tokens, summed in each block; the last block is
    partial."""
    keys, query = material(kind, blocks, seed)
    mass = make_selector("mass", kind)
    mass.write(0, keys[:-1])
    mass.append(blocks - 1, keys[-1][:, :4])
    logits = dots(kind, keys, query) / np.sqrt(keys.shape[3])
    logits[-1, :, 4:] = -np.inf
    weights = np.exp(logits)
    weights /= weights.sum(axis=(0, 2), keepdims=True)
    expected = weights.sum(axis=2).mean(axis=1)
    np.testing.assert_allclose(np.exp(mass.scores(query)), expected, rtol=1e-4)


@settings(deadline=None, max_examples=30)
@given(kind=SHAPES, blocks=st.integers(1, 9), top_k=st.integers(1, 60), seed=st.integers(0, 99))
def test_the_best_tokens_are_those_of_greatest_attention(
    kind: KvGeometry, blocks: int, top_k: int, seed: int
) -> None:
    """The weights are the softmax over the chosen blocks alone; the best are a plain sort's, and
    all where there are no more; none is a token that is not there."""
    keys, query = material(kind, blocks + 2, seed)
    mass = Mass(kind)
    mass.write(0, keys[:-1])
    mass.append(blocks + 1, keys[-1][:, :4])
    ordinals = np.arange(2, blocks + 2, dtype=np.int32)
    counts = np.array([6] * (blocks - 1) + [4], np.int32)
    raw = np.exp(dots(kind, keys, query)[2:] / np.sqrt(keys.shape[3]))
    raw[-1, :, 4:] = 0.0
    expected = (raw / raw.sum(axis=(0, 2), keepdims=True)).mean(axis=1)
    weights = mass.weights(query, ordinals)
    np.testing.assert_allclose(weights, expected, rtol=1e-3, atol=1e-9)
    rows, slots = best_tokens(weights, counts, top_k)
    there = [(r, s) for r in range(blocks) for s in range(counts[r])]
    ranked = sorted(there, key=lambda place: (-weights[place], place))
    assert list(zip(rows, slots, strict=True)) == sorted(ranked[:top_k])
    assert rows.size == min(top_k, len(there))


@pytest.mark.parametrize("name", SELECTORS)
@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 99), cuts=st.lists(st.integers(1, 5), max_size=3))
def test_the_order_of_writing_does_not_matter(name: str, seed: int, cuts: list[int]) -> None:
    """Blocks written at once, one by one, twice, or token by token give the same scores."""
    kind = shape(2, 4)
    keys, query = material(kind, 40, seed)
    whole, slow = make_selector(name, kind), make_selector(name, kind)
    whole.write(0, keys)
    for ordinal, block in enumerate(keys):
        if ordinal % 3 == 0:
            slow.write(ordinal, block[None])
        else:
            edges = sorted({0, *cuts, block.shape[1]})
            for start, stop in itertools.pairwise(edges):
                slow.append(ordinal, block[:, start:stop])
    slow.write(5, keys[::-1][5:20])
    slow.write(5, keys[5:20])
    np.testing.assert_allclose(slow.scores(query), whole.scores(query), atol=1e-4)
    assert whole.scores(query).dtype == np.float32


@settings(deadline=None, max_examples=30)
@given(kind=SHAPES, seed=st.integers(0, 99), spread=st.integers(0, 40))
def test_bounds_in_8_bits_are_never_below_the_exact_ones(
    kind: KvGeometry, seed: int, spread: int
) -> None:
    """float32 sums are exact for keys of 11 bits and queries of whole numbers, so nothing is
    allowed for rounding. No score is off by more than its bounds' own grids."""
    keys, _ = material(kind, 20, seed)
    random = np.random.default_rng(seed)
    wide = keys.astype(np.float32) * 2.0 ** random.integers(0, spread // 8 + 1, keys.shape[3])
    query = random.integers(-3, 4, (kind.q_heads, keys.shape[3])).astype(np.float32)
    exact, coded = make_selector("quest", kind), make_selector("quest8", kind)
    for one in (exact, coded):
        one.write(0, (np.round(wide * 16) / 16).astype(np.float32))
    more = coded.scores(query).astype(np.float64) - exact.scores(query)
    step = np.abs(wide).max() / 63
    assert (more >= 0).all() and (more <= np.abs(query).sum(1).mean() * step).all()
    assert (more > 0).any() or len(query) < 12 or spread < 16


SCORES = st.lists(
    st.one_of(st.integers(-3, 3).map(float), st.sampled_from([np.nan, -np.inf, np.inf])),
    max_size=40,
).map(lambda values: np.array(values, np.float32))


@given(scores=SCORES, k=st.integers(0, 12), sink=st.integers(0, 4), window=st.integers(0, 6))
def test_a_selection_is_sinks_window_and_the_best_of_the_rest(
    scores: npt.NDArray[np.float32], k: int, sink: int, window: int
) -> None:
    """It equals the rule written plainly: sort by score, then by ordinal, and take k."""
    length = scores.size
    fixed = {*range(min(sink, length)), *range(max(0, length - window), length)}
    usable = [i for i in range(length) if i not in fixed and scores[i] > -np.inf]
    best = sorted(usable, key=lambda i: (-scores[i], i))[:k]
    chosen = select(scores, k, sink, window, length)
    assert chosen.tolist() == sorted(fixed | set(best))
    assert chosen.dtype == np.int32


@given(scores=SCORES.filter(lambda values: values.size > 0), factor=st.floats(1e-3, 1e3))
def test_quantized_scores_keep_order_and_zero_means_never(
    scores: npt.NDArray[np.float32], factor: float
) -> None:
    scaled = scores * np.float32(factor)
    values = quantize(scaled, ScoreScale.fit(scaled))
    dead = np.isnan(scaled) | (scaled == -np.inf)
    assert ((values == 0) == dead).all()
    order = np.argsort(scaled[~dead], kind="stable")
    assert (np.diff(values[~dead][order].astype(np.int64)) >= 0).all()


def test_a_scale_ignores_outliers_and_follows_a_drift() -> None:
    """With a sink of a hundred spreads, the others still spread over their range. After a lasting
    shift of three spreads the centre comes back most of the way."""
    random = np.random.default_rng(3)
    scores = random.standard_normal(2048, dtype=np.float32)
    scores[0] = 100.0
    quantizer = ScoreQuantizer()
    values = quantizer(scores)
    assert values[0] == 65535
    assert np.std(values[1:].astype(float)) == pytest.approx(4096, rel=0.1)
    shifted = quantizer(scores + np.float32(3))
    assert np.median(shifted) == pytest.approx(32768 + 3 * 4096, rel=0.01)
    for _ in range(64 * 8):
        shifted = quantizer(scores + np.float32(3))
    assert np.median(shifted) == pytest.approx(32768, abs=0.5 * 4096)


def test_unknown_selector_names_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean 'mean_key'"):
        make_selector("meankey", geometry("demo"))
