"""Documents against the schemas of docs/reference/schemas."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

SCHEMAS = Path(__file__).resolve().parents[2] / "docs/reference/schemas"


def checked(name: str, text: str | bytes) -> dict[str, Any]:
    """The document, which must be what the schema `name` says; `name`: a command's words, or `file
    KEY`."""
    schema = json.loads((SCHEMAS / f"{name.replace(' ', '-')}.json").read_text(encoding="utf-8"))
    found: dict[str, Any] = json.loads(text)
    wrong = best_match(Draft202012Validator(schema).iter_errors(found))
    assert wrong is None, f"{name}: {wrong.json_path}: {wrong.message[:2_000]}"
    return found
