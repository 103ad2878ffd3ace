"""What a lab run is fed with: the selections of one session, a few steps at a time.

A workload is generated (`generated`, in whole blocks of granules by `coarse`), captured from a
model (`captured`), or recorded (`recorded`); to the lab they all look alike. It owns no arena and
knows no policy: the same slabs are given to every policy and every buffer, and to the bounds
(`testbeds/lab/bounds`). Slabs keep a run small: a session of 128K tokens, 80 layers and
1,000 steps has 330 MB of scores, and no more than a few slabs of it exist at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.bindings.ranks import top

__all__ = [
    "ABSENT",
    "FORETOLD_LEAD_LAYERS",
    "Alike",
    "Coarsened",
    "PrefillOnce",
    "SessionInfo",
    "Slab",
    "Workload",
    "coarsen",
    "ranked",
    "top_selection",
]


@dataclass(frozen=True)
class SessionInfo:
    """One request that decodes. Blocks are counted per layer.

    `contents` names the blocks of the context by what they hold: `[blocks, 2]` uint64, equal for
    two sessions as far as they share a prefix. `turns` are the steps at which a new turn of the
    conversation begins, 0 excluded. `group` numbers the shared prefix, -1 where there is none.
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

    selected: uint32 `[steps, layers, width]`, ascending ordinals without duplicates, `ABSENT` from
        the last one on. It is what the kernel reads, sinks and window included.
    scores: uint16 `[steps, layers, blocks]`, higher is wanted more, 0 is "never"; `blocks` covers
        what the session will have written by its last step, and unwritten blocks score 0.
    draft: as `scores`, of the step's own token as a draft model sees it once that token exists;
        how long it takes is the run's affair. None without one.
    foretold: as `scores`, of each layer's query as the layer before foretells it from its own
        input, `FORETOLD_LEAD_LAYERS` ahead. Row 0 is the first layer's of the *next* step, by the
        token that early exit drafts before the last layer. 0 throughout a layer that is not
        foretold. None without any.
    """

    session: int
    first_step: int
    selected: npt.NDArray[np.uint32]
    scores: npt.NDArray[np.uint16]
    draft: npt.NDArray[np.uint16] | None = None
    foretold: npt.NDArray[np.uint16] | None = None


FORETOLD_LEAD_LAYERS = 2
"""A layer's input is the output of the layer before it: what it foretells of the layer behind it is
known after that one, which is two before the layer that is foretold."""


class Workload(Protocol):
    """Sessions and what they select. Iterating twice gives the same bytes."""

    @property
    def sessions(self) -> tuple[SessionInfo, ...]:
        """All requests, in order of arrival."""

    @property
    def layer_count(self) -> int:
        """Layers that store KV."""

    @property
    def select_blocks(self) -> int:
        """k: blocks one layer selects in a step, sinks and window included; the most, if it
        varies."""

    @property
    def sink_blocks(self) -> int:
        """Blocks from the front that every selection holds."""

    @property
    def window_blocks(self) -> int:
        """Blocks from the end that every selection holds."""

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""

    @property
    def index_source(self) -> npt.NDArray[np.int64]:
        """`[layers]`: the layer whose selection each layer uses; its own number where it selects
        for itself."""

    @property
    def draft_agreement(self) -> float | None:
        """The share of a draft's selection that the model selects too; None: no draft."""

    @property
    def foretells(self) -> bool:
        """Whether slabs have `foretold`."""

    def describe(self) -> dict[str, object]:
        """Where the selections come from, for the manifest: kind, source, hashes, parameters,
        and `synthetic`, true where they are drawn from a fitted process."""

    def slabs(self, session: int, steps: int = 16) -> Iterator[Slab]:
        """The session from its first step to its last, `steps` at a time."""

    def prefill(self, session: int) -> npt.NDArray[np.uint16] | None:
        """Scores of the last windows of the prefill, uint16 `[windows, layers, blocks]`, None where
        they are not known."""


# Which blocks a layer selects when it ranks them by 16-bit scores: one rule for every workload.
#
# A selection holds the sinks (the first blocks), the window (the last blocks that exist) and, of
# the blocks between, those with the highest scores; the smaller ordinal wins among equals. Ranks
# are therefore total, and a selection follows from the scores that policies see. Pure functions.


def top_selection(
    scores: npt.NDArray[np.uint16], blocks: int, select: int, sinks: int, window: int
) -> npt.NDArray[np.uint32]:
    """Selects in every layer: uint32 `[layers, min(select, blocks)]`, ascending.

    scores: uint16 `[layers, at least blocks]`. `select` counts sinks and window too.
    """
    layers = scores.shape[0]
    if select >= blocks:
        return np.tile(np.arange(blocks, dtype=np.uint32), (layers, 1))
    assert 0 <= sinks and 0 <= window and sinks + window <= select
    free = select - sinks - window
    chosen = np.empty((layers, select), np.uint32)
    chosen[:, :sinks] = np.arange(sinks)
    chosen[:, select - window :] = np.arange(blocks - window, blocks)
    if free:
        top(scores, sinks, blocks - window, free, chosen[:, sinks:])
    return chosen


