"""Do models with indexers (DSA) decode from the daemon what transformers' own code decodes?

Tiny models with random weights. GLM's third layer reads what the indexer of its second selects.
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

INDEXERS = {"deepseek_v32": 3, "glm_moe_dsa": 2}
"""How many of the three layers have one, by kind."""
KEY_BYTES = 24 * 4
SHORT, FEW, EVERY, STEPS = 48, 40, 512, 20
"""A shorter context; a selection smaller than each context, and one larger; steps that fill a
block, which is then read back."""
SIZES = [*SMALL_POOL, "--steps", str(STEPS)]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text(tmp_path_factory.mktemp("text") / "letters.txt")


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon for three layers whose blocks are 4 KiB, and whose arena holds half of them."""
    with start(tmp_path, 3, 4096, 512, 30) as one:
        yield one


@pytest.mark.parametrize("kernel, top_k", [("numpy", FEW), ("torch", FEW), ("torch", EVERY)])
@pytest.mark.parametrize("kind", INDEXERS)
def test_it_is_the_model_itself(
    kind: str, kernel: str, top_k: int, text: Path, tmp_path: Path
) -> None:
    """Of two lengths, with a selection and with all: the tier's logits are to the bit those of the
    same kernel over the same tokens in memory, and within 1e-3 the library's, which selects by the
    same indexers; also when a daemon that has started anew reads the session back."""
    model = model_of(tmp_path, kind, index_topk=top_k)
    more = [*SIZES, "--kernel", kernel, "--context-tokens", f"{SHORT},{CONTEXT}"]
    found = []
    for written in (3 * CONTEXT // BLOCK_TOKENS, 0):
        with start(tmp_path, 3, 4096, 512, 30) as tier:
            found.append(drive(tier, model, text, tmp_path / "out", *more))
        assert found[-1]["workload"]["prefill_blocks_written"] == written
        assert found[-1]["model"]["top_k"] == top_k
    logits = own_logits(model, text, CONTEXT + STEPS)
    for one in (row for each in found for row in each["passes"]):
        first = one["context_tokens"]
        assert one["bit_equal"] is True and one["selector"] == "indexer"
        assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0
        assert one["blocks_verified"] == one["demands"] > 0
        assert one["share_read"] == 1.0 or top_k == FEW
        assert one["share_read"] < 1.0 or top_k == EVERY or first == SHORT
        assert one["index_key_bytes"] == INDEXERS[kind] * first * KEY_BYTES
        assert_within_1e3(one, logits)
        assert one["kl_max"] < 1e-6
    assert [one["positions"] for one in found[0]["passes"]] == [
        one["positions"] for one in found[1]["passes"]
    ], "a session that comes back decodes the same"


def test_a_shared_selection_is_known_exactly_ahead(text: Path, tmp_path: Path) -> None:
    """Every block that is foretold for the layer that shares is then demanded; and what comes ahead
    changes no output. Fetched ahead, it is in the pool when the layer runs."""
    model = model_of(tmp_path, "glm_moe_dsa", index_topk=FEW)
    found = {}
    with start(tmp_path, 3, 4096, 512, 48) as tier:  # room for what is foretold and demanded
        for ahead in ("none", "hint", "fetch"):
            words = [*SIZES, "--ahead", ahead]
            (found[ahead],) = drive(tier, model, text, tmp_path / "out", *words)["passes"]
    none = found["none"]
    assert none["guesses"] == 0
    for ahead in ("hint", "fetch"):
        one = found[ahead]
        assert one["positions"] == none["positions"] and one["bit_equal"] is True
        assert one["blocks_verified"] == one["demands"] >= one["guesses"] > STEPS
        assert one["guesses_used"] + one["guesses_late"] > 0 and one["guesses_unused"] == 0
        assert one["traffic"] is None and one["curve"] == []
    assert found["hint"]["demands"] == none["demands"]


def test_without_a_shared_selection_nothing_is_known_ahead(
    tier: Daemon, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of(tmp_path, "deepseek_v32", index_topk=FEW)
    assert run(words_of(tier, model, text, "--ahead", "hint")) == 2
    assert "no layers share a selection" in capsys.readouterr().err


@pytest.mark.parametrize("dtype", ["model", "fp8"])
@pytest.mark.parametrize("kernel, top_k", [("numpy", FEW), ("torch", EVERY)])
@pytest.mark.parametrize("kind", INDEXERS)
def test_index_keys_may_be_in_the_tier(
    kind: str, kernel: str, top_k: int, dtype: str, text: Path, tmp_path: Path
) -> None:
    """Every step reads all of them, those of tokens that decoding wrote too. In the model's type
    nothing that is decoded changes. In FP8 they are rows with scales, and the same kernel over the
    same rows in memory selects and decodes the same to the bit. Read back from a daemon that has
    started anew they are what they were."""
    model = model_of(tmp_path, kind, index_topk=top_k)
    words = [*SIZES, "--kernel", kernel, "--kv-dtype", dtype]
    payload, each = (4096, 2) if dtype == "model" else (1536, 3)
    added = -(-INDEXERS[kind] // each)
    found = []
    for folder, home, layers in (
        ("resident", "resident", 3),
        ("tier", "tier", 3 + added),
        ("tier", "tier", 3 + added),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        store = {"lba": "512"}
        with start(tmp_path / folder, layers, payload, 512, 40, storage=store) as tier:
            more = [*words, "--index-keys", home]
            found.append(drive(tier, model, text, tmp_path / "out", *more))
    resident, first, again = (one["passes"][0] for one in found)
    written = [one["workload"]["prefill_blocks_written"] for one in found]
    blocks = CONTEXT // BLOCK_TOKENS
    assert written == [3 * blocks, (3 + added) * blocks, 0]
    assert resident["groups"] == [] and first["index_key_bytes"] == resident["index_key_bytes"]
    assert first["positions"] == again["positions"]
    assert first["positions"] == resident["positions"] or dtype == "fp8"
    for one in (first, again):
        assert one["bit_equal"] is True
        assert one["share_read"] == resident["share_read"] or dtype == "fp8"
        assert one["blocks_corrupt"] == one["blocks_recomputed"] == one["ends_differ"] == 0
        entries, keys = one["groups"]
        assert (entries["group"], keys["group"]) == ("latents", "index keys")
        assert entries["demands"] + keys["demands"] == one["demands"] == one["blocks_verified"]
        assert entries["demands"] > 0
        assert added * blocks * STEPS / 2 < keys["demands"]
        assert keys["bytes_per_token"] == keys["demands"] * payload / STEPS


def test_index_keys_that_the_store_lost_are_made_again(text: Path, tmp_path: Path) -> None:
    model = model_of(tmp_path, "glm_moe_dsa", index_topk=FEW)
    found = []
    for _ in range(2):
        with start(tmp_path, 4, 4096, 512, 40, store={"segment": "64KiB"}) as one:
            words = [*SIZES, "--index-keys", "tier"]
            found += drive(one, model, text, tmp_path / "out", *words)["passes"]
        assert damage_store(tmp_path / "store.kv", every=3) > 10
    whole, damaged = found
    assert whole["blocks_recomputed"] == 0 < damaged["blocks_recomputed"]
    assert damaged["positions"] == whole["positions"] and damaged["bit_equal"] is True


@pytest.mark.slow
@pytest.mark.parametrize("kind", INDEXERS)
def test_it_decodes_by_the_gpus_kernels(
    kind: str, tier: Daemon, text: Path, tmp_path: Path
) -> None:
    """Under Triton's interpreter the selected tokens give the model's own output."""
    pytest.importorskip("triton", reason="pip install '.[triton]'")
    if not interpreted():
        pytest.skip("a GPU is there: python tests/gpu/run_all.py checks it")
    model = model_of(tmp_path, kind, index_topk=FEW)
    sizes = ["--context-tokens", "128", "--steps", "3", "--kernel", "triton"]
    words = words_of(tier, model, text, *sizes, "--out", str(tmp_path))
    assert run(words) == 0
    (one,) = json.loads((tmp_path / "model.json").read_text())["passes"]
    assert one["bit_equal"] is True and one["logit_error_max"] < 1e-2


REFUSED: dict[str, tuple[str, dict[str, Any], list[str], str]] = {
    "k above the context": (
        "deepseek_v32",
        {"index_topk": 1024},
        [],
        "index_topk is 1,024, above the context of 512 tokens",
    ),
    "no tokens": ("glm_moe_dsa", {"index_topk": 0}, [], "index_topk is 0"),
    "an indexer without keys": ("deepseek_v32", {"index_head_dim": 0}, [], "index_head_dim is 0"),
    "no size of keys": ("deepseek_v32", {"index_head_dim": None}, [], "index_head_dim"),
    "keys without room for rotary values": (
        "glm_moe_dsa",
        {"index_head_dim": 8},
        [],
        "index_head_dim is 8, less than the 16 of qk_rope_head_dim",
    ),
    "a kind of layer": (
        "deepseek_v32",
        {"layer_types": ["indexed_attention", "sideways_attention", "indexed_attention"]},
        [],
        "layer_types",
    ),
    "a layer without an indexer": (
        "deepseek_v32",
        {"layer_types": ["indexed_attention", "full_attention", "indexed_attention"]},
        [],
        "of layers 0 and 1 one has an indexer",
    ),
    "nothing to share": (
        "glm_moe_dsa",
        {"indexer_types": ["shared", "full", "full"]},
        [],
        "layer 0 shares an indexer, and none before it has one",
    ),
    "keys larger than entries, in the tier": (
        "deepseek_v32",
        {"index_head_dim": 80},
        ["--index-keys", "tier"],
        "has 80 values, more bytes than an entry",
    ),
    "no keys for the tier": ("deepseek_v3", {}, ["--index-keys", "tier"], "has no indexer"),
    "a prediction": ("glm_moe_dsa", {}, ["--predict"], "select by indexers of its own"),
    "a selection": ("glm_moe_dsa", {}, ["--select-blocks", "8"], "whatever --select-blocks says"),
    "a scorer": ("deepseek_v32", {}, ["--selector", "mass"], "whatever --selector says"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_one_line(
    case: str, tier: Daemon, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names the field or the option, before weights are loaded: there are none."""
    kind, changes, more, says = REFUSED[case]
    model = model_of(tmp_path, kind)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **changes}))
    (model / "model.safetensors").unlink()
    capsys.readouterr()
    assert run(words_of(tier, model, text, "--steps", "4", *more)) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert error[-1].startswith("offstage: ") and says in error[-1], error
    assert not any("Traceback" in line for line in error)
