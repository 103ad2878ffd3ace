"""A decode step as CUDA graphs, with Offstage's hooks between them.

The device's work between two hooks is one graph: the end of a layer, and the next layer up to its
selection. A hook runs on the host once a layer's selection is known: it demands the blocks that the
HBM pool lacks, sends the hint, and lets attention continue. If the pool has all blocks, which the
device detects, the hook only waits and reads one number.

On the CPU each replay of a graph runs the work itself, so that a step's work and order can be
tested without a GPU.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.host.gpu import compiled, constexpr
from offstage.host.gpu.scores import best, score
from offstage.host.selection import SelectionRule

__all__ = ["Layer", "Selected", "Step", "captured"]

tl: Any = None
Work = Callable[[], None]
Hook = Callable[[int], None]


def captured(work: Work, device: str) -> Work:
    """Work that is launched as a whole by one call. It is done two times here, to compile and to
    allocate what it needs; its results must not depend on how often it was done."""
    import torch

    if torch.device(device).type != "cuda":
        work()
        return work
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        work()
        work()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    replay: Work = graph.replay
    return replay


@dataclass(frozen=True)
class Layer:
    """One layer's work on the device: `before` ends with its selection, `after` begins with the
    attention over it."""

    before: Work
    after: Work


class Step:
    """The graphs of a step, and the hooks between: `hook(layer)` after the layer's selection."""

    def __init__(self, layers: Sequence[Layer], device: str) -> None:
        parts: list[list[Work]] = [[layers[0].before]]
        for layer, following in itertools.pairwise(layers):
            parts.append([layer.after, following.before])
        parts.append([layers[-1].after])
        self._graphs = [captured(_in_turn(part), device) for part in parts]

    def run(self, hook: Hook) -> None:
        """One step. The device is not waited for, but by hooks."""
        self._graphs[0]()
        for layer, graph in enumerate(self._graphs[1:]):
            hook(layer)
            graph()


def _in_turn(works: Sequence[Work]) -> Work:
    def work() -> None:
        for one in works:
            one()

    return work


class Selected:
    """What one layer of a batch reads: found on the device, and told to the host.

    `slots` int32 `[batch, blocks]` says where in the pool each block is, -1 where it is not; the
    host writes it. `tables`, `counts` and `lengths` are what `attend` takes. All of them stay where
    they are, as graphs demand. A block without a slot has no tokens in them until `place`."""

    def __init__(
        self,
        batch: int,
        blocks: int,
        block_tokens: int,
        rule: SelectionRule,
        runners_up: int,
        device: str,
    ) -> None:
        import torch

        def new(*shape: int, fill: int = 0, dtype: Any = torch.int32) -> Any:
            return torch.full(shape, fill, dtype=dtype, device=device)

        self._rule, self._runners_up, self._block_tokens = rule, runners_up, block_tokens
        self.slots = new(batch, blocks, fill=-1)
        self.tokens = new(batch)
        """Tokens of each session; the host writes it."""
        self.tables, self.counts = new(batch, rule.select_blocks), new(batch, rule.select_blocks)
        self.lengths, self._missing = new(batch), new(batch)
        self._block_counts = new(batch)
        self._centres = new(batch, dtype=torch.float32)
        self._spreads = new(batch, fill=1, dtype=torch.float32)
        self._ordinals = new(batch, rule.select_blocks + runners_up)
        pinned = {"pin_memory": torch.device(device).type == "cuda"}
        self._told = torch.zeros(batch, dtype=torch.int32, **pinned)
        self._levels = torch.zeros((batch, blocks), dtype=torch.uint16, **pinned)

    def find(self, queries: Any, table: Any, rows: Any) -> None:
        """Score all blocks, take the best, look up where they are, and send the host what it needs
        to know; see `score` for the arguments."""
        import torch
        import triton

        batch, width = self.tables.shape
        block_tokens = self._block_tokens
        torch.div(
            self.tokens + (block_tokens - 1),
            block_tokens,
            rounding_mode="floor",
            out=self._block_counts,
        )
        scores = score(queries, table, rows, self._block_counts)
        rule = self._rule
        found = best(
            scores,
            self._block_counts,
            width,
            self._runners_up,
            rule.sink_blocks,
            rule.window_blocks,
            self._centres,
            self._spreads,
        )
        compiled(_resolve)[(batch,)](
            found.ordinals,
            self.slots,
            self.tokens,
            self.tables,
            self.counts,
            self.lengths,
            self._missing,
            self.slots.shape[1],
            width,
            width + self._runners_up,
            block_tokens,
            WIDE=triton.next_power_of_2(width),
            num_warps=4,
        )
        self._ordinals.copy_(found.ordinals)
        self._told.copy_(self._missing, non_blocking=True)
        self._levels.copy_(found.levels, non_blocking=True)

    def missing(self) -> list[tuple[int, npt.NDArray[np.int32]]]:
        """Sessions that lack blocks, and the ordinals of these: waits until the host was told."""
        import torch

        if self.tables.device.type == "cuda":
            event = torch.cuda.Event()
            event.record()
            event.synchronize()
        lacking = np.flatnonzero(self._told.numpy())
        if not lacking.size:
            return []
        ordinals = self._ordinals[:, : self.tables.shape[1]].cpu().numpy()
        slots = self.slots.cpu().numpy()
        found = []
        for session in lacking.tolist():
            own = ordinals[session][ordinals[session] >= 0]
            found.append((session, own[slots[session, own] < 0]))
        return found

    def place(self, session: int, ordinals: npt.NDArray[np.int32], slots: Any) -> None:
        """Blocks that came in: their slots in the pool, for this step and those that follow."""
        import torch

        where = torch.from_numpy(ordinals.astype(np.int64)).to(self.slots.device)
        self.slots[session, where] = torch.as_tensor(
            slots, dtype=torch.int32, device=self.slots.device
        )
        ordinal = self._ordinals[session, : self.tables.shape[1]]
        slot = torch.where(ordinal < 0, -1, self.slots[session, ordinal.long().clamp(min=0)])
        left = (self.tokens[session] - ordinal * self._block_tokens).clamp(max=self._block_tokens)
        self.tables[session] = slot
        self.counts[session] = torch.where(slot < 0, 0, left)

    @property
    def hint(self) -> npt.NDArray[np.uint16]:
        """All scores as the hint carries them, `[batch, blocks]`; valid after `missing`."""
        levels: npt.NDArray[np.uint16] = self._levels.numpy()
        return levels


def _resolve(
    ordinals,
    slots,
    tokens,
    tables,
    counts,
    lengths,
    missing,
    blocks,
    width,
    pitch,
    block_tokens,
    WIDE: constexpr,
) -> None:
    """One session: the slot and the tokens of each selected block, and how many have no slot."""
    session = tl.program_id(0)
    entry = tl.arange(0, WIDE)
    there = entry < width
    ordinal = tl.load(ordinals + session * pitch + entry, there, other=-1)
    real = ordinal >= 0
    slot = tl.load(slots + session * blocks + ordinal, real, other=0)
    left = tl.load(tokens + session) - ordinal * block_tokens
    count = tl.where(real & (slot >= 0), tl.minimum(left, block_tokens), 0)
    tl.store(tables + session * width + entry, slot, there)
    tl.store(counts + session * width + entry, count, there)
    tl.store(lengths + session, tl.sum(real.to(tl.int32), axis=0))
    tl.store(missing + session, tl.sum((real & (slot < 0)).to(tl.int32), axis=0))
