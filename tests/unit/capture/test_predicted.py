"""Are queries predicted with their own layer's norm and projection, without future information, for
every architecture?"""

import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offstage.bindings.errors import BadInput
from offstage.testbeds.capture import attention, draft_model, run
from offstage.testbeds.capture.model import GROUPED
from offstage.testbeds.capture.run import Options, capture
from offstage.testbeds.workloads.selections.scores_file import PREDICTED, SCORES, open_capture

torch = pytest.importorskip("torch", reason="needs the extra capture")
transformers = pytest.importorskip("transformers", reason="needs the extra capture")

BLOCK, CONTEXT, STEPS = 8, 128, 12


@pytest.fixture
def idle(make_model: Any, tmp_path: Path) -> Any:
    """`idle(architecture)`: a model whose layers add nothing to their input, so that predictions
    from the previous layer are exact."""

    def make(architecture: str) -> Path:
        folder = tmp_path / architecture
        shutil.copytree(make_model(architecture, num_hidden_layers=3), folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "o_proj" in name or "down_proj" in name:
                    weight.zero_()
        model.save_pretrained(folder)
        return folder

    return make


def captured(model: Path, text: Path, out: Path, **changes: Any) -> dict[str, list[Any]]:
    capture(
        Options(
            **{
                "model": model,
                "text": text,
                "out": out,
                "mode": "free",
                "steps": STEPS,
                "context_tokens": CONTEXT,
                "block_tokens": BLOCK,
                "prefill_piece": 48,
                **changes,
            }
        )
    )
    found = open_capture(out)
    assert found.predicted == found.scores == SCORES
    names = (*SCORES, *(PREDICTED + name for name in SCORES))
    return {name: list(found.steps(0, name, 0, 1000)) for name in names}


@pytest.mark.parametrize("architecture", GROUPED)
def test_what_does_not_change_between_layers_is_predicted_exactly(
    architecture: str, idle: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers 1 and 2 are predicted from the previous layer's input, the next step's first layer
    from the one token that early exit drafts, here the model's own. Scores of all blocks before the
    newest token match the later ones."""
    monkeypatch.setattr(attention, "DRAFTS", 1)
    monkeypatch.setattr(run, "LOOKUP_TOKENS", CONTEXT)  # no match of that length exists
    found = captured(idle(architecture), text, tmp_path / "a.parquet")
    for name in ("quest", "mean_key"):
        own, predicted = found[name], found[PREDICTED + name]
        for step in range(STEPS - 1):
            full = (CONTEXT + step) // BLOCK
            ahead, now, then = (
                one.scores[:, :, :full].astype(np.float32)
                for one in (predicted[step], own[step], own[step + 1])
            )
            np.testing.assert_allclose(ahead[1:], now[1:], rtol=2e-3, atol=2e-3)
            np.testing.assert_allclose(ahead[0], then[0], rtol=2e-3, atol=2e-3)


def test_a_block_of_the_newest_token_alone_is_not_predicted(
    make_model: Any, text: Path, tmp_path: Path
) -> None:
    """Its key is made by the predicted layer itself, so it is not known yet. Step 0 begins a block;
    at step 1 the keys include its token."""
    found = captured(make_model("qwen3"), text, tmp_path / "a.parquet")
    predicted, bound = found[PREDICTED + "mass"], found[PREDICTED + "quest"]
    assert predicted[0].blocks == CONTEXT // BLOCK + 1
    assert not predicted[0].scores[1, :, -1].any() and (bound[0].scores[1, :, -1] < -6e4).all()
    assert predicted[1].scores[1, :, -1].all()
    # The first layer has the mean over the drafts, which also sums to 1.
    np.testing.assert_allclose(predicted[1].scores[0].sum(axis=-1, dtype=np.float32), 1, atol=2e-2)
    np.testing.assert_allclose(predicted[1].scores.sum(axis=2, dtype=np.float32), 1, atol=2e-2)


def test_layers_that_are_left_out_leave_no_draft(
    make_model: Any, text: Path, tmp_path: Path
) -> None:
    """Early exit reads the last layer's input: if that layer is left out, its time is unknown, and
    the first row stays 0."""
    model = make_model("llama", num_hidden_layers=3)
    found = captured(model, text, tmp_path / "a.parquet", layers="0-1")
    for one in found[PREDICTED + "mass"]:
        assert not one.scores[0].any() and one.scores[1].any()
    whole = capture(
        Options(
            model=model,
            text=text,
            out=tmp_path / "b.parquet",
            mode="free",
            steps=2,
            context_tokens=CONTEXT,
            block_tokens=BLOCK,
        )
    )
    assert whole.drafts_accepted is not None and 0 <= whole.drafts_accepted <= 1


def test_a_draft_model_predicts_the_first_layer(
    make_model: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the model as its own draft model for one token, drafts are always right, and the first
    layer's row equals the next step's. Early exit with random weights would not help."""
    monkeypatch.setattr(draft_model, "DRAFTS", 1)
    monkeypatch.setattr(run, "LOOKUP_TOKENS", CONTEXT)
    model = make_model("llama", num_hidden_layers=3)
    told = Options(
        model=model,
        text=text,
        out=tmp_path / "a.parquet",
        mode="free",
        steps=4,
        context_tokens=CONTEXT,
        block_tokens=BLOCK,
        draft_model=model,
    )
    assert capture(told).model_drafts_accepted == 1.0
    found = open_capture(told.out)
    own, ahead = (list(found.steps(0, name, 0, 9)) for name in ("quest", PREDICTED + "quest"))
    for now, then in itertools.pairwise(range(4)):
        full = CONTEXT // BLOCK
        np.testing.assert_allclose(
            ahead[now].scores[0, :, :full].astype(np.float32),
            own[then].scores[0, :, :full].astype(np.float32),
            rtol=2e-3,
            atol=2e-3,
        )
    with pytest.raises(BadInput, match="draft model supports 64"):
        capture(replace(told, draft_model=make_model("llama", max_position_embeddings=64)))
