"""What the messages of `protocol.py` are made of: types of fields, what a daemon says of itself."""

from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from offstage.bindings.errors import BadInput

__all__ = [
    "Changes",
    "Count",
    "ErrorCode",
    "FabricName",
    "Geometry",
    "Key",
    "Limits",
    "Name",
    "Session",
    "Time",
    "Wait",
    "decode",
]

Key = Annotated[bytes, Meta(min_length=16, max_length=16)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Count = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Session = Annotated[int, Meta(ge=0, le=0xFFFFFFFE)]  # the last number names none
Time = Annotated[int, Meta(ge=0, le=0x7FFFFFFFFFFFFFFF)]
Wait = Annotated[int, Meta(ge=0, le=3_600_000_000_000)]  # OFS_STEP_NS_MAX: an hour
Changes = Annotated[
    dict[Annotated[str, Meta(max_length=256)], Annotated[str, Meta(max_length=4096)]],
    Meta(max_length=64),
]
ErrorCode = Literal[
    "bad_message",
    "version",
    "unauthenticated",
    "forbidden",
    "unknown",
    "invalid",
    "limit",
    "draining",
    "busy",
    "store_full",
    "io",
    "timeout",
    "internal",
    "fenced",
    "foreign",
    "stale",
]
FabricName = Literal["shm", "verbs", "nixl", "zmq"]
SAID_MAX = 300  # characters that a refusal, and so the log, has of what is wrong
T = TypeVar("T")


class Geometry(msgspec.Struct, kw_only=True):
    """What a block is on this daemon, and how many of them the tenant's arena holds."""

    payload_size_bytes: int
    layer_count: int
    block_tokens: int
    slot_count: int
    lba_size_bytes: int
    granule_tokens: int = 0  # of the parts of a block that may be read; 0: whole blocks only


class Limits(msgspec.Struct, kw_only=True):
    """What the daemon refuses to go past."""

    message_size_bytes_max: int
    session_max: int
    session_chunk_max: int
    demand_max: int
    score_max: int
    put_slot_count: int
    host_timeout_ns: int


def decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    """One message. Raises BadInput, and nothing else, for any bytes."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:  # too deep; a bad string
        said = str(error)[:SAID_MAX]  # it repeats names of any length that the sender chose
        raise BadInput(
            f"not a message of this protocol ({said})",
            f"{len(data)} bytes",
            "keep to the bounds that are named, or use the client of the same release",
        ) from None
