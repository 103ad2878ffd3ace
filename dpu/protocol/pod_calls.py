"""Messages between hosts and the home of a shard, carried by the call `Shards`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from offstage.dpu.protocol.message import Count, Key, Time

__all__ = ["CONTENTS_MAX", "Answer", "Hot", "PerSecond", "ShardReport", "Tally"]

CONTENTS_MAX = 1 << 16
PerSecond = Annotated[float, Meta(ge=0, le=2**53)]
MemberName = Annotated[str, Meta(max_length=64)]


class ShardReport(msgspec.Struct, frozen=True, array_like=True):
    """A host's report about one shard. `hot_per_s`, `copies_max` and `cool_ns`: the pod's copy
    rule as the host knows it; `made` and `gone`: members that got or lost a copy since the last
    report; `contents`: hashes of its chunks, 16 bytes each, if the home asked for them."""

    name: Key
    demands: Count = 0
    pinned: bool = False
    hot_per_s: PerSecond = 0.0
    copies_max: Annotated[int, Meta(ge=0, le=16)] = 0
    cool_ns: Time = 0
    made: MemberName = ""
    gone: MemberName = ""
    contents: Annotated[bytes, Meta(max_length=CONTENTS_MAX)] = b""


class Tally(msgspec.Struct, frozen=True, array_like=True):
    """Events at a member since the hosts' last report. The daemon sums them for its metrics."""

    stale: Time = 0
    """Shards absent at the member, their home, and present at the previous home."""
    rehomed: Time = 0
    """Shards placed at the member because their home did not answer."""
    filled_bytes: Time = 0
    """Bytes copied there from the previous home."""
    copied_bytes: Time = 0
    """Bytes of hot shards copied there."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The home's reply: `copies`, members that have one. `make`: the host must make one; `drop`: it
    must delete that one, which is no longer advertised; `unknown`: it must send the contents."""

    copies: tuple[str, ...] = ()
    make: bool = False
    drop: str = ""
    unknown: bool = False


class Hot(msgspec.Struct, frozen=True, array_like=True):
    """A shard that moves when its home is drained; `contents` may be empty: unknown."""

    name: bytes
    contents: bytes
    demands_per_s: float
    pinned: bool
    copies: tuple[str, ...]
