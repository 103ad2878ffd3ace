"""What the messages of `protocol.py` are made of: types of fields, what a daemon says of itself."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

__all__ = ["Count", "ErrorCode", "FabricName", "Geometry", "Key", "Limits", "Name", "Time"]

Key = Annotated[bytes, Meta(min_length=16, max_length=16)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Count = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
Time = Annotated[int, Meta(ge=0, le=0x7FFFFFFFFFFFFFFF)]
ErrorCode = Literal[
    "bad_message", "version", "unauthenticated", "forbidden", "unknown", "invalid", "limit",
    "draining", "busy", "store_full", "io", "timeout", "internal", "fenced", "foreign", "stale",
]  # fmt: skip
FabricName = Literal["shm", "verbs", "nixl", "zmq"]


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