def ranked(scores: npt.NDArray[np.uint16], counts: tuple[int, ...]) -> npt.NDArray[np.uint32]:
    """Ordinals by falling score, split but not sorted: uint32 `[layers, blocks]`.

    For every `c` of `counts`, 1 to blocks, the first `c` of a row are its `c` best.
    """
    blocks = scores.shape[1]
    assert counts and min(counts) >= 1 and max(counts) <= blocks
    # Score and ordinal in one number: a partition of integers is several times as fast as an
    # argpartition, and equals cannot come out in an order of their own.
    wide, shift = (np.uint32, 16) if blocks <= 1 << 16 else (np.uint64, 32)
    keys: npt.NDArray[Any] = np.subtract(0xFFFF, scores, dtype=wide)
    np.left_shift(keys, wide(shift), out=keys)
    np.bitwise_or(keys, np.arange(blocks, dtype=wide), out=keys)
    keys.partition(sorted({count - 1 for count in counts}), axis=1)
    np.bitwise_and(keys, wide((1 << shift) - 1), out=keys)
    return keys.astype(np.uint32, copy=False)


# Whole blocks out of granules: what a tier stages that cannot stage less than a block.
#
# A block has the highest score of its granules and is selected where one of them is. The same
# workload can so be run both ways: granule by granule, and block by block with all that a block
# brings along. Pure but for the workload that is read. A factor that does not divide is
# `BadInput`.


def coarsen(slab: Slab, factor: int) -> Slab:
    """The slab in blocks of `factor` units; units behind the last whole block are left out.

    scores: the largest of a block. selected: blocks touched, as wide as the widest row needs.
    """
    assert factor >= 1
    blocks = slab.scores.shape[2] // factor
    steps, layers, _ = slab.selected.shape
    touched = np.zeros((steps, layers, blocks + 1), bool)
    # The column behind the last block takes what is absent or belongs to no whole block.
    ordinals = np.minimum(slab.selected // np.uint32(factor), np.uint32(blocks))
    np.put_along_axis(touched, ordinals.astype(np.int64), True, axis=2)
    touched = touched[:, :, :blocks]
    counts = touched.sum(axis=2)
    selected = np.full((steps, layers, int(counts.max(initial=0))), ABSENT)
    filled = np.arange(selected.shape[2]) < counts[:, :, None]
    selected[filled] = np.nonzero(touched)[2]
    scores, draft, foretold = (
        None if one is None else _highest(one, blocks, factor)
        for one in (slab.scores, slab.draft, slab.foretold)
    )
    assert scores is not None
    return Slab(slab.session, slab.first_step, selected, scores, draft, foretold)


def _highest(scores: npt.NDArray[np.uint16], blocks: int, factor: int) -> npt.NDArray[np.uint16]:
    steps, layers, _ = scores.shape
    whole = scores[:, :, : blocks * factor].reshape(steps, layers, blocks, factor)
    highest: npt.NDArray[np.uint16] = whole.max(axis=3)
    return highest


PREFILLS_MAX = 4
"""Sessions whose prefill windows are kept: 10 MiB each at 128K tokens and 80 layers."""


class Alike:
    """What a `Workload` that is made of others has from one of them: all but its sessions."""

    def __init__(self, other: Workload) -> None:
        self.layer_count = other.layer_count
        self.select_blocks = other.select_blocks
        self.sink_blocks = other.sink_blocks
        self.window_blocks = other.window_blocks
        self.block_tokens = other.block_tokens
        self.index_source = other.index_source
        self.draft_agreement = other.draft_agreement
        self.foretells = other.foretells


class PrefillOnce(Alike):
    """A `slab.Workload` that makes a session's prefill windows once for all who ask at about the
    same time; nobody may change them."""

    def __init__(self, workload: Workload) -> None:
        super().__init__(workload)
        self.sessions, self._workload = workload.sessions, workload
        self._made: dict[int, npt.NDArray[np.uint16] | None] = {}

    def describe(self) -> dict[str, object]:
        """The workload's own description."""
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

    `select_blocks` is the most that a selection can touch. `draft_agreement` is that of the
    units: of the blocks that a draft touches, at least about as many are touched by the token.
    """

    def __init__(self, workload: Workload, factor: int) -> None:
        if factor < 1 or any(session.blocks % factor for session in workload.sessions):
            raise BadInput(
                f"contexts are no whole number of blocks of {factor} units",
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
        self.foretells = workload.foretells

    @property
    def block_tokens(self) -> int:
        """Tokens of one block."""
        return self.workload.block_tokens * self.factor

    def describe(self) -> dict[str, object]:
        """The workload's own description, with the factor."""
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
        # A content stands for all before it, so a block's last unit names the block.
        contents = session.contents[self.factor - 1 :: self.factor]
        return replace(session, blocks=session.blocks // self.factor, contents=contents)
