"""Is key material the same wherever a chunk appears, and do real selections follow the process?"""

import itertools
import math
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.host.model.drawn_kv import CONTEXT_TOKENS_MAX, KvPools, QueryStream
from offstage.host.model.geometry import LayerKv
from offstage.host.model.models import geometry
from offstage.host.model.score_process import ProcessParams
from offstage.host.selection import SELECTORS, selector
from offstage.testbeds.workloads.selections.process import TABLE

DEMO = geometry("demo")
Floats = npt.NDArray[np.float32]
NOTHING = ProcessParams(
    w_static=0, tau_slow=20, w_fast=0, tau_fast=2, burst=0, recency=0, sink=0, noise=0
)


def identities(count: int, seed: int = 0) -> list[int]:
    random = np.random.default_rng(seed)
    return [int.from_bytes(random.bytes(16)) for _ in range(count)]


def pooled(queries: Floats) -> Floats:
    """Return the mean query of demo's heads, in KV head 0's order of channels."""
    aligned = np.concatenate([queries[:4], np.roll(queries[4:], -32, axis=1)])
    result: Floats = aligned.mean(axis=0)
    return result


def true_scores(embeddings: Floats, stream: QueryStream, steps: int) -> Floats:
    """Return q.e as attention's logit, float32 `[steps, blocks]`."""
    queries = [pooled(stream.next(step, len(embeddings))) for step in range(steps)]
    result: Floats = np.stack(queries) @ embeddings.T
    return result / np.float32(math.sqrt(64))


POOLS = KvPools(7, DEMO)


@settings(max_examples=40, deadline=None)
@given(data=st.data(), layer=st.integers(0, 3), count=st.integers(1, 40))
def test_a_chunk_has_the_same_bytes_in_any_company(
    data: st.DataObject, layer: int, count: int
) -> None:
    """Chunks are read in any order, alone or among others, from another object, or into a
    buffer."""
    names = identities(count, count)
    whole = POOLS.blocks(layer, names, np.arange(count))
    order = data.draw(st.permutations(range(count)))[: data.draw(st.integers(1, count))]
    out = np.full((count + 2, *DEMO.block_shape()), np.nan, np.float16)
    other = KvPools(7, DEMO)
    other.blocks(layer, [names[i] for i in order], order, out=out[: len(order)])
    assert out[: len(order)].tobytes() == whole[order].tobytes()
    assert np.isnan(out[len(order) :]).all()
    assert (POOLS.keys(layer, names, np.arange(count)) == whole[:, 0]).all()
    assert (POOLS.values(layer, names) == whole[:, 1]).all()


def test_different_chunks_layers_and_seeds_have_different_bytes() -> None:
    names = [1, 2, 1 << 64, (1 << 64) + 1, *identities(500)]
    seen: set[bytes] = set()
    for pools in (POOLS, KvPools(8, DEMO)):
        for layer in range(4):
            blocks = pools.blocks(layer, names, np.arange(len(names)) + 3)
            for plane in (0, 1):
                seen |= {block.tobytes() for block in blocks[:, plane]}
    assert len(seen) == 2 * 4 * 2 * len(names)


def test_values_are_small_and_keys_are_finite() -> None:
    blocks = POOLS.blocks(0, identities(600), np.arange(600) * 4)
    sizes = np.abs(blocks[:, 1].astype(np.float32))
    assert sizes.min() >= 1 / 8 and sizes.max() < 1 / 4
    assert abs(np.sign(blocks[:, 1].astype(np.float32)).mean()) < 0.01
    assert np.isfinite(blocks).all()


def test_static_is_a_heavy_tail_and_the_rest_is_normal() -> None:
    """|t4| * 0.6 has mean 0.6 and exceeds 0.6 * 2.132 with probability 0.1 (t table, two-sided)."""
    embeddings = POOLS.embeddings(2, identities(20_000), np.arange(20_000) % 2000 + 1)
    static, normal = embeddings[:, 0], embeddings[:, 7:]
    assert static.mean() == pytest.approx(0.6, rel=0.03)
    assert (static > 0.6 * 2.132).mean() == pytest.approx(0.1, abs=0.01)
    assert normal.mean() == pytest.approx(0, abs=0.01)
    assert np.abs(np.cov(normal.T) - np.eye(57)).max() < 0.05
    assert (np.abs(normal) < 1.96).mean() == pytest.approx(0.95, abs=0.002)


