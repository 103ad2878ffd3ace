"""Does a real model decode the same from the daemon as on its own?

Uses tiny models with random weights, and a trained one where available (`OFFSTAGE_MODELS`).
"""

import json
import os
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from against_schema import checked
from model_bed import (
    BLOCK_TOKENS,
    CONTEXT,
    ROOM,
    SMALL_POOL,
    STEPS,
    drive,
    model_of,
    start,
    words_of,
)
from tiny_models import save_text

from offstage.bindings.errors import RunFailed
from offstage.host.gpu import interpreted
from offstage.testbeds.beds.daemon import Daemon, serve
from offstage.testbeds.capture.model import load, look, text_tokens
from offstage.testbeds.cli import run
from offstage.testbeds.live.model_results import ModelSummary

pytest.importorskip("torch", reason="needs the extra capture")
pytest.importorskip("transformers", reason="needs the extra capture")


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon for two layers, two KV heads of 16, float32."""
    with start(tmp_path_factory.mktemp("daemon"), 2, 4096, 512, 30) as one:
        yield one


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text(tmp_path_factory.mktemp("text") / "letters.txt")


def own_logits(model: Path, tokens: list[int]) -> Any:
    """Return logits of dense attention over all tokens at once, by the library."""
    import torch
    import transformers

    whole = transformers.AutoModelForCausalLM.from_pretrained(model, dtype="auto").eval()
    with torch.inference_mode():
        return whole(torch.tensor([tokens])).logits[0].float().numpy()


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "glm4"])
def test_with_every_block_selected_it_is_the_model_itself(
    architecture: str, tier: Daemon, text: Path, tmp_path: Path
) -> None:
    """Every step of every layer fetches most blocks. Logits equal those of the same kernel over
    blocks in memory to the bit, and those of the library's dense attention within 1e-3. With fewer
    blocks the run differs, and reports by how much."""
    model = model_of(tmp_path, architecture)
    found = drive(
        tier,
        model,
        text,
        tmp_path / "out",
        "--select-blocks",
        "8,all",
        *SMALL_POOL,
        "--kernel",
        "numpy" if architecture == "qwen3" else "torch",
        "--predict",
    )
    few, every = found["passes"]
    assert every["bit_equal"] is True and every["share_read"] == 1.0
    assert every["logit_error_max"] < 1e-3 and every["top1_agreement"] == 1.0
    assert every["demands"] > 2 * (ROOM - 6) * STEPS, "every step fetched"
    for one in (few, every):
        assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0
        assert one["blocks_verified"] == one["demands"]
        assert [row["position"] for row in one["positions"]] == [*range(CONTEXT, CONTEXT + STEPS)]
        nll = [row["nll"] for row in one["positions"]]
        assert one["perplexity"] == pytest.approx(np.exp(np.mean(nll)))
    assert 0.3 < few["share_read"] < 0.5 and few["bit_equal"] is None
    assert few["kl_mean"] > 1e-4 > every["kl_max"]
    assert few["predicted"][0]["predicted"] == 1.0, "layer 0's query hangs on the token alone"
    tokens = [row["token"] for row in every["positions"]]
    logits = own_logits(model, tokens_of(model, text)[: CONTEXT + STEPS])[CONTEXT:]
    assert tokens == tokens_of(model, text)[CONTEXT : CONTEXT + STEPS]
    assert logits.argmax(axis=1).tolist() == [row["dense_top1"] for row in every["positions"]]
    following = tokens_of(model, text)[CONTEXT + 1 : CONTEXT + STEPS + 1]
    wide = logits.astype(np.float64)
    nll = np.log(np.exp(wide).sum(axis=1)) - wide[np.arange(STEPS), following]
    np.testing.assert_allclose([row["nll"] for row in every["positions"]], nll, atol=1e-3)


def test_every_selection_runs_with_each_selector(
    tier: Daemon, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each pass equals that of a run with its selector alone, and the share from which on the model
    is itself again is named for each."""
    model = model_of(tmp_path, "llama")
    given = ["--select-blocks", "8,all", *SMALL_POOL]
    both = drive(tier, model, text, tmp_path / "both", *given, "--selector", "quest, mass")
    passes = {(one["selector"], one["select_blocks"]): one for one in both["passes"]}
    assert list(passes) == [(name, k) for name in ("quest", "mass") for k in (8, ROOM)]
    alone = drive(tier, model, text, tmp_path / "mass", *given, "--selector", "mass")
    assert [one["positions"] for one in alone["passes"]] == [
        passes["mass", k]["positions"] for k in (8, ROOM)
    ]
    assert passes["mass", 8]["positions"] != passes["quest", 8]["positions"]
    said = capsys.readouterr().out
    assert "as good as dense: quest from " in said and "; mass from " in said


