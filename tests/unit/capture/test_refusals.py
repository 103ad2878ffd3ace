"""Is everything that cannot be captured refused in one line, before a long run begins?"""

import importlib.util
import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from against_schema import checked

from offstage.bindings.errors import BadInput
from offstage.testbeds.capture import model
from offstage.testbeds.capture.model import load, look, prompt_tokens
from offstage.testbeds.cli import run
from offstage.testbeds.workloads.selections.scores_file import open_capture
from offstage.testbeds.workloads.selections.scores_writer import Writer

pytest.importorskip("torch", reason="needs the extra capture")
pytest.importorskip("transformers", reason="needs the extra capture")

FAST = ["--steps", "4", "--context-tokens", "64", "--block-tokens", "16", "--threads", "1"]


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Apply a change to config.json."""

    def edit(folder: Path) -> None:
        path = folder / "config.json"
        config = json.loads(path.read_text())
        change(config)
        path.write_text(json.dumps(config))

    return edit


def removed(pattern: str) -> Callable[[Path], None]:
    def remove(folder: Path) -> None:
        for path in folder.glob(pattern):
            path.unlink()

    return remove


def torn(name: str) -> Callable[[Path], None]:
    def tear(folder: Path) -> None:
        raw = (folder / name).read_bytes()
        (folder / name).write_bytes(raw[: len(raw) // 2])

    return tear


def endless(folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)


def lengthen(config: dict[str, Any]) -> None:
    config["rope_parameters"] = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}


FOLDERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "no config": (removed("config.json"), "config.json"),
    "torn config": (torn("config.json"), "config.json cannot be read"),
    "no tokenizer": (removed("tokenizer*"), "the tokenizer cannot be loaded"),
    "torn tokenizer": (torn("tokenizer.json"), "the tokenizer cannot be loaded"),
    "no weights": (removed("*.safetensors"), "*.safetensors"),
    "torn weights": (torn("model.safetensors"), "the model cannot be loaded"),
    "missing weights": (
        edited(lambda config: config.update(num_hidden_layers=3)),
        "weights are missing",
    ),
    "weights left over": (
        edited(lambda config: config.update(num_hidden_layers=1)),
        "weights that the model has no place for, first model.layers.1.",
    ),
    "weights of GPTQ": (
        edited(lambda config: config.update(quantization_config={"quant_method": "gptq"})),
        "quantized weights are not read",
    ),
    "other weights": (
        edited(lambda config: config.update(hidden_size=64)),
        "or of another shape, first",
    ),
    "a text for a number": (
        edited(lambda config: config.update(num_attention_heads="many")),
        "expected int, got str",
    ),
    "layers without end": (
        edited(lambda config: config.update(num_hidden_layers=10**9)),
        "1000000000 layers",
    ),
    "no layers": (edited(lambda config: config.update(num_hidden_layers=0)), "0 layers"),
    "a window of letters": (
        edited(lambda config: config.update(sliding_window="x")),
        "sliding_window is 'x'",
    ),
    "a config without end": (endless, "config.json cannot be read"),
    "architecture": (
        edited(lambda config: config.update(model_type="gpt2")),
        "architecture 'gpt2' is not supported; supported: llama",
    ),
    "no architecture": (
        edited(lambda config: config.pop("model_type")),
        "architecture None is not supported",
    ),
    "rotary": (edited(lengthen), "rotary positions of type"),
    "heads": (edited(lambda config: config.update(num_key_value_heads=3)), "KV heads"),
}


def line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of the error, after the progress lines."""
    said = [one for one in capsys.readouterr().err.splitlines() if one.startswith("offstage:")]
    assert len(said) == 1, said
    return said[0]


