"""The input of a lab run: the selections of one session, a few steps at a time.

A workload is generated (`generated`, in whole blocks of granules by `coarse`), captured from a
model (`captured`), or recorded (`recorded`), behind one interface. It owns no arena and knows no
policy: the same slabs are given to every policy and every buffer, and to the bounds
(`testbeds/lab/bounds`). Slabs keep a run small: a session of 128K tokens, 80 layers and
1,000 steps has 330 MB of scores, and only a few slabs of it exist at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["PREDICTED_LEAD_LAYERS", "SessionInfo", "Slab", "Workload"]


@dataclass(frozen=True)
class SessionInfo:
    """One request that decodes. Blocks are counted per layer.

    `contents` identifies the blocks of the context by content: `[blocks, 2]` uint64, equal for two
    sessions as far as they share a prefix. `turns` are the steps at which a new turn of the
    conversation begins, 0 excluded. `group` numbers the shared prefix, -1 without one.
    """

    name: str
    blocks: int
    steps: int
    contents: npt.NDArray[np.uint64]
    turns: tuple[int, ...] = ()
    group: int = -1
    arrival_s: float = 0.0


@dataclass(frozen=True)
class Slab:
    """Consecutive steps of one session.

    selected: uint32 `[steps, layers, width]`, ascending ordinals without duplicates, `ABSENT` after
        the last one. The blocks that the kernel reads, sinks and window included.
    scores: uint16 `[steps, layers, blocks]`, higher is more urgent, 0 is "never"; `blocks` covers
        all blocks written by the session's last step, and unwritten blocks score 0.
    draft: as `scores`, of the step's own token as a draft model sees it once that token exists;
        the run decides how long it takes. None without one.
    predicted: as `scores`, of each layer's query as predicted from the input of the layer before,
        `PREDICTED_LEAD_LAYERS` ahead. Row 0 is the first layer's of the *next* step, by the token
        that early exit drafts before the last layer. 0 throughout a layer without a prediction.
        None without any.
    units: uint64, as `selected`: bit i is the i-th unit of a block that was made of several; None
        where blocks are selected whole.
    """

    session: int
    first_step: int
    selected: npt.NDArray[np.uint32]
    scores: npt.NDArray[np.uint16]
    draft: npt.NDArray[np.uint16] | None = None
    predicted: npt.NDArray[np.uint16] | None = None
    units: npt.NDArray[np.uint64] | None = None


PREDICTED_LEAD_LAYERS = 2
"""A layer's input is the output of the layer before it: its prediction for the layer after it is
known after that one, which is two before the predicted layer."""


class Workload(Protocol):
    """Sessions and their selections. Iterating twice gives the same bytes."""

    @property
    def sessions(self) -> tuple[SessionInfo, ...]:
        """All requests, in order of arrival."""

    @property
    def layer_count(self) -> int:
        """Layers that store KV."""

    @property
    def select_blocks(self) -> int:
        """k: blocks that one layer selects in a step, sinks and window included; the maximum, if it
        varies."""

    @property
    def sink_blocks(self) -> int:
        """Blocks from the front in every selection."""

    @property
    def window_blocks(self) -> int:
        """Blocks from the end in every selection."""

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""

    @property
    def index_source(self) -> npt.NDArray[np.int64]:
        """`[layers]`: the layer whose selection each layer uses; its own number if it selects
        itself."""

    @property
    def draft_agreement(self) -> float | None:
        """The share of a draft's selection that the model selects too; None: no draft."""

    @property
    def predicts(self) -> bool:
        """Whether slabs have predictions (`predicted`)."""

    def describe(self) -> dict[str, object]:
        """The origin of the selections, for the manifest: kind, source, hashes, parameters, and
        `synthetic`, true if they are drawn from a fitted process."""

    def slabs(self, session: int, steps: int = 16) -> Iterator[Slab]:
        """The session from its first step to its last, `steps` at a time."""

    def prefill(self, session: int) -> npt.NDArray[np.uint16] | None:
        """Scores of the last windows of the prefill, uint16 `[windows, layers, blocks]`, None if
        not known."""
