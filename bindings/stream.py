"""A drive that KV and a stream of weights read, for Python: one side of the timing seam.

Meanings are those of `ofs_stream.h`; the side runs in C. `open_stream` opens it for an `Engine`,
and the caller lets the stream end when the sessions have.

What can fail: `BadInput` for numbers out of range, or a cap below the floor.
"""

from dataclasses import asdict, dataclass
from typing import Any

from offstage.bindings.analysis import ffi, lib
from offstage.bindings.firmware import check_rc
from offstage.bindings.timing import Timing

__all__ = ["STREAM_STATS", "Stream", "StreamConfig", "open_stream"]

STREAM_STATS = tuple(name for name, _ in ffi.typeof("struct ofs_stream_stats").fields)
"""What is counted of a stream, in bytes and ps."""


@dataclass(frozen=True)
class StreamConfig:
    """The drive, as in `bindings.storage.preset`, and the stream: its bytes, 0 for none; when it
    begins, in ps; floor and cap in bytes a second, 0 for none; what it may have at the drive.
    `kv_weight`: KV's turns for each of its own. `in_flight_max`: reads of KV that are owed."""

    drive: dict[str, int]
    bytes: int
    piece_bytes: int
    in_flight_bytes: int
    in_flight_max: int
    begin_ps: int = 0
    floor_bytes_per_s: int = 0
    cap_bytes_per_s: int = 0
    kv_weight: int = 1
    hit_ps: int = 0
    command_ps: int = 0
    seed: int = 0


class Stream:
    """The side; `timing` is what an engine takes, and lives as long as this."""

    def __init__(self, owner: Any) -> None:
        self._handle = owner
        self.timing = Timing(int(ffi.cast("uintptr_t", owner)), owner)

    def finish(self) -> None:
        """Nothing more is asked of the drive: the stream reads on until it is whole."""
        lib.ofs_stream_finish(self._handle)

    def stats(self) -> dict[str, int]:
        """`STREAM_STATS`."""
        struct: Any = ffi.new("struct ofs_stream_stats *")
        lib.ofs_stream_stats(self._handle, struct)
        return {name: int(getattr(struct, name)) for name in STREAM_STATS}


def open_stream(config: StreamConfig) -> Stream:
    """The side over one drive."""
    struct: Any = ffi.new("struct ofs_stream_config *", asdict(config))
    out: Any = ffi.new("struct ofs_timing **")
    check_rc(
        lib.ofs_stream_open(out, struct),
        "opening a stream of weights",
        "stream",
        "pieces up to 16 MiB, room for one at the drive, and a cap of at least the floor",
    )
    return Stream(ffi.gc(out[0], lib.ofs_stream_close))
