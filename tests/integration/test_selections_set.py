"""Does the data set of docs/examples/offstage-selections give the figures of its card?"""

import hashlib
import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.host.selection import select
from offstage.testbeds.workloads.selections import captured
from offstage.testbeds.workloads.selections.captured import CapturedWorkload
from offstage.testbeds.workloads.selections.scores_file import open_capture
from offstage.testbeds.workloads.selections.structure import CAPTURES, STRUCTURE, of_file

PACKAGE = Path(__file__).resolve().parents[2] / "docs/examples/offstage-selections"
CARD = (PACKAGE / "README.md").read_text(encoding="utf-8")
SIZE_MAX = 25_000_000


def module(name: str, path: Path) -> ModuleType:
    """A module of the package, which the tests' environment does not have installed."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[name] = found
    spec.loader.exec_module(found)
    return found


LOADER = module("offstage_selections", PACKAGE / "offstage_selections/__init__.py")
FIGURES = module("selections_figures", PACKAGE / "figures.py")
REDUCE = module("selections_reduce", PACKAGE / "reduce.py")
HEADS = [text for text in sorted(LOADER.FILES) if text.endswith(FIGURES.HEADS)]
TEXTS = [text for text in sorted(LOADER.FILES) if text not in HEADS]
LONG = [text for text in TEXTS if text.endswith(FIGURES.LONG)]
MADE = {"32k": (32640, 128, 64, "yarn:4"), "128k": (130560, 128, 256, "yarn:16")}
"""Tokens of context, steps, tokens of a block and scaling, by how the text's name ends."""
PAGE = (PACKAGE.parents[1] / "cmx-128k.md").read_text(encoding="utf-8")


def rows_of_card(text: str) -> list[str]:
    """What the card's tables say of a text: four policies; what is within a budget, if judged."""
    return re.findall(rf"^\| {text} \|.*", CARD, re.MULTILINE)


def test_the_card_has_every_text_and_the_set_is_small() -> None:
    assert TEXTS and all(len(rows_of_card(text)) == 4 + text.startswith("judge-") for text in TEXTS)
    assert sum(path.stat().st_size for path in LOADER.FILES.values()) < SIZE_MAX


@pytest.mark.parametrize("text", TEXTS + HEADS)
def test_a_file_is_of_the_text_beside_it(text: str) -> None:
    """And was made as the card says."""
    header = open_capture(LOADER.FILES[text]).header
    text = text.removesuffix(FIGURES.HEADS)
    own = (PACKAGE / f"texts/{text}.txt").read_bytes()
    assert header.text_sha256 == hashlib.sha256(own).hexdigest()
    (session,) = header.sessions
    made = (session.context_tokens, session.steps, header.block_tokens)
    rope = header.parameters.get("rope")
    assert (*made, rope) == MADE.get(text.rpartition("-")[2], (7680, 128, 16, None))
    assert (header.model, header.layer_count, header.synthetic) == ("smollm2-135m", 30, False)


@pytest.mark.parametrize("text", TEXTS)
def test_the_loader_and_the_laboratory_agree(text: str) -> None:
    """The highest scores as the loader gives them are the laboratory's selection."""
    scores = LOADER.scores(text)
    for k in (8, 64):
        workload = CapturedWorkload(LOADER.FILES[text], k, sink_blocks=0, window_blocks=0)
        found = np.concatenate([slab.selected for slab in workload.slabs(0)])
        best = np.argsort(-scores, axis=2, kind="stable")[..., :k]
        np.testing.assert_array_equal(np.sort(best, axis=2), found)


@pytest.mark.parametrize("text", [text for text in TEXTS if text not in LONG])
def test_the_generator_is_judged_by_the_set(text: str) -> None:
    """The targets of `trace generate --explain` are what the files have."""
    targets = tomllib.loads(Path(captured.__file__).with_name("captured.toml").read_text())
    select = CAPTURES["smollm2-135m"].select
    found = of_file(LOADER.FILES[text], select)
    own = targets["smollm2-135m"][text]
    assert {name: round(value, 4) for name, value in found.items()} == {
        name: own[name] for name in STRUCTURE
    }


def drawn_scores(seed: int, octaves: float) -> np.ndarray:
    """`[layers, heads, blocks]`, many of them equal."""
    draw = np.random.default_rng(seed)
    full = np.exp2(draw.uniform(-octaves, 0, (2, 3, 400))).astype(np.float16)
    full[draw.random(full.shape) < 0.3] = full[0, 0, 0]
    return full


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), octaves=st.floats(0.1, 26))
def test_heads_apart_select_what_they_do_alone_and_pooled(seed: int, octaves: float) -> None:
    full = drawn_scores(seed, octaves)
    small = REDUCE.reduced(full, REDUCE.KEPT_FORETOLD, False)
    for k in (1, 17, REDUCE.KEPT_FORETOLD):
        for own, kept in ((full, small), (full.max(axis=1), small.max(axis=1))):
            best, same = (np.argsort(-one, axis=-1, kind="stable")[..., :k] for one in (own, kept))
            np.testing.assert_array_equal(best, same)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), octaves=st.floats(0.1, 26), rest=st.booleans())
