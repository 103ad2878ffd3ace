"""Does the demo's real model answer alike under every prefetcher, and is each one's cost shown?"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from model_bed import model_of
from tiny_models import save_text

from offstage.host.transformer.dense import DenseKv
from offstage.testbeds.beds.local import LocalBed
from offstage.testbeds.cli import run
from offstage.testbeds.live.arm_bed import Storage
from offstage.testbeds.live.demo_options import MODEL_ARMS
from offstage.testbeds.live.model.arms import run_arms
from offstage.testbeds.live.model.options import ModelOptions
from offstage.testbeds.progress import Silent
from offstage.testbeds.report.page.numbers import show

pytest.importorskip("torch", reason="needs the extra capture")
pytest.importorskip("transformers", reason="needs the extra capture")

LONG = {"max_position_embeddings": 2048}


def test_every_arm_writes_the_same_text_and_has_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefetch changes how many demands are staged, but neither the text nor the number of demands.
    The table comes first, with the figures of the progress, and the page has both texts."""
    monkeypatch.setenv("OFFSTAGE_CACHE", str(tmp_path / "cache"))
    model, text = model_of(tmp_path, "llama", **LONG), save_text(tmp_path / "letters.txt", 1200)
    asked = ["--model", str(model), "--text", str(text), "--ask", "abc"]
    assert run(["demo", *asked, "--out", str(tmp_path / "out")]) == 0
    said, progress = capsys.readouterr()
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
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    runs = {one["name"]: one for one in summary["runs"]}
    assert list(runs) == list(arms) and summary["workload"]["source"] == "model"
    for name, one in runs.items():
        assert (one["hit"], one["demands"]) == (arms[name]["hit"], arms[name]["demands"])
        assert one["decisions_replayed"] > 0 and one["log_diverged_at"] == -1
    assert runs["window+predicted"]["prefetchers"] == ["window", "predicted"]
    assert sorted((tmp_path / "out/records").iterdir())[0].name == "measured-window-predicted"
    told = re.findall(
        r"\] (\S+), \d+ of \d+ blocks in each: [\d,]+ steps\n +hit rate ([^,]+), ", progress
    )
    assert told == [(name, show("hit", one["hit"])) for name, one in runs.items()]
    page = (tmp_path / "out/report.html").read_text()
    assert page.index('id="model"') < page.index('id="runs"')
    assert page.count("<blockquote>") == 2


def test_a_prompt_is_read_once_and_a_damaged_copy_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model writes the same from the kept prefill; a copy that is damaged, or of another
    prompt, is not used."""
    monkeypatch.setenv("OFFSTAGE_CACHE", str(tmp_path / "cache"))
    model, text = model_of(tmp_path, "llama", **LONG), save_text(tmp_path / "letters.txt", 1200)
    reads: list[int] = []
    read = DenseKv.prefill

    def counted(kv: DenseKv, tokens: Any, piece: int, advance: Any) -> None:
        reads.append(len(tokens))
        read(kv, tokens, piece, advance)

    monkeypatch.setattr(DenseKv, "prefill", counted)

    def answer(ask: str) -> str:
        asked = ModelOptions(model=model, text=text, steps=20, generate=True, pool_ratio=1.0)
        bed = LocalBed(tmp_path / "bed")
        bed.clear()
        bed.runtime.mkdir()
        disk = Storage("posix", "measured", {"backend": "posix"})
        found, _, _ = run_arms(asked, ask, bed, disk, 64, Silent(), MODEL_ARMS[:1])
        return found.passes[0].text + found.dense_text

    first = answer("abc")
    assert answer("abc") == first and len(reads) == 1
    (kept,) = (tmp_path / "cache/prefill").glob("*/layers")
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    assert answer("abc") == first and len(reads) == 2
    kept.write_bytes(whole[:1000])
    assert answer("abc") == first and len(reads) == 3
    answer("abd")
    assert len(reads) == 4 and len([*(tmp_path / "cache/prefill").glob("*/layers")]) == 1


@pytest.mark.parametrize(
    ("letters", "line"), [(5, "document of"), (5000, "shorter --text"), (None, "text file")]
)
def test_a_document_that_is_no_prompt_is_one_line(
    letters: int | None, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A document that is missing, too short for a block, or too long for the model is refused
    before a daemon starts."""
    model = model_of(tmp_path, "llama", **LONG)
    text = tmp_path / "letters.txt"
    if letters is not None:
        save_text(text, letters)
    asked = ["--model", str(model), "--text", str(text), "--ask", "ab"]
    assert run(["demo", *asked, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert line in said and str(text) in said
    assert not [*tmp_path.glob("out/**/*.log")]


def test_a_question_without_a_model_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--quick", "--ask", "why"]) == 2
    assert "--model" in capsys.readouterr().err
