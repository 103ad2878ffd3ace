"""Writes of a trace's KV until the drive is worn out, against what its erases allow.

Model: the drive of `wear.py` whose blocks endure a few erases, written with the trace again and
again until it refuses writes, without levelling and with it. If every block were erased as often
as it may be, the drive would take `erase_limit` times its flash over its write amplification; what
it took is less where some blocks are worn out before others. Same figures on every machine.
"""

from dataclasses import replace

import msgspec

from offstage.testbeds.lab.run.wear_runs import WearOptions, drive_of, runs, worn_out
from offstage.testbeds.lab.run.wear_tier import PAGE_BYTES, PLANES
from offstage.testbeds.progress import Progress
from offstage.testbeds.workloads.requests.columns import Trace

__all__ = ["EndRow", "ends_of"]


class EndRow(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that the store wrote to the scaled drive until that refused a write; the drive's
    amplification until then; what so many erases of every block allow, and the share of it. `level`
    and erases as in a row; `retired_blocks`: that were erased as often as they may be."""

    level: int
    erase_limit: int
    written_bytes: int
    drive_amplification: float
    endurance_bytes: float
    share: float
    erases_least: int
    erases_mean: float
    erases_most: int
    retired_blocks: int


def ends_of(
    params: dict[str, int], objects: int, trace: Trace, options: WearOptions, progress: Progress
) -> list[EndRow]:
    """With the streams and handles that come last, without levelling and, if asked, with it."""
    if not options.erase_limit:
        return []
    last = [run for run in runs(options, 0) if not run.admit][-1]
    levels = dict.fromkeys((0, options.level))
    progress.start("worn out", len(levels), "runs")
    rows = []
    for level in levels:
        run = replace(last, level=level)
        made = drive_of(params, objects, options, run) | {"erase_limit": options.erase_limit}
        found = worn_out(made, trace, options.room_percent, run)
        wear, blocks = found.wear, PLANES * made["blocks_per_plane"]
        flash_bytes = blocks * made["pages_per_block"] * PAGE_BYTES
        amplification = found.wrote.flash / found.wrote.store
        written_bytes = found.wrote.store * PAGE_BYTES
        endurance_bytes = options.erase_limit * flash_bytes / amplification
        rows.append(
            EndRow(
                level=level,
                erase_limit=options.erase_limit,
                written_bytes=written_bytes,
                drive_amplification=amplification,
                endurance_bytes=endurance_bytes,
                share=written_bytes / endurance_bytes,
                erases_least=wear["erases_least"],
                erases_mean=wear["erased_blocks"] / blocks,
                erases_most=wear["erases_most"],
                retired_blocks=wear["retired_blocks"],
            )
        )
        progress.advance(1)
    return rows