def test_the_model_is_itself_again_from_the_least_share_on() -> None:
    """A share counts only if every larger one stays within the bound, too."""
    rows = [("quest", 0.1, 0.009), ("quest", 0.2, 0.2), ("quest", 0.4, 0.01), ("quest", 1.0, 0.0)]
    rows += [("mass", 0.1, 0.001), ("mass", 0.5, 0.02)]
    names = ("selector", "share_read", "kl_mean")
    same = {"context_tokens": 320, "kv_dtype": "model"}
    passes = [SimpleNamespace(**same, **dict(zip(names, row, strict=True))) for row in rows]
    found = ModelSummary.like_dense(SimpleNamespace(passes=passes))  # type: ignore[arg-type]
    assert found == {"quest": 0.4, "mass": None}


def tokens_of(model: Path, text: Path) -> list[int]:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    ids: list[int] = tokenizer(text.read_text())["input_ids"]
    return ids


def test_what_it_generates_is_what_the_library_generates(
    tier: Daemon, text: Path, tmp_path: Path
) -> None:
    """It decodes greedily over all blocks; a second run finds the same blocks in the store."""
    model = model_of(tmp_path, "llama", eos_token_id=None)
    found = drive(tier, model, text, tmp_path / "out", "--select-blocks", "all", "--generate")
    (one,) = found["passes"]
    tokens = tokens_of(model, text)[:CONTEXT] + [row["token"] for row in one["positions"]]
    logits = own_logits(model, tokens)
    assert tokens[CONTEXT:] == logits[CONTEXT - 1 : -1].argmax(axis=1).tolist()
    assert one["bit_equal"] is True and one["positions"][-1]["nll"] is None
    assert found["workload"]["prefill_blocks_written"] == 2 * CONTEXT // BLOCK_TOKENS
    again = drive(tier, model, text, tmp_path / "out", "--select-blocks", "12", "--generate")
    assert again["workload"]["prefill_blocks_written"] == 0


def test_in_bfloat16_it_is_the_model_within_that_types_rounding(
    tier: Daemon, text: Path, tmp_path: Path
) -> None:
    """The tokens that decoding adds are rounded to the blocks' type like those of the context."""
    model = model_of(tmp_path, "llama", head_dim=32, initializer_range=0.1)
    words = ["--dtype", "bfloat16", "--select-blocks", "all", *SMALL_POOL]
    (one,) = drive(tier, model, text, tmp_path / "out", *words)["passes"]
    assert one["bit_equal"] is True and one["blocks_corrupt"] == 0
    assert one["kl_max"] < 0.01


