"""Do models with windows, sink logits and latents decode from the daemon as on their own?

Tiny models with random weights, against transformers' own code for them.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_bed import (
    BLOCK_TOKENS,
    CONTEXT,
    SMALL_POOL,
    STEPS,
    assert_within_1e3,
    drive,
    model_of,
    own_logits,
    start,
    words_of,
)
from tiny_models import save_text

from offstage.host.gpu import interpreted
from offstage.testbeds.beds.daemon import Daemon
from offstage.testbeds.cli import run

pytest.importorskip("torch", reason="needs the extra capture")
pytest.importorskip("transformers", reason="needs the extra capture")

KINDS: dict[str, dict[str, Any]] = {
    # Scaled by another number than 1/sqrt(head_dim); the second layer of three is full.
    "gemma3_text": {"num_hidden_layers": 3, "sliding_window": 64, "query_pre_attn_scalar": 8},
    "gpt_oss": {"num_hidden_layers": 3, "sliding_window": 70},
    "deepseek_v3": {"num_hidden_layers": 3},
}
SHORT = 48
"""A context shorter than each window."""
ROWS = 1536
"""A block of each kind in FP8 rows: of K and V of two heads of 16, or of a latent of 48 + 16."""
ROWS_COST = {"gpt_oss": 2.0, "deepseek_v3": 0.4, "deepseek_v32": 1.0}
"""KL in nats that FP8 may cost: of random weights a small error takes another expert, or token."""
WINDOWS = {"gemma3_text": [64, 64], "gpt_oss": [70, 70], "deepseek_v3": []}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text(tmp_path_factory.mktemp("text") / "letters.txt")


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon for three layers whose blocks are 4 KiB, and whose arena holds a third of them."""
    with start(tmp_path, 3, 4096, 512, 30) as one:
        yield one