def test_queries_depend_on_their_counter_alone() -> None:
    """The same session and layer give the same queries; another session, type of name, layer or
    seed gives others. Reading other streams in between changes nothing."""
    params = TABLE["retrieval", "middle"].params
    names: list[tuple[int, int | str, int]]
    names = [(1, "a", 0), (1, "b", 0), (1, "a", 1), (2, "a", 0), (1, 3, 0), (1, "3", 0)]
    once = [QueryStream(*name, params, DEMO) for name in names]
    first = [[stream.next(step, 500) for step in range(20)] for stream in once]
    again = [QueryStream(*name, params, DEMO) for name in names]
    second = [[stream.next(step, 500) for stream in again] for step in range(20)]
    assert (np.array(first) == np.array(second).swapaxes(0, 1)).all()
    assert len({np.array(queries).tobytes() for queries in first}) == len(names)
    assert first[0][0].dtype == np.float32 and first[0][0].shape == (8, 64)


@pytest.mark.parametrize("tau", [2.0, 20.0])
def test_scores_forget_at_the_rate_of_tau(tau: float) -> None:
    """Across blocks, scores d steps apart correlate as exp(-d / tau): mean over 12 streams."""
    embeddings = POOLS.embeddings(0, identities(400), np.arange(400))
    params = replace(NOTHING, tau_slow=tau)
    measured = np.zeros(3)
    lags = [1, 3, 10]
    for session in range(12):
        scores = true_scores(embeddings, QueryStream(1, session, 0, params, DEMO), 60)
        assert scores.std() == pytest.approx(1, rel=0.15)
        together = np.corrcoef(scores)
        measured += [np.diagonal(together, lag).mean() / 12 for lag in lags]
    np.testing.assert_allclose(measured, np.exp(-np.array(lags) / tau), atol=0.08)


def test_windows_of_the_prefill_follow_the_same_law() -> None:
    """Windows go backwards from step 0, a block apart: they correlate as steps do forwards, bursts
    included, with the newest next to step 0. Means over 12 streams."""
    embeddings = POOLS.embeddings(0, identities(400), np.arange(400))
    params = replace(NOTHING, tau_slow=200.0, burst=1 / 64)
    near, apart = 0.0, 0.0
    for session in range(12):
        before = QueryStream(1, session, 0, params, DEMO).windows(8, 400)
        after = QueryStream(1, session, 0, params, DEMO).next(0, 400)
        scores = np.stack([pooled(one) for one in (*before, after)]) @ embeddings.T
        together = np.corrcoef(scores)
        near += together[-1, -2] / 12
        apart += np.diagonal(together[:-1, :-1], 1).mean() / 12
    forgotten = (1 - 1 / 128) ** 64  # the mean that bursts leave, half of it each
    assert near == pytest.approx(math.exp(-1 / 200), abs=0.05)
    assert apart == pytest.approx(math.exp(-64 / 200) * forgotten, abs=0.1)


def test_overlap_grows_with_tau_and_a_burst_breaks_it() -> None:
    """The overlap is that of Quest's top 32 of 1,024 real blocks from one step to the next."""
    quest = SELECTORS["quest"](DEMO)
    quest.write(0, POOLS.keys(1, identities(1024), np.arange(1024)))

    def overlap(**change: float) -> float:
        stream = QueryStream(3, 0, 1, replace(NOTHING, **change), DEMO)
        tops = [
            set(np.argsort(-quest.scores(stream.next(step, 1024)))[:32].tolist())
            for step in range(80)
        ]
        return float(np.mean([len(a & b) / 32 for a, b in itertools.pairwise(tops)]))

    by_tau = [overlap(tau_slow=tau) for tau in (0.2, 1, 5, 25, 125)]
    assert by_tau == sorted(by_tau) and by_tau[0] < 0.15 and by_tau[-1] > 0.8
    assert overlap(tau_slow=125, burst=0.5) < by_tau[-1] - 0.1
    assert overlap(tau_slow=125, noise=1.0) < by_tau[-1] - 0.1


