"""Puts that begin before they have a session: their bytes are copied while the daemon opens it.

Only where the window lies in this machine's memory; over a fabric that sends messages nothing is
begun so.
"""

from collections.abc import Iterator

from offstage.bindings.driver import Driver
from offstage.bindings.fabric import Put, PutRequest
from offstage.host.connectors.moves import Kind, Move, put_pieces, shape_of
from offstage.host.fabrics import Fabric

__all__ = ["copy_ahead", "drop_held", "send_held"]


def copy_ahead(
    fabric: Fabric, moves: list[Move], payload: int, layers: int, calls_max: int
) -> Iterator[bool]:
    """Begin what can be begun of these, a piece (True) each time, in the order in which it is sent
    later; the blocks behind an object's head, of what is not filled by and by."""
    if not isinstance(fabric, Driver):
        return
    for move in moves:
        if move.kind is not Kind.PUT or move.clearing or move.filled >= 0 or move.buffer is None:
            continue
        shape = shape_of(move.size, payload, layers)
        for piece in put_pieces(shape, move.buffer, 1, shape.blocks):
            if calls_max == 0:
                return
            calls_max -= 1
            request = PutRequest(None, piece.layer, piece.ordinals, piece.memory)
            move.held.append(fabric.put_begin(request))
            yield True


def send_held(fabric: Fabric, move: Move, session: int) -> Put:
    """The first of a put's pieces that were begun, sent now."""
    assert isinstance(fabric, Driver)
    put = move.held.pop(0)
    fabric.put_send(put, session)
    return put


def drop_held(fabric: Fabric, moves: list[Move]) -> None:
    """What was begun of these and not sent, since they have no session to put it in."""
    for put in (put for move in moves for put in move.held):
        assert isinstance(fabric, Driver)
        fabric.put_drop(put)
    for move in moves:
        move.held.clear()
