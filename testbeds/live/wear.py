"""What a run wrote to its drive, for each demand that was served on time, and the wear from it.

Computed from two readings of a daemon's `wear` (dpu/economics/wear.py), whose sums survive
resets. Prefill writes belong to the run: without them nothing would hit. Rates and years are the
daemon's own, since its start. Unknown unless this user is the daemon's operator, and for
baselines.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["Wear", "run_wear", "written"]

Wear = Mapping[str, Any]


def written(before: Wear | None, after: Wear | None) -> dict[str, int] | None:
    """Bytes written by hosts and to the drive in between; None if either reading is unknown."""
    if before is None or after is None:
        return None
    return {name: after[name] - before[name] for name in ("host_bytes", "drive_bytes")}


def run_wear(
    hits: int, prefilled: Wear | None, decoded: Wear | None, after: Wear | None
) -> dict[str, float | None]:
    """The figures of a run with `hits` demands on time; {} if they are not known. None for a
    figure whose divisor is zero."""
    if prefilled is None or decoded is None or after is None:
        return {}
    host, drive = (prefilled[name] + decoded[name] for name in ("host_bytes", "drive_bytes"))
    return {
        "prefill_bytes": prefilled["drive_bytes"],
        "decode_bytes": decoded["drive_bytes"],
        "written_per_hit_bytes": drive / hits if hits else None,
        "amplification": drive / host if host else None,
        "drive_writes_per_day": after["drive_writes_per_day"],
        "life_years": after["life_years"],
    }