@settings(deadline=None)
@given(length=st.integers(1, CONTEXT_TOKENS_MAX // 64))
def test_recency_is_exponential_in_the_distance_to_the_newest_block(length: int) -> None:
    """Holds within float16's rounding, at any length, across segment borders."""
    ordinals = np.unique(np.linspace(0, length - 1, 200, dtype=np.int64))
    base = NOTHING, replace(NOTHING, recency=3.0)
    streams = [QueryStream(1, 0, 0, params, DEMO) for params in base]
    none, some = [pooled(stream.next(0, length)).astype(np.float64) for stream in streams]
    keys = POOLS.keys(0, identities(len(ordinals)), ordinals).astype(np.float64)
    mean_keys = np.stack([keys[:, 0], np.roll(keys[:, 1], -32, axis=2)]).mean(axis=(0, 2))
    measured = mean_keys @ (some - none) / math.sqrt(64)
    expected = 3.0 * np.exp(-(length - 1 - ordinals) * 64 / 2048)
    np.testing.assert_allclose(measured, expected, rtol=2e-3, atol=1e-6)
    # At most e^8 in a segment, times the gain: blocks ahead of the context have no factor.
    assert np.abs(some).max() <= 3.0 * math.exp(8) * math.sqrt(64) * 1.001


def lru_miss(selections: list[set[int]], buffer_blocks: int, warm_steps: int) -> float:
    """Return the share of selected blocks that an LRU buffer lacks; a step's own blocks are used
    last."""
    buffer: OrderedDict[int, None] = OrderedDict()
    missed = asked = 0
    for step, chosen in enumerate(selections):
        absent = [block for block in chosen if block not in buffer]
        if step >= warm_steps:
            missed, asked = missed + len(absent), asked + len(chosen)
        for block in sorted(chosen):
            buffer[block] = None
            buffer.move_to_end(block)
        while len(buffer) > buffer_blocks:
            buffer.popitem(last=False)
    return missed / asked


def drive(name: str, params: ProcessParams, seed: int) -> tuple[list[set[int]], float]:
    """Select the top 32 of 2,048 real blocks over 260 steps with selector `name`. Return the
    selections and the mean share of them that is also in the top 32 of the exact scores."""
    names = identities(2048, seed)
    pools = KvPools(seed, DEMO)
    embeddings = pools.embeddings(0, names, np.arange(2048))
    scorer = selector(name, DEMO)
    scorer.write(0, pools.keys(0, names, np.arange(2048)))
    stream = QueryStream(seed, "anchor", 0, params, DEMO)
    selections, shared = [], 0
    for step in range(260):
        queries = stream.next(step, 2048)
        selections.append(set(np.argsort(-scorer.scores(queries))[:32].tolist()))
        exact = np.argsort(-(embeddings @ pooled(queries)))[:32]
        shared += len(selections[-1] & set(exact.tolist()))
    return selections, shared / (32 * len(selections))


@pytest.mark.parametrize(("name", "least_agreement"), [("quest", 0.9), ("mean_key", 0.95)])
def test_real_selections_follow_the_fitted_process_and_its_anchors(
    name: str, least_agreement: float
) -> None:
    """The middle band's process. Selections made from keys are those of the exact scores but for a
    few, and repeat and miss as HiSparse's do (arXiv:2608.07009): LRU misses .300, .134 and .067 at
    k, 2k and 4k. The anchors are of tokens, not blocks. One seed's standard deviation is .018, .015
    and .013 (16 seeds), so the mean of six is good to about .02."""
    params = TABLE["retrieval", "middle"].params
    agreement, misses, repeats = [], [], []
    for seed in range(6):
        selections, agreed = drive(name, params, seed)
        agreement.append(agreed)
        repeats += [len(a & b) / 32 for a, b in itertools.pairwise(selections)]
        misses.append([lru_miss(selections, 32 * m, warm_steps=20) for m in (1, 2, 4)])
    assert np.mean(agreement) > least_agreement
    assert np.mean(repeats) == pytest.approx(0.70, abs=0.03)
    np.testing.assert_allclose(np.mean(misses, axis=0), [0.300, 0.134, 0.067], atol=0.02)


def test_a_sink_is_block_zero_and_nothing_else() -> None:
    embeddings = POOLS.embeddings(0, identities(50), np.arange(50))
    streams = [QueryStream(1, 0, 0, replace(NOTHING, sink=weight), DEMO) for weight in (0.0, 8.0)]
    without, with_sink = (true_scores(embeddings, stream, 3) for stream in streams)
    np.testing.assert_allclose(
        with_sink - without, 8.0 * (np.arange(50) == 0) * np.ones((3, 1)), atol=1e-5
    )


def test_what_the_construction_cannot_hold_is_refused() -> None:
    narrow = replace(DEMO, layers=(LayerKv("gqa", 2, 8),))
    with pytest.raises(BadInput, match="at least 11"):
        KvPools(1, narrow)
    with pytest.raises(BadInput, match="cap it"):
        POOLS.keys(0, [1], [CONTEXT_TOKENS_MAX // 64])
    with pytest.raises(BadInput, match="entries of 128 tokens"):
        QueryStream(1, 0, 0, NOTHING, geometry("deepseek-v4-pro"))


def test_a_latent_is_its_key() -> None:
    """A latent block is the key itself, and its product with a query of its width follows the
    process's score."""
    kind = geometry("tiny-mla")
    pools, names = KvPools(7, kind), identities(60)
    blocks = pools.blocks(2, names, np.arange(60))
    assert blocks.shape == (60, 1, 1, 16, 128)
    assert (blocks[:, 0] == pools.keys(2, names, np.arange(60))).all()
    stream = QueryStream(1, 0, 2, TABLE["retrieval", "middle"].params, kind)
    query = stream.next(0, 60).mean(axis=0)
    means = blocks[:, 0, 0].astype(np.float32).mean(axis=1)
    exact = pools.embeddings(2, names, np.arange(60)) @ query
    assert np.corrcoef(means @ query, exact)[0, 1] > 0.95
