"""The host's selectors with their summaries on a device, and the best blocks of a batch from there.

Summaries of all sessions of a layer lie in one table (`Summaries`); a `DeviceSelector` owns the
rows of its blocks and keeps the contract of `offstage.host.selection.Selector`, so that code that
fills contexts does not depend on where summaries are. `BatchBest` scores every block of a batch and
takes the best of each session in one launch, as a CUDA graph on a CUDA device; only ordinals and a
hint are copied to the host. One thread. Can fail: BadInput for a session of more blocks than one
program can process.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from offstage.host.gpu.bounds import Table, summarise
from offstage.host.gpu.scores import best, score
from offstage.host.gpu.step import captured
from offstage.host.model.geometry import KvGeometry
from offstage.host.selection import MakeSelector, ScoreScale, Selector, selector

__all__ = ["BatchBest", "DeviceSelector", "Found", "on_device", "selectors_of"]

Floats = npt.NDArray[np.float32]
_PLANES = {"quest": 2, "quest8": 2, "mean_key": 1}
_ROWS_MIN = 256


class Summaries:
    """Rows of one layer, of whatever session: `table`, as `offstage.host.gpu.bounds` keeps it.

    It is another array when it has grown."""

    def __init__(self, kind: str, geometry: KvGeometry, layer: int, device: str) -> None:
        import torch

        _, kv_heads, self.block_tokens, head_dim = geometry.block_shape(layer)
        self.q_heads = geometry.q_heads
        # The type of the keys holds their bounds exactly, of FP8 rows the products with a scale;
        # means are no key's value.
        self.key_type = torch.float32 if geometry.scaled else getattr(torch, geometry.value_type)
        own = {"quest8": torch.int8, "mean_key": torch.float32}
        self.table = Table.new(
            _ROWS_MIN, _PLANES[kind], kv_heads, head_dim, own.get(kind, self.key_type), device
        )
        self._free: list[int] = list(range(_ROWS_MIN))

    def take(self, count: int) -> list[int]:
        """Allocate free rows."""
        while len(self._free) < count:
            rows = len(self.table.numbers)
            self.table = self.table.twice()
            self._free.extend(range(rows, 2 * rows))
        taken, self._free = self._free[:count], self._free[count:]
        return taken

    def give(self, rows: Sequence[int]) -> None:
        """Free rows."""
        self._free.extend(rows)


class DeviceSelector:
    """`Selector` over rows of one layer's `Summaries`."""

    def __init__(self, summaries: Summaries) -> None:
        self.summaries = summaries
        self.rows: list[int] = []
        self._tokens: list[int] = []

    def __deepcopy__(self, memo: dict[int, Any]) -> "DeviceSelector":
        other = DeviceSelector(self.summaries)
        other.rows, other._tokens = self.summaries.take(len(self.rows)), list(self._tokens)
        if other.rows:
            # Of the table as it is after `take`, which may have made another.
            table = self.summaries.table
            table.copy(_whole(self.rows, table), _whole(other.rows, table))
        return other

    def __del__(self) -> None:
        self.summaries.give(self.rows)

    def write(self, first_ordinal: int, keys: npt.NDArray[Any]) -> None:
        """See `Selector`."""
        self._open(first_ordinal, len(keys))
        tokens = keys.shape[2]
        span = slice(first_ordinal, first_ordinal + len(keys))
        self._tokens[span] = [tokens] * len(keys)
        self._summarise(self._stored(keys), self.rows[span], 0, tokens)

    def append(self, ordinal: int, keys: npt.NDArray[Any]) -> None:
        """See `Selector`."""
        self._open(ordinal, 1)
        first, count = self._tokens[ordinal], keys.shape[1]
        stored = self._stored(keys[None])
        # The kernel reads tokens where they stand in their block.
        block = stored.new_zeros((1, stored.shape[1], first + count, stored.shape[3]))
        block[:, :, first:] = stored
        self._summarise(block, self.rows[ordinal : ordinal + 1], first, count)
        self._tokens[ordinal] = first + count

    def scores(self, query: Floats) -> Floats:
        """See `Selector`: all scores, on the host."""
        import torch

        table = self.summaries.table
        given = torch.from_numpy(np.ascontiguousarray(query, np.float32))[None]
        found = score(
            given.to(table.numbers.device),
            table,
            _whole(self.rows, table, torch.int32)[None],
            _whole([len(self.rows)], table, torch.int32),
        )
        result: Floats = found[0].cpu().numpy()
        return result

    def _open(self, first: int, count: int) -> None:
        assert 0 <= first <= len(self.rows), "blocks are written in order"
        added = max(0, first + count - len(self.rows))
        self.rows += self.summaries.take(added)
        self._tokens += [0] * added

    def _stored(self, keys: npt.NDArray[Any]) -> Any:
        import torch

        wide = torch.from_numpy(np.array(keys, np.float32))
        return wide.to(self.summaries.table.numbers.device, self.summaries.key_type)

    def _summarise(self, keys: Any, rows: Sequence[int], first: int, count: int) -> None:
        import torch

        table = self.summaries.table
        blocks = torch.arange(len(rows), dtype=torch.int32, device=table.numbers.device)
        begin = torch.full_like(blocks, first)
        summarise(
            keys,
            table,
            blocks,
            _whole(rows, table, torch.int32),
            begin,
            torch.full_like(blocks, count),
        )


