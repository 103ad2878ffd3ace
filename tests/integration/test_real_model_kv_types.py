"""Does a real model decode from KV that the tier holds in fewer bits, and is its cost reported?"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from damaged import damage_store
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

from offstage.testbeds.beds.daemon import Daemon
from offstage.testbeds.cli import run

pytest.importorskip("torch", reason="needs the extra capture")
pytest.importorskip("transformers", reason="needs the extra capture")

LAYERS, OWN = 2, 4096
"""Two KV heads of 16 in float32."""
SMALL = 1536
"""A block in FP8 or int8, in logical blocks of 512 B."""
RECORD = SMALL + 512
"""With its trailer, as it is read from the drive."""

COST = {"fp8": 0.4, "fp8-e4m3": 0.4, "fp8-e5m2": 1.5, "int8": 0.02}
"""KL, in nats: random weights make much of an error."""


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    with start(folder, LAYERS, SMALL, 512, 12, storage={"lba": "512"}) as one:
        yield one


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_text(tmp_path_factory.mktemp("text") / "letters.txt")


@pytest.mark.parametrize("kernel", ["numpy", "torch"])
@pytest.mark.parametrize("kind", COST)
def test_blocks_are_smaller_and_attention_reads_what_they_kept(
    kind: str, kernel: str, tier: Daemon, text: Path, tmp_path: Path
) -> None:
    """Every step fetches most blocks, also those that decoding filled: the logits are, to the bit,
    those of the same kernel over the same quantized blocks in memory, and close to the model's own.
    Drive and link carry the quantized bytes. No type finds blocks of another in the store."""
    words = ["--kv-dtype", kind, "--select-blocks", "8,all", *SMALL_POOL, "--kernel", kernel]
    found = drive(tier, model_of(tmp_path, "llama"), text, tmp_path / "out", *words)
    few, every = found["passes"]
    assert every["bit_equal"] is True and every["demands"] > LAYERS * (ROOM - 6) * STEPS
    assert 1e-6 < every["kl_mean"] < COST[kind]
    assert few["kl_mean"] > every["kl_mean"]
    for one in (few, every):
        assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0
        assert one["blocks_verified"] == one["demands"]
        assert one["bytes_read"] % RECORD == 0 < one["bytes_read"]
    assert found["workload"]["block_bytes"] == SMALL
    if kernel == "numpy":  # the kernel does not name the context's blocks: then they are there
        assert found["workload"]["prefill_blocks_written"] == LAYERS * CONTEXT // BLOCK_TOKENS
    (kv,) = found["kv"]
    assert kv["layers"] == [[kind] * 2] * LAYERS and kv["chosen"] is None
    assert kv["bytes_per_token"] == LAYERS * SMALL / BLOCK_TOKENS
    assert kv["saved"] == 1 - SMALL / OWN and kv["model_bytes_per_token"] == LAYERS * OWN / 16
    (heads,) = kv["heads"]
    used = heads["bytes_per_token"] * BLOCK_TOKENS / LAYERS + 2 * (kind != "fp8")
    assert kv["padding_per_token"] == pytest.approx(LAYERS * (SMALL - used) / BLOCK_TOKENS)


def test_a_quantized_block_that_the_store_lost_is_made_again(text: Path, tmp_path: Path) -> None:
    """Every third block is damaged while the daemon is stopped: the output is the same to the bit,
    and so it is where the next layer's blocks are fetched ahead."""
    model = model_of(tmp_path, "llama")
    words = ["--kv-dtype", "int8", "--select-blocks", "all", *SMALL_POOL]
    more = [], ["--predict", "--ahead", "fetch"]
    found = []
    for ahead in more:
        store = {"segment": "16KiB"}
        with start(tmp_path, LAYERS, SMALL, 512, 12, storage={"lba": "512"}, store=store) as one:
            out = tmp_path / f"out{len(found)}"
            found += drive(one, model, text, out, *words, *ahead)["passes"]
        assert damage_store(tmp_path / "store.kv", every=3) > 10
    whole, damaged = found
    assert whole["blocks_recomputed"] == 0 < damaged["blocks_recomputed"]
    assert damaged["bit_equal"] is True and damaged["blocks_corrupt"] == 0
    assert damaged["positions"] == whole["positions"]


