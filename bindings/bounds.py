"""Upper bounds on the hits of any policy: the bounds of ofs_bound.h over arrays of numpy.

`Demands` owns the blocks demanded and their times; every bound is a pure function of it. A *row* is
a set of blocks needed together, one layer of one step of one session. What can fail: bad input, as
`BadInput`, and memory. docs/reference/bounds.md has the model, and why each figure is a bound.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.analysis import ffi, lib
from offstage.bindings.errors import BadInput
from offstage.bindings.firmware import check_rc

__all__ = [
    "BURST_BLOCKS",
    "CREDIT_ONE",
    "NONTRIVIAL",
    "WRITTEN",
    "Bound",
    "Cap",
    "Demands",
    "belady",
    "cap_limit",
    "clairvoyant",
    "compulsory",
]

NONTRIVIAL = int(lib.OFS_BOUND_NONTRIVIAL)
"""Mark of a demand that `Bound.nontrivial_hits` counts as well."""
WRITTEN = int(lib.OFS_BOUND_WRITTEN)
"""Mark of every demand of a block that decode writes at its first demand, which needs no read."""
CREDIT_ONE = int(lib.OFS_BOUND_CREDIT_ONE)
"""The credit of one block of prefetch."""
BURST_BLOCKS = 17
"""Blocks that the decision core's bandwidth cap admits in a burst after a silence: it may run 16
ahead of its schedule (OFS_BURST_BLOCKS), and the next one is begun before it is."""


@dataclass(frozen=True, eq=False)
class Demands:
    """What is demanded: row r is `demands[offsets[r]:offsets[r + 1]]`, at most 65,535 blocks.

    demands: uint32 `[n]`, below `block_count`, none twice in one row. offsets: uint64 `[rows + 1]`.
    marks: uint8 `[n]` of `NONTRIVIAL` and `WRITTEN`. order: uint32 `[rows]`, the rows in order of
    time; None: as they stand. Use `check` (every bound does) to have bad input refused.
    """

    demands: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.uint64]
    marks: npt.NDArray[np.uint8]
    block_count: int
    order: npt.NDArray[np.uint32] | None = None

    @classmethod
    def flat(cls, ids: npt.NDArray[Any]) -> "Demands":
        """A trace of single accesses: ids of any integer type `[n]`, each a separate row."""
        names, dense = np.unique(ids, return_inverse=True)
        return cls(
            dense.astype(np.uint32),
            np.arange(len(dense) + 1, dtype=np.uint64),
            np.zeros(len(dense), np.uint8),
            len(names),
        )

    @property
    def row_count(self) -> int:
        """Rows, those without demands included."""
        return len(self.offsets) - 1

    def check(self) -> None:
        """BadInput if the arrays violate the rules above; done once."""
        assert self._struct

    @cached_property
    def _struct(self) -> Any:
        """`struct ofs_bound_demands`, checked, with `next` filled in."""
        arrays = {
            "offsets": ("uint64_t *", self.offsets, np.uint64),
            "demands": ("uint32_t *", self.demands, np.uint32),
            "marks": ("uint8_t *", self.marks, np.uint8),
            "order": ("uint32_t *", self.order, np.uint32),
            "next": ("uint32_t *", np.empty(len(self.demands), np.uint32), np.uint32),
        }
        self._check_sizes()
        struct: Any = ffi.new("struct ofs_bound_demands *")
        struct.row_count, struct.block_count = self.row_count, self.block_count
        held = []
        for name, (kind, array, dtype) in arrays.items():
            if array is not None:
                held.append(np.ascontiguousarray(array, dtype))
                setattr(struct, name, ffi.cast(kind, held[-1].ctypes.data))
        check_rc(
            lib.ofs_bound_next(struct),
            "checking demands",
            "demands",
            "blocks must be below the count and differ within a row, rows hold at most 65,535, "
            "the order names each row once, and a block is written in all rows or in none",
        )
        object.__setattr__(self, "_held", held)  # the struct borrows them
        return struct

    def _check_sizes(self) -> None:
        """What the C side cannot see: that the arrays fit each other."""
        n = len(self.demands)
        fits = len(self.offsets) > 0 and self.offsets[0] == 0 and self.offsets[-1] == n
        fits = fits and len(self.marks) == n and self.row_count < 2**32 - 1
        if not fits or (self.order is not None and len(self.order) != self.row_count):
            raise BadInput(
                f"{n} demands, {len(self.marks)} marks, {len(self.offsets)} offsets do not fit",
                "demands",
                "give offsets from 0 to the number of demands, and one mark per demand",
            )


@dataclass(frozen=True)
class Cap:
    """Bandwidth of prefetch, in units of 1 / CREDIT_ONE of a block.

    credits: uint64 `[rows]`, what each row earns while it is served. lead: earned before the first
    row. burst: what is not spent is kept up to this; as the core's cap by default.
    """

    credits: npt.NDArray[np.uint64]
    lead: int = BURST_BLOCKS * CREDIT_ONE
    burst: int = BURST_BLOCKS * CREDIT_ONE


@dataclass(frozen=True)
class Bound:
    """uint16 `[rows]`, as the rows stand: demands that were there on time. `reads`: blocks read in
    all, of which `prefetched` before the row that needed them."""

    hits: npt.NDArray[np.uint16]
    nontrivial_hits: npt.NDArray[np.uint16]
    reads: int
    prefetched: int


def compulsory(demands: Demands) -> Bound:
    """An endless buffer, read on demand: only first demands miss."""
    return _run(demands, lib.ofs_bound_compulsory)


def belady(demands: Demands, slots: int, bypass: bool = False) -> Bound:
    """The fewest reads that a buffer of `slots` blocks needs (Belady, IBM Systems J. 5(2), 1966).

    All blocks of a row are held while it is served, so BadInput where a row exceeds `slots`. With
    `bypass` a block need not be kept after its row, and rows may have any size.
    """
    _check_slots(demands, slots, bypass)
    return _run(demands, lib.ofs_bound_belady, slots, int(bypass))


def clairvoyant(demands: Demands, slots: int, cap: Cap | None) -> Bound:
    """Belady that also prefetches what is needed soonest, within the cap (None: no limit).

    Attainable: it is what a policy reaches that guesses right each time. BadInput where a row
    exceeds `slots`, or the cap has another number of rows.
    """
    _check_slots(demands, slots, False)
    struct: Any = ffi.new("struct ofs_bound_cap *")
    if cap is None:
        return _run(demands, lib.ofs_bound_clairvoyant, slots, struct)
    credits = _credits(demands, cap)
    struct.credits = ffi.cast("uint64_t *", credits.ctypes.data)
    struct.lead, struct.burst = cap.lead, cap.burst
    return _run(demands, lib.ofs_bound_clairvoyant, slots, struct)


def cap_limit(demands: Demands, alone: Bound, cap: Cap) -> int:
    """Hits in all that no policy can exceed in this order of rows, with `cap` and the buffer of
    which `alone` is Belady's bound (without bypass).

    A schedule with prefetch, each fetch put off until its row, is one that reads on demand; so up
    to every row its misses and what it prefetched are together at least Belady's misses. What it
    prefetched is at most what the cap earned, so its misses are at least the largest difference.
    """
    order = slice(None) if demands.order is None else demands.order
    counts = np.diff(demands.offsets).astype(np.int64)
    misses = np.cumsum((counts - alone.hits)[order])
    # What a row earns can be spent behind it. Credit as float would round where it is large.
    earned = np.cumsum(_credits(demands, cap)[order]) + np.uint64(cap.lead)
    before = np.concatenate([[np.uint64(cap.lead)], earned[:-1]]) // np.uint64(CREDIT_ONE)
    fewest = int((misses - before.astype(np.int64)).max(initial=0))
    return int(counts.sum()) - max(fewest, 0)


def _run(demands: Demands, function: Any, *arguments: Any) -> Bound:
    hits = np.zeros((2, demands.row_count), np.uint16)
    struct = demands._struct
    result: Any = ffi.new("struct ofs_bound_result *")
    result.hits = ffi.cast("uint16_t *", hits[0].ctypes.data)
    result.nontrivial_hits = ffi.cast("uint16_t *", hits[1].ctypes.data)
    check_rc(function(struct, *arguments, result), "computing a bound", "demands")
    return Bound(hits[0], hits[1], int(result.reads), int(result.prefetched))


def _check_slots(demands: Demands, slots: int, bypass: bool) -> None:
    widest = int(np.diff(demands.offsets).max(initial=0))
    if not 0 < slots < 2**32 or (slots < widest and not bypass):
        raise BadInput(
            f"a buffer of {slots} blocks, and {widest} are demanded together",
            "bounds",
            "give the buffer at least the blocks of one row",
        )


def _credits(demands: Demands, cap: Cap) -> npt.NDArray[np.uint64]:
    credits = np.ascontiguousarray(cap.credits, np.uint64)
    largest = max(int(credits.max(initial=0)) * max(len(credits), 1), cap.lead, cap.burst)
    if len(credits) != demands.row_count or min(cap.lead, cap.burst) < 0 or largest >= 2**62:
        raise BadInput(
            f"{len(credits)} credits for {demands.row_count} rows, {largest} at most in all",
            "bandwidth cap",
            "give each row its credit, below 2^62 in all; None is no limit",
        )
    return credits
