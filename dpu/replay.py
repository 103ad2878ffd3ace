"""Replay of a decision log: the same events into a fresh core must give the same decisions."""

import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.bindings.firmware import check_rc, ffi, lib

__all__ = ["Replay", "replay_log"]

UINT64_MAX = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True)
class Replay:
    """`agreed` decisions came out the same; `diverged_at` is the byte of the first that did not."""

    agreed: int
    diverged_at: int | None


def replay_log(path: Path) -> Replay:
    """Replay a log file. Raises Corrupt for a torn or foreign one, BadInput where none is read."""
    diverged: Any = ffi.new("uint64_t *")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
            buffer = ffi.from_buffer(log)
            rc = lib.ofs_core_replay(buffer, len(log), diverged)
            ffi.release(buffer)
    except ValueError:  # an empty file cannot be mapped
        raise BadInput("is empty", str(path), "record a run with `dpu serve --record`") from None
    except OSError as error:
        raise BadInput(f"cannot be read ({error.strerror})", str(path),
                       "give the decisions.log of a recorded run") from None  # fmt: skip
    agreed = check_rc(rc, "replaying", str(path), "it is torn, or of another version")
    return Replay(agreed, None if diverged[0] == UINT64_MAX else int(diverged[0]))
