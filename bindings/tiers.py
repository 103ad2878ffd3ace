"""Tiers below the staging arena, for Python: one side of the timing seam.

Shapes and meanings are those of `ofs_tiers.h`; the side runs in C. `open_tiers` opens it for an
`Engine`; the caller reports what prefill wrote, and reads at the end what became of the blocks.

What can fail: `BadInput` for tiers out of range, or a chunk that is absent.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.analysis import ffi, lib
from offstage.bindings.firmware import check_rc
from offstage.bindings.timing import Timing

__all__ = ["DRIVES_MAX", "STATS", "TIERS_MAX", "TierCosts", "Tiers", "TiersConfig", "open_tiers"]

TIERS_MAX = int(lib.OFS_TIERS_MAX)
DRIVES_MAX = int(lib.OFS_TIERS_DRIVES_MAX)
STATS = tuple(name for name, _ in ffi.typeof("struct ofs_tier_stats").fields)
"""What is counted of each tier."""


@dataclass(frozen=True)
class TierCosts:
    """One tier. Times in ps; `promote_ns`: what is read again sooner belongs here, or above.
    `drive`: an NVMe drive's parameters as in `bindings.storage.preset`, of which there are
    `drive_count`; none: memory, with at most `concurrency` requests in flight, 0 any number."""

    capacity_blocks: int
    promote_ns: int = 0
    latency_ps: int = 0
    read_ps: int = 0
    write_ps: int = 0
    concurrency: int = 0
    drive_count: int = 0
    drive: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TiersConfig:
    """What all tiers have in common. `exclusive`: a block is in one tier; else in all below its
    first, too. `place_last`: new blocks go to the last tier; else to the first."""

    chunk_max: int
    layer_count: int
    session_max: int
    block_size_bytes: int
    in_flight_max: int = 128
    exclusive: bool = False
    place_last: bool = False
    hit_ps: int = 0
    command_ps: int = 0
    seed: int = 0


class Tiers:
    """The side; `timing` is what an engine takes, and lives as long as this."""

    def __init__(self, owner: Any, tier_count: int) -> None:
        self._handle = owner
        self._count = tier_count
        self.timing = Timing(int(ffi.cast("uintptr_t", owner)), owner)

    def fill(self, now_ns: int, chunks: npt.NDArray[np.uint32]) -> None:
        """Prefill wrote all layers of chunks, uint32 `[n]`; those that are known stay."""
        chunks = np.ascontiguousarray(chunks, np.uint32)
        pointer = ffi.cast("uint32_t *", chunks.ctypes.data)
        rc = lib.ofs_tiers_fill(self._handle, now_ns, len(chunks), pointer)
        check_rc(rc, "filling tiers", "chunks", "give chunks below chunk_max")

    def where(self, chunk: int, layer: int = 0) -> int | None:
        """The first tier that has the block; None: it was never written."""
        found = int(lib.ofs_tiers_where(self._handle, chunk, layer))
        return None if found == lib.OFS_TIERS_NOWHERE else found

    def stats(self) -> list[dict[str, int]]:
        """`STATS` of each tier, and behind them of what is no tier's: its `stall_ns`."""
        struct: Any = ffi.new("struct ofs_tier_stats *")
        found = []
        for tier in range(self._count + 1):
            lib.ofs_tiers_stats(self._handle, tier, struct)
            found.append({name: int(getattr(struct, name)) for name in STATS})
        return found


def open_tiers(config: TiersConfig, tiers: Sequence[TierCosts]) -> Tiers:
    """The side over these tiers, the fastest first."""
    struct: Any = ffi.new("struct ofs_tiers_config *", asdict(config))
    struct.tier_count = len(tiers)
    costs: Any = ffi.new("struct ofs_tier[]", [asdict(one) for one in tiers])
    out: Any = ffi.new("struct ofs_timing **")
    check_rc(
        lib.ofs_tiers_open(out, struct, costs),
        "opening tiers",
        "tiers",
        f"1 to {TIERS_MAX} tiers, each with room for a block, none larger than the next",
    )
    return Tiers(ffi.gc(out[0], lib.ofs_tiers_close), len(tiers))
