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
from offstage.host.decode import DemandObserver
from offstage.host.session import Context
from offstage.testbeds.beds.daemon_process import serve
from offstage.testbeds.beds.local import Place
from offstage.testbeds.live.connect import attached, counters_since, device_counters
from offstage.testbeds.live.decode import decode
from offstage.testbeds.live.demo_options import Arm, DemoOptions
from offstage.testbeds.live.figures import RunLabel, run_result
from offstage.testbeds.live.results import Provenance, RunResult
from offstage.testbeds.live.workload import Workload
from offstage.testbeds.progress import Progress

__all__ = ["Storage", "measure"]


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
        attached(link := place.link(tier.endpoint)) as (control, fabric),
    ):
        before = device_counters(link)
        record = decode(
            options, workload, contexts, control, fabric, name, progress, observe=observe
        )
        ledger, said = control.ledger(), control.status()
        counters = counters_since(before, device_counters(link))
    warnings = [said["warning"]] if said["warning"] else []
    storage_name = _shown(storage, said["storage"])
    decisions = _replay(record_dir / "decisions.log", ledger)
    label = RunLabel(arm.name, storage_name, storage.provenance, arm.prefetchers)
    return run_result(label, ledger, counters, record, decisions, warnings)


def _shown(storage: Storage, had: str) -> str:
    """The storage's name in the report: what was had, where the choice was the daemon's."""
    return had or storage.name if storage.provenance == "measured" else storage.name


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
