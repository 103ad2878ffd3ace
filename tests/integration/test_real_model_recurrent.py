"""Do models with recurrent layers decode from the daemon what transformers' code does, and does a
session that comes back go on at a checkpoint of their states?

Tiny models with random weights: two layers that keep a state, which lasts for some fifty tokens,
and two whose KV is in the daemon.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_bed import (
    BLOCK_TOKENS,
    SMALL_POOL,
    assert_within_1e3,
    drive,
    model_of,
    own_logits,
    start,
    words_of,
)
from tiny_models import CONFIGS, save_text

from offstage.host.endpoint import Endpoint
from offstage.host.gpu import interpreted
from offstage.host.transformer.checkpoints import VOLUME
from offstage.host.values import Values
from offstage.testbeds.beds.daemon import Daemon
from offstage.testbeds.cli import run

pytest.importorskip("torch", reason="needs the extra capture")
pytest.importorskip("transformers", reason="needs the extra capture")

KINDS = ["qwen3_next", "qwen3_5_text", "kimi_linear"]
SHORT, LONG, STEPS = 48, 208, 6
EVERY = 4
"""Blocks from one checkpoint to the next: 64 tokens."""
SIZES = [*SMALL_POOL, "--steps", str(STEPS), "--select-blocks", "all"]
KEPT = ["--checkpoint-blocks", str(EVERY)]
STATE = {"qwen3_next": 2816, "qwen3_5_text": 2816, "kimi_linear": 2560}
"""Bytes of one layer, all in float32: of Qwen a matrix of 8 x 12 for each of 4 heads, and 80
channels of 4 inputs; of Kimi 8 x 8 for each of 4, and 96 of 4."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text(tmp_path_factory.mktemp("text") / "letters.txt")


def serve(folder: Path, **changed: dict[str, Any]) -> Any:
    """A daemon for two layers, whose arena holds half of their blocks."""
    return start(folder, 2, 4096, 512, 16, **changed)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Daemon]:
    with serve(tmp_path) as one:
        yield one


@pytest.mark.parametrize(
    "kind, kernel",
    [
        ("qwen3_next", "torch"),
        ("qwen3_5_text", "numpy"),
        ("kimi_linear", "torch"),
        ("kimi_linear", "numpy"),
    ],
)
def test_it_is_the_model_itself(kind: str, kernel: str, text: Path, tmp_path: Path) -> None:
    """Of two lengths, neither of which ends at a checkpoint: the tier's logits are to the bit those
    of the same kernel over blocks in memory, and the library's, of all tokens at once, within 1e-3.
    A daemon that has started anew has the KV of the context and its states after three checkpoints;
    what decodes after them has the same bits."""
    model = model_of(tmp_path, kind)
    more = [*SIZES, *KEPT, "--kernel", kernel, "--context-tokens", f"{SHORT},{LONG}"]
    found = []
    for _ in range(2):
        with serve(tmp_path) as tier:
            found.append(drive(tier, model, text, tmp_path / "out", *more))
    logits = own_logits(model, text, LONG + STEPS)
    for one in (row for each in found for row in each["passes"]):
        assert one["bit_equal"] is True and one["share_read"] == 1.0
        assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0
        assert one["blocks_verified"] == one["demands"] > 0
        assert one["state_bytes"] == 2 * STATE[kind] and one["kl_max"] < 1e-6
        assert_within_1e3(one, logits)
    first, again = found
    assert [one["positions"] for one in first["passes"]] == [
        one["positions"] for one in again["passes"]
    ], "a session that comes back decodes the same"
    assert first["workload"]["prefill_blocks_written"] == 2 * LONG // BLOCK_TOKENS
    assert again["workload"]["prefill_blocks_written"] == 0
    kept = {"layers": 2, "state_bytes": 2 * STATE[kind], "every_blocks": EVERY}
    written = first["states"].pop("bytes_written")
    assert 3 * kept["state_bytes"] < written < 3 * kept["state_bytes"] + 3 * 1024
    assert first["states"] == kept | {
        "checkpoints_written": 3,
        "kept_tokens": 0,
        "returned_tokens": 0,
    }
    assert again["states"] == kept | {
        "checkpoints_written": 0,
        "bytes_written": 0,
        "kept_tokens": LONG,
        "returned_tokens": 192,
    }


def test_a_shared_front_is_of_use_up_to_a_checkpoint(text: Path, tmp_path: Path) -> None:
    """Of a text with the same first 190 tokens the tier has the KV of 176 and states after 128. The
    logits are those of the library; and where no states can be read, or none are asked for, its KV
    alone is of no use."""
    model, other = model_of(tmp_path, "qwen3_next"), tmp_path / "other.txt"
    letters = text.read_text()
    other.write_text(letters[:190] + letters[190:][::-1])
    more = [*SIZES, "--context-tokens", str(LONG)]
    logits = own_logits(model, other, LONG + STEPS)

    def returned(file: Path, *kept: str) -> tuple[int, int]:
        found = drive(tier, model, file, tmp_path / "out", *more, *kept)
        (one,), states = found["passes"], found["states"]
        assert one["bit_equal"] is True
        if file == other:
            assert_within_1e3(one, logits)
        return states["kept_tokens"], states["returned_tokens"]

    with serve(tmp_path) as tier:
        assert returned(text, *KEPT) == (0, 0)
        assert returned(text, *KEPT, "--context-tokens", "192") == (192, 128), "a token is read"
        assert returned(other, *KEPT) == (176, 128)
        link = Endpoint.find(tier.endpoint, tenant="lab", runtime_dir=tier.runtime_dir, name="test")
        with link.attached() as (_, fabric):
            values = Values(fabric, VOLUME)
            keys = list(values.keys())
            assert len(keys) == 4  # three of the one, and the other's last
            for key in keys:
                values.store(key, b"no states")
        assert returned(other, *KEPT) == (LONG, 0), "they cannot be read"
        assert returned(other, *KEPT) == (LONG, 192), "and are kept anew"
        assert returned(other, "--checkpoint-blocks", "0") == (0, 0)


