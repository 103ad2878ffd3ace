"""Prefill: every session's full chunks, written where the tier lacks them."""

from dataclasses import dataclass
from typing import Any

from offstage.host.control import Control
from offstage.host.fabrics import Fabric
from offstage.host.prefill import MissingWriter, compute_context
from offstage.host.session import Context
from offstage.host.sessions import append_chunks
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.workload import Workload, full_chunks
from offstage.testbeds.progress import Progress

__all__ = ["Prefilled", "prefill"]


@dataclass
class Prefilled:
    """What the host keeps of each session's context, by session number, and what was written."""

    contexts: dict[int, Context]
    block_count: int = 0
    blocks_written: int = 0
    bytes_written: int = 0


def prefill(
    options: DriveOptions,
    workload: Workload,
    control: Control,
    fabric: Fabric,
    progress: Progress,
) -> Prefilled:
    """Compute all contexts and put what the tier lacks of them; it says itself what it has.

    A chunk that an earlier session or run wrote is not written again. StoreFull, RunFailed: a put
    was refused."""
    sessions = workload.plan.sessions
    layers = options.geometry.layer_count
    progress.start("prefill", sum(len(full_chunks(one)) for one in sessions) * layers)
    done = Prefilled({})
    for number, session in enumerate(sessions):
        identities = full_chunks(session)
        handle = control.session_open(select_blocks=options.select_blocks)
        appended = append_chunks(control, handle, identities, layers)
        write = MissingWriter(fabric, handle, appended.stored_layers, layers)

        def written(layer: int, first: int, blocks: Any, write: MissingWriter = write) -> None:
            write(layer, first, blocks)
            progress.advance(len(blocks))

        done.contexts[number] = compute_context(
            workload.synthetic_kv, identities, options.selector, written
        )
        control.session_close(handle, archive=True)
        done.block_count += len(identities) * layers
        done.blocks_written += write.blocks_written
        done.bytes_written += write.bytes_written
        progress.note(f"{done.blocks_written:,} of {done.block_count:,} blocks written")
    return done
