"""A model's folder in the cache, and the marker that says of what it is.

A folder is believed by its marker: made by this version, and the same bytes as then. What it holds
is identified by its content, weights, configuration and tokenizer, never by its name.
"""

import hashlib
from pathlib import Path

import msgspec

from offstage.bindings.errors import BadInput, Incompatible
from offstage.bindings.outside import read_json
from offstage.host.model.identity import digest_of, files_of
from offstage.testbeds.cache import cache_folder

__all__ = ["MARKER", "VERSION", "Marker", "believed", "mark", "marker_of", "models_folder"]

VERSION = 1
"""Increment it when a model's folder is made otherwise from the same files."""
MARKER = "offstage.json"


class Marker(msgspec.Struct, frozen=True):
    """What a folder was made of, and what it holds."""

    version: int
    source: str
    """A digest of the files that it was made of."""
    content: str
    """A digest of weights, configuration and tokenizer."""
    parameters: int
    size_bytes: int


def models_folder() -> Path:
    """Where models are kept."""
    return cache_folder() / "models"


def mark(folder: Path, source: str, parameters: int) -> Marker:
    """Write the marker of a folder that holds all its files. Raises OSError."""
    size = sum(one.stat().st_size for one in folder.iterdir())
    found = Marker(VERSION, source, _content(folder), parameters, size)
    (folder / MARKER).write_bytes(msgspec.json.encode(found))
    return found


def marker_of(folder: Path, fix: str) -> Marker:
    """The marker of a folder. BadInput for none, Incompatible for another version's."""
    path = folder / MARKER
    if not path.is_file():
        raise BadInput("no model that Offstage has put there", str(folder), fix)
    version = read_json(path, fix, dict[str, object]).get("version")
    if version != VERSION:
        raise Incompatible(f"a model of version {version}, not {VERSION}", str(folder), fix)
    return read_json(path, fix, Marker)


def believed(folder: Path, fix: str) -> Marker:
    """The marker of a folder that holds what its marker says. BadInput for one that was changed,
    else as `marker_of`."""
    found = marker_of(folder, fix)
    if _content(folder) != found.content:
        raise BadInput("not the files that Offstage has put there", str(folder), fix)
    return found


def _content(folder: Path) -> str:
    """The digest of the weights, which is kept, and of the small files beside them."""
    weights = files_of(str(folder))
    found = hashlib.sha256(digest_of(weights, str(folder)).digest.encode())
    for path in sorted(folder.iterdir()):
        if path not in weights and path.name != MARKER:
            found.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return found.hexdigest()
