"""The worker's side of vLLM's connector: bytes between vLLM's paged memory and the tier, by layers.

An object has all layers of a block, one after the other. Loads start before a step, and each layer
waits only for its own part: while a layer is computed, later ones land. The blocks that a step
fills are copied out layer by layer as each is computed, and sent during the next one. The object is
stored with the last layer, unless a block that it may depend on failed to load. With several
workers each stores its part of every block under a separate key, or its parts, where blocks are
stored by groups of heads. A failed load of one worker invalidates what all of them compute, so they
agree on failures before anything is stored.

All of it runs on the worker's thread, except `landed` and `ended`, which the object client calls.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from offstage.bindings.errors import BadInput
from offstage.host.connectors.objects import Completion, ObjectClient, Stream
from offstage.host.connectors.vllm.keys import shards
from offstage.host.connectors.vllm.loads import LOAD_BYTES, Apart, Load, parts_of
from offstage.host.connectors.vllm.steps import Landed, Report, Step, There

__all__ = ["Copies"]

SAVE_BYTES = 512 << 20  # limit in flight to the tier; blocks beyond it are not saved


@dataclass
class _Save:
    """Blocks of one request being saved; `parents`: all of its blocks up to them."""

    keys: list[bytes]
    blocks: list[int]
    parents: list[int]
    memory: Any
    stream: Stream | None


class Copies:
    """The worker's side: `client` is None where there is no daemon."""

    def __init__(
        self,
        client: ObjectClient | None,
        size: int,
        *,
        by_layer: bool = True,
        rank: int = 0,
        parts: int = 1,
        each: int = 1,
        agree: "Callable[[set[int]], set[int]] | None" = None,
    ) -> None:
        """`size`: bytes of one object: all layers of one of the `parts` of a block, of which this
        worker, which is number `rank`, has `each`. Not `by_layer`: all before and after a step.
        `agree`: all workers call it with blocks, and it gives what any of them did."""
        self._client, self._size, self._by_layer = client, size, by_layer
        self._rank, self._parts, self._each, self._agree = rank, parts, each, agree
        self.counts: Counter[str] = Counter()
        self._layers: list[Any] = []
        self._cuts: list[int] = []
        self._failed: set[int] = set()  # in this step
        self._apart: Apart | None = None
        self._apart_failed: set[int] = set()  # since the last report; nothing follows from them
        self._over: set[str] = set()  # requests whose loads apart have ended
        self.unloaded: set[str] = set()  # and those of which a block did not load
        self._landed: list[Landed] = []
        self._bad: set[int] = set()  # until the scheduler has taken note
        self._saving: set[bytes] = set()
        self._stored: deque[bytes] = deque()
        self._load: Load | None = None
        self._saves: list[_Save] = []
        self._step: Step | None = None  # whose saves have begun
        self._loaded = self._saved = 0  # layers of this step
        self._waited_s = self._took_s = self._began_s = 0.0
        self._loaded_bytes = 0
        self._over_loads: list[Load] = []  # of this step

    def register(self, layers: list[Any], block_count: int) -> None:
        """vLLM's memory: a tensor of each layer whose first dimension is blocks, or equal parts of
        them, and the second one heads where this worker has several parts of a block. BadInput:
        they do not make an object of the size that the scheduler knows."""
        self._layers = [layer.unflatten(0, (block_count, -1)) for layer in layers]
        if self._each > 1:
            split = [layer.unflatten(2, (self._each, -1)) for layer in self._layers]
            self._layers = [layer.movedim(2, 1) for layer in split]
        sizes = [layer[0].numel() * layer.element_size() // self._each for layer in self._layers]
        self._cuts = [int(end) for end in np.cumsum(sizes)]
        if self._cuts[-1] != self._size:
            found = f"an object has {self._cuts[-1]} bytes here and {self._size} by its description"
            raise BadInput(found, "OffstageConnector", "leave this connector out")
        if self._client is not None:
            self._apart = Apart(self._client, self._size)

    def begin(self) -> None:
        """A step begins and is timed from here. Its loads start before the model runs; if there are
        none, vLLM calls `load` later."""
        self._began_s = time.monotonic()

    # ---- loads ----

    def load(self, step: Step) -> None:
        """Start this step's loads and the asynchronous ones. Waits for the step's loads if not by
        layer, or if there are many."""
        self._bad -= step.noted
        for request, loads, patience_s in step.apart:
            blocks = [block for _, block in loads]
            if self._apart is None or not step.holds():
                self._end_apart(set(blocks), Landed(request, 0, 0.0, 0.0))
            else:
                keys = self._names([key for key, _ in loads])
                self._apart.add(request, keys, self._rows(blocks), patience_s)
        since_s = time.monotonic()
        if step.loads:
            self._load_step(step)
            self._waited_s += time.monotonic() - since_s

    def _load_step(self, step: Step) -> None:
        if self._client is None or not step.holds():
            self._lose({block for _, block in step.loads})
            return
        until_s = time.monotonic() + step.patience_s
        count = max(1, LOAD_BYTES // (self._size * self._each))
        for at in range(0, len(step.loads), count):
            self._end_load()
            loads = step.loads[at : at + count]
            keys = self._names([key for key, _ in loads])
            rows = self._rows([block for _, block in loads])
            self._load = Load(self._client, keys, rows, parts_of(self._cuts), until_s)
            self._loaded = 0
        self._loaded_bytes += len(step.loads) * self._size * self._each
        if not self._by_layer:
            self._end_load()

    def landed(self) -> set[str]:
        """After a step: requests whose asynchronous loads have ended and are in vLLM's memory."""
        for load, landed in self._apart.ended() if self._apart else []:
            for layer in range(len(self._layers)):
                self._copy_in(load, layer)
            self._end_apart(load.lost(), landed)
            if load.late:
                self.counts["load_late_blocks"] += len(set(load.blocks))
        over, self._over = self._over, set()
        return over

    def _end_apart(self, lost: set[int], landed: Landed) -> None:
        self._apart_failed |= lost
        self.counts["load_failed_blocks"] += len(lost)
        self._landed.append(landed)
        if lost:
            self.unloaded.add(landed.request)
        if landed.took_s >= 0:
            self._over.add(landed.request)

    def wait_for(self, layer: int) -> None:
        """Wait until this and all earlier layers of the loads are in vLLM's memory."""
        if self._load is not None:
            since_s = time.monotonic()
            while self._loaded <= layer:
                self._copy_in(self._load, self._loaded)
                self._loaded += 1
            if self._loaded == len(self._layers):
                self._end_load()
            self._waited_s += time.monotonic() - since_s

    def _copy_in(self, load: Load, layer: int) -> None:
        import torch

        rows = load.rows(self._cuts[layer])
        if rows:
            memory = load.memory if len(rows) == len(load.blocks) else load.memory[rows]
            target = self._layers[layer]
            part = self._part(torch.from_numpy(memory), layer)
            target[self._places(load.blocks, rows, target)] = part.to(target.device)

    def _end_load(self, *, unseen: bool = False) -> None:
        """Complete a load. `unseen`: the model did not wait for it, so all of it counts as lost."""
        load, self._load = self._load, None
        if load is None:
            return
        for layer in range(self._loaded, len(self._layers)):
            self._copy_in(load, layer)
        lost = load.lost()
        self._lose(set(load.blocks) if unseen else lost)
        self._over_loads.append(load)
        if load.late:
            self.counts["load_late_blocks"] += len(set(load.blocks))
        self._loaded = len(self._layers)

    def _lose(self, blocks: set[int]) -> None:
        self._failed |= blocks
        self._bad |= blocks
        self.counts["load_failed_blocks"] += len(blocks)

    # ---- saves ----

    def save_layer(self, step: Step, layer: int) -> None:
        """This layer of the step is computed: copy out what the step saves of it, and send it."""
        if not self._by_layer:
            return
        self._begin_saves(step)
        if layer == self._saved:
            self._copy_out()

    def end(self, step: Step) -> None:
        """The step is over: store its saves while vLLM continues."""
        since_s = time.monotonic()
        self._end_load(unseen=self._by_layer)
        self._waited_s += time.monotonic() - since_s
        if self._agree is not None and step.loads:
            self._bad |= self._agree(self._failed)
        self._begin_saves(step)
        while self._saves and self._saved < len(self._layers):
            self._copy_out()
        holds = step.holds()
        for save in self._saves:
            self._finish(save, holds)
        self._saves, self._step, self._saved = [], None, 0
        self._took_s = time.monotonic() - self._began_s if self._began_s else 0.0
        self._began_s = 0.0

    def _begin_saves(self, step: Step) -> None:
        if self._step is step:
            return
        self._step, self._saved = step, 0
        streams = self._client.streams_max if self._client is not None and self._by_layer else 0
        for keys, blocks in step.saves if self._client is not None else []:
            pairs = zip(keys, blocks[-len(keys) :], strict=True)
            todo = [(key, block) for key, block in pairs if key not in self._saving]
            if (len(todo) + len(self._saving)) * self._size * self._each > SAVE_BYTES:
                self.counts["put_skipped"] += len(todo)
                continue
            begun = min(streams // self._each, len(todo))
            self._begin_save(todo[:begun], blocks, streamed=True)
            self._begin_save(todo[begun:], blocks, streamed=False)
            streams -= begun * self._each

    def _begin_save(
        self, todo: list[tuple[bytes, int]], parents: list[int], *, streamed: bool
    ) -> None:
        import torch

        if not todo or self._client is None:
            return
        memory = torch.empty((len(todo) * self._each, self._size), dtype=torch.uint8)
        save = _Save([key for key, _ in todo], [block for _, block in todo], parents, memory, None)
        self._saving.update(save.keys)
        if streamed:
            save.stream = self._client.stream(
                self._names(save.keys), memory.numpy(), tell=self._ended(save.keys)
            )
        self._saves.append(save)

    def _copy_out(self) -> None:
        """The next layer."""
        layer, source = self._saved, self._layers[self._saved]
        for save in self._saves:
            rows = self._rows(save.blocks)
            places = self._places(rows, range(len(rows)), source)
            self._part(save.memory, layer).copy_(source[places])
            if save.stream is not None:
                save.stream.fill(self._cuts[layer])
        self._saved += 1

    def _finish(self, save: _Save, holds: bool) -> None:
        """Store what was copied out, unless it may depend on blocks that failed to load, or on an
        adapter that its keys do not name."""
        assert self._client is not None
        if not holds or not self._bad.isdisjoint(save.parents):
            self.counts["put_skipped"] += len(save.keys)
            if save.stream is not None:
                save.stream.drop()
            else:
                self._saving.difference_update(save.keys)
        elif save.stream is not None:
            save.stream.commit()
        else:
            self._client.put(
                self._names(save.keys), save.memory.numpy(), tell=self._ended(save.keys)
            )

    def _names(self, keys: Sequence[bytes]) -> list[bytes]:
        """Of this worker's parts of these blocks, block by block."""
        names, first = shards(keys, self._parts), self._rank * self._each
        if self._parts == self._each:
            return names
        blocks = range(first, len(names), self._parts)
        return [name for at in blocks for name in names[at : at + self._each]]

    def _rows(self, blocks: Sequence[int]) -> list[int]:
        """The block of each of these blocks' objects."""
        if self._each == 1:
            return list(blocks)
        return [block for block in blocks for _ in range(self._each)]

    def _places(self, blocks: Sequence[int], rows: Sequence[int], memory: Any) -> tuple[Any, ...]:
        """Where objects `rows`, of which each is of one of `blocks`, lie in a layer's memory."""
        import torch

        places = [torch.tensor([blocks[row] for row in rows])]
        if self._each > 1:
            places.append(torch.tensor([row % self._each for row in rows]))
        return tuple(one.to(memory.device) for one in places)

    def _ended(self, keys: list[bytes]) -> Any:
        def ended(completion: Completion) -> None:
            self._saving.difference_update(keys)
            self._stored.extend(
                keys[row // self._each] for row, done in enumerate(completion.done) if done
            )

        return ended

    def _part(self, memory: Any, layer: int) -> Any:
        """What objects `[count, size]` have of a layer, as that layer's tensor has it."""
        first = self._cuts[layer - 1] if layer else 0
        target = self._layers[layer]
        part = memory[:, first : self._cuts[layer]].view(target.dtype)
        return part.view(len(memory), *target.shape[1 if self._each == 1 else 2 :])

    # ---- outcomes ----

    def failed(self) -> set[int]:
        """Blocks that failed to load, each returned once."""
        failed = self._failed | self._apart_failed
        self._failed, self._apart_failed = set(), set()
        return failed

    def report(self, step: Step) -> Report:
        """Report of the completed step."""
        stored = [self._stored.popleft() for _ in range(len(self._stored))]
        report = Report(
            step.number,
            step.tokens,
            self._loaded_bytes,
            self._waited_s,
            self._took_s,
            stored,
            self._landed,
            There.of(load.there() for load in self._over_loads),
        )
        self.counts["load_wait_seconds"] += self._waited_s  # type: ignore[assignment]
        self._loaded_bytes, self._waited_s = 0, 0.0
        self._landed, self._over_loads = [], []
        return report
