"""Do the GPU's bounds, scores and selection equal those of the host's selectors?

Runs in Triton's interpreter on the CPU. The reference is `offstage.host.selection`, which its own
tests compare with the formulas.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="pip install '.[triton]'")
pytest.importorskip("triton", reason="pip install '.[triton]'")

import torch
from gpu_cases import numbers_of, poisoned

from offstage.bindings.errors import BadInput
from offstage.host.gpu import interpreted, scores
from offstage.host.gpu.bounds import Table, summarise
from offstage.host.gpu.selector import BatchBest, DeviceSelector, on_device, selectors_of
from offstage.host.model.geometry import KvGeometry, LayerKv
from offstage.host.model.models import geometry
from offstage.host.model.outward import rounded_outwards
from offstage.host.selection import ScoreScale, quantize, select, selector

pytestmark = pytest.mark.skipif(
    not interpreted(), reason="a GPU is there: python tests/gpu/run_all.py checks it"
)
DTYPES = {"bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn}


def whole(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def shape_of(kv_heads: int, group: int, tokens: int, dim: int) -> KvGeometry:
    layers = (LayerKv("gqa", kv_heads, dim),)
    return replace(geometry("tiny"), q_heads=kv_heads * group, layers=layers, block_tokens=tokens)


def table_of(kind: str, blocks: int, heads: int, dim: int, dtype: torch.dtype) -> Table:
    """Return a table padded with numbers that must not be read."""
    stored = {"quest8": torch.int8, "mean_key": torch.float32}.get(kind, dtype)
    table = Table.new(blocks, 1 if kind == "mean_key" else 2, heads, dim, stored, "cpu")
    table.numbers.copy_(torch.full_like(table.numbers, 101 if kind == "quest8" else torch.nan))
    if kind == "quest8":
        table.exponents.fill_(119)
    return table


SHAPES = st.builds(
    shape_of,
    st.integers(1, 3),
    st.integers(1, 5),
    st.sampled_from([3, 16, 40]),
    st.sampled_from([8, 24, 130]),
)
LATENT = shape_of(1, 5, 16, 576)


@pytest.mark.parametrize("kind", ["quest", "quest8", "mean_key"])
@settings(max_examples=4)
@given(
    shape=SHAPES,
    value_type=st.sampled_from(sorted(DTYPES)),
    blocks=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_scores_are_those_of_the_hosts_selectors(
    kind: str, shape: KvGeometry, value_type: str, blocks: int, seed: int
) -> None:
    """Blocks are written whole or grown token by token as in decoding; rows come in any order; two
    sessions of different lengths share one table."""
    random = np.random.default_rng(seed)
    _, heads, tokens, dim = shape.block_shape()
    numbers = torch.from_numpy(random.standard_normal((blocks, heads, tokens, dim), np.float32))
    keys = numbers.to(DTYPES[value_type])
    table = table_of(kind, blocks, heads, dim, keys.dtype)
    which = torch.arange(blocks, dtype=torch.int32)
    rows = torch.from_numpy(random.permutation(blocks).astype(np.int32))
    first = torch.from_numpy(random.integers(1, tokens + 1, blocks).astype(np.int32))
    summarise(keys, table, which, rows, torch.zeros_like(first), first)
    grown = torch.nonzero(first < tokens).flatten()
    more = (which[grown], rows[grown], first[grown], tokens - first[grown])
    summarise(keys, table, *(one.int() for one in more))
    host = selector(kind, shape)
    host.write(0, keys.float().numpy())
    queries = random.standard_normal((2, shape.q_heads, dim), np.float32)
    lengths = whole(blocks, (blocks + 1) // 2)
    with poisoned():
        found = scores.score(torch.from_numpy(queries), table, rows.repeat(2, 1), lengths)
    for session, length in enumerate(lengths.tolist()):
        expected = host.scores(queries[session])[:length]
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(found[session, :length], expected, atol=2e-5 * scale)


@settings(max_examples=8)
@given(
    shape=st.one_of(SHAPES, st.just(LATENT)),
    value_type=st.sampled_from([*sorted(DTYPES), "float32"]),
    spread=st.integers(0, 60),
    seed=st.integers(0, 999),
)
def test_bounds_in_8_bits_are_bounds(
    shape: KvGeometry, value_type: str, spread: int, seed: int
) -> None:
    """Even where channels differ by many orders of magnitude, each stored bound lies outside the
    exact one: in float64, no block's score is below the true bound. The kernel's own score is below
    it by at most its float32 rounding. Stored values equal the host's to the bit, in whatever
    pieces the tokens come."""
    random = np.random.default_rng(seed)
    _, heads, tokens, dim = shape.block_shape()
    size = random.standard_normal((5, heads, tokens, dim)) * 2.0 ** random.integers(
        -spread // 2, spread // 2 + 1, dim
    )
    dtype = {**DTYPES, "float32": torch.float32}[value_type]
    keys = torch.from_numpy(size.clip(-448, 448).astype(np.float32)).to(dtype)
    table, which = table_of("quest8", 5, heads, dim, dtype), torch.arange(5, dtype=torch.int32)
    some = torch.from_numpy(random.integers(1, tokens + 1, 5).astype(np.int32))
    summarise(keys, table, which, which, torch.zeros_like(some), some)
    left = torch.nonzero(some < tokens).flatten().int()
    summarise(keys, table, left, left, some[left], tokens - some[left])
    exact = keys.double().numpy()
    low, high = exact.min(2), exact.max(2)
    held = numbers_of(table)
    assert (held[:, 0] <= low).all() and (held[:, 1] >= high).all()
    np.testing.assert_array_equal(held, np.stack(rounded_outwards(low, high), 1))
    # No further out than one step of the group's own grid, which is finer than 1/63 of its largest.
    wide = np.maximum(np.abs(low), np.abs(high))
    groups = [wide[..., begin : begin + 32] for begin in range(0, dim, 32)]
    step = np.concatenate(
        [one.max(-1, keepdims=True).repeat(one.shape[-1], -1) / 63 for one in groups], -1
    )
    assert (np.abs(held - np.stack([low, high], 1)) <= step[:, None] + 2.0**-99).all()
    query = random.standard_normal((shape.q_heads, dim)).astype(np.float32)
    grouped = query.astype(np.float64).reshape(heads, -1, dim)
    weights = np.stack([np.minimum(grouped, 0).sum(1), np.maximum(grouped, 0).sum(1)])
    true, stored = (
        (one * weights).sum((1, 2, 3)) / shape.q_heads for one in (np.stack([low, high], 1), held)
    )
    assert (stored >= true).all()
    found = scores.score(torch.from_numpy(query)[None], table, which[None], whole(5))[0].numpy()
    rounding = (np.abs(held) * np.abs(weights)).sum((1, 2, 3)) / shape.q_heads * 2.0**-20
    assert (found >= true - rounding).all()
    assert (np.abs(found - stored) <= rounding).all()


SCORES = st.lists(
    st.one_of(
        st.integers(-3, 3).map(float),
        st.floats(-128, 128, width=32, allow_subnormal=False),
        st.sampled_from([np.nan, -np.inf, np.inf, -0.0]),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=12)
@given(
    values=SCORES,
    top=st.integers(0, 9),
    runners_up=st.integers(0, 9),
    sinks=st.integers(0, 3),
    window=st.integers(0, 3),
    short=st.integers(0, 5),
)
def test_the_best_are_those_that_the_host_selects(
    values: list[float], top: int, runners_up: int, sinks: int, window: int, short: int
) -> None:
    """Scores have ties, infinities and NaN; some sessions are shorter than sinks and window.
    Runners-up are the blocks that a larger selection would add; levels equal the host's."""
    given_scores = np.array([values, values[::-1]], np.float32)
    lengths = [len(values), max(0, len(values) - short)]
    k_blocks = sinks + window + top
    scale = ScoreScale(0.25, 0.5)
    with poisoned():
        found = scores.best(
            torch.from_numpy(given_scores),
            whole(*lengths),
            k_blocks,
            runners_up,
            sinks,
            window,
            torch.full((2,), scale.centre),
            torch.full((2,), scale.spread),
        )
    for session, length in enumerate(lengths):
        own = given_scores[session]
        selected = select(own, top, sinks, window, length)
        after = np.setdiff1d(select(own, top + runners_up, sinks, window, length), selected)
        assert found.counts[session].tolist() == [selected.size, after.size]
        row = found.ordinals[session].numpy()
        assert row[:k_blocks].tolist() == [*selected, *[-1] * (k_blocks - selected.size)]
        assert row[k_blocks:].tolist() == [*after, *[-1] * (runners_up - after.size)]
        levels = found.levels[session].numpy()
        np.testing.assert_array_equal(levels[:length], quantize(own[:length], scale))
        assert not levels[length:].any()


