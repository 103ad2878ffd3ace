"""A daemon for one small model, and runs of the model against it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tiny_models import save_model

from offstage.testbeds.beds.daemon import Daemon, serve
from offstage.testbeds.capture.model import ARCHITECTURES, load, look, text_tokens
from offstage.testbeds.cli import run

BLOCK_TOKENS = 16
CONTEXT, STEPS = 320, 40
ROOM = (CONTEXT + STEPS + BLOCK_TOKENS - 1) // BLOCK_TOKENS
SMALL_POOL = ["--pool-ratio", "0.3"]
"""What a layer has read leaves the pool before it reads again, so every step fetches."""


def start(
    folder: Path,
    layers: int,
    payload: int,
    context_tokens: int,
    slots: int,
    **changed: dict[str, Any],
) -> Any:
    """Start a daemon for one model whose blocks exceed its arena. `changed`: keys of
    sections."""
    sections: dict[str, dict[str, Any]] = {
        "daemon": {},
        "arena": {
            "size": slots * (payload + 4096),
            "payload": payload,
            "layers": layers,
            "block_tokens": BLOCK_TOKENS,
        },
        "storage": {"path": str(folder / "store.kv"), "size": "256MiB"},
        "store": {"segment": "256KiB"},
        "model": {},
        "policy": {"prefetchers": ["window", "ema"], "eviction": "score"},
        "limits": {"sessions": 4, "context_tokens": context_tokens + 1024},
    }
    for name, keys in changed.items():
        sections[name] |= keys
    return serve({**sections, "tenant": [{"name": "lab"}]}, folder)


def model_of(folder: Path, architecture: str, **changes: Any) -> Path:
    save_model(folder / architecture, architecture, {"head_dim": 16, **changes})
    return folder / architecture


def words_of(tier: Daemon, model: Path, text: Path, *more: str) -> list[str]:
    runtime_dir = str(tier.runtime_dir)
    return [
        "host",
        "run",
        "--endpoint",
        tier.endpoint,
        "--runtime-dir",
        runtime_dir,
        "--tenant",
        "lab",
        "--model",
        str(model),
        "--text",
        str(text),
        *more,
    ]


def drive(tier: Daemon, model: Path, text: Path, out: Path, *more: str) -> dict[str, Any]:
    sizes = ["--context-tokens", str(CONTEXT), "--steps", str(STEPS)]
    assert run(words_of(tier, model, text, "--out", str(out), *sizes, *more)) == 0
    found: dict[str, Any] = json.loads((out / "model.json").read_text())
    return found


def own_logits(model: Path, text: Path, tokens: int) -> Any:
    """The library's, of all tokens at once, by its eager attention and without a cache."""
    import torch
    import transformers

    ids = text_tokens(load(look(model, accepted=ARCHITECTURES)), text)[0][:tokens]
    whole = transformers.AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    with torch.inference_mode():
        return whole.eval()(torch.tensor([ids])).logits[0].double().numpy()


def assert_within_1e3(one: dict[str, Any], logits: Any) -> None:
    """A pass has the top tokens of these logits, of all tokens, and within 1e-3 nats their
    negative log-likelihoods of the tokens that follow."""
    positions, first = one["positions"], one["context_tokens"]
    here = logits[first : first + len(positions)]
    assert here.argmax(axis=1).tolist() == [row["top1"] for row in positions]
    above = np.log(np.exp(here - here.max(axis=1, keepdims=True)).sum(axis=1))
    following = [row["token"] for row in positions][1:]
    said = here.max(axis=1)[:-1] + above[:-1] - here[np.arange(len(following)), following]
    np.testing.assert_allclose([row["nll"] for row in positions][:-1], said, atol=1e-3)
