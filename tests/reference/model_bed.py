"""A daemon for one small model, and runs of the model against it."""

import json
from pathlib import Path
from typing import Any

from tiny_models import save_model

from offstage.testbeds.beds.daemon import Daemon, serve
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
