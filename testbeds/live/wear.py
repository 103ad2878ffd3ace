"""What a run wrote to its drive, for each demand that was served on time, and the wear from it.

Computed from two readings of a daemon's `wear` (dpu/economics/wear.py), whose sums survive
resets. Prefill writes belong to the run: without them nothing would hit. Rates and years are the
daemon's own, since its start. Unknown unless this user is the daemon's operator, and for
baselines.
"""

from typing import NamedTuple

from offstage.dpu.protocol.status import WearFigures

__all__ = ["Written", "run_wear", "written"]


class Written(NamedTuple):
    """Bytes written by hosts, and to the drive."""

    host_bytes: int
    drive_bytes: int


def written(before: WearFigures | None, after: WearFigures | None) -> Written | None:
    """What was written in between; None if either reading is unknown."""
    if before is None or after is None:
        return None
    return Written(after.host_bytes - before.host_bytes, after.drive_bytes - before.drive_bytes)


def run_wear(
    hits: int, prefilled: Written | None, decoded: Written | None, after: WearFigures | None
) -> dict[str, float | None]:
    """The figures of a run with `hits` demands on time; {} if they are not known. None for a
    figure whose divisor is zero."""
    if prefilled is None or decoded is None or after is None:
        return {}
    host = prefilled.host_bytes + decoded.host_bytes
    drive = prefilled.drive_bytes + decoded.drive_bytes
    return {
        "prefill_bytes": prefilled.drive_bytes,
        "decode_bytes": decoded.drive_bytes,
        "written_per_hit_bytes": drive / hits if hits else None,
        "amplification": drive / host if host else None,
        "drive_writes_per_day": after.drive_writes_per_day,
        "life_years": after.life_years,
    }