def test_a_selection_leaves_states_alone(tier: Daemon, text: Path, tmp_path: Path) -> None:
    """Few blocks of those layers that have some are read; FP8 rows of them are read as they lie."""
    more = ["--context-tokens", str(LONG), "--select-blocks", "6,all", *KEPT]
    model = model_of(tmp_path, "qwen3_next")
    few, every = drive(tier, model, text, tmp_path / "out", *SIZES, *more)["passes"]
    assert few["share_read"] == pytest.approx(6 / 14) and every["share_read"] == 1.0
    assert few["kl_mean"] > 1e-4 > every["kl_max"] and few["state_bytes"] == every["state_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_read_fp8_rows_of_it(kind: str, text: Path, tmp_path: Path) -> None:
    """To the bit the same kernel over the same rows in memory; what it costs is said. Blocks in
    another type are not the model's KV: a context in them is read from its begin."""
    model = model_of(tmp_path, kind)
    more = [*SIZES, *KEPT, "--context-tokens", str(LONG), "--kv-dtype", "fp8"]
    for _ in range(2):
        with start(tmp_path, 2, 1536, 512, 26, storage={"lba": "512"}) as tier:
            found = drive(tier, model, text, tmp_path / "out", *more)
        (one,) = found["passes"]
        assert one["bit_equal"] is True and 1e-7 < one["kl_mean"] < 2
        assert found["states"]["returned_tokens"] == 0


@pytest.mark.slow
def test_it_decodes_by_the_gpus_kernels(tier: Daemon, text: Path, tmp_path: Path) -> None:
    """Under Triton's interpreter the layers with KV give the model's own output."""
    pytest.importorskip("triton", reason="pip install '.[triton]'")
    if not interpreted():
        pytest.skip("a GPU is there: python tests/gpu/run_all.py checks it")
    model = model_of(tmp_path, "qwen3_next")
    sizes = ["--context-tokens", "128", "--steps", "3", "--kernel", "triton"]
    more = [*sizes, "--select-blocks", "all", "--out", str(tmp_path)]
    assert run(words_of(tier, model, text, *more)) == 0
    (one,) = json.loads((tmp_path / "model.json").read_text())["passes"]
    assert one["bit_equal"] is True and one["logit_error_max"] < 1e-2


DELTA = CONFIGS["qwen3_next"][1]["layer_types"]
REFUSED: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "a kind of layer that is not known": (
        {"layer_types": [*DELTA[:3], "rwkv_attention"]},
        [],
        "rwkv_attention",
    ),
    "kinds of other than all layers": ({"layer_types": DELTA[:3]}, [], "layer_types"),
    "states alone": ({"layer_types": ["linear_attention"] * 4}, [], "every layer keeps a state"),
    "heads that do not share evenly": (
        {"linear_num_value_heads": 3},
        [],
        "linear_num_value_heads is 3",
    ),
    "no state": ({"linear_key_head_dim": 0}, [], "linear_key_head_dim is 0"),
    "a prediction": ({}, ["--predict"], "keep states and select nothing"),
    "hints": ({}, ["--ahead", "hint"], "--ahead hint has nothing to act on"),
    "types to choose": ({}, ["--kv-dtype", "auto", "--max-kl", "1"], "name a type"),
    "a negative distance": ({}, ["--checkpoint-blocks", "-1"], "checkpoint_blocks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_one_line(
    case: str, tier: Daemon, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the field or the option, before weights are loaded: there are none."""
    changes, more, says = REFUSED[case]
    model = model_of(tmp_path, "qwen3_next")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))
    (model / "model.safetensors").unlink()
    capsys.readouterr()
    assert run(words_of(tier, model, text, "--steps", "4", *more)) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert error[-1].startswith("offstage: ") and says in error[-1], error
    assert not any("Traceback" in line for line in error)


def test_what_a_daemon_or_model_lacks_for_checkpoints_is_one_line(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A daemon without values, and a model without states."""
    hybrid, plain = model_of(tmp_path, "qwen3_next"), model_of(tmp_path, "qwen3")
    sizes = ["--context-tokens", "128", "--steps", "2", *KEPT]
    with serve(tmp_path, limits={"values": 0}) as tier:
        for model, says in ((hybrid, "set limits.values"), (plain, "keep no states")):
            assert run(words_of(tier, model, text, *sizes)) == 2
            assert says in capsys.readouterr().err.strip().splitlines()[-1]
