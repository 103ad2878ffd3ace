"""All sessions of a workload over one control connection and one fabric: prefill, then decode."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.host.agent import Agent
from offstage.host.arrays.fastest_transfer import copy_rate
from offstage.host.decode.layer import Decoder, DemandObserver, SelectionRule
from offstage.host.decode.pool import HbmPool
from offstage.host.decode.prefill import MissingWriter, compute_context
from offstage.host.decode.record import AgentRecord
from offstage.host.decode.schedule import Rule
from offstage.host.decode.session import Context
from offstage.host.fabrics import Fabric
from offstage.host.gpu.selector import selectors_of
from offstage.host.link.tier_sessions import Sessions, append_chunks
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.workload import Workload, full_chunks
from offstage.testbeds.progress import Progress, note_hit

__all__ = ["Prefilled", "decode", "prefill"]

NOTE_EVERY_TOKENS = 40


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
    control: Sessions,
    fabric: Fabric,
    progress: Progress,
    upkeep: Callable[[], None] = lambda: None,
) -> Prefilled:
    """Compute all contexts and put the chunks that the tier reports as absent. `upkeep`: as
    `Agent.upkeep`, before each write. A chunk that an earlier session or run wrote is not
    written again. StoreFull, RunFailed: a put was refused."""
    sessions = workload.plan.sessions
    layers = options.geometry.layer_count
    progress.start("prefill", sum(len(full_chunks(one)) for one in sessions) * layers, "blocks")
    done, make = Prefilled({}), selectors_of(options.kernel, options.device)
    for number, session in enumerate(sessions):
        identities = full_chunks(session)
        identities = identities[: len(identities) // workload.granules * workload.granules]
        handle = control.session_open(select_blocks=options.select_blocks)
        appended = append_chunks(control, handle, identities, layers)
        write = MissingWriter(fabric, handle, appended.stored_layers, [0] * layers)

        def written(layer: int, first: int, blocks: Any, write: MissingWriter = write) -> None:
            upkeep()
            write(layer, first, blocks)
            progress.advance(len(blocks))

        done.contexts[number] = compute_context(
            workload.synthetic_kv, identities, options.selector, written, make
        )
        control.session_close(handle, keep=True)
        done.block_count += len(identities) * layers
        done.blocks_written += write.blocks_written
        done.bytes_written += write.bytes_written
        progress.note(f"{done.blocks_written:,} of {done.block_count:,} blocks written")
    return done


def decode(
    options: DriveOptions,
    workload: Workload,
    contexts: dict[int, Context],
    control: Sessions,
    fabric: Fabric,
    run_name: str,
    progress: Progress,
    observe: DemandObserver | None = None,
    ahead: bool = False,
    guesses: Mapping[int, NDArray[np.void]] | None = None,
    lead_s: float = 0.0,
    upkeep: Callable[[], None] = lambda: None,
) -> AgentRecord:
    """Decode every session to its end; `observe` sees every demand. `ahead`, `upkeep`: as in
    `Agent`. `guesses`: for each session's first step, sent `lead_s` before it. Chunks written
    while decoding are named after `run_name`. RunFailed if the tier is gone."""
    rule = SelectionRule(
        options.selector, options.select_blocks, options.sink_blocks, options.window_blocks
    )
    landing_rows = options.select_blocks * workload.plan.sessions_max
    pool = HbmPool(
        options.geometry,
        options.pool_blocks,
        options.arrays(),
        landing_rows,
        options.pool_layer_blocks,
    )
    decoder = Decoder(fabric, pool, workload.synthetic_kv, rule, options.kernel, observe=observe)
    agent = Agent(
        control,
        decoder,
        options.time_per_token_s,
        options.active or workload.plan.sessions_max,
        ahead,
        lead_s,
        Rule(kind=options.schedule),
        upkeep=upkeep,
    )
    jobs = workload.jobs(contexts, run_name, options.time_per_token_s, guesses)
    fabric.register(pool.memory.landing)
    try:
        record = agent.run(jobs, _watcher(progress))
        note_hit(progress, record.ended().hit_rate)
        record.roof_bytes_per_s = copy_rate(pool.arrays)
        return record
    finally:
        fabric.unregister(pool.memory.landing)


def _watcher(progress: Progress) -> Callable[[AgentRecord], None]:
    """Reports every tick's tokens, and from time to time the hit rate so far; `decode` reports the
    last, so that what stays on the screen is the rate of the whole run."""
    seen = 0
    noted = 0

    def watch(record: AgentRecord) -> None:
        nonlocal seen, noted
        progress.advance(len(record.tokens) - seen)
        seen = len(record.tokens)
        if seen - noted >= NOTE_EVERY_TOKENS:
            noted = seen
            note_hit(progress, record.ended().hit_rate)

    return watch
