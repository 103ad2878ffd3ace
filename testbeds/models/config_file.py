"""The config.json that a name leads to: a path, a known model, or an id of Hugging Face.

Nothing is ever fetched: an id is looked up in the local cache of Hugging Face.
"""

import os
from pathlib import Path
from typing import Any

from offstage.bindings.outside import read_json
from offstage.host.model.config import geometry_of
from offstage.host.model.geometry import KvGeometry
from offstage.testbeds.models.known import KNOWN
from offstage.testbeds.models.resolve import resolve

__all__ = ["find_config", "path_of", "read_config"]

HUB = "models--"
"""How the cache of Hugging Face begins the folder of a model: models--ORG--NAME."""


def path_of(name: str) -> Path:
    """A path as it was typed, `~` as the home folder if there is such a user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def find_config(name: str) -> Path | None:
    """The config.json that a name leads to, None where there is none. An id of Hugging Face may be
    in any case. BadInput for a known model that is not there."""
    path = path_of(name)
    if name in KNOWN:
        return resolve(name) / "config.json"
    if path.is_file() and path.suffix == ".json":
        return path
    if (path / "config.json").is_file():
        return path / "config.json"
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    wanted = HUB + name.replace("/", "--").lower()
    for folder in sorted(hub.glob(f"{HUB}*")):
        if folder.name.lower() == wanted:
            found = sorted(
                folder.glob("snapshots/*/config.json"), key=lambda one: one.stat().st_mtime
            )
            return found[-1] if found else None
    return None


def read_config(path: Path, name: str) -> tuple[KvGeometry, Any]:
    """The geometry that a config.json describes, and its contents. BadInput for what describes
    none."""
    config = read_json(path, "give the config.json of a model")
    return geometry_of(config, name, str(path), f"computed from {path}"), config