def test_a_copy_with_equal_times_and_other_weights_finds_nothing(
    tier: Daemon, text: Path, tmp_path: Path
) -> None:
    """Of two models whose files have the same names, sizes and times, the second writes its own
    blocks and reads none of the first's; a later copy of the first writes none."""
    import transformers

    first = model_of(tmp_path / "1", "qwen2")
    other, copy = (Path(shutil.copytree(first, tmp_path / name)) for name in "23")
    model = transformers.AutoModelForCausalLM.from_pretrained(other)
    model.model.layers[0].self_attn.k_proj.weight.data.mul_(-1.5)
    model.save_pretrained(other)
    for file in first.iterdir():
        found = file.stat()
        assert (other / file.name).stat().st_size == found.st_size
        os.utime(other / file.name, ns=(found.st_atime_ns, found.st_mtime_ns))
        os.utime(copy / file.name, (1, 1))
    written = []
    for folder in (first, other, copy):
        found = drive(
            tier, folder, text, tmp_path / "out", "--select-blocks", "all", "--kernel", "torch"
        )
        written.append(found["workload"]["prefill_blocks_written"])
        [one] = found["passes"]
        assert one["bit_equal"] is True and one["blocks_corrupt"] == 0
        assert "digest" in found["model"]["weights_read"]
    assert written == [2 * CONTEXT // BLOCK_TOKENS] * 2 + [0]


def test_a_block_of_the_context_that_the_tier_lost_is_made_again(
    text: Path, tmp_path: Path
) -> None:
    """It is equal byte for byte. A block that decoding wrote cannot be, and the run says so."""
    from offstage.host.transformer.dense import DenseKv, kv_geometry

    loaded = load(look(model_of(tmp_path, "qwen3")))
    shape = kv_geometry("tiny", loaded.model.config, BLOCK_TOKENS, "float32")
    kv = DenseKv(loaded.model, shape)
    kv.prefill(text_tokens(loaded, text)[0][:CONTEXT], 100, lambda count: None)
    whole = kv.blocks(1, 0, range(CONTEXT // BLOCK_TOKENS))
    where = np.array([3, 17, 0], np.int32)
    assert (kv.blocks_at(1, where, []) == whole[where]).all()
    assert len(np.unique(whole, axis=0)) == len(whole)
    with pytest.raises(RunFailed, match="block 20 of layer 1, which decode had written"):
        kv.blocks_at(1, np.array([3, 20], np.int32), [])


def test_what_had_no_effect_stands_under_the_headline(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings without effect are listed: an arena and a pool that hold the whole text, selections
    beyond it, an end that is not read, and prediction for a tier that has everything."""
    model = model_of(tmp_path, "llama")
    sizes = [
        "--context-tokens",
        str(CONTEXT),
        "--steps",
        str(STEPS),
        *"--select-blocks 8,400,all --predict --ahead hint".split(),
    ]
    with start(tmp_path, 2, 4096, 512, 4 * ROOM) as one:
        assert run(words_of(one, model, text, *sizes, "--format", "json")) == 0
        found = checked("host run", capsys.readouterr().out)
        assert run(words_of(one, model, text, *sizes)) == 0
    codes = {note["code"] for note in found["notes"]}
    assert codes >= {
        "all-staged",
        "pool-holds-all",
        "selected-alike",
        "text-unread",
        "hints-unused",
    }
    lines = capsys.readouterr().out.splitlines()
    notes = [at for at, line in enumerate(lines) if line.startswith("note: ")]
    assert notes == list(range(2, 2 + len(notes))) and len(notes) >= 5
    assert any(
        f"all {2 * ROOM} blocks of the text" in line and line.endswith(f"({ROOM} blocks)")
        for line in lines
    )


def test_a_run_in_which_all_counts_has_no_such_note(
    tier: Daemon, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Blocks of the same tokens from a shorter prefill are other blocks: the last chunk of a
    prefill has another length, and rounds differently."""
    model = model_of(tmp_path, "llama")
    drive(tier, model, text, tmp_path / "out", "--select-blocks", "8", *SMALL_POOL)
    words = ["--steps", str(STEPS), "--select-blocks", "8", *SMALL_POOL]
    capsys.readouterr()
    assert run(words_of(tier, model, text, *words, "--format", "json")) == 0
    codes = {note["code"] for note in json.loads(capsys.readouterr().out)["notes"]}
    assert codes <= {"warm-start", "machine"}


REFUSED: dict[str, tuple[str, dict[str, Any], list[str], str]] = {
    "blocks of another size": (
        "llama",
        {"head_dim": 8},
        [],
        "--set arena.payload=4096 --set arena.block_tokens=32",
    ),
    "another number of layers": ("llama", {"num_hidden_layers": 3}, [], "--set arena.layers=3"),
    "bfloat16 in numpy": (
        "llama",
        {"head_dim": 32},
        ["--dtype", "bfloat16", "--kernel", "numpy"],
        "numpy has no bfloat16: use torch",
    ),
    "a text too short": ("llama", {}, ["--steps", "400"], "than the text has room for"),
    "half a block": ("llama", {}, ["--context-tokens", "100"], "give a multiple of 16"),
    "no selection": ("llama", {}, ["--select-blocks", "3"], "select more than 5 blocks"),
    "no number": ("llama", {}, ["--select-blocks", "few"], "write for example 16,64,all"),
    "no selector": ("llama", {}, ["--selector", "best"], "of quest, quest8, mean_key, mass"),
    "no GPU": ("llama", {}, ["--kernel", "triton", "--device", "cuda"], "no device 'cuda'"),
    "a trace as well": ("llama", {}, ["--trace", "x"], "--trace has no effect with --model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_one_line(
    case: str, tier: Daemon, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if case == "no GPU" and not interpreted():
        pytest.skip("a GPU is there")
    architecture, changes, more, problem = REFUSED[case]
    model = model_of(tmp_path, architecture, **changes)
    sizes = ["--context-tokens", str(CONTEXT), "--steps", str(STEPS)]
    assert run(words_of(tier, model, text, *sizes, *more)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert problem in error.replace(";", ":") and error.startswith("offstage: ")


@pytest.mark.parametrize("words", [["--model"], ["--geometry", "tiny-mla"]], ids=lambda one: one[0])
def test_a_daemon_that_is_served_as_the_error_says_takes_the_blocks(
    words: list[str],
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error's command works verbatim, after the daemon that refused, with its configuration and
    its store."""
    monkeypatch.chdir(tmp_path)
    if words == ["--model"]:
        words = ["--model", str(model_of(tmp_path, "llama", head_dim=8)), "--text", str(text)]
    with start(tmp_path, 4, 8192, 8192, 300) as tier:
        where = ["--endpoint", tier.endpoint, "--runtime-dir", str(tier.runtime_dir)]
        sizes = ["--context-tokens", "4096" if words[0] == "--geometry" else str(CONTEXT)]
        words = ["host", "run", *where, "--tenant", "lab", *words, *sizes, "--steps", "4"]
        assert run(words) == 2
    fix = capsys.readouterr().err.strip().rpartition("; serve with ")[2].split()
    assert fix[0::2] == ["--set"] * 4
    sections = tomllib.loads((tmp_path / "daemon.toml").read_text())
    for setting in fix[1::2]:
        name, value = setting.split("=")
        section, key = name.split(".")
        sections.setdefault(section, {})[key] = value
    with serve(sections, tmp_path, name="again"):
        assert run(words) == 0


def test_what_is_predicted_is_staged_before_its_layer_asks(
    tier: Daemon, text: Path, tmp_path: Path
) -> None:
    """The tier prefetches the predicted selection of the next layer, and the ledger counts it as
    predicted. If it is fetched ahead too, it is in the pool when its layer runs. Neither changes a
    selection: the model's output is the same to the bit."""
    model = model_of(tmp_path, "llama")
    found = {}
    for ahead in ("none", "hint", "fetch"):
        words = ["--select-blocks", "8", *SMALL_POOL, "--predict", "--ahead", ahead]
        (found[ahead],) = drive(tier, model, text, tmp_path / "out", *words)["passes"]
        assert "hints-unused" not in {note["code"] for note in found[ahead]["notes"]}
    none = found["none"]
    assert none["guesses"] == 0 and none["traffic"] is None and none["worth"] is None
    assert none["curve"] == []
    for ahead in ("hint", "fetch"):
        one = found[ahead]
        assert one["guesses"] > STEPS and one["guesses_used"] + one["guesses_late"] > 0
        assert one["positions"] == found["none"]["positions"]
        assert one["share_read"] == found["none"]["share_read"]
        assert one["blocks_verified"] == one["demands"] and one["blocks_corrupt"] == 0
    assert found["hint"]["guesses_used"] > 0
    assert found["hint"]["traffic"] > 0 and 0 < found["hint"]["worth"] < 1
    assert found["hint"]["demands"] == found["none"]["demands"]


@pytest.mark.slow
def test_a_model_decodes_by_the_gpus_kernels(tier: Daemon, text: Path, tmp_path: Path) -> None:
    """Under Triton's interpreter every block gives the model's own output; fewer give the same as
    the host's selectors and torch's kernel."""
    pytest.importorskip("triton", reason="pip install '.[triton]'")
    if not interpreted():
        pytest.skip("a GPU is there: python tests/gpu/run_all.py checks it")
    model = model_of(tmp_path, "llama")
    sizes = ["--context-tokens", "128", "--steps", "3", "--select-blocks", "6,all"]
    found = {}
    for kernel in ("triton", "torch"):
        words = words_of(tier, model, text, *sizes, "--kernel", kernel, "--out", str(tmp_path))
        assert run(words) == 0
        found[kernel] = checked("file model", (tmp_path / "model.json").read_text())["passes"]
    (few, every), (same, _) = found["triton"], found["torch"]
    assert every["bit_equal"] is True and every["logit_error_max"] < 1e-3
    assert few["demands"] == same["demands"] and few["share_read"] == same["share_read"]
    assert few["kl_mean"] == pytest.approx(same["kl_mean"], rel=1e-3)


def test_a_folder_that_holds_no_causal_lm_is_one_line(
    tier: Daemon, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of(tmp_path, "llama")
    config = json.loads((model / "config.json").read_text())
    for kind in ("bert", "bamba"):
        (model / "config.json").write_text(json.dumps({**config, "model_type": kind}))
        assert run(words_of(tier, model, text)) == 2
        assert f"architecture '{kind}' is not supported" in capsys.readouterr().err
    assert run(words_of(tier, tmp_path / "none", text)) == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.fixture(scope="module")
def models() -> Path:
    beside = Path(__file__).resolve().parents[3] / "shared/models"
    folder = Path(os.environ.get("OFFSTAGE_MODELS", beside))
    if not (folder / "pycode-3m").is_dir():
        pytest.skip(f"no pycode-3m in {folder}; set OFFSTAGE_MODELS to a folder that holds it")
    return folder


@pytest.mark.slow
def test_a_trained_model_decodes_at_8k(
    models: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A model with genuine attention has its own output with all blocks, and with more blocks a
    perplexity closer to its own. As the model's page says, the next layer's query predicts most of
    the selection in layers 2 to 5, and little in layer 1."""
    with start(tmp_path_factory.mktemp("daemon"), 6, 8192, 8192, 800) as tier:
        found = {}
        plan = ("mass", "29"), ("quest", "16,64,all"), ("quest8", "16,64")
        for selector, selections in plan:
            words = words_of(
                tier,
                models / "pycode-3m",
                models / "dev1.txt",
                "--context-tokens",
                "8192",
                "--steps",
                "32",
                "--select-blocks",
                selections,
                "--selector",
                selector,
                "--predict",
                "--out",
                str(tmp_path),
            )
            assert run(words) == 0
            found[selector] = checked("file model", (tmp_path / "model.json").read_text())
    few, some, every = found["quest"]["passes"]
    assert every["bit_equal"] is True and every["logit_error_max"] < 1e-3
    assert every["top1_agreement"] == 1.0 and every["blocks_corrupt"] == 0
    for exact, coded in zip((few, some), found["quest8"]["passes"], strict=True):
        assert coded["blocks_corrupt"] == 0, "written anew, not taken for those of quest"
        assert coded["kl_mean"] == pytest.approx(exact["kl_mean"], rel=0.5)
    dense = found["quest"]["dense_perplexity"]
    assert abs(every["perplexity"] - dense) < 1e-3 * dense
    assert few["kl_mean"] > some["kl_mean"] > every["kl_mean"]
    (exact,) = found["mass"]["passes"]
    told = {row["layer"]: row for row in exact["predicted"]}
    for layer in (2, 3, 4, 5):
        assert told[layer]["predicted"] > told[layer]["step_before"]
        assert told[layer]["predicted"] > 0.6
    assert told[1]["predicted"] < told[1]["step_before"] and told[0]["predicted"] > 0.99
