"""All sessions of a workload over one control connection and one fabric: prefill, then decode."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from offstage.host.agent import Agent, hit_rate_so_far
from offstage.host.control import Control
from offstage.host.decode import Decoder, DemandObserver, SelectionRule
from offstage.host.fabrics import Fabric
from offstage.host.pool import HbmPool
from offstage.host.prefill import MissingWriter, compute_context
from offstage.host.record import AgentRecord
from offstage.host.session import Context
from offstage.host.sessions import append_chunks
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.workload import Workload, full_chunks
from offstage.testbeds.progress import Progress

__all__ = ["Prefilled", "decode", "prefill"]


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


# Decode: all sessions of a workload over one control connection and one fabric.

NOTE_EVERY_TOKENS = 40


def decode(
    options: DriveOptions,
    workload: Workload,
    contexts: dict[int, Context],
    control: Control,
    fabric: Fabric,
    run_name: str,
    progress: Progress,
    observe: DemandObserver | None = None,
) -> AgentRecord:
    """Decode every session to its end; `observe` sees every demand.

    What decoding writes is named after `run_name`. RunFailed where the tier is gone."""
    rule = SelectionRule(
        options.selector, options.select_blocks, options.sink_blocks, options.window_blocks
    )
    landing_rows = options.select_blocks * workload.plan.sessions_max
    pool = HbmPool(options.geometry, options.pool_blocks, options.arrays(), landing_rows)
    decoder = Decoder(fabric, pool, workload.synthetic_kv, rule, options.kernel, observe=observe)
    agent = Agent(control, decoder, options.time_per_token_s, workload.plan.sessions_max)
    jobs = workload.jobs(contexts, run_name, options.time_per_token_s)
    return agent.run(jobs, _watcher(progress))


def _watcher(progress: Progress) -> Callable[[AgentRecord], None]:
    """Tells of every tick's tokens, and now and then of the hit rate so far."""
    seen = 0
    noted = 0

    def watch(record: AgentRecord) -> None:
        nonlocal seen, noted
        progress.advance(len(record.tokens) - seen)
        seen = len(record.tokens)
        if seen - noted >= NOTE_EVERY_TOKENS:
            noted = seen
            progress.note(f"hit rate {hit_rate_so_far(record):.1%}")

    return watch