def test_a_session_of_too_many_blocks_is_refused() -> None:
    """The refusal is one line with the fix, not a kernel that does not fit."""
    many = torch.zeros((1, scores.BLOCKS_MAX + 1))
    with pytest.raises(BadInput, match="use at most 32768"):
        scores.best(many, whole(1), 1, 0, 0, 0, torch.zeros(1), torch.ones(1))


@pytest.mark.parametrize("kind", ["quest", "quest8", "mean_key"])
def test_a_batch_selects_on_the_device_what_each_session_selects_on_the_host(kind: str) -> None:
    """Through writes, appends, a growing table and forks, the host's selector gets the same keys,
    and the decoder's rule is applied to its scores. The hint equals the host's too."""
    shape = shape_of(2, 2, 16, 24)
    make = selectors_of("triton", "cpu")
    drawn = np.random.default_rng(5)
    pairs = []
    for blocks in (3, 14):
        ours, host = make(kind, shape, 0), selector(kind, shape)
        keys = drawn.standard_normal((blocks, 2, 16, 24)).astype(np.float16)
        for one in (ours, host):
            one.write(0, keys)
        assert isinstance(ours, DeviceSelector)
        ours.summaries.take(245)  # so that the table grows under the next rows
        ours = copy.deepcopy(ours)
        for tokens in (1, 3):
            keys = drawn.standard_normal((2, tokens, 24)).astype(np.float16)
            for one in (ours, host):
                one.append(blocks, keys)
        pairs.append((ours, host))
    selectors = [ours for ours, _ in pairs]
    assert on_device(selectors)
    queries = [drawn.standard_normal((4, 24)).astype(np.float32) for _ in pairs]
    scores = [host.scores(query) for (_, host), query in zip(pairs, queries, strict=True)]
    scales = [ScoreScale.fit(one) for one in scores]
    assert len(selectors[0].summaries.table.numbers) > 256
    finder = BatchBest(selectors[0].summaries, 2, 20, 8, 1, 2)
    assert finder.fits(selectors[0].summaries, 2, 15)
    for found, wanted, scale in zip(
        finder.find(selectors, queries, scales), scores, scales, strict=True
    ):
        assert found.ordinals.tolist() == select(wanted, 5, 1, 2, wanted.size).tolist()
        levels = quantize(wanted, scale)
        assert np.abs(found.hint.astype(int) - levels).max() <= 2
