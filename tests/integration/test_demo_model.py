"""Does the demo's real model answer alike with every way to prefetch, and say what each cost?"""

import json
from pathlib import Path

import pytest
from model_bed import model_of
from tiny_models import save_text

from offstage.testbeds.cli import run

pytest.importorskip("torch", reason="needs the extra capture")
pytest.importorskip("transformers", reason="needs the extra capture")

SMALL = "demo --storage measured --sessions 1 --steps 4 --context-tokens 4096".split()


def test_every_arm_writes_the_same_text_and_has_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prefetch changes how many demands are staged, and neither the text nor the number of demands.
    The table comes first, and the page has both texts."""
    model, text = model_of(tmp_path, "llama"), save_text(tmp_path / "letters.txt", 1200)
    asked = ["--model", str(model), "--text", str(text), "--ask", "abc"]
    assert run([*SMALL, *asked, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "out/summary.json").read_text())["model"]
    arms = {one["arm"]: one for one in found["passes"]}
    assert list(arms) == ["none", "window", "window+ema", "window+predicted"]
    assert len({one["text"] for one in arms.values()}) == 1 and found["dense_text"]
    assert len({one["demands"] for one in arms.values()}) == 1
    assert all(one["blocks_corrupt"] == 0 for one in arms.values())
    assert arms["window+predicted"]["hit"] > arms["none"]["hit"]
    assert arms["window+predicted"]["guesses"] > 0 and arms["none"]["guesses"] == 0
    assert found["workload"]["context_tokens"] % 16 == 0
    assert said.index("dense attention") < said.index("non-trivial")
    page = (tmp_path / "out/report.html").read_text()
    assert page.index('id="model"') < page.index('id="runs"')
    assert page.count("<blockquote>") == 2


def test_a_question_without_a_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*SMALL, "--ask", "why"]) == 2
    assert "--model" in capsys.readouterr().err
