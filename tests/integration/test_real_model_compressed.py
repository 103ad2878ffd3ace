"""Does a model that compresses (DeepSeek-V4) decode from the daemon what transformers' code does?

A tiny model with random weights: a layer with a window, one that also reads all entries of many
tokens each (HCA), and one that reads those that its indexer selects (CSA). At the daemon these are
five layers, in blocks of 16 entries.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from damaged import damage_store
from model_bed import (
    BLOCK_TOKENS,
    CONTEXT,
    SMALL_POOL,
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

LAYERS, PAYLOAD, DIM, WINDOW, KEY_DIM = 5, 4096, 64, 40, 16
CSA = 4
SHORT, STEPS = 112, 20
"""A context after which the steps complete a block of each compression that the context began."""
SIZES = [*SMALL_POOL, "--steps", str(STEPS)]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text(tmp_path_factory.mktemp("text") / "letters.txt")


def serve(folder: Path) -> Any:
    """A daemon whose arena holds a third of the blocks."""
    return start(folder, LAYERS, PAYLOAD, 512, 16)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Daemon]:
    with serve(tmp_path) as one:
        yield one


def v4(folder: Path, hca: int = 8, **changes: Any) -> Path:
    rates = {"heavily_compressed_attention": hca, "compressed_sparse_attention": CSA}
    return model_of(folder, "deepseek_v4", head_dim=DIM, compress_rates=rates, **changes)


def written_first(hca: int) -> int:
    """Blocks that two contexts write: of windows none that lie behind, of entries the full ones;
    the longer one lacks none that the shorter one wrote."""
    found = 0
    for tokens in (SHORT, CONTEXT):
        first = max(0, tokens + 1 - WINDOW) // BLOCK_TOKENS
        found += 3 * (tokens // BLOCK_TOKENS - first)
    both = [one * BLOCK_TOKENS for one in (hca, CSA)]
    return found + sum(CONTEXT // one for one in both)


@pytest.mark.parametrize(
    "kernel, hca, top_k",
    [("numpy", 8, 20), ("torch", 8, 20), ("torch", 8, 128), ("torch", 128, 128)],
)
def test_it_is_the_model_itself(
    kernel: str, hca: int, top_k: int, text: Path, tmp_path: Path
) -> None:
    """Of two lengths, with a selection and with all: the tier's logits are to the bit those of the
    same kernel over the same entries in memory, and within 1e-3 the library's; also when a daemon
    that has started anew reads the session back. A layer whose entries have 128 tokens each has
    none at first."""
    model = v4(tmp_path, hca, index_topk=top_k)
    more = [*SIZES, "--kernel", kernel, "--context-tokens", f"{SHORT},{CONTEXT}"]
    found = []
    for written in (written_first(hca), 0):
        with serve(tmp_path) as tier:
            found.append(drive(tier, model, text, tmp_path / "out", *more))
        assert found[-1]["workload"]["prefill_blocks_written"] == written
    logits = own_logits(model, text, CONTEXT + STEPS)
    for one in (row for each in found for row in each["passes"]):
        first = one["context_tokens"]
        assert one["bit_equal"] is True
        assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0
        assert one["blocks_verified"] == one["demands"] > 0
        assert one["share_read"] <= 1.0 and (top_k == 20 or one["share_read"] == 1.0)
        assert one["index_key_bytes"] == first // CSA * KEY_DIM * 4
        assert_within_1e3(one, logits)
        assert one["kl_max"] < 1e-6
    assert [one["positions"] for one in found[0]["passes"]] == [
        one["positions"] for one in found[1]["passes"]
    ], "a session that comes back decodes the same"


@pytest.mark.parametrize(
    "kernel, top_k",
    [
        ("torch", 20),
        pytest.param("numpy", 20, marks=pytest.mark.slow),
        pytest.param("torch", 128, marks=pytest.mark.slow),
    ],
)
def test_index_keys_come_from_the_tier(kernel: str, top_k: int, text: Path, tmp_path: Path) -> None:
    """A sixth layer holds the keys of CSA's entries, a block for 64 tokens, and the logits are to
    the bit those with resident keys: of contexts that end within such a block and with one, while
    the steps fill it, of a session that comes back, and where the store has lost blocks."""
    model = v4(tmp_path, index_topk=top_k)
    more = [*SIZES, "--kernel", kernel, "--context-tokens", f"{SHORT},{CONTEXT}"]
    (resident := tmp_path / "resident").mkdir()
    with serve(resident) as tier:
        expected = drive(tier, model, text, tmp_path / "out", *more)
    found = []
    for _ in range(3):
        with start(tmp_path, LAYERS + 1, PAYLOAD, 512, 16, store={"segment": "64KiB"}) as tier:
            out = tmp_path / f"out{len(found)}"
            found.append(drive(tier, model, text, out, *more, "--index-keys", "tier"))
        if len(found) == 2:
            assert damage_store(tmp_path / "store.kv", every=3) > 5
    written = [one["workload"]["prefill_blocks_written"] for one in found]
    assert written[:2] == [written_first(8) + CONTEXT // CSA // BLOCK_TOKENS, 0]
    assert sum(one["blocks_recomputed"] for one in found[2]["passes"]) > 0
    for each in found:
        for one, own in zip(each["passes"], expected["passes"], strict=True):
            assert one["bit_equal"] is True and one["positions"] == own["positions"]
            assert one["blocks_corrupt"] == 0 and one["index_key_bytes"] == own["index_key_bytes"]
            assert [group["group"] for group in one["groups"]] == ["latents", "index keys"]
            assert one["groups"][1]["demands"] > 0


EVERY = 5
"""Blocks from one checkpoint to the next: 80 tokens, within a block of each layer's entries, and of
an HCA of 128 tokens within an entry."""
KEPT = ["--index-keys", "tier", "--checkpoint-blocks", str(EVERY), "--kernel", "torch"]


def with_keys(folder: Path) -> Any:
    return start(folder, LAYERS + 1, PAYLOAD, 512, 16)


@pytest.mark.parametrize("hca", [128, pytest.param(8, marks=pytest.mark.slow)])
def test_a_session_that_comes_back_reads_what_is_behind_a_checkpoint(
    hca: int, text: Path, tmp_path: Path
) -> None:
    """Of two lengths, after a new start of the daemon: the bits are those of the first run, the
    library's within 1e-3, and no block and no checkpoint is stored again."""
    model = v4(tmp_path, hca, index_topk=20)
    more = [*SIZES, *KEPT, "--context-tokens", f"{SHORT},{CONTEXT}"]
    found = []
    for number in range(2):
        with with_keys(tmp_path) as tier:
            found.append(drive(tier, model, text, tmp_path / f"out{number}", *more))
    logits = own_logits(model, text, CONTEXT + STEPS)
    for one in (row for each in found for row in each["passes"]):
        assert one["bit_equal"] is True and one["kl_max"] < 1e-6
        assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0
        assert_within_1e3(one, logits)
    first, again = found
    assert [one["positions"] for one in first["passes"]] == [
        one["positions"] for one in again["passes"]
    ], "a session that comes back decodes the same"
    keys = CONTEXT // CSA // BLOCK_TOKENS
    assert first["workload"]["prefill_blocks_written"] == written_first(hca) + keys
    assert again["workload"]["prefill_blocks_written"] == 0
    names = "checkpoints_written", "kept_tokens", "returned_tokens"
    assert [first["states"][name] for name in names] == [CONTEXT // (16 * EVERY), 0, 0]
    assert [again["states"][name] for name in names] == [0, CONTEXT, 240]
    assert again["states"]["bytes_written"] == 0 < first["states"]["bytes_written"]


def test_a_shared_front_is_neither_read_nor_stored_again(text: Path, tmp_path: Path) -> None:
    """Of a text with the same first 190 tokens the tier has a checkpoint after 160. What lies
    behind is read and stored: the logits are the library's. So of a longer context of the first
    text, of which no window is in a block."""
    model, other = v4(tmp_path, index_topk=20), tmp_path / "other.txt"
    letters = text.read_text()
    other.write_text(letters[:190] + letters[190:][::-1])

    def counted(file: Path, tokens: int) -> tuple[int, int, int]:
        more = [*SIZES, *KEPT, "--context-tokens", str(tokens)]
        found = drive(tier, model, file, tmp_path / "out", *more)
        (one,), states = found["passes"], found["states"]
        assert one["bit_equal"] is True and one["blocks_corrupt"] == 0
        assert_within_1e3(one, own_logits(model, file, tokens + STEPS))
        written = found["workload"]["prefill_blocks_written"]
        return states["kept_tokens"], states["returned_tokens"], written

    windows = 3 * (240 // 16 - (240 + 1 - WINDOW) // 16)
    with with_keys(tmp_path) as tier:
        assert counted(text, 240) == (0, 0, windows + 240 // 128 + 2 * (240 // 64))
        assert counted(other, 240) == (160, 160, windows + 0 + 2 * 1)
        windows = 3 * (320 // 16 - (320 + 1 - WINDOW) // 16)
        assert counted(text, 320) == (240, 240, windows + 1 + 2 * 2)


def test_what_compressors_keep_is_counted(tier: Daemon, text: Path) -> None:
    """Inputs of entries not yet full, what the next one overlaps, and entries of blocks not yet
    full; in float32. Nothing is left of a context that ends with a block of each."""
    model = v4(tier.runtime_dir)
    more = ["--context-tokens", f"{SHORT},128", "--steps", "2"]
    short, whole = drive(tier, model, text, tier.runtime_dir / "out", *more)["passes"]
    overlap = 2 * CSA * (DIM + KEY_DIM) * 4
    begun = (SHORT // 8 % BLOCK_TOKENS + SHORT // CSA % BLOCK_TOKENS) * DIM * 4
    assert short["state_bytes"] == overlap + begun
    assert whole["state_bytes"] == overlap


@pytest.mark.slow
def test_it_decodes_by_the_gpus_kernels(tier: Daemon, text: Path, tmp_path: Path) -> None:
    """Under Triton's interpreter windows and selected entries give the model's own output."""
    pytest.importorskip("triton", reason="pip install '.[triton]'")
    if not interpreted():
        pytest.skip("a GPU is there: python tests/gpu/run_all.py checks it")
    model = v4(tmp_path, index_topk=20)
    sizes = ["--context-tokens", "128", "--steps", "3", "--kernel", "triton"]
    assert run(words_of(tier, model, text, *sizes, "--out", str(tmp_path))) == 0
    (one,) = json.loads((tmp_path / "model.json").read_text())["passes"]
    assert one["bit_equal"] is True and one["logit_error_max"] < 1e-2


REFUSED: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "entries above the context": ({"index_topk": 129}, [], "index_topk is 129 of 4 tokens each"),
    "an indexer without keys": ({"index_head_dim": 0}, [], "index_head_dim is 0"),
    "a window of 0": ({"sliding_window": 0}, [], "sliding_window is 0"),
    "a prediction": ({}, ["--predict"], "select nothing"),
    "hints": ({}, ["--ahead", "hint"], "no layers share a selection"),
    "a selection": ({}, ["--select-blocks", "8"], "whatever --select-blocks says"),
    "a scorer": ({}, ["--selector", "mass"], "whatever --selector says"),
    "fewer bits": ({}, ["--kv-dtype", "int4"], "--kv-dtype model"),
    "FP8 rows": ({}, ["--kv-dtype", "fp8"], "--kv-dtype model"),
    "types to choose": ({}, ["--kv-dtype", "auto", "--max-kl", "1"], "--kv-dtype model"),
    "checkpoints without the keys": (
        {},
        ["--checkpoint-blocks", "8"],
        "add --index-keys tier",
    ),
    "a key above an entry": (
        {"index_head_dim": 80},
        ["--index-keys", "tier"],
        "has 80 values, more bytes than an entry",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_one_line(
    case: str, tier: Daemon, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the field or the option, before weights are loaded: there are none."""
    changes, more, says = REFUSED[case]
    model = v4(tmp_path)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))
    (model / "model.safetensors").unlink()
    capsys.readouterr()
    assert run(words_of(tier, model, text, "--steps", "4", *more)) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert error[-1].startswith("offstage: ") and says in error[-1], error
    assert not any("Traceback" in line for line in error)
