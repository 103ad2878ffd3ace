"""Whole blocks from granules: the workload of a tier that cannot stage less than a block.

A block has the highest score of its granules and is selected if one of them is. So the same
workload can be run granule by granule, and block by block with everything that a block brings
along. Pure except for reading the workload. A factor that does not divide is `BadInput`.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.selections.slab import SessionInfo, Slab, Workload

__all__ = ["Alike", "Coarsened", "PrefillOnce", "coarsen", "grained"]


UNITS_MAX = 64
"""Units of a block that a mask can tell apart."""


def coarsen(slab: Slab, factor: int) -> Slab:
    """The slab in blocks of `factor` units; units after the last whole block are dropped.

    scores: the largest of a block. selected: blocks touched, as wide as the widest row needs.
    units: which of a block's units are selected, where it has at most `UNITS_MAX`.
    """
    assert factor >= 1
    blocks = slab.scores.shape[2] // factor
    steps, layers, width = slab.selected.shape
    ordinals = slab.selected.reshape(-1, width) // np.uint32(factor)
    inside = ordinals < blocks  # neither absent nor of a block that is not whole
    first = inside.copy()
    first[:, 1:] &= ordinals[:, 1:] != ordinals[:, :-1]
    counts = first.sum(axis=1)
    filled = np.arange(int(counts.max(initial=0))) < counts[:, None]
    selected = np.full(filled.shape, ABSENT)
    selected[filled] = ordinals[first]
    units = None
    if factor <= UNITS_MAX:
        places = (slab.selected.reshape(-1, width) % np.uint32(factor)).astype(np.uint64)
        bits = np.where(inside, np.uint64(1) << places, np.uint64(0)).ravel()
        units = np.zeros(filled.shape, np.uint64)
        units[filled] = np.add.reduceat(bits, np.flatnonzero(first)) if first.any() else 0
    scores, draft, predicted = (
        None if one is None else _highest(one, blocks, factor)
        for one in (slab.scores, slab.draft, slab.predicted)
    )
    assert scores is not None
    return Slab(
        slab.session,
        slab.first_step,
        selected.reshape(steps, layers, filled.shape[1]),
        scores,
        draft,
        predicted,
        None if units is None else units.reshape(steps, layers, filled.shape[1]),
    )


def _highest(scores: npt.NDArray[np.uint16], blocks: int, factor: int) -> npt.NDArray[np.uint16]:
    steps, layers, _ = scores.shape
    whole = scores[:, :, : blocks * factor].reshape(steps, layers, blocks, factor)
    highest: npt.NDArray[np.uint16] = whole.max(axis=3)
    return highest


PREFILLS_MAX = 4
"""Sessions whose prefill windows are cached: 10 MiB each at 128K tokens and 80 layers."""


class Alike:
    """The properties that a derived `Workload` shares with its source: all but its sessions."""

    def __init__(self, other: Workload) -> None:
        self.layer_count = other.layer_count
        self.select_blocks = other.select_blocks
        self.sink_blocks = other.sink_blocks
        self.window_blocks = other.window_blocks
        self.block_tokens = other.block_tokens
        self.index_source = other.index_source
        self.draft_agreement = other.draft_agreement
        self.predicts = other.predicts


class PrefillOnce(Alike):
    """A `slab.Workload` that computes a session's prefill windows once for concurrent readers, who
    must not change them."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.sessions, self._workload = workload.sessions, workload
        self._made: dict[int, npt.NDArray[np.uint16] | None] = {}

    def describe(self) -> dict[str, object]:
        """The base workload's description."""
        return self._workload.describe()

    def slabs(self, session: int, steps: int = 16) -> Iterator[Slab]:
        """The workload's."""
        return self._workload.slabs(session, steps)

    def prefill(self, session: int) -> npt.NDArray[np.uint16] | None:
        """The workload's."""
        if session not in self._made:
            made = self._workload.prefill(session)
            if made is not None:
                made.setflags(write=False)
            if len(self._made) == PREFILLS_MAX:
                del self._made[next(iter(self._made))]
            self._made[session] = made
        return self._made[session]


class Coarsened:
    """A `slab.Workload` in blocks of `factor` units of another one.

    `select_blocks` is the maximum that a selection can touch. `draft_agreement` is that of the
    units: for blocks, the token touches at least about the same share of a draft's.
    """

    def __init__(self, workload: Workload, factor: int) -> None:
        if factor < 1 or any(session.blocks % factor for session in workload.sessions):
            raise BadInput(
                f"contexts are not a multiple of blocks of {factor} units",
                "workload",
                "give a factor that divides every context",
            )
        self.workload, self.factor = workload, factor
        self.sessions = tuple(self._session(session) for session in workload.sessions)
        self.layer_count = workload.layer_count
        blocks = max(one.blocks + one.steps // self.block_tokens for one in self.sessions)
        self.select_blocks = min(workload.select_blocks, blocks)
        self.sink_blocks = -(-workload.sink_blocks // factor)
        self.window_blocks = -(-workload.window_blocks // factor)
        self.index_source = workload.index_source
        self.draft_agreement = workload.draft_agreement
        self.predicts = workload.predicts

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""
        return self.workload.block_tokens * self.factor

    def describe(self) -> dict[str, object]:
        """The base workload's description, with the factor."""
        return {**self.workload.describe(), "coarsened": self.factor}

    def slabs(self, session: int, steps: int = 16) -> Iterator[Slab]:
        """The other workload's slabs in blocks."""
        for slab in self.workload.slabs(session, steps):
            yield coarsen(slab, self.factor)

    def prefill(self, session: int) -> npt.NDArray[np.uint16] | None:
        """The other workload's windows in blocks."""
        windows = self.workload.prefill(session)
        if windows is None:
            return None
        return _highest(windows, windows.shape[2] // self.factor, self.factor)

    def _session(self, session: SessionInfo) -> SessionInfo:
        # A content identifies everything before it, so a block's last unit identifies the block.
        contents = session.contents[self.factor - 1 :: self.factor]
        return replace(session, blocks=session.blocks // self.factor, contents=contents)


def grained(workload: Workload, factor: int) -> Workload:
    """The workload in units that are `factor` times larger."""
    return workload if factor == 1 else Coarsened(workload, factor)
