"""Decode: all sessions of a workload over one control connection and one fabric."""

from collections.abc import Callable

from offstage.host.agent import Agent, hit_rate_so_far
from offstage.host.arrays import open_arrays
from offstage.host.attention import arrays_of
from offstage.host.control import Control
from offstage.host.decode import Decoder, DemandObserver, SelectionRule
from offstage.host.fabrics import Fabric
from offstage.host.pool import HbmPool
from offstage.host.record import AgentRecord
from offstage.host.session import Context
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.workload import Workload
from offstage.testbeds.progress import Progress

__all__ = ["decode"]

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
    arrays = open_arrays(arrays_of(options.kernel))
    pool = HbmPool(options.geometry, options.pool_blocks, arrays)
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
