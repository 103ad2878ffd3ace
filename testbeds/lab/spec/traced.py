"""Another request trace in place of a spec's: which key of it that is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.bindings.settings import read_toml

__all__ = ["on_trace"]


def on_trace(path: Path, changes: Mapping[str, Any], trace: str) -> dict[str, Any]:
    """The changes, and that a spec takes its requests from `trace`, a file or a name in the folder
    of traces; "" leaves them as they are. BadInput if they or the spec's axes set another one."""
    if not trace:
        return dict(changes)
    raw = read_toml(path, "give a spec's TOML file")
    kind = changes.get("workload.kind", _table(raw, "workload").get("kind"))
    key = "workload.file" if kind == "requests" else "workload.trace"
    if key in changes:
        raise BadInput(f"--trace and --set {key}", "command line", "give one of them")
    if key in _table({**raw, **changes}, "sweep"):
        raise BadInput(
            f"--trace has no effect: {key} is an axis", f"{path}: [sweep]", "leave one of them out"
        )
    return {**changes, key: trace}


def _table(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table of the spec, which is checked later; empty for what is none."""
    found = raw.get(name)
    return found if isinstance(found, dict) else {}
