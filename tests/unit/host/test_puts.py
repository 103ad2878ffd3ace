"""Are as many blocks written concurrently as the fabric accepts, and is every failure reported?"""

import errno
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from offstage.bindings.errors import RunFailed, StoreFull
from offstage.bindings.fabric import Put, PutRequest
from offstage.host.decode import tail_block
from offstage.host.decode.prefill import LayerBlocks, put_blocks
from offstage.host.decode.record import AgentRecord
from offstage.host.decode.timeline import Clock
from offstage.host.model.models import geometry


class Puts:
    """A fabric that takes `calls_max` puts; puts of the layers in `refused` end with that error."""

    def __init__(self, calls_max: int, refused: dict[int, int] | None = None) -> None:
        self.calls_max, self.refused = calls_max, refused or {}
        self.calls: list[tuple[str, int]] = []
        self.flying: list[Put] = []
        self.written: dict[int, bytes] = {}

    def put_begin(self, request: PutRequest) -> Put:
        assert len(self.flying) < self.calls_max, "more calls than the fabric has room for"
        put, layer = Put(request), request.layer
        self.flying.append(put)
        self.calls.append(("begin", layer))
        return put

    def put_end(self, put: Put) -> Any:
        self.flying.remove(put)
        layer = put.request.layer
        self.calls.append(("end", layer))
        put.rcs[-1:] = -self.refused.get(layer, 0)
        self.written[layer] = put.request.source.tobytes()
        return put.rcs


def layers(count: int) -> list[LayerBlocks]:
    where = np.arange(2, dtype=np.uint32)
    return [(layer, where, np.full((2, 8), layer, np.uint8)) for layer in range(count)]


def write(fabric: Any, count: int) -> None:
    put_blocks(fabric, 1, layers(count))


def test_puts_are_in_flight_together_up_to_what_the_fabric_takes() -> None:
    """All five are, if there is room; with room for two, the oldest ends before the third
    begins."""
    roomy, narrow = Puts(8), Puts(2)
    write(roomy, 5)
    write(narrow, 3)
    assert roomy.calls == [(what, layer) for what in ("begin", "end") for layer in range(5)]
    assert narrow.calls[:4] == [("begin", 0), ("begin", 1), ("end", 0), ("begin", 2)]
    assert len(narrow.calls) == 6 and not narrow.flying


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
        (errno.EIO, RunFailed),
    ],
)
def test_a_refused_block_is_an_error_and_nothing_stays_in_flight(
    code: int, error: type[Exception]
) -> None:
    """The error names the first layer that failed, and by then all puts have ended."""
    fabric = Puts(2, {1: code, 3: errno.EIO})
    with pytest.raises(error, match="1 of 2 blocks") as raised:
        write(fabric, 4)
    assert "layer 1" in str(raised.value)
    assert not fabric.flying and ("end", 3) in fabric.calls


def test_a_full_tail_block_is_written_in_all_layers_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each layer's own bytes are written and counted; all puts begin before the first wait."""
    shape = geometry("tiny")
    count, size = shape.layer_count, shape.block_bytes(0)
    fabric: Any = Puts(64)
    pool = SimpleNamespace(
        geometry=shape,
        memory=SimpleNamespace(read=lambda rows: np.full((1, size), rows[0], np.uint8)),
        pin=lambda *_: None,
    )
    decoder: Any = SimpleNamespace(driver=fabric, pool=pool, clock=Clock())
    keys = np.zeros((count, 1, 2), np.uint64)
    monkeypatch.setattr(tail_block, "append_chunks", lambda *_: SimpleNamespace(keys=keys))
    monkeypatch.setattr(tail_block, "checksums", lambda block: np.uint64(block[0, 0]))
    control: Any = None
    tail = tail_block.TailBlock(control, decoder, lambda ordinal: ordinal)
    tail._indices = list(range(3, 3 + count))
    context = SimpleNamespace(identities=[], checksums=np.zeros((count, 0), np.uint64))
    session: Any = SimpleNamespace(
        length_tokens=shape.block_tokens, handle=1, number=0, keys=keys[:, :0], context=context
    )
    record = AgentRecord()
    assert tail.end_token(session, record) > 0
    assert [what for what, _ in fabric.calls] == ["begin"] * count + ["end"] * count
    assert all(fabric.written[layer] == bytes([3 + layer]) * size for layer in range(count))
    assert record.bytes_put == count * size
    assert context.checksums[:, 0].tolist() == list(range(3, 3 + count))