def written_first(kind: str) -> int:
    """Blocks that two contexts write: the longer one none behind its windows, and then the shorter
    one its chunks whole, where they lack a layer."""
    found = (3 - len(WINDOWS[kind])) * CONTEXT // BLOCK_TOKENS
    for window in WINDOWS[kind]:
        found += CONTEXT // BLOCK_TOKENS - (CONTEXT + 1 - window) // BLOCK_TOKENS
    return found + (3 * SHORT // BLOCK_TOKENS if WINDOWS[kind] else 0)


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
@pytest.mark.parametrize("kind", KINDS)
def test_with_every_block_selected_it_is_the_model_itself(
    kind: str, kernel: str, text: Path, tmp_path: Path
) -> None:
    """Of contexts shorter and longer than a window: the tier's logits are to the bit those of the
    same kernel over blocks in memory, and the library's within 1e-3, also when a daemon that has
    started anew reads the session back. Blocks behind a window are neither written nor read."""
    model = model_of(tmp_path, kind, **KINDS[kind])
    lengths = ["--context-tokens", f"{SHORT},{CONTEXT}"]
    more = [*SMALL_POOL, "--kernel", kernel, "--select-blocks", "all", *lengths]
    found = []
    for written in (written_first(kind), 0):
        with start(tmp_path, 3, 4096, 512, 30) as tier:
            found.append(drive(tier, model, text, tmp_path / "out", *more))
        assert found[-1]["workload"]["prefill_blocks_written"] == written
    logits = own_logits(model, text, CONTEXT + STEPS)
    for one in (row for each in found for row in each["passes"]):
        assert one["bit_equal"] is True and one["share_read"] == 1.0
        assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0
        assert one["blocks_verified"] == one["demands"] > 0
        assert_within_1e3(one, logits)
    assert [one["positions"] for one in found[0]["passes"]] == [
        one["positions"] for one in found[1]["passes"]
    ], "a session that comes back decodes the same"


@pytest.mark.parametrize("kind", KINDS)
def test_fewer_blocks_leave_a_window_whole(kind: str, tier: Daemon, text: Path) -> None:
    """A selection bounds what layers read that select; of a window all is read."""
    out = tier.runtime_dir / "out"
    model = model_of(tier.runtime_dir, kind, **KINDS[kind])
    found = drive(tier, model, text, out, *SMALL_POOL, "--select-blocks", "8,all")
    few, every = found["passes"]
    assert few["share_read"] < every["share_read"] == 1.0
    assert few["kl_mean"] > 1e-4 > every["kl_max"]
    windows = WINDOWS[kind]
    read = there = 0
    for length in range(CONTEXT + 1, CONTEXT + STEPS + 1):
        blocks = -(-length // BLOCK_TOKENS)
        whole = sum(blocks - (length - window) // BLOCK_TOKENS for window in windows)
        read += whole + 8 * (3 - len(windows))
        there += whole + blocks * (3 - len(windows))
    assert few["share_read"] == pytest.approx(read / there)


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
@pytest.mark.parametrize("kind", ["gpt_oss", "deepseek_v3", "deepseek_v32"])
def test_kernels_read_fp8_rows_of_it(kind: str, kernel: str, text: Path, tmp_path: Path) -> None:
    """Windows, sink logits, latents and single tokens in FP8 with scales: to the bit the same
    kernel over the same rows in memory, also of blocks that decoding filled; and the result says
    what it costs and saves. What has come back to a daemon decodes the same."""
    changes = {"index_topk": 40} if kind == "deepseek_v32" else KINDS[kind]
    model = model_of(tmp_path, kind, **changes)
    more = [*SMALL_POOL, "--kernel", kernel, "--kv-dtype", "fp8"]
    more += [] if kind == "deepseek_v32" else ["--select-blocks", "all"]
    found = []
    for _ in range(2):
        with start(tmp_path, 3, ROWS, 512, 30, storage={"lba": "512"}) as tier:
            found.append(drive(tier, model, text, tmp_path / "out", *more))
    for each in found:
        (one,), (kv,) = each["passes"], each["kv"]
        assert one["bit_equal"] is True and one["blocks_corrupt"] == one["blocks_recomputed"] == 0
        assert one["blocks_verified"] == one["demands"] > 0 and one["bytes_read"] > 0
        assert 1e-6 < one["kl_mean"] < ROWS_COST[kind]
        assert kv["saved"] == 1 - ROWS / 4096 and {*kv["layers"][0]} == {"fp8"}
    assert found[0]["passes"][0]["positions"] == found[1]["passes"][0]["positions"]
    assert found[1]["workload"]["prefill_blocks_written"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_it_decodes_by_the_gpus_kernels(
    kind: str, tier: Daemon, text: Path, tmp_path: Path
) -> None:
    """Under Triton's interpreter every block gives the model's own output."""
    pytest.importorskip("triton", reason="pip install '.[triton]'")
    if not interpreted():
        pytest.skip("a GPU is there: python tests/gpu/run_all.py checks it")
    model = model_of(tmp_path, kind, **KINDS[kind])
    sizes = ["--context-tokens", "128", "--steps", "3", "--select-blocks", "all"]
    words = words_of(tier, model, text, *sizes, "--kernel", "triton", "--out", str(tmp_path))
    assert run(words) == 0
    (every,) = json.loads((tmp_path / "model.json").read_text())["passes"]
    assert every["bit_equal"] is True and every["logit_error_max"] < 1e-2


REFUSED: dict[str, tuple[str, dict[str, Any], list[str], str]] = {
    "a kind of layer": (
        "gemma3_text",
        {"layer_types": ["full_attention", "sideways_attention", "full_attention"]},
        [],
        "layer_types",
    ),
    "too few kinds": ("gpt_oss", {"layer_types": ["full_attention"]}, [], "layer_types"),
    "a window of 0": ("gemma3_text", {"sliding_window": 0}, [], "sliding_window is 0"),
    "no window": ("gpt_oss", {"sliding_window": None}, [], "no sliding_window"),
    "a window beyond the context": (
        "gpt_oss",
        {"sliding_window": 1024},
        [],
        "sliding_window is 1,024, longer than the context of 512 tokens",
    ),
    "a latent without rotary values": (
        "deepseek_v3",
        {"qk_rope_head_dim": None},
        [],
        "qk_rope_head_dim",
    ),
    "a prediction of windows": ("gpt_oss", {}, ["--predict"], "select nothing"),
    "latents in fewer bits": ("deepseek_v3", {}, ["--kv-dtype", "int4"], "or --kv-dtype fp8"),
    "latents of types to choose": (
        "deepseek_v3",
        {},
        ["--kv-dtype", "auto", "--max-kl", "1"],
        "or --kv-dtype fp8",
    ),
    "scales beside whole words": (
        "deepseek_v3",
        {"kv_lora_rank": 46},
        ["--kv-dtype", "fp8"],
        "scales of FP8 lie at multiples of 4 B",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_one_line(
    case: str, tier: Daemon, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the field, before weights are loaded: there are none."""
    kind, changes, more, says = REFUSED[case]
    model = model_of(tmp_path, kind, **KINDS[kind])
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))
    (model / "model.safetensors").unlink()
    capsys.readouterr()
    assert run(words_of(tier, model, text, "--steps", "4", *more)) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert error[-1].startswith("offstage: ") and says in error[-1], error
    assert not any("Traceback" in line for line in error)


def test_a_latent_layers_query_is_predicted_in_the_latents_space(tier: Daemon, text: Path) -> None:
    """Layer 0's query hangs on the token alone, so its prediction is its selection; and what is
    fetched ahead changes no output."""
    model = model_of(tier.runtime_dir, "deepseek_v3", **KINDS["deepseek_v3"])
    found = []
    for more in ([], ["--predict", "--ahead", "fetch"]):
        words = [*SMALL_POOL, "--select-blocks", "8", *more]
        found += drive(tier, model, text, tier.runtime_dir / "out", *words)["passes"]
    plain, ahead = found
    assert ahead["predicted"][0]["predicted"] == 1.0 and ahead["guesses"] > 0
    assert ahead["positions"] == plain["positions"]
