"""Scores of a step in wire form, for a fabric that carries them in its messages.

The driver of the other fabrics does the same with the same functions (scores.h). Pure.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput
from offstage.bindings.firmware import ffi, lib

__all__ = ["Packed", "pack", "unpack"]

PACKED, BYTES = int(lib.OFS_SCORES_PACKED), int(lib.OFS_SCORES_BYTES)
PACKED_FLAGS = PACKED | BYTES | int(lib.OFS_SCORES_RAISED)
SCORES_MAX = 1 << 22


@dataclass(frozen=True)
class Packed:
    """Flags of `OFS_SCORES_*`, scores of the step, how many best ones of them (0: all); the bytes.
    Of a step whose scores are left out, `count` is 0."""

    flags: int
    count: int
    best: int
    data: bytes

    @property
    def limits(self) -> tuple[int, int, int]:
        """With which scores that were unpacked become the same again."""
        return self.best, 1, 8 if self.flags & BYTES else 16


def pack(limits: tuple[int, int, int], step: int, scores: NDArray[np.uint16]) -> Packed:
    """A step's scores, reduced to `limits` (`Fabric.limit_scores`)."""
    command: Any = ffi.new("struct ofs_sqe *")
    command.op, command.step = lib.OFS_OP_STEP, step
    own = np.ascontiguousarray(scores, np.uint16)
    to = np.empty(max(1, 2 * len(own)), np.uint8)
    lib.ofs_scores_pack(
        ffi.new("struct ofs_score_limits *", limits),
        ffi.cast("uint16_t *", own.ctypes.data),
        len(own),
        command,
        ffi.cast("uint8_t *", to.ctypes.data),
    )
    size = int(lib.ofs_scores_bytes(command))
    best = command.ordinal if command.flags & PACKED else 0
    return Packed(command.flags, command.score_count, best, to[:size].tobytes())


def unpack(packed: Packed) -> NDArray[np.uint16]:
    """A score for each block; what was not sent is 0. BadInput: bytes that no host packs so."""
    command: Any = ffi.new("struct ofs_sqe *")
    command.op = lib.OFS_OP_STEP
    good = packed.flags & ~PACKED_FLAGS == 0 and packed.count <= SCORES_MAX
    if good:
        command.flags, command.score_count = packed.flags, packed.count
        command.ordinal = packed.best
        good = lib.ofs_scores_check(command) == 0
    scores = np.zeros(packed.count if good else 0, np.uint16)
    if good and len(packed.data) == lib.ofs_scores_bytes(command):
        to = ffi.cast("uint16_t *", scores.ctypes.data)
        if len(scores) == 0 or lib.ofs_scores_unpack(command, packed.data, to) == 0:
            return scores
    raise BadInput(
        f"{len(packed.data)} bytes of {packed.count} scores",
        "fabric message",
        "pack them as scores.h says",
    )
