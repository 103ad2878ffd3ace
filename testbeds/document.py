"""A JSON document of ours: what a command prints, and what a run leaves in its folder.

Every one is an object that begins with `schema_version`, and is made here alone;
docs/reference/json.md says what the version promises, and has a schema for each. What is kept for
ourselves, such as the state of a testbed that is up, is no such document.
"""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from offstage.bindings.errors import BadInput

__all__ = ["SCHEMA_VERSION", "as_json", "as_line", "plain", "refuse_later"]

SCHEMA_VERSION = 1
"""Of every document. It is raised where a key is removed, or gets another name, meaning or unit."""


class _Head(msgspec.Struct):
    """What is read first of a document; one from before the promise has no version."""

    schema_version: int = SCHEMA_VERSION


def as_line(document: Any) -> str:
    """A mapping, a struct or a dataclass as JSON on one line, as a command prints it."""
    return json.dumps(_versioned(document), default=plain)


def as_json(document: Any) -> str:
    """The same as a file: indented, lists of plain numbers on one line each."""
    encoded = msgspec.json.encode(_versioned(document), enc_hook=plain)
    return _short_lists(msgspec.json.format(encoded, indent=1).decode()) + "\n"


def plain(value: object) -> Any:
    """A value that JSON lacks, in a type that it has."""
    if isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value):
        return msgspec.to_builtins(value, enc_hook=plain)
    return value.item() if hasattr(value, "item") else str(value)


def refuse_later(data: bytes, where: str) -> None:
    """BadInput for a document of a later version than ours. Whatever is no document passes: its
    own reader says what is wrong with it."""
    try:
        found = msgspec.json.decode(data, type=_Head).schema_version
    except (msgspec.DecodeError, ValueError, RecursionError):
        return
    if found > SCHEMA_VERSION:
        raise BadInput(
            f"has schema_version {found}, and this release knows {SCHEMA_VERSION}",
            where,
            "read it with the release that wrote it, or a later one",
        )


def _versioned(document: Any) -> dict[str, Any]:
    found = document if isinstance(document, Mapping) else plain(document)
    return {"schema_version": SCHEMA_VERSION, **found}


def _short_lists(text: str) -> str:
    """Lists of plain numbers on one line each; a line end is never inside a JSON string."""
    return re.sub(r"\[\n[\s\d.,eE+-]*\]", lambda match: re.sub(r"\s+", "", match.group()), text)
