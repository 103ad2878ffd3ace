"""Tiny GGUF files, each written once, and a model cache for each test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_ggufs import save_gguf


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder where this test keeps models."""
    for name in ("torch", "transformers", "gguf"):
        pytest.importorskip(name, reason="needs the extra capture")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("OFFSTAGE_CACHE", "OFFSTAGE_MODELS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache/offstage/models"


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Any]]:
    """`made(architecture, kind)` returns a GGUF file and the model that was written to it."""
    found: dict[tuple[str, str], tuple[Path, Any]] = {}

    def make(architecture: str = "llama", kind: str = "F32") -> tuple[Path, Any]:
        key = architecture, kind
        if key not in found:
            path = tmp_path_factory.mktemp("ggufs") / f"{architecture}-{kind}.gguf"
            found[key] = path, save_gguf(path, architecture, kind)
        return found[key]

    return make