def test_a_reduced_score_selects_what_the_full_one_does(
    seed: int, octaves: float, rest: bool
) -> None:
    """For every k up to what is kept, many on one level and ties included; near what it was."""
    full = drawn_scores(seed, octaves).max(axis=1, keepdims=True)
    small = REDUCE.reduced(full, REDUCE.KEPT, rest)
    for own, kept in zip(
        full[:, 0].astype(np.float32), small[:, 0].astype(np.float32), strict=True
    ):
        for k in range(1, REDUCE.KEPT - 2, 8):  # and the sink, and a window of two
            np.testing.assert_array_equal(select(kept, k, 1, 2, 400), select(own, k, 1, 2, 400))
        near = (kept > 2.0**-14) & (own > 2.0**-14)
        assert (np.abs(np.log2(kept[near] / own[near])) < (0.6 if rest else 0.25)).all()
        assert (kept > 0).sum() <= (400 if rest else REDUCE.KEPT)


@pytest.mark.parametrize("text", HEADS)
def test_heads_apart_have_the_figures_of_the_card(text: str) -> None:
    """And pooled they select what the file of pooled heads does."""
    assert FIGURES.by_head(text) in CARD
    pooled = LOADER.scores(text.removesuffix(FIGURES.HEADS))
    apart = LOADER.scores(text).max(axis=2)
    for k in (32, 64):
        best, same = (np.argsort(-one, axis=2, kind="stable")[..., :k] for one in (pooled, apart))
        np.testing.assert_array_equal(np.sort(best, axis=2), np.sort(same, axis=2))


def test_a_text_has_the_figures_of_the_card(tmp_path: Path) -> None:
    """Without a pool; the rest is below."""
    found = FIGURES.rows(TEXTS[0], FIGURES.points(LOADER.FILES[TEXTS[0]], tmp_path, (0.0,)))
    cells = [row.rstrip(" |").split(" | ") for row in rows_of_card(TEXTS[0])[:4]]
    assert [row.rstrip(" |").split(" | ") for row in found] == [row[:4] for row in cells]


@pytest.mark.slow
@pytest.mark.parametrize("text", TEXTS)
def test_every_figure_of_the_card(tmp_path: Path, text: str) -> None:
    found = FIGURES.points(LOADER.FILES[text], tmp_path)
    assert FIGURES.rows(text, found) == rows_of_card(text)[:4]
    if text in LONG:
        assert [row for row in FIGURES.long_rows(text, found) if row not in PAGE] == []


@pytest.mark.slow
@pytest.mark.parametrize("text", [text for text in TEXTS if text.startswith("judge-")])
def test_the_figures_within_a_budget_are_those_of_the_card(tmp_path: Path, text: str) -> None:
    assert rows_of_card(text)[-1] == FIGURES.budgeted(LOADER.FILES[text], tmp_path)


@pytest.mark.slow
def test_the_ends_of_the_curve_are_those_of_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least budget and the largest, of those that the card has."""
    least, *_, most = FIGURES.BUDGETS_PERMILLE
    monkeypatch.setattr(FIGURES, "BUDGETS_PERMILLE", (least, most))
    rows = re.findall(r"^\| [\d.]+ \| [\d.]+ at [\d.]+ \| [\d.]+ at [\d.]+ \|", CARD, re.MULTILINE)
    judged = [text for text in TEXTS if text.startswith("judge-") and text not in LONG]
    judges = [LOADER.FILES[text] for text in judged]
    assert [rows[0], rows[-1]] == FIGURES.curve(sorted(judges), tmp_path)


@pytest.mark.slow
def test_the_means_over_the_texts_at_8k_are_those_of_the_page(tmp_path: Path) -> None:
    assert [row for row in FIGURES.means(tmp_path, 32) if row not in PAGE] == []


def test_the_page_has_what_was_printed_of_captures_of_256_steps() -> None:
    """They are too large for the set, so what `figures.py` printed of them is kept."""
    printed = (PACKAGE / "steps-256.txt").read_text(encoding="utf-8")
    tables = PAGE[PAGE.index("| 256 steps, policy |") : PAGE.index("| aim, mean of the texts")]
    rows = re.findall(r"^\|.*± .*", tables, re.MULTILINE)
    assert len(rows) == 9 and [row for row in rows if row not in printed] == []
