"""Parts that Offstage's components share: a component that guesses nothing, and ranking.

All functions work on all layers in one call, and decide in integers, so that an answer is the same
on every machine. Any failure here is a bug of ours.
"""

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from offstage.bindings.engine import ABSENT
from offstage.bindings.layouts import CAUSES
from offstage.bindings.ranks import best
from offstage.testbeds.lab.policies.policy import CoreSwitches, Setting, View, guesses, no_guesses

__all__ = [
    "BASELINE",
    "LOOKAHEAD",
    "PATTERN",
    "Averages",
    "Component",
    "Shares",
    "best",
    "guess_next_step",
    "marked",
    "marked_cells",
    "overlap",
]

PATTERN, LOOKAHEAD = CAUSES.index("pattern"), CAUSES.index("lookahead")
BASELINE = CAUSES.index("baseline")

Scores = npt.NDArray[np.uint16]
Selected = npt.NDArray[np.uint32]
Marks = npt.NDArray[np.bool_]
Layers = npt.NDArray[np.int64]


class Component:
    """Base of the components: guesses nothing."""

    name: ClassVar[str]
    uses: ClassVar[str]
    source: ClassVar[str]
    core: ClassVar[CoreSwitches] = CoreSwitches()
    budgets: ClassVar[bool] = False
    """Whether it keeps to `Setting.traffic`; its answers then depend on the HBM pool."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def fitting(self, over_k: int) -> int:
        """`over_k` times k, at most what a buffer holds next to a selection: more guesses would
        evict each other, or blocks that the kernel is reading."""
        room = self.setting.buffer_blocks - self.setting.select_blocks
        return max(0, min(over_k * self.setting.select_blocks, room))

    def begin(self, session: int, blocks: int, prefill: Scores | None) -> npt.NDArray[np.void]:
        """No guess."""
        return no_guesses()

    def step(self, view: View) -> npt.NDArray[np.void]:
        """No guess."""
        return no_guesses()


def marked_cells(marks: Marks) -> tuple[Layers, Layers]:
    """Rows and columns of the marks, row by row. Faster than `np.nonzero` on sparse marks."""
    found = np.flatnonzero(marks)
    rows = found // marks.shape[1]
    return rows, found - rows * marks.shape[1]


def marked(selected: Selected, blocks: int) -> Marks:
    """A selection `[layers, width]` as marks `[layers, blocks]`."""
    marks = np.zeros((selected.shape[0], blocks), np.bool_)
    rows, columns = marked_cells(selected != ABSENT)
    marks[rows, selected[rows, columns]] = True
    return marks


def _found(marks: Marks, selected: Selected) -> Layers:
    """Marked blocks in each layer's selection, `[layers]`; ordinals beyond the marks count 0."""
    rows, columns = marked_cells(selected < marks.shape[1])
    found = marks[rows, selected[rows, columns]]
    return np.bincount(rows[found], minlength=len(marks))


def guess_next_step(
    marks: Marks, share: npt.NDArray[np.float32], cause: int
) -> npt.NDArray[np.void]:
    """Each layer's marks as guesses for that layer in the next step, made after it has run."""
    rows, ordinals = marked_cells(marks)
    return guesses(rows, ordinals, after_layer=rows, steps=1, probability=share[rows], cause=cause)


class Averages:
    """A running average of every block's score, `values` uint16 `[layers, blocks]`.

    As in the core's `ema`: a += s / 2^shift - a / 2^shift in integers; a block's first score is
    its first average.
    """

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.values: Scores = np.zeros((0, 0), np.uint16)

    def take(self, scores: Scores) -> Scores:
        """Add the scores of one step; returns the averages."""
        old = self.values
        if old.shape[0] != scores.shape[0]:
            old = np.zeros(scores.shape, np.uint16)
        if old.shape[1] < scores.shape[1]:
            old = np.pad(old, ((0, 0), (0, scores.shape[1] - old.shape[1])))
        moved = old - (old >> self.shift) + (scores >> self.shift)
        self.values = np.where(old == 0, scores, moved)
        return self.values


class Shares:
    """The running share of a layer's marks that were selected: a measured probability.

    `share` float32 `[layers]` begins at `prior` and moves by a sixteenth with each observation.
    """

    def __init__(self, layer_count: int, prior: float) -> None:
        self.share = np.full(layer_count, prior, np.float32)

    def learn(self, marks: Marks, selected: Selected) -> None:
        """Update with marks `[layers, blocks]` and the selection after them, `[layers, width]`."""
        count = np.count_nonzero(marks, axis=1)
        came_true = _found(marks, selected) / np.maximum(count, 1)
        moved = self.share + (came_true - self.share) / 16
        self.share = np.where(count > 0, moved, self.share).astype(np.float32)

    def learn_overlap(self, marks: Marks, selected: Selected) -> None:
        """Update with the share of the selection that was marked."""
        self.share = (self.share + (overlap(marks, selected) - self.share) / 16).astype(np.float32)


def overlap(marks: Marks, selected: Selected) -> npt.NDArray[np.float32]:
    """The share of each layer's selection that is marked, float32 `[layers]`."""
    count = np.count_nonzero(selected != ABSENT, axis=1)
    share: npt.NDArray[np.float32] = _found(marks, selected) / np.maximum(
        count, 1, dtype=np.float32
    )
    return share.astype(np.float32)
