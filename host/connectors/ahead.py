"""Puts that begin before they have a session: their bytes are copied while the daemon opens it.

Only if the window is in this machine's memory, not over a fabric that sends messages.
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
    """Begin what is possible of these puts, yielding True after each piece, in the order of
    sending: the blocks after an object's head, unless the put is filled incrementally."""
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
            request = PutRequest(None, piece.run.layer, piece.run.ordinals, piece.memory)
            move.held.append(fabric.put_begin(request))
            yield True


def send_held(fabric: Fabric, move: Move, session: int) -> Put:
    """Send the first of a put's begun pieces."""
    assert isinstance(fabric, Driver)
    put = move.held.pop(0)
    fabric.put_send(put, session)
    return put


def drop_held(fabric: Fabric, moves: list[Move]) -> None:
    """Drop the begun pieces of moves that got no session."""
    for put in (put for move in moves for put in move.held):
        assert isinstance(fabric, Driver)
        fabric.put_drop(put)
    for move in moves:
        move.held.clear()
