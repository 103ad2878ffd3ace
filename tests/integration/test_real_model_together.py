"""Do several sessions of a real model that decode together write what each writes alone?

Tiny models with random weights: of K and V, of windows beside full layers, of latents, of layers
with either beside two that keep a state, with indexers, and with layers that compress.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from damaged import damage_store
from model_bed import SMALL_POOL, drive, model_of, start, words_of
from tiny_models import save_text

from offstage.testbeds.beds.daemon import Daemon
from offstage.testbeds.cli import run

pytest.importorskip("torch", reason="needs the extra capture")
pytest.importorskip("transformers", reason="needs the extra capture")

CONTEXT, STEPS, SESSIONS = 128, 24, 3
EACH = CONTEXT + STEPS + 1
BEGUN = 112
"""A context that ends within a block of each compression, which the steps complete."""
KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {"num_hidden_layers": 3},
    "gemma3_text": {"num_hidden_layers": 3, "sliding_window": 64, "query_pre_attn_scalar": 8},
    "deepseek_v3": {"num_hidden_layers": 3},
    "qwen3_next": {},
    "kimi_linear": {},
    "deepseek_v32": {"index_topk": 40},
    "glm_moe_dsa": {"index_topk": 40},
    "deepseek_v4": {
        "head_dim": 64,
        "compress_rates": {"heavily_compressed_attention": 8, "compressed_sparse_attention": 4},
        "index_topk": 20,
    },
}
LAYERS = {"qwen3_next": 2, "kimi_linear": 2, "deepseek_v4": 5}
"""At the daemon, where not 3; with those of index keys in the tier more."""
KEYS = ["--index-keys", "tier"]
INDEXED = {
    "v32": ("deepseek_v32", 0, []),
    "v32, keys in the tier": ("deepseek_v32", 2, KEYS),
    "glm": ("glm_moe_dsa", 0, ["--ahead", "hint"]),
    "glm, keys in the tier": ("glm_moe_dsa", 1, [*KEYS, "--ahead", "fetch"]),
    "v4": ("deepseek_v4", 0, []),
    "v4, keys in the tier": ("deepseek_v4", 1, KEYS),
}
"""Kind, further layers, and options: of models that select for themselves."""
SELECT = ["--select-blocks", "6"]
CASES: dict[str, tuple[str, int, list[str]]] = {
    **{kind: (kind, 0, SELECT) for kind in list(KINDS)[:5]},
    **INDEXED,
}
QUICK = {
    "v32": 1,
    "v32, keys in the tier": 0,
    "glm, keys in the tier": 1,
    "v4, keys in the tier": 0,
}
"""Of models that select for themselves: what is not slow, of the text and of their own."""


def cases() -> Iterator[Any]:
    for case in CASES:
        for number, more in enumerate(([], ["--generate"])):
            slow = case in INDEXED and QUICK.get(case) != number
            marks = [pytest.mark.slow] if slow else []
            name = f"{case}, {('text', 'own text')[number]}"
            yield pytest.param(case, more, id=name, marks=marks)


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon for three layers whose blocks are 4 KiB, and whose arena holds a third of them."""
    with start(tmp_path, 3, 4096, 512, 30) as one:
        yield one


@pytest.mark.parametrize("case, more", list(cases()))
def test_sessions_together_write_what_each_writes_alone(
    case: str, more: list[str], tmp_path: Path
) -> None:
    """Each session has the tokens, and within 1e-3 the logits against dense attention, of a run of
    its part of the text alone. Blocks leave the pool and come back from the daemon meanwhile."""
    kind, added, own = CASES[case]
    with start(tmp_path, LAYERS.get(kind, 3) + added, 4096, 512, 30) as tier:
        compare_with_alone(kind, [*own, *more], tier, tmp_path)


def key_demands(one: dict[str, Any]) -> int:
    """Blocks of index keys that came from the tier."""
    return sum(group["demands"] for group in one["groups"] if group["group"] == "index keys")


