"""The KV of the last prompt that a demo read, kept in the user's cache.

Its name is that of everything that determines its bits: tokens, weights, types, kernel, versions.
A file that its digest does not fit is made again. One is kept: hundreds of MB each.
"""

import hashlib
import shutil
from pathlib import Path

from offstage.host.transformer.dense import DenseKv
from offstage.testbeds.cache import cache_folder, locked, whole
from offstage.testbeds.progress import Progress

__all__ = ["prefill_once"]

KV = "layers"
"""The file, named anew when its tensors are: one of other names is made again."""


def prefill_once(kv: DenseKv, name: str, tokens: list[int], piece: int, progress: Progress) -> None:
    """As `kv.prefill`, or from the cache, where `name` is. BadInput, RunFailed: it cannot be
    written."""
    from safetensors.torch import load_file, save_file

    folder = cache_folder() / "prefill" / name
    with locked(folder):
        if _digest(folder / KV) == _said(folder / "digest"):
            kv.restore(load_file(folder / KV), len(tokens))
            progress.advance(len(tokens))
            progress.note("kept from the run before")
            return
        kv.prefill(tokens, piece, progress.advance)
        with whole(folder) as made:
            save_file(kv.tensors(), made / KV)
            (made / "digest").write_text(_digest(made / KV))
        for other in folder.parent.iterdir():
            if other.is_dir() and other != folder:
                shutil.rmtree(other, ignore_errors=True)


def _digest(path: Path) -> str:
    """Of a file's bytes; "none" without it."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "none"


def _said(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
