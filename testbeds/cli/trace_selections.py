"""`offstage trace info` for a file of selections, or of the scores behind them.

Such a file is no trace of requests: the laboratory runs it by a spec, which is printed. BadInput
if the file's contents do not match its header.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType
from rich.console import Group
from rich.text import Text

from offstage.testbeds.cli.common import table

if TYPE_CHECKING:
    from offstage.testbeds.workloads.selections.captured import CapturedWorkload
    from offstage.testbeds.workloads.selections.recorded import SelectionWorkload

__all__ = ["described", "shown_with_spec"]


class Described(msgspec.Struct, kw_only=True):
    """A file's contents; of recorded selections their bounds, of a capture its scores. `spec`: the
    TOML that runs it."""

    file: str
    holds: str
    model: str
    sessions: int
    layers: int
    block_tokens: int
    context_blocks_max: int
    steps: int
    selected_blocks_max: int | UnsetType = UNSET
    sink_blocks: int | UnsetType = UNSET
    window_blocks: int | UnsetType = UNSET
    scores: str | UnsetType = UNSET
    spec: str = ""


def described(path: Path, kind: str) -> Described:
    """A file's contents; `kind` is the spec's."""
    from offstage.testbeds.workloads.selections.captured import CapturedWorkload
    from offstage.testbeds.workloads.selections.recorded import SelectionWorkload
    from offstage.testbeds.workloads.selections.scores_file import open_capture

    if kind == "selections":
        recorded = SelectionWorkload(path)
        own = _of(path, kind, recorded, recorded.model)
        own.selected_blocks_max = recorded.select_blocks
        own.sink_blocks, own.window_blocks = recorded.sink_blocks, recorded.window_blocks
        selector = ""
    else:
        scores: Sequence[Any] = open_capture(path).scores
        selector = scores[0]
        captured = CapturedWorkload(path, 1, selector, 0, 0)
        own = _of(path, kind, captured, str(captured.describe()["model"]))
        own.scores = ", ".join(scores)
    own.spec = _spec(own, kind, selector)
    return own


def shown_with_spec(held: Described) -> Group:
    """The same for the terminal."""
    shown = msgspec.to_builtins(held)
    spec = Text(shown.pop("spec"))
    return Group(table(shown), "", "`offstage lab run SPEC` runs it by this spec:", "", spec)


def _of(
    path: Path, kind: str, found: "CapturedWorkload | SelectionWorkload", model: str
) -> Described:
    from offstage.testbeds.workloads.requests.importer import SELECTIONS

    return Described(
        file=str(path),
        holds=f"{SELECTIONS[kind]}, and no requests",
        model=model,
        sessions=len(found.sessions),
        layers=found.layer_count,
        block_tokens=found.block_tokens,
        context_blocks_max=max(one.blocks for one in found.sessions),
        steps=sum(one.steps for one in found.sessions),
    )


def _spec(own: Described, kind: str, selector: str) -> str:
    """The TOML that runs the file."""
    name = Path(own.file).name.partition(".")[0]
    lines = [
        f"name = {json.dumps(name)}",
        "",
        "[workload]",
        f"kind = {json.dumps(kind)}",
        f"file = {json.dumps(own.file)}",
        "",
        "[geometry]",
        f"block_tokens = {own.block_tokens}",
    ]
    if selector:
        lines += ["", "[selection]", f"selector = {json.dumps(selector)}"]
    return "\n".join(lines) + "\n"
