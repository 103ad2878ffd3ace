"""Does prefill hold a bounded part of a context at once, whatever its length?"""

import weakref
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from offstage.host.decode import prefill
from offstage.host.decode.prefill import BATCH_BLOCKS, compute_context
from offstage.host.model.drawn_kv import SyntheticKv
from offstage.host.model.models import geometry
from offstage.testbeds.workloads.selections.process import layer_entries


class Counted:
    """A source that tracks each block from when it is made until it is released."""

    def __init__(self) -> None:
        shape = geometry("tiny")
        params = [entry.params for entry in layer_entries(shape.layer_count)]
        self._inner = SyntheticKv(1, shape, params)
        self.geometry = shape
        self.alive = self.most = self.made = 0

    def blocks(self, layer: int, first: int, identities: Sequence[int]) -> NDArray[np.uint8]:
        made = self._inner.blocks(layer, first, identities)
        self.alive += len(made)
        self.made += len(made)
        self.most = max(self.most, self.alive)
        weakref.finalize(made, self._gone, len(made))
        return made

    def _gone(self, count: int) -> None:
        self.alive -= count

    def blocks_at(
        self, layer: int, ordinals: NDArray[np.integer], identities: Sequence[int]
    ) -> NDArray[np.uint8]:
        return self._inner.blocks_at(layer, ordinals, identities)

    def keys_of(self, blocks: NDArray[np.uint8], layer: int) -> NDArray[np.float16]:
        return self._inner.keys_of(blocks, layer)


@pytest.mark.parametrize("chunks", [3 * BATCH_BLOCKS, 12 * BATCH_BLOCKS])
def test_blocks_that_are_held_do_not_grow_with_the_context(chunks: int) -> None:
    """At two lengths, at most two batches of blocks exist at once."""
    source, written = Counted(), 0

    def write(layer: int, first: int, blocks: NDArray[np.uint8]) -> None:
        nonlocal written
        written += len(blocks)

    compute_context(source, range(chunks), "quest", write)
    assert written == source.made == chunks * source.geometry.layer_count
    assert source.most <= 2 * BATCH_BLOCKS and source.alive == 0


def test_a_block_that_spans_chunks_is_written_once_under_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A window and entries of 4 chunks a block: the entries' block is the fourth chunk's; a chunk
    that the store has with both layers is not written again."""
    put: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(
        prefill,
        "put_blocks",
        lambda *given: put.extend((layer, chunks.tolist()) for layer, chunks, _ in given[2]),
    )
    blocks = np.zeros((8, 32), np.uint8)
    for stored, window, entries in ((0, [5, 6, 7], [3, 7]), (1, [7], [7])):
        put.clear()
        has = np.full(8, stored, np.uint32)
        write = prefill.MissingWriter(None, 1, has, kept_from=[5, 0], spans=[1, 4])  # type: ignore[arg-type]
        write(0, 0, blocks)
        write(1, 0, blocks[:2])
        assert put == [(0, window), (1, entries)]