def test_types_are_chosen_within_the_bound_and_shown(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a daemon of larger blocks, whose rest is padding; at one of smaller blocks the error says
    what the choice needs, and that daemon takes it."""
    model = model_of(tmp_path, "llama")
    words = ["--kv-dtype", "auto", "--max-kl", "0.001", "--select-blocks", "all"]
    sizes = ["--context-tokens", str(CONTEXT), "--steps", str(STEPS)]
    with start(tmp_path, LAYERS, OWN - 512, 512, 30, storage={"lba": "512"}) as one:
        found = drive(one, model, text, tmp_path / "out", *words)
    (kv,) = found["kv"]
    chosen = kv["chosen"]
    assert chosen["checked"] <= chosen["max_kl"] == 0.001 and chosen["tail_tokens"] == 128
    assert kv["bytes_per_token"] == LAYERS * (OWN - 512) / BLOCK_TOKENS
    assert kv["padding_per_token"] > 0
    (every,) = found["passes"]
    assert every["bit_equal"] is True and 0 < every["kl_mean"] < 0.01
    capsys.readouterr()
    least = chosen["block_bytes"]
    (tmp_path / "small").mkdir()
    with start(tmp_path / "small", LAYERS, 512, 512, 30, storage={"lba": "512"}) as one:
        assert run(words_of(one, model, text, *sizes, *words)) == 2
    assert f"--set arena.payload={least} " in capsys.readouterr().err
    (tmp_path / "fitting").mkdir()
    with start(tmp_path / "fitting", LAYERS, least, 512, 30, storage={"lba": "512"}) as one:
        assert run(words_of(one, model, text, *sizes, *words)) == 0
    told = capsys.readouterr().out
    assert "nats on the last 128 tokens of the context" in told and "Chosen" in told
    assert re.search(rf"^auto +{least:,} +[0-9.]+% +{ROOM} ", told, re.M)


def test_several_types_and_lengths_are_measured_in_one_run(
    tier: Daemon,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each pass is what a run of that type alone gives, though small blocks are padded; a shorter
    context is the front of the longest, which is read once and kept. Table and JSON say of each
    what it is and what its blocks need."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("OFFSTAGE_CACHE", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    model, half = model_of(tmp_path, "llama"), CONTEXT // 2
    words = ["--select-blocks", "all", *SMALL_POOL]
    several = [*words, "--kv-dtype", "int8,int4", "--context-tokens", f"{half},{CONTEXT}"]
    found = drive(tier, model, text, tmp_path / "out", *several)
    rows = {(one["context_tokens"], one["kv_dtype"]): one for one in found["passes"]}
    assert [*rows] == [(n, kind) for n in (half, CONTEXT) for kind in ("int8", "int4")]
    assert all(one["bit_equal"] and not one["blocks_corrupt"] for one in rows.values())
    assert [one["block_bytes"] for one in found["kv"]] == [SMALL, 1024]
    assert found["workload"]["block_bytes"] == SMALL
    assert found["kv"][1]["saved"] == 1 - 1024 / OWN
    told = capsys.readouterr().out
    row = rows[half, "int4"]
    line = rf"^ *{half} int4 +1,024 +75.0% +\d+ 100.0% +{row['perplexity']:.3f} +"
    assert re.search(line + f"{row['dense_perplexity']:.3f} ", told, re.M)
    assert f"padded to this daemon's {SMALL:,} B" in told
    for length in (half, CONTEXT):
        own = [*words, "--kv-dtype", "int8", "--context-tokens", str(length)]
        (one,) = drive(tier, model, text, tmp_path / "alone", *own)["passes"]
        assert one["kl_mean"] == pytest.approx(rows[length, "int8"]["kl_mean"], rel=0.01)
    assert one["positions"] == rows[CONTEXT, "int8"]["positions"]
    (kept,) = (tmp_path / "cache/offstage/prefill").glob("*/layers")
    before = kept.stat().st_ino
    drive(tier, model, text, tmp_path / "again", *several)
    assert kept.stat().st_ino == before


REFUSED = {
    "unknown type of KV 'int3'": ["--kv-dtype", "int3"],
    "--kv-dtype auto and --max-kl go together": ["--kv-dtype", "auto"],
    "--kv-dtype auto and --max-kl go together: ": ["--kv-dtype", "int8", "--max-kl", "0.1"],
    "--max-kl -0.1": ["--kv-dtype", "auto", "--max-kl", "-0.1"],
    "--max-kl nan": ["--kv-dtype", "auto", "--max-kl", "nan"],
    "--set arena.payload=1024 --set arena.block_tokens=16": ["--kv-dtype", "int4"],
    "--set arena.payload=4096 --set arena.block_tokens=16": [],
    "4,096 B for 16 tokens of float32": ["--kv-dtype", "int8,model,int4"],
    "unknown type of KV 'int3' ": ["--kv-dtype", "int8,int3"],
    "'x' is not a number of tokens": ["--context-tokens", "64,x"],
    "several --context-tokens": ["--context-tokens", "64,128", "--generate"],
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_cannot_be_is_one_line(
    problem: str, tier: Daemon, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = model_of(tmp_path, "llama")
    sizes = ["--context-tokens", str(CONTEXT), "--steps", str(STEPS)]
    assert run(words_of(tier, model, text, *sizes, *REFUSED[problem])) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert problem.rstrip(": ") in error and error.startswith("offstage: ")
