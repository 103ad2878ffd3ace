"""One run: a fresh daemon over the filled store, all sessions decoded, the figures taken.

The daemon recovers the store and begins with a cold arena, so that every run starts alike. Its
decision log is replayed afterwards: decisions that a fresh core does not repeat make the run fail.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offstage.bindings.errors import RunFailed
from offstage.dpu.replay import replay_log
from offstage.host.agent import Agent, hit_rate_so_far
from offstage.host.decode import Decoder, DemandObserver, SelectionRule
from offstage.host.pool import HbmPool
from offstage.host.record import AgentRecord
from offstage.host.session import Context
from offstage.testbeds.demo.connect import attached, device_status
from offstage.testbeds.demo.figures import RunLabel, run_result
from offstage.testbeds.demo.options import Arm, DemoOptions
from offstage.testbeds.demo.place import Place
from offstage.testbeds.demo.progress import Progress
from offstage.testbeds.demo.tier import serve
from offstage.testbeds.demo.workload import Workload
from offstage.testbeds.results import Provenance, RunResult

__all__ = ["Storage", "measure"]

NOTE_EVERY_TOKENS = 40


@dataclass(frozen=True)
class Storage:
    """One storage of the demo: its name in the report, whence its times come, and the daemon's
    `[storage]` keys."""

    name: str
    provenance: Provenance
    keys: Mapping[str, Any]


def measure(
    options: DemoOptions,
    workload: Workload,
    contexts: dict[int, Context],
    storage: Storage,
    arm: Arm,
    place: Place,
    progress: Progress,
    observe: DemandObserver | None = None,
) -> RunResult:
    """Run one arm on one storage; `observe` sees every demand.

    Raises RunFailed where the tier or its decision log does not hold."""
    name = f"{storage.provenance}-{arm.name.replace('+', '-')}"
    sessions = workload.plan.sessions
    config = place.config(
        options, name, arm, storage.keys, workload.plan.stored_bytes, len(sessions)
    )
    progress.start(f"{arm.name}, {storage.name}", sum(one.decode_steps for one in sessions))
    record_dir = place.work / f"{name}.record"
    shutil.rmtree(record_dir, ignore_errors=True)
    with (
        serve(config, place.work / f"{name}.log", record_dir) as tier,
        attached(tier.endpoint, place.runtime) as (control, driver),
    ):
        rule = SelectionRule(
            options.selector, options.select_blocks, options.sink_blocks, options.window_blocks
        )
        pool = HbmPool(options.geometry, options.pool_blocks)
        decoder = Decoder(
            driver, pool, workload.material, rule, options.kernel, observe=observe
        )
        agent = Agent(control, decoder, options.time_per_token_s, workload.plan.sessions_max)
        jobs = workload.jobs(contexts, name, options.time_per_token_s)
        record = agent.run(jobs, _watcher(progress))
        ledger, status = control.ledger(), device_status(tier.endpoint, place.runtime)
        warnings = [tier.ready["warning"]] if tier.ready.get("warning") else []
        storage_name = _shown(storage, str(tier.ready.get("storage", "")))
    decisions = _replay(record_dir / "decisions.log", ledger)
    label = RunLabel(arm.name, storage_name, storage.provenance, arm.prefetchers)
    return run_result(label, ledger, status, record, decisions, warnings)


def _shown(storage: Storage, had: str) -> str:
    """The storage's name in the report: what was had, where the choice was the daemon's."""
    return had or storage.name if storage.provenance == "measured" else storage.name


def _watcher(progress: Progress) -> Any:
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


def _replay(log: Any, ledger: Mapping[str, Any]) -> int:
    if ledger["log_bytes_lost"]:
        return -1
    result = replay_log(log)
    if result.diverged_at is not None:
        raise RunFailed(
            f"the decision log diverges at byte {result.diverged_at}",
            str(log),
            "keep the log and report it: the same events must give the same decisions",
        )
    return result.agreed