def _whole(numbers: Sequence[int], beside: Table, dtype: Any = None) -> Any:
    import torch

    return torch.tensor(numbers, dtype=dtype or torch.int64, device=beside.numbers.device)


def on_device(selectors: Sequence[Selector]) -> TypeGuard[Sequence[DeviceSelector]]:
    """Whether all of a batch are on a device, and so are selected together there."""
    return bool(selectors) and all(isinstance(one, DeviceSelector) for one in selectors)


def selectors_of(kernel: str, device: str) -> MakeSelector:
    """What makes the selectors for a kernel: for `triton` those with their summaries on the device,
    but for what has no summary (`mass`); for any other `offstage.host.selection.selector`."""
    if kernel != "triton":
        return selector
    tables: dict[tuple[str, int], Summaries] = {}

    def make(name: str, geometry: KvGeometry, layer: int = 0) -> Selector:
        if name not in _PLANES:
            return selector(name, geometry, layer)
        if (name, layer) not in tables:
            tables[name, layer] = Summaries(name, geometry, layer, device)
        return DeviceSelector(tables[name, layer])

    return make


@dataclass(frozen=True)
class Found:
    """The selection of one session, ascending, and all scores in the form of a hint."""

    ordinals: npt.NDArray[np.int32]
    hint: npt.NDArray[np.uint16]


class BatchBest:
    """The best blocks of one layer for `batch` sessions of up to `blocks` each."""

    def __init__(
        self,
        summaries: Summaries,
        batch: int,
        blocks: int,
        select_blocks: int,
        sink_blocks: int,
        window_blocks: int,
    ) -> None:
        import torch

        table = summaries.table
        on = {"device": table.numbers.device}
        self._queries = torch.zeros((batch, summaries.q_heads, table.numbers.shape[3]), **on)
        self._rows = torch.zeros((batch, blocks), dtype=torch.int32, **on)
        self._lengths = torch.zeros(batch, dtype=torch.int32, **on)
        self._centres, self._spreads = torch.zeros(batch, **on), torch.ones(batch, **on)
        self._table = table  # as long as a graph knows its address
        self._found: Any = None

        def work() -> None:
            scores = score(self._queries, table, self._rows, self._lengths)
            self._found = best(
                scores,
                self._lengths,
                select_blocks,
                0,
                sink_blocks,
                window_blocks,
                self._centres,
                self._spreads,
            )

        self._run = captured(work, str(table.numbers.device))

    def fits(self, summaries: Summaries, batch: int, blocks: int) -> bool:
        """Whether it is for this table, as it is now, and large enough."""
        rows = self._rows.shape
        return self._table is summaries.table and rows[0] == batch and rows[1] >= blocks

    def find(
        self,
        selectors: Sequence[DeviceSelector],
        queries: Sequence[Floats],
        scales: Sequence[ScoreScale],
    ) -> list[Found]:
        """What each session of a batch selects: one launch, and a wait for its outcome."""
        import torch

        count = len(selectors)
        rows = np.zeros(tuple(self._rows.shape), np.int32)
        for place, one in enumerate(selectors):
            rows[place, : len(one.rows)] = one.rows
        self._rows.copy_(torch.from_numpy(rows))
        self._lengths.zero_()
        self._lengths[:count] = _whole([len(one.rows) for one in selectors], self._table)
        self._queries[:count] = torch.from_numpy(np.stack(queries)).to(self._queries)
        self._centres[:count] = torch.tensor([one.centre for one in scales]).to(self._centres)
        self._spreads[:count] = torch.tensor([one.spread for one in scales]).to(self._spreads)
        self._run()
        ordinals, levels = self._found.ordinals.cpu().numpy(), self._found.levels.cpu().numpy()
        return [
            Found(own[own >= 0], levels[place, : len(one.rows)])
            for place, (own, one) in enumerate(zip(ordinals[:count], selectors, strict=True))
        ]
