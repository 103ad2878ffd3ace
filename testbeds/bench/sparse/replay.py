"""A captured model's selections in place of drawn ones, in virtual time and live.

Model: a file of scores has one session whose layers select at each step. In virtual time it is the
laboratory's captured workload. Live the host's selectors are replaced by ones that say the file's
scores, so that the same blocks are selected and demanded; the KV inside them is drawn.

What can fail: `BadInput` of the file, and of one with several sessions.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import BadInput
from offstage.bindings.units import parse_time
from offstage.host.decode.session import Context
from offstage.host.model.models import geometry
from offstage.testbeds.bench.sparse.virtual import Setting
from offstage.testbeds.workloads.selections.captured import CapturedWorkload

__all__ = ["captured", "replay"]


def captured(base: Setting, path: Path) -> Setting:
    """The base on a capture: its context, blocks and layers, and no more than its steps. A layer
    takes as long as one of the base's model. BadInput of the file."""
    work = CapturedWorkload(path, base.selected)
    if len(work.sessions) != 1:
        raise BadInput(
            f"{len(work.sessions)} sessions with decode steps", str(path), "give a file with one"
        )
    (own,) = work.sessions
    whole_ns = parse_time(base.time_per_token, "bench sparse")
    token_ns = whole_ns * work.layer_count // geometry(base.model).layer_count
    return msgspec.structs.replace(
        base,
        capture=str(path),
        context_tokens=own.blocks * work.block_tokens,
        block_tokens=work.block_tokens,
        layers=work.layer_count,
        steps=min(base.steps, own.steps),
        time_per_token=f"{token_ns}ns",
    )


def replay(setting: Setting, context: Context) -> None:
    """Puts the capture's scores in place of what the selectors of a filled context summarise."""
    work = CapturedWorkload(setting.capture, setting.selected)
    scores = np.concatenate([slab.scores for slab in work.slabs(0)]).astype(np.float32)
    count = len(context.identities)
    context.selectors[:] = [_Told(rows, count) for rows in scores.swapaxes(0, 1)]


@dataclass
class _Told:
    """A selector that says the scores of a file, a row of `[steps, blocks]` for each query."""

    rows: npt.NDArray[np.float32]
    count: int
    step: int = 0

    def write(self, first_ordinal: int, keys: npt.NDArray[Any]) -> None:
        """Knows the blocks."""
        self.count = max(self.count, first_ordinal + len(keys))

    def append(self, ordinal: int, keys: npt.NDArray[Any]) -> None:
        """Knows the block."""
        self.count = max(self.count, ordinal + 1)

    def scores(self, query: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The next step's; 0 of a block that the file does not have."""
        found = np.zeros(self.count, np.float32)
        row = self.rows[self.step][: self.count]
        found[: len(row)] = row
        self.step += 1
        return found

    def __deepcopy__(self, memo: object) -> "_Told":
        return _Told(self.rows, self.count, self.step)
