"""The messages of the ZMQ fabric, on a separate socket: `Attached.endpoint`.

Like the control calls of `protocol`, plus a frame for the bytes of blocks. Integers in packed byte
fields are little-endian; a key is 16 bytes, `lo` then `hi`.
"""

import msgspec

from offstage.dpu.protocol import Error, Ok
from offstage.dpu.protocol.message import Count, Message, Session, Wait, decode

FABRIC_REQUESTS_MAX = 16  # pending, of one host; more are answered `busy`


class FabricFetch(Message, kw_only=True, omit_defaults=True):
    """Frames `[ticket][FabricFetch]`; the demands of one layer of one step.

    `ordinals` u32[n], `keys` 16 bytes each [n] (block keys), `scores` u16[] (empty: no hint), or
    `packed` (scores.h): flags, count and how many best of them, as in a command. The reply is
    `[FabricFetchReply][payload]`: n rows of `payload_size_bytes`, in demand order; the row of a
    block that failed is zeros.
    """

    session: Session
    step: Count
    layer: Count
    selected_count: Count
    ordinals: bytes
    keys: bytes
    scores: bytes = b""
    packed: tuple[Count, Count, Count] | None = None
    timeout_ns: Wait


class FabricPut(Message, kw_only=True):
    """Frames `[ticket][FabricPut][payload]`: n rows of `length_bytes` of one layer.

    `ordinals` u32[n]; `checksums` u64[n], XXH3-64 of each row: a row damaged in transit
    is answered -EBADMSG and not stored. At most `Limits.put_slot_count` rows fit in a message.
    """

    session: Session
    layer: Count
    length_bytes: Count
    ordinals: bytes
    checksums: bytes
    timeout_ns: Wait


class FabricHint(Message, kw_only=True):
    """Guesses for layers to come: `struct ofs_guess` [n], of 16 bytes each."""

    session: Session
    guesses: bytes


class FabricRelease(Message, kw_only=True):
    """Ends the session's pins now instead of at its next step."""

    session: Session


class FabricValues(Message, kw_only=True):
    """A command on values: `asks` is `struct ofs_value_ask` [n], of 48 bytes each; `verb` says what
    to do with each (region.h). At most `Attached.demand_max` of them."""

    verb: Count
    asks: bytes
    timeout_ns: Wait


class FabricFetchReply(Message, kw_only=True):
    """Per demand: `ends` u8[n] (255 unknown), `rcs` i32[n], `lengths` u32[n], `checksums` u64[n].

    The checksum is the one that the driver in the daemon verified; the host checks its row against
    it. `stall_ns` and `copy_ns` were measured in the daemon, without the network.
    """

    ends: bytes
    rcs: bytes
    lengths: bytes
    checksums: bytes
    hit_count: int
    failed_count: int
    retry_count: int
    torn_count: int
    stall_ns: int
    copy_ns: int


class FabricPutReply(Message, kw_only=True):
    """`rcs` i32[n]: 0 or -errno of each block."""

    rcs: bytes


class FabricValuesReply(Message, kw_only=True):
    """`told` is `struct ofs_value_told` [n]: what became of each."""

    told: bytes


FabricRequest = FabricFetch | FabricPut | FabricHint | FabricRelease | FabricValues
FabricReply = FabricFetchReply | FabricPutReply | FabricValuesReply | Ok | Error

_request: msgspec.msgpack.Decoder[FabricRequest] = msgspec.msgpack.Decoder(FabricRequest)
_reply: msgspec.msgpack.Decoder[FabricReply] = msgspec.msgpack.Decoder(FabricReply)


def decode_fabric_request(data: bytes) -> FabricRequest:
    """A request of the ZMQ fabric. Raises BadInput, and nothing else, for any bytes."""
    return decode(_request, data)


def decode_fabric_reply(data: bytes) -> FabricReply:
    """A reply of the ZMQ fabric. Raises BadInput, and nothing else, for any bytes."""
    return decode(_reply, data)
