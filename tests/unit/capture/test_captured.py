"""Does a captured file work as a workload of the lab: shapes, order, repeatability, selection?"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.selections.captured import CapturedWorkload
from offstage.testbeds.workloads.selections.locality import overlap_of_file
from offstage.testbeds.workloads.selections.scores_file import (
    PREDICTED,
    Header,
    Session,
    open_capture,
)
from offstage.testbeds.workloads.selections.scores_writer import Writer
from offstage.testbeds.workloads.selections.slab import Workload

LAYERS, GROUPS, BLOCK = 3, 2, 4
CONTEXT_BLOCKS, WINDOWS, STEPS = 10, 4, 11
INDEX_SOURCE = (0, 1, 1)
SELECTORS = ("mass", "quest", "mean_key")


def sessions() -> tuple[Session, ...]:
    """Two sessions that share a prefix, and a third that continues like the second."""

    def one(**own: Any) -> Session:
        context_tokens = CONTEXT_BLOCKS * BLOCK
        return Session(mode="generated", context_tokens=context_tokens, steps=STEPS, **own)

    shared = {"prefix": "p", "prefix_tokens": 6 * BLOCK, "group": 3}
    return (
        one(name="a", content="a", **shared),
        one(name="b", content="b", turns=(4, 60), arrival_s=1.5, **shared),
        one(name="c", content="b"),
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of three sessions with random scores: mass spans float16, the others are signed."""
    out = tmp_path_factory.mktemp("captured") / "a.parquet"
    header = Header(
        model="m",
        config_sha256="",
        text_sha256="",
        tokenizer="",
        dtype="",
        synthetic=True,
        block_tokens=BLOCK,
        layer_count=LAYERS,
        group_count=GROUPS,
        layers=(0, 1, 2),
        index_source=INDEX_SOURCE,
        sessions=sessions(),
    )
    random = np.random.default_rng(5)
    columns = (*SELECTORS, PREDICTED + "mass")
    with Writer(out, header, columns, 2000) as writer:
        for session in range(3):
            for step in range(-WINDOWS, STEPS):
                full = CONTEXT_BLOCKS + 1 + step if step < 0 else CONTEXT_BLOCKS + step // BLOCK
                # One session includes the block that decode fills, as a capture of a model does.
                shape = (LAYERS, GROUPS, full + (session == 1 and step >= 0))
                mass = np.exp2(random.uniform(-26, 0, shape)).astype(np.float16)
                signed = random.normal(3, 5, (2, *shape)).astype(np.float16)
                both = {"quest": signed[0], "mean_key": signed[1]}
                predicted = np.roll(mass, 1, axis=2)
                predicted[2] = 0  # a layer without predictions of its own
                predicted[0, :, 0] = 0  # a block without any mass
                writer.step(session, step, {"mass": mass, **both, PREDICTED + "mass": predicted})
    return out


def open_workload(path: Path, **changes: Any) -> CapturedWorkload:
    return CapturedWorkload(path, **{"select_blocks": 5, **changes})


def gathered(workload: Workload, session: int, steps: int) -> tuple[Any, Any]:
    """Selections and scores of a whole session, read in slabs of `steps` steps."""
    slabs = list(workload.slabs(session, steps))
    assert [slab.first_step for slab in slabs] == list(range(0, STEPS, steps))
    assert all(slab.session == session and slab.draft is None for slab in slabs)
    return (
        np.concatenate([slab.selected for slab in slabs]),
        np.concatenate([slab.scores for slab in slabs]),
    )


@pytest.mark.parametrize("selector", SELECTORS)
def test_slabs_have_one_shape_whatever_their_size(path: Path, selector: str) -> None:
    """Repeated reads, in slabs of any size, give the same values in the contract's types."""
    workload = open_workload(path, selector=selector)
    blocks = CONTEXT_BLOCKS + (STEPS - 1) // BLOCK
    for session, info in enumerate(workload.sessions):
        assert (info.blocks, info.steps) == (CONTEXT_BLOCKS, STEPS)
        selected, scores = gathered(workload, session, 16)
        assert (selected.dtype, selected.shape) == (np.uint32, (STEPS, LAYERS, 5))
        assert (scores.dtype, scores.shape) == (np.uint16, (STEPS, LAYERS, blocks))
        for steps in (1, 4, 16):
            again = gathered(workload, session, steps)
            np.testing.assert_array_equal(again[0], selected)
            np.testing.assert_array_equal(again[1], scores)


