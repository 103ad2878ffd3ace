"""Tiny models, each made once, and a text for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_models import save_model, save_text

MakeModel = Callable[..., Path]


@pytest.fixture(scope="session")
def make_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """`make_model(architecture, **config)` returns the folder of a float32 model."""
    pytest.importorskip("torch", reason="needs the extra capture")
    pytest.importorskip("transformers", reason="needs the extra capture")
    made: dict[str, Path] = {}

    def make(architecture: str = "llama", **changes: Any) -> Path:
        key = f"{architecture} {sorted(changes.items())}"
        if key not in made:
            made[key] = tmp_path_factory.mktemp("models") / architecture
            save_model(made[key], architecture, changes)
        return made[key]

    return make


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of 500 letters, one token each."""
    return save_text(tmp_path_factory.mktemp("text") / "letters.txt")