@pytest.mark.parametrize("what", FOLDERS)
def test_a_folder_that_is_no_model_is_one_line(
    what: str, make_model: Any, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, message = FOLDERS[what]
    folder = tmp_path / "model"
    folder.mkdir()
    for file in make_model("llama").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    damage(folder)
    out = tmp_path / "a.parquet"
    named = ["--model", str(folder), "--text", str(text), "--out", str(out)]
    assert run(["trace", "capture", *named, *FAST]) == 2
    said = line(capsys)
    assert message in said and str(folder) in said
    assert not list(tmp_path.glob("*.parquet*"))


OPTIONS: dict[str, tuple[list[str], str]] = {
    "text too short": (
        ["--context-tokens", "496", "--steps", "5"],
        "the text has 500 tokens; 496 of context and 5 steps",
    ),
    "context too long": (
        ["--mode", "free", "--context-tokens", "496", "--steps", "40"],
        "512",
    ),
    "part of a block": (["--context-tokens", "70"], "--context-tokens = 70"),
    "very many threads": (["--threads", "100000000"], "give 1 to 4096"),
    "no steps": (["--steps", "0"], "--steps = 0"),
    "no context": (["--context-tokens", "0"], "--context-tokens = 0"),
    "no such layer": (["--limit-layers", "0-2"], "the model has layers 0 to 1"),
    "no layer": (["--limit-layers", "first"], "'first'"),
    "temperature": (["--mode", "free", "--temperature", "-1"], "--temperature = -1.0"),
    "no device": (["--device", "cuda"], "torch finds no CUDA device"),
    "no text": (["--text", "nowhere.txt"], "no such file or directory"),
    "no parent": (["--out", "nowhere/a.parquet"], "nowhere/a.parquet"),
    "no folder": (["--model", "nowhere"], "no such folder"),
}


@pytest.mark.parametrize("what", OPTIONS)
def test_options_that_do_not_fit_are_one_line(
    what: str,
    make_model: Any,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    changes, message = OPTIONS[what]
    if what == "no device" and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    monkeypatch.chdir(tmp_path)
    named = ["--model", str(make_model("llama")), "--text", str(text)]
    assert run(["trace", "capture", *named, *FAST, *changes]) == 2
    assert message in line(capsys)
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_one_line_names_it(
    make_model: Any,
    text: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.util.find_spec
    hidden = lambda name: None if name == "transformers" else real(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", hidden)
    named = ["--model", str(make_model("llama")), "--text", str(text)]
    assert run(["trace", "capture", *named, *FAST]) == 2
    assert "pip install '.[capture]'" in line(capsys)


def test_text_that_is_no_text_is_named(
    make_model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG\xff" * 200)
    named = ["--model", str(make_model("llama")), "--text", str(path)]
    assert run(["trace", "capture", *named, *FAST]) == 2
    assert f"{path}: not UTF-8 at byte 0" in line(capsys)
    for empty in (b"", b" \n"):
        path.write_bytes(empty)
        with pytest.raises(BadInput, match="is empty; give a text file"):
            prompt_tokens(load(look(make_model("llama"))), path, "why?", 64, 8)


def test_a_text_without_end_is_not_held_in_memory(
    make_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Is a device or a pipe that never ends read up to a bound only?"""
    monkeypatch.setattr(model, "TEXT_BYTES_MAX", 1 << 20)
    with pytest.raises(BadInput, match="/dev/zero: longer than 1 MiB"):
        model.text_tokens(load(look(make_model("llama"))), Path("/dev/zero"))


def test_a_folder_without_tokenizer_files_is_not_a_text_of_no_tokens(
    make_model: Any, tmp_path: Path
) -> None:
    """Where a class makes an empty tokenizer of no files, is that said, and not the text blamed?"""
    folder = tmp_path / "model"
    shutil.copytree(make_model("qwen3"), folder, ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(BadInput, match="its tokenizer makes no token of a letter"):
        load(look(folder))


@pytest.mark.parametrize("drafts", [0, 1])
def test_layers_that_draft_are_no_weights_left_over(
    drafts: int, make_model: Any, tmp_path: Path
) -> None:
    """Does a checkpoint load whose further layers its config.json counts as those that draft?"""
    folder = tmp_path / "model"
    shutil.copytree(make_model("llama"), folder)
    edited(lambda one: one.update(num_hidden_layers=1, num_nextn_predict_layers=drafts))(folder)
    if drafts:
        assert load(look(folder)).model.config.num_hidden_layers == 1
    else:
        with pytest.raises(BadInput, match="no place for"):
            load(look(folder))


@pytest.mark.parametrize(("dtype", "fix"), [("float16", "--dtype bfloat16"), ("float32", "copy")])
def test_scores_that_are_not_finite_get_a_cure_that_helps(
    dtype: str, fix: str, make_model: Any, text: Path, tmp_path: Path, capsys: Any
) -> None:
    """Is a type not advised that the run already has?"""
    from safetensors.numpy import load_file, save_file

    folder = tmp_path / "model"
    shutil.copytree(make_model("llama"), folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.q_proj.weight"] *= np.float32("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    named = ["--model", str(folder), "--text", str(text), "--out", str(tmp_path / "a.parquet")]
    assert run(["trace", "capture", *named, *FAST, "--dtype", dtype]) == 1
    said = line(capsys)
    assert "not finite" in said and f"; {fix}" in said.replace("use --", "--")


def test_a_sliding_window_is_refused_where_it_cuts(
    make_model: Any, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A context within the window is accepted; beyond it, layers would lose older tokens."""
    for architecture, more in (
        ("mistral", {}),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 1}),
    ):
        folder = make_model(architecture, sliding_window=100, **more)
        named = ["--model", str(folder), "--text", str(text), "--out", str(tmp_path / "a.parquet")]
        assert run(["trace", "capture", *named, *FAST]) == 0
        assert run(["trace", "capture", *named, *FAST, "--context-tokens", "112"]) == 2
        assert "sliding window of 100 tokens" in line(capsys)


def test_the_command_says_what_it_wrote(
    make_model: Any, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file opens with the requested options, and the figure to compare with papers is
    printed."""
    out = tmp_path / "a.parquet"
    named = ["--model", str(make_model("glm4")), "--text", str(text), "--out", str(out)]
    assert run(["trace", "capture", *named, *FAST, "--format", "json"]) == 0
    said = checked("trace capture", capsys.readouterr().out)
    assert said["rows"] == 2 * (4 + 4) * 2 * 2
    assert said["size_bytes"] == out.stat().st_size and said["perplexity"] > 1
    assert [one["name"] for one in said["sessions"]] == ["letters/teacher", "letters/free"]
    assert 0 <= said["overlap"]["least"] <= said["overlap"]["mean"] <= 1
    assert [one.steps for one in open_capture(out).sessions] == [4, 4]


def test_ctrl_c_keeps_the_steps_that_were_whole(
    make_model: Any,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real signal amid the steps gives exit code 130 and a shorter file, nothing else."""
    out = tmp_path / "a.parquet"
    real = Writer.step

    def step(self: Writer, session: int, number: int, scores: Any) -> None:
        real(self, session, number, scores)
        if number == 5:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Writer, "step", step)
    named = ["--model", str(make_model("llama")), "--text", str(text), "--out", str(out)]
    assert run(["trace", "capture", *named, *FAST, "--steps", "300"]) == 130
    said = line(capsys)
    assert str(out) in said and " 6 " in said
    assert [one.steps for one in open_capture(out).sessions] == [6]
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    "kinds",
    [
        ["full_attention", "chunked_attention"],
        ["full_attention", "linear_attention"],
        ["full_attention", "sliding_attention"],
        ["full_attention", "mamba"],
        ["full_attention"],
    ],
)
def test_layers_that_are_not_plain_attention_are_refused(tmp_path: Path, kinds: list[str]) -> None:
    """Other kinds of layers, or a window without a width, give one line and no traceback."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_size": 64,
        "intermediate_size": 128,
        "vocab_size": 300,
        "use_sliding_window": False,
        "layer_types": kinds,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadInput) as caught:
        look(tmp_path)
    assert str(tmp_path) in caught.value.where
