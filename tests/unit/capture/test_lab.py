"""Does a captured model run in the laboratory, from text to figures, with the file's own sizes?"""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from against_schema import checked

from offstage.testbeds.cli import run

pytest.importorskip("torch", reason="needs the extra capture")
pytest.importorskip("transformers", reason="needs the extra capture")

BLOCK, CONTEXT, STEPS, K = 8, 256, 20, 8

SPEC = f"""
[workload]
kind = "captured"
file = "capture.parquet"
[geometry]
model = "llama-3-70b"
block_tokens = {BLOCK}
[selection]
selector = "quest"
k_blocks = {K}
[tier]
buffer_over_k = [2.0]
[[policy]]
use = "none"
[[policy]]
use = "window+ema+warmup"
"""


def captured(model: Path, text: Path) -> None:
    """Write capture.parquet into the working directory."""
    named = ["--model", str(model), "--text", str(text), "--steps", str(STEPS)]
    sizes = ["--context-tokens", str(CONTEXT), "--block-tokens", str(BLOCK), "--threads", "1"]
    assert run(["trace", "capture", *named, *sizes]) == 0


@pytest.fixture
def folder(make_model: Any, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a spec and a capture of two layers and two sessions."""
    monkeypatch.chdir(tmp_path)
    captured(make_model("qwen3"), text)
    (tmp_path / "captured.toml").write_text(SPEC)
    return tmp_path


def test_from_a_text_to_figures(folder: Path) -> None:
    """The lab runs every step and layer of both sessions, sizes its buffers by the file and not by
    the spec's defaults, and writes the same bytes twice."""
    for out in ("one", "two"):
        assert run(["lab", "run", "captured.toml", "--out", out, "--jobs", "1"]) == 0
    rows = pq.read_table(folder / "one/ledger.parquet").to_pydict()
    assert len(rows["layer"]) == 2 * 2 * STEPS * 2
    assert set(rows["layer"]) == {0, 1} and set(rows["selected"]) == {K}
    summary = json.loads((folder / "one/summary.json").read_text())
    for point in summary["points"]:
        assert point["info"]["slot_count"] == 2 * K * 2 * 2
    assert (folder / "one/ledger.parquet").read_bytes() == (
        folder / "two/ledger.parquet"
    ).read_bytes()


def test_seeds_of_what_is_recorded_are_noted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded selections on a drive without jitter use no random numbers: three seeds agree,
    except for the policy that draws."""
    changed = [
        *"--out out --jobs 1 --set seeds=[1,2,3] --set".split(),
        "policy=[{use='none'},{use='none',eviction='random'},{use='window'}]",
    ]
    assert run(["lab", "run", "captured.toml", *changed, "--format", "json"]) == 0
    (told,) = (
        note["what"]
        for note in checked("lab run", capsys.readouterr().out)["notes"]
        if note["code"] == "seeds-unused"
    )
    assert told.startswith("all seeds give the same") and told.endswith("(2 of 3 points)")
    assert run(["lab", "run", "captured.toml", "--out", "one", "--jobs", "1"]) == 0
    assert "all seeds give the same" not in capsys.readouterr().out, "one seed is no pattern"


def test_another_file_under_the_same_name_is_run_anew(
    folder: Path, make_model: Any, text: Path
) -> None:
    """Results are resumed for the same file only, not for another one under its name."""
    assert run(["lab", "run", "captured.toml", "--out", "one", "--jobs", "1"]) == 0
    before = (folder / "one/ledger.parquet").read_bytes()
    (folder / "other.txt").write_text(text.read_text()[::-1])
    captured(make_model("qwen3"), folder / "other.txt")
    for out in ("one", "fresh"):
        assert run(["lab", "run", "captured.toml", "--out", out, "--jobs", "1"]) == 0
    after = (folder / "one/ledger.parquet").read_bytes()
    assert after == (folder / "fresh/ledger.parquet").read_bytes() != before


def test_blocks_of_another_size_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise bytes and times would be for the wrong block size."""
    changed = ["--set", "geometry.block_tokens=16"]
    assert run(["lab", "run", "captured.toml", "--out", "out", *changed]) == 2
    assert "capture.parquet has blocks of 8; give 8" in capsys.readouterr().err
    assert not (folder / "out/summary.json").exists()
