"""What is made once and kept for this user: a folder each, there whole or not at all.

A folder is built next to its place and renamed, under a lock that other processes wait for. What an
earlier process left half built is removed by the next one that builds it.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from offstage.bindings.durable import refused
from offstage.bindings.errors import BadInput

__all__ = ["cache_folder", "locked", "whole"]


def cache_folder() -> Path:
    """Where images, wheels and models are kept: OFFSTAGE_CACHE, or the user's cache."""
    if chosen := os.environ.get("OFFSTAGE_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "offstage"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Serializes builds of one folder: the second waits for the first."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = _beside(folder, ".lock").open("w")
    except OSError as error:
        raise BadInput(
            f"cannot be written ({error.strerror})",
            str(folder.parent),
            "set OFFSTAGE_CACHE to another folder",
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """Where to build a `locked` folder, which takes the place of an older one when the block ends
    well; otherwise nothing is left. RunFailed, BadInput for an OSError of the block."""
    made = _beside(folder, ".new")
    try:
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        yield made
        if folder.exists():
            shutil.rmtree(folder)
        made.rename(folder)
    except OSError as error:
        raise refused(folder, error) from None
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _beside(folder: Path, suffix: str) -> Path:
    return folder.with_name(folder.name + suffix)