def compare_with_alone(kind: str, more: list[str], tier: Daemon, tmp_path: Path) -> None:
    model, whole = model_of(tmp_path, kind, **KINDS[kind]), tmp_path / "whole.txt"
    context = BEGUN if kind == "deepseek_v4" else CONTEXT
    letters = save_text(whole, SESSIONS * EACH).read_text()
    each = context if "--generate" in more else context + STEPS + 1
    sizes = ["--context-tokens", str(context), "--steps", str(STEPS), *SMALL_POOL, *more]
    found = drive(tier, model, whole, tmp_path / "o", *sizes, "--sessions", str(SESSIONS))
    (together,) = found["passes"]
    assert found["workload"]["sessions"] == SESSIONS and together["bit_equal"] is None
    assert together["blocks_corrupt"] == 0 and together["demands"] > 0
    assert len(together["positions"]) == SESSIONS * STEPS
    assert (together["guesses"] > 0) == ("--ahead" in more)
    for number in range(SESSIONS):
        part = tmp_path / f"{number}.txt"
        part.write_text(letters[number * each : (number + 1) * each])
        (alone,) = drive(tier, model, part, tmp_path / f"o{number}", *sizes)["passes"]
        assert key_demands(together) <= 1.1 * SESSIONS * key_demands(alone)
        for name in ("state_bytes", "index_key_bytes"):
            assert together[name] == SESSIONS * alone[name]
        own = [one for one in together["positions"] if one["session"] == number]
        for name in ("position", "token", "top1", "dense_top1"):
            assert [one[name] for one in own] == [one[name] for one in alone["positions"]]
        for name in ("kl", "dense_nll"):
            values = [[one[name] or 0 for one in rows] for rows in (own, alone["positions"])]
            assert values[0] == pytest.approx(values[1], abs=1e-3)


@pytest.mark.parametrize("case", ["qwen3_next", "v4, keys in the tier"])
def test_sessions_that_come_back_go_on_each_at_a_checkpoint(case: str, tmp_path: Path) -> None:
    """After a new start of the daemon each reads 64 of its 128 tokens, and the logits are to the
    bit the same."""
    kind, added, own = CASES[case]
    model, whole = model_of(tmp_path, kind, **KINDS[kind]), tmp_path / "whole.txt"
    save_text(whole, SESSIONS * EACH)
    sizes = ["--context-tokens", str(CONTEXT), "--steps", str(STEPS), *SMALL_POOL]
    sizes += [*own, "--sessions", str(SESSIONS), "--checkpoint-blocks", "4"]
    found = []
    for number in range(2):
        with start(tmp_path, LAYERS[kind] + added, 4096, 512, 30) as tier:
            found.append(drive(tier, model, whole, tmp_path / f"o{number}", *sizes))
    (before,), (after,) = (one["passes"] for one in found)
    assert before["positions"] == after["positions"]
    assert before["state_bytes"] == after["state_bytes"] > 0
    names = "checkpoints_written", "kept_tokens", "returned_tokens"
    first, again = ([one["states"][name] for name in names] for one in found)
    assert first == [SESSIONS * 2, 0, 0] and again == [0, SESSIONS * CONTEXT, SESSIONS * 64]


@pytest.mark.parametrize("case", ["qwen3", "glm, keys in the tier", "v4, keys in the tier"])
def test_a_block_that_the_store_has_lost_is_made_again_of_its_own_session(
    case: str, tmp_path: Path
) -> None:
    """Every third block of the store is damaged while its daemon is stopped: what is made again is
    of the context that had it, and the logits are to the bit the same."""
    kind, added, own = CASES[case]
    layers = LAYERS.get(kind, 3) + added
    model, whole = model_of(tmp_path, kind, **KINDS[kind]), tmp_path / "whole.txt"
    save_text(whole, SESSIONS * EACH)
    sizes = ["--context-tokens", str(CONTEXT), "--steps", str(STEPS), *SMALL_POOL]
    sizes += [*own, "--sessions", str(SESSIONS)]
    found = []
    for _ in range(2):
        with start(tmp_path, layers, 4096, 512, 30, store={"segment": "64KiB"}) as tier:
            found += drive(tier, model, whole, tmp_path / f"o{len(found)}", *sizes)["passes"]
        assert damage_store(tmp_path / "store.kv", every=3) > 10
    before, after = found
    assert before["blocks_recomputed"] == 0 < after["blocks_recomputed"]
    assert before["blocks_corrupt"] == after["blocks_corrupt"] == after["ends_differ"] == 0
    assert after["positions"] == before["positions"]


REFUSED: dict[str, tuple[str, list[str], str]] = {
    "predictions": ("qwen3", ["--predict"], "3 sessions of a model with --predict"),
    "chosen types": (
        "qwen3",
        ["--kv-dtype", "auto", "--max-kl", "0.1"],
        "3 sessions of a model with --kv-dtype auto",
    ),
    "a short text": ("qwen3", ["--context-tokens", "256"], "more than the text has room for"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_of_one_session_is_refused_in_one_line(
    what: str, tier: Daemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, more, message = REFUSED[what]
    model = model_of(tmp_path, kind, **KINDS.get(kind, {}))
    text = save_text(tmp_path / "letters.txt", SESSIONS * EACH)
    sizes = ["--context-tokens", str(CONTEXT), "--steps", str(STEPS)]
    words = words_of(tier, model, text, *sizes, "--sessions", str(SESSIONS), *more)
    assert run(words) == 2
    said = [one for one in capsys.readouterr().err.splitlines() if one.startswith("offstage:")]
    assert len(said) == 1 and message in said[0], said
