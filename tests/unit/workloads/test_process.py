"""Do the score processes show the published locality and no other?

Tolerances: the miss rates of one seed scatter by .012, .010 and .007 (standard deviation at 260
steps, since a handful of bursts decides them). Means over six seeds must be within about twice the
error of such a mean, plus half a point for the uncertainty of the fit itself. A block stands for
one token here, at an eighth of the published context and top-k.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.host.model.score_process import ProcessParams
from offstage.testbeds.workloads.selections.field import Field, FieldShape
from offstage.testbeds.workloads.selections.process import (
    BANDS,
    HEAD_CLASSES,
    TABLE,
    band_of,
    layer_entries,
)

SEEDS = range(6)


def scores(
    params: ProcessParams, blocks: int, steps: int, seed: int, clump: int = 1
) -> npt.NDArray[np.float32]:
    """Return `[steps, blocks]`: the process of one layer, step by step."""
    field = Field([params], FieldShape(blocks, clump=clump), seed, stream=0)
    values = np.empty((steps, blocks), np.float32)
    for row in values:
        row[:] = field.scores(blocks)[0]
        field.advance()
    return values


def selections(values: npt.NDArray[np.float32], k: int) -> list[npt.NDArray[np.intp]]:
    return [np.argpartition(-row, k)[:k] for row in values]


def overlap(sets: list[npt.NDArray[np.intp]], distance: int) -> float:
    """Return the mean share of a selection that was also selected `distance` steps before."""
    pairs = zip(sets[distance:], sets, strict=False)
    return float(np.mean([len(np.intersect1d(a, b)) / len(a) for a, b in pairs]))


def lru_miss_rate(sets: list[npt.NDArray[np.intp]], blocks: int, capacity: int) -> float:
    """Return the miss rate of an LRU buffer of `capacity` blocks that serves selections as sets.

    The first step is not counted; first touches are misses, as in the published measurement.
    """
    last_use = np.full(blocks, -1)
    hits = total = 0
    for step, chosen in enumerate(sets):
        if step:
            held = np.lexsort((np.arange(blocks), -last_use))[:capacity]
            resident = np.zeros(blocks, dtype=bool)
            resident[held] = last_use[held] >= 0
            hits += int(resident[chosen].sum())
            total += len(chosen)
        last_use[chosen] = step
    return 1 - hits / total


def mean_overlap(head_class: str, band: str, distance: int) -> float:
    entry = TABLE[head_class, band]
    runs = (selections(scores(entry.params, 8192, 80, seed, 16), 256) for seed in SEEDS)
    return float(np.mean([overlap(sets, distance) for sets in runs]))


def test_the_fit_gives_the_published_miss_rates() -> None:
    """LRU misses as HiSparse measured: .30 at k, .134 at 2k, .067 at 4k."""
    blocks, k = 4096, 256
    params = TABLE["retrieval", "middle"].params
    misses = []
    for seed in SEEDS:
        sets = selections(scores(params, blocks, 260, seed, clump=16), k)
        misses.append([lru_miss_rate(sets, blocks, capacity) for capacity in (k, 2 * k, 4 * k)])
    at_k, at_2k, at_4k = np.mean(misses, axis=0)
    assert at_k == pytest.approx(0.300, abs=0.015)
    assert at_2k == pytest.approx(0.134, abs=0.012)
    assert at_4k == pytest.approx(0.067, abs=0.010)


def test_anchored_entries_show_their_anchor() -> None:
    """GVR's 35-50 % and chance-like first layers hold, and FlexiCache's 23-35 % in 16 steps."""
    assert 0.40 <= mean_overlap("retrieval", "last", 1) <= 0.48
    assert mean_overlap("retrieval", "first", 1) <= 0.05
    assert 0.23 <= 1 - mean_overlap("stable", "middle", 16) <= 0.35
    assert mean_overlap("streaming", "last", 64) >= 0.9


def test_a_burst_turns_the_topic() -> None:
    """A step selects a different set after a burst; without bursts the set drifts slowly."""
    calm = replace(TABLE["stable", "middle"].params, burst=0.0, w_static=0.0, recency=0.0, sink=0.0)
    stormy = replace(calm, burst=1.0)
    calm_share = overlap(selections(scores(calm, 4096, 40, 0), 256), 4)
    stormy_share = overlap(selections(scores(stormy, 4096, 40, 0), 256), 4)
    assert stormy_share < 0.15 < 0.6 < calm_share


@given(
    st.sampled_from(sorted(TABLE)),
    st.integers(1, 70),
    st.integers(1, 9),
    st.integers(0, 2**32),
    st.integers(1, 20),
    st.floats(0, 2),
)
def test_a_process_is_reproducible(
    key: tuple[str, str], blocks: int, steps: int, seed: int, clump: int, noise: float
) -> None:
    """The same seed gives the same draw, of the stated shape, finite, with the sink first."""
    params = replace(TABLE[key].params, noise=noise)
    values = scores(params, blocks, steps, seed, clump)
    assert values.shape == (steps, blocks) and values.dtype == np.float32
    assert np.isfinite(values).all()
    assert np.array_equal(values, scores(params, blocks, steps, seed, clump))
    assert not np.array_equal(values, scores(params, blocks, steps, seed + 1, clump))
    sinkless = scores(replace(params, sink=0.0), blocks, steps, seed, clump)
    assert np.allclose((values - sinkless)[:, 0], params.sink, atol=1e-3)
    assert np.array_equal(values[:, 1:], sinkless[:, 1:])


def test_every_class_and_band_has_an_entry_with_a_source() -> None:
    """A report can name the origin of each process it used."""
    assert set(TABLE) == {(name, band) for name in HEAD_CLASSES for band in BANDS}
    for entry in TABLE.values():
        assert entry.basis in ("fitted", "anchored", "chosen")
        assert "arXiv:" in entry.source


@given(
    st.integers(1, 100),
    st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(lambda parts: sum(parts) > 0),
)
def test_layers_get_classes_in_proportion(layers: int, parts: list[int]) -> None:
    """Every prefix of the layers is within one layer of the requested fractions, bands in order."""
    fractions = {name: n / sum(parts) for name, n in zip(HEAD_CLASSES, parts, strict=True)}
    entries = layer_entries(layers, fractions)
    assert len(entries) == layers
    for name, fraction in fractions.items():
        for count in range(1, layers + 1):
            have = sum(entry.head_class == name for entry in entries[:count])
            assert abs(have - fraction * count) <= 1 + 1e-6
    order = [BANDS.index(entry.band) for entry in entries]
    assert order == sorted(order)


def test_bands_follow_relative_depth() -> None:
    """Layers 0-1 and 20-60 of 61 differ as published, and a tiny model has no first band."""
    bands = [band_of(layer, 61) for layer in range(61)]
    assert bands == ["first"] * 2 + ["middle"] * 18 + ["last"] * 41
    assert [band_of(layer, 4) for layer in range(4)] == ["middle", "last", "last", "last"]


@pytest.mark.parametrize(
    ("fractions", "what"),
    [
        ({"retrieval": 0.5}, "sum to 0.5"),
        ({"retrieval": 1.5, "stable": -0.5}, "stable = -0.5"),
        ({"retrieval": float("nan"), "stable": 1.0}, "retrieval = nan"),
        ({"steady": 1.0}, "unknown head class 'steady'"),
    ],
)
def test_wrong_fractions_are_refused(fractions: dict[str, float], what: str) -> None:
    """An invalid table of fractions gives one line with the fix."""
    with pytest.raises(BadInput, match=what):
        layer_entries(4, fractions)
