"""Do the best blocks and the predictions of two averages equal a plain numpy model's?

The models sort whole rows and compute in floating point, as the definitions say; the kernels of
`ofs_ranks.h` count and shift.
"""

import numpy as np
import numpy.typing as npt
import pytest

from offstage.bindings import ranks

Scores = npt.NDArray[np.uint16]

KINDS = ("spread", "few values", "zeros", "all alike")


def drawn(kind: str, seed: int, shape: tuple[int, ...] = (5, 173)) -> Scores:
    """Return scores whose ties are rare, common, mostly zeros, or everywhere."""
    random = np.random.default_rng(seed)
    if kind == "spread":
        return random.integers(1, 65536, shape).astype(np.uint16)
    if kind == "few values":
        return random.integers(0, 4, shape).astype(np.uint16) * np.uint16(257)
    if kind == "zeros":
        return (random.integers(1, 65536, shape) * (random.random(shape) < 0.1)).astype(np.uint16)
    return np.full(shape, 300, np.uint16)


def order(row: Scores) -> npt.NDArray[np.intp]:
    """Return ordinals from best to worst; of equals the lower comes first."""
    return np.lexsort((np.arange(len(row)), -row.astype(np.int64)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [-1, 0, 1, 7, 64, 172, 173, 500])
def test_the_best_are_the_first_in_order_and_never_zero(kind: str, count: int) -> None:
    values = drawn(kind, 1)
    model = np.zeros(values.shape, bool)
    for row, marks in zip(values, model, strict=True):
        marks[order(row)[: max(count, 0)]] = True
    assert np.array_equal(ranks.best(values, count), model & (values > 0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("begin", "end", "count"), [(0, 173, 9), (2, 170, 168), (3, 90, 0)])
def test_the_top_of_a_stretch_ascends_beside_what_is_there(
    kind: str, begin: int, end: int, count: int
) -> None:
    scores = drawn(kind, 2)
    chosen = np.full((len(scores), count + 3), 9999, np.uint32)
    ranks.top(scores, begin, end, count, chosen[:, 1:])
    for row, found in zip(scores, chosen, strict=True):
        assert found[1 : count + 1].tolist() == sorted(begin + order(row[begin:end])[:count])
        assert found[0] == 9999 and (found[count + 1 :] == 9999).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_demand_hits_where_it_is_among_the_best_of_the_buffer(kind: str) -> None:
    before = drawn(kind, 3)
    layers, blocks = before.shape
    buffers = (1, 8, 60, 173, 400)
    random = np.random.default_rng(4)
    selected = np.argsort(random.random(before.shape), axis=1)[:, :40].astype(np.uint32)
    demanded, nontrivial, written = (random.random(selected.shape) < 0.6 for _ in range(3))
    selected[~demanded & (random.random(selected.shape) < 0.5)] = 2**32 - 1  # absent
    known = blocks - 10
    model = np.zeros((2, layers, len(buffers)), np.uint16)
    for layer, at in np.ndindex(selected.shape):
        if demanded[layer, at]:
            ordinal = selected[layer, at]
            fresh = written[layer, at] and ordinal >= known
            for buffer, size in enumerate(buffers):
                held = ordinal in order(before[layer])[:size] and before[layer, ordinal] > 0
                model[0, layer, buffer] += held or fresh
                model[1, layer, buffer] += (held or fresh) and nontrivial[layer, at]
    found = ranks.hits(
        before, ranks.limits(before, buffers), selected, demanded, nontrivial, written, known
    )
    assert np.array_equal(found, model)


def test_two_averages_and_their_sums_are_those_of_floating_point() -> None:
    """Some blocks are written late, and one is not reported again."""
    middle, shape = 32768, (4, 133)
    random = np.random.default_rng(5)
    first = random.integers(0, 3, shape).astype(np.uint16) * np.uint16(20000)
    known = ranks.Averages(np.zeros(shape, np.uint16), first.copy(), first.copy(), middle)
    fast = slow = first.astype(np.float64)
    features = np.zeros((4, 4, shape[1]))
    for step in range(12):
        scores = random.integers(1, 65536, shape).astype(np.uint16)
        scores[:, 120 + step :] = 0
        scores[1, step * 7 : step * 7 + 5] = 0
        now = scores.astype(np.float64)
        if step:
            products, outcomes = known.sums(scores)
            assert np.array_equal(products, features @ features.swapaxes(1, 2))
            assert np.array_equal(outcomes, (features @ now[:, :, None])[:, :, 0])
        known.take(scores, 3, 7)
        fast = np.where(fast > 0, np.rint(fast + (now - fast) / 8), now)
        slow = np.where(slow > 0, np.rint(slow + (now - slow) / 128), now)
        assert np.array_equal(known.fast, fast) and np.array_equal(known.slow, slow)
        features = np.stack([(scores > 0) * float(middle), now, fast, slow], axis=1)
        weights = np.rint(random.normal(0.25, 0.7, (4, 4)) * 4096) / 4096
        ahead = np.clip(np.rint((weights[:, None, :] @ features)[:, 0]), 1, 65535)
        assert np.array_equal(known.ahead(weights), np.where(scores > 0, ahead, 0))


def test_what_lies_between_two_ranks_is_rounded_to_the_even_one() -> None:
    scores = np.array([[1, 3, 5, 7]], np.uint16)
    known = ranks.Averages(scores, scores.copy(), scores.copy(), 32768)
    assert known.ahead(np.array([[0.0, 0.5, 0.0, 0.0]])).tolist() == [[1, 2, 2, 4]]
    known = ranks.Averages(scores, scores.copy(), scores.copy(), 32768)
    known.take(np.array([[5, 7, 17, 15]], np.uint16), 3, 7)  # 1.5, 3.5, 6.5, 8
    assert known.fast.tolist() == [[2, 4, 6, 8]]
