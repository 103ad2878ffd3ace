"""`offstage trace info` for a file of selections, or of the scores behind them.

Such a file is no trace of requests: the laboratory runs it by a spec, which is printed. BadInput
if the file's contents do not match its header.
"""

import json
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from offstage.testbeds.cli.common import table

__all__ = ["described", "shown_with_spec"]


def described(path: Path, kind: str) -> dict[str, Any]:
    """Its contents, and as `spec` the TOML that runs it; `kind` is the spec's."""
    from offstage.testbeds.workloads.requests.importer import SELECTIONS

    own, selection = _recorded(path) if kind == "selections" else _captured(path)
    tables = {
        "workload": {"kind": kind, "file": str(path)},
        "geometry": {"block_tokens": own["block_tokens"]},
        **({"selection": selection} if selection else {}),
    }
    lines = [f"name = {json.dumps(path.name.partition('.')[0])}"]
    for name, keys in tables.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]
    return {
        "file": str(path),
        "holds": f"{SELECTIONS[kind]}, and no requests",
        **own,
        "spec": "\n".join(lines) + "\n",
    }


def shown_with_spec(held: dict[str, Any]) -> Group:
    """The same for the terminal."""
    shown = {key: value for key, value in held.items() if key != "spec"}
    return Group(
        table(shown), "", "`offstage lab run SPEC` runs it by this spec:", "", Text(held["spec"])
    )


def _recorded(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from offstage.testbeds.workloads.selections.recorded import SelectionWorkload

    found = SelectionWorkload(path)
    own = {
        "model": found.model,
        **_sizes(found),
        "selected_blocks_max": found.select_blocks,
        "sink_blocks": found.sink_blocks,
        "window_blocks": found.window_blocks,
    }
    return own, {}


def _captured(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    from offstage.testbeds.workloads.selections.captured import CapturedWorkload
    from offstage.testbeds.workloads.selections.scores_file import open_capture

    scores: Any = open_capture(path).scores
    found = CapturedWorkload(path, 1, scores[0], 0, 0)
    own = {"model": found.describe()["model"], **_sizes(found), "scores": ", ".join(scores)}
    return own, {"selector": scores[0]}


def _sizes(found: Any) -> dict[str, Any]:
    return {
        "sessions": len(found.sessions),
        "layers": found.layer_count,
        "block_tokens": found.block_tokens,
        "context_blocks_max": max(one.blocks for one in found.sessions),
        "steps": sum(one.steps for one in found.sessions),
    }