def test_what_is_predicted_is_on_the_scale_of_what_selects(path: Path) -> None:
    """Predictions are mapped like the layer's own scores: a layer with a source uses the source's,
    a block without mass ranks above unwritten ones. Other scores have none."""
    workload = open_workload(path)
    assert workload.predicts and not open_workload(path, selector="quest").predicts
    for session, info in enumerate(workload.sessions):
        for slab in workload.slabs(session, 4):
            assert slab.predicted is not None
            for index, (own, ahead) in enumerate(zip(slab.scores, slab.predicted, strict=True)):
                full = info.blocks + (slab.first_step + index) // BLOCK
                np.testing.assert_array_equal(ahead[1, 1:full], own[1, : full - 1])
                np.testing.assert_array_equal(ahead[2], ahead[1])
                assert ahead[0, 0] == 1 and not ahead[:, full:].any()
    assert all(slab.predicted is None for slab in open_workload(path, selector="quest").slabs(0))


@given(
    k=st.integers(1, 20),
    sinks=st.integers(0, 3),
    window=st.integers(0, 3),
    selector=st.sampled_from(SELECTORS),
    pool=st.sampled_from(["max", "mean"]),
    session=st.integers(0, 2),
)
def test_selection_is_sinks_window_and_the_best_of_the_rest(
    path: Path, k: int, sinks: int, window: int, selector: str, pool: str, session: int
) -> None:
    """Compared with a plain sort: a layer with a source uses the source's scores, the block that is
    being filled is never selected, and unwritten blocks score 0."""
    settings = {"selector": selector, "sink_blocks": sinks, "window_blocks": window, "pool": pool}
    if k < sinks + window:
        with pytest.raises(BadInput, match="select at least as many"):
            open_workload(path, select_blocks=k, **settings)
        return
    workload = open_workload(path, select_blocks=k, **settings)
    selected, scores = gathered(workload, session, 3)
    for one in open_capture(path).steps(session, selector, 0, STEPS):
        full = CONTEXT_BLOCKS + one.step // BLOCK
        pooled = getattr(one.scores[:, :, :full].astype(np.float32), pool)(axis=1)
        for layer, source in enumerate(INDEX_SOURCE):
            fixed = [*range(min(sinks, full)), *range(full - window, full)]
            rest = [block for block in range(full) if block not in fixed]
            rest.sort(key=lambda block: (-pooled[source, block], block))
            expected = sorted([*fixed, *rest[: k - sinks - window]])
            found = selected[one.step, layer]
            assert found[found != ABSENT].tolist() == expected
            assert (found[len(expected) :] == ABSENT).all()
            levels = scores[one.step, layer]
            assert (levels[:full] > 0).all() and (levels[full:] == 0).all()
            order = np.argsort(pooled[source], kind="stable")
            assert (np.diff(levels[order].astype(np.int64)) >= 0).all()


def test_the_map_of_mass_is_fixed_and_finer_than_float16(path: Path) -> None:
    """1 + 65534 (24 + log2 m) / 24: distinct float16 values from 2^-14 up stay distinct."""
    workload = open_workload(path)
    _, scores = gathered(workload, 0, 16)
    for one in open_capture(path).steps(0, "mass", 0, STEPS):
        mass = one.scores.max(axis=1).astype(np.float64)[list(INDEX_SOURCE)]
        expected = 1 + 65534 * np.clip((24 + np.log2(np.maximum(mass, 1e-30))) / 24, 0, 1)
        assert np.abs(scores[one.step, :, : mass.shape[1]] - expected).max() <= 0.51
    values = np.arange(np.float16(2.0**-14).view(np.uint16), np.float16(1.0).view(np.uint16) + 1)
    levels = 1 + np.rint(
        65534 * (24 + np.log2(values.astype(np.uint16).view(np.float16).astype(np.float64))) / 24
    )
    assert (np.diff(levels) >= 1).all() and levels[-1] == 65535


