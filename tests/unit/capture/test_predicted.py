"""Are queries predicted by their own layer's norm and projection, without future information, for
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
from offstage.testbeds.capture.model import ARCHITECTURES
from offstage.testbeds.capture.run import Options, capture
from offstage.testbeds.workloads.selections.scores_file import PREDICTED, SCORES, open_capture

torch = pytest.importorskip("torch", reason="needs the extra capture")
transformers = pytest.importorskip("transformers", reason="needs the extra capture")

BLOCK, CONTEXT, STEPS = 8, 128, 12


@pytest.fixture
def idle(make_model: Any, tmp_path: Path) -> Any:
    """`idle(architecture)`: a model whose layers add nothing to their input, so that all layers
    have the same input, and predictions from the previous layer are exact."""

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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_what_does_not_change_between_layers_is_predicted_exactly(
    architecture: str, idle: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers 1 and 2 from the input of the previous layer; the next step's first layer from the
    token that early exit drafts, if one only is requested, which here is the model's own. Blocks
    without the newest token get their later scores."""
    monkeypatch.setattr(attention, "DRAFTS", 1)
    monkeypatch.setattr(run, "LOOKUP_TOKENS", CONTEXT)  # nothing so long stood there before
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
    """Its key is made by the layer that is predicted: known later. Step 0 begins a block; the
    keys of step 1 hold its token."""
    found = captured(make_model("qwen3"), text, tmp_path / "a.parquet")
    predicted, bound = found[PREDICTED + "mass"], found[PREDICTED + "quest"]
    assert predicted[0].blocks == CONTEXT // BLOCK + 1
    assert not predicted[0].scores[1, :, -1].any() and (bound[0].scores[1, :, -1] < -6e4).all()
    assert predicted[1].scores[1, :, -1].all()
    # Of several drafts the first layer has the mean: it is all of the attention as well.
    np.testing.assert_allclose(predicted[1].scores[0].sum(axis=-1, dtype=np.float32), 1, atol=2e-2)
    np.testing.assert_allclose(predicted[1].scores.sum(axis=2, dtype=np.float32), 1, atol=2e-2)


def test_layers_that_are_left_out_leave_no_draft(
    make_model: Any, text: Path, tmp_path: Path
) -> None:
    """Early exit reads the input of the last layer: without all layers its time would be unknown,
    and the first row is 0 throughout."""
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
    """With the model as its own draft model for one token: it is always right, and the first
    layer's row is the next step's own, where early exit of random weights does not help."""
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