def test_prefill_gives_the_last_windows(path: Path) -> None:
    """Windows come oldest first, as wide as a slab, on the same scale; unwritten blocks are 0."""
    workload = open_workload(path)
    found = workload.prefill(1)
    assert found is not None and found.dtype == np.uint16
    assert found.shape == (WINDOWS, LAYERS, CONTEXT_BLOCKS + (STEPS - 1) // BLOCK)
    for window in range(WINDOWS):
        full = CONTEXT_BLOCKS + 1 + window - WINDOWS
        assert (found[window, :, :full] > 0).all() and (found[window, :, full:] == 0).all()


def test_contents_are_shared_as_far_as_the_prefix(path: Path) -> None:
    """Sessions 0 and 1 share the six blocks of the prefix, 1 and 2 the blocks after it."""
    a, b, c = (one.contents for one in open_workload(path).sessions)
    assert a.shape == (CONTEXT_BLOCKS, 2) and a.dtype == np.uint64
    assert [bool((a[i] == b[i]).all()) for i in range(10)] == [True] * 6 + [False] * 4
    assert [bool((b[i] == c[i]).all()) for i in range(10)] == [False] * 6 + [True] * 4
    assert len(np.unique(np.concatenate([a, c]), axis=0)) == 20
    info = open_workload(path).sessions[1]
    assert (info.turns, info.group, info.arrival_s) == ((4,), 3, 1.5)


def test_reading_holds_one_row_group(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row group's steps are returned before the next one is read: at most one row group of scores
    and one of predictions are held."""
    import pyarrow.parquet as pq

    events: list[str] = []
    real = pq.ParquetFile.read_row_group
    workload = open_workload(path)

    def watched(self: Any, number: int, **more: Any) -> Any:
        events.append("read")
        return real(self, number, **more)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", watched)
    for _ in workload.slabs(0, 1):
        events.append("slab")
    assert events.count("read") >= 6
    assert "read read read" not in " ".join(events)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selector": "taste"}, "no scores of 'taste'"),
        ({"pool": "median"}, "pool = 'median'"),
        ({"select_blocks": 0, "sink_blocks": 0, "window_blocks": 0}, "0 blocks"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        open_workload(path, **changes)


def test_overlap_counts_what_is_selected_again(path: Path) -> None:
    """Compared with sets: the share of a step's blocks that the previous step selected too."""
    workload = CapturedWorkload(path, 2, sink_blocks=0, window_blocks=0)
    selected, _ = gathered(workload, 0, 16)
    rates = [
        np.mean(
            [
                len(set(now[at]) & set(then[at])) / 2
                for then, now in itertools.pairwise(selected[:9])
            ]
        )
        for at in range(LAYERS)
    ]
    found = overlap_of_file(path, 8)
    assert (found["k_blocks"], found["steps"]) == (2, 8)
    assert found["mean"] == pytest.approx(np.mean(rates), abs=1e-4)
    assert found["least"] == pytest.approx(min(rates), abs=1e-4)
    assert found["layers"] == pytest.approx(rates, abs=1e-4)
    slabs = [one.predicted for one in workload.slabs(0, 16) if one.predicted is not None]
    ahead = np.concatenate(slabs)
    best = np.argsort(-ahead.astype(np.int64), axis=2, kind="stable")[:, :, :2]
    told = [
        np.mean(
            [
                len(set(selected[step, at]) & set(best[step - (at == 0), at])) / 2
                for step in range(1, 9)
            ]
        )
        for at in range(LAYERS)
    ]
    assert found["predicted"] == pytest.approx(told, abs=1e-4)
