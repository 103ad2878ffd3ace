"""The daemons of a demo: one that takes the prefill, then a fresh one for each arm.

Each recovers the store and starts with a cold arena, so that all arms start alike. An arm's
decision log is replayed afterwards: a decision that a fresh core does not repeat fails the run.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from offstage.bindings.ledger import Ledger
from offstage.dpu.storage.alone import spare_core
from offstage.dpu.watch.recorder import forget, read_lost, replay_log
from offstage.host.decode.record import AgentRecord
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics import Fabric
from offstage.host.link.control import Control
from offstage.testbeds.beds.daemon import serve
from offstage.testbeds.beds.local import DaemonSizes, LocalBed
from offstage.testbeds.beds.status import counters_since, device_counters, stages, wear
from offstage.testbeds.live.demo_options import ARMS, Arm, Cores
from offstage.testbeds.live.host_run import machine_notes, overruns
from offstage.testbeds.live.results import Provenance, RunResult
from offstage.testbeds.live.run_figures import RunLabel, run_result
from offstage.testbeds.live.wear import Written, run_wear, written
from offstage.testbeds.machine import memory_peak_bytes

__all__ = ["MEASURED", "ArmBed", "Attached", "Storage"]


@dataclass(frozen=True)
class Storage:
    """One storage of the demo: its name in the report, the source of its times, and the daemon's
    `[storage]` keys. `model`: its `[model]` keys, where a modelled device sets the pace."""

    name: str
    provenance: Provenance
    keys: Mapping[str, Any]
    model: Mapping[str, Any] = field(default_factory=dict)


MEASURED = Storage("io_uring", "measured", {"backend": "auto", "direct": True})


@dataclass(frozen=True)
class Attached:
    """A host at a daemon of its own."""

    link: Endpoint
    control: Control
    fabric: Fabric


@dataclass
class ArmBed:
    """What the arms of a demo share. `cores`: `apart`, the daemon's reactor is pinned to the last
    core, and this process keeps off it while the daemon runs; `alone`, the reactor also goes before
    all other work of that core; `any`, neither. `prefilled`: what the prefill wrote, if known."""

    bed: LocalBed
    sizes: DaemonSizes
    cores: Cores = "any"
    prefilled: Written | None = None

    def __post_init__(self) -> None:
        self.core = -1
        if self.cores == "alone" or (self.cores == "apart" and len(os.sched_getaffinity(0)) > 1):
            self.core = spare_core(-1, "--isolate")

    def prefill(self, storage: Storage, write: Callable[[Attached], None]) -> None:
        """Let `write` put the contexts into the store."""
        with self._fresh(storage, ARMS[0], "prefill", None) as host:
            empty = wear(host.link)
            write(host)
            self.prefilled = written(empty, wear(host.link))

    def measure(
        self,
        storage: Storage,
        arm: Arm,
        name: str,
        record_dir: Path,
        drive: Callable[[Attached], AgentRecord],
    ) -> RunResult:
        """The figures of one arm, but for those against another run. RunFailed: the daemon goes
        away."""
        with self._fresh(storage, arm, name, record_dir) as host:
            before, begun = device_counters(host.link), wear(host.link)
            record = drive(host)
            ledger, status = Ledger.of(host.control.ledger()), host.control.status()
            counters = counters_since(before, device_counters(host.link))
            timed, ended = stages(host.link, host.fabric), wear(host.link)
        lost = read_lost(record_dir)
        replayed = None if lost.log_bytes_lost else replay_log(record_dir / "decisions.log")
        decisions = -1 if replayed is None else replayed.agreed
        shown = storage.name
        if storage.provenance == "measured":  # the daemon chose it
            shown = status["storage"] or shown
        label = RunLabel(arm.name, shown, storage.provenance, arm.sources)
        result = run_result(label, ledger, counters, record, decisions, machine_notes(status))
        result.records_lost, result.log_bytes_lost = lost.records_lost, lost.log_bytes_lost
        if replayed is not None and replayed.diverged_at is not None:
            result.log_diverged_at = replayed.diverged_at
        result.pace_overruns = overruns(str(status["model"]), counters)
        result.stages = timed
        result.wear = run_wear(result.ended.hits, self.prefilled, written(begun, ended), ended)
        result.staging_bytes = self.sizes.slots * self.sizes.payload_bytes
        return result

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Keep this process off the reactor's core. Entered behind the daemon's start: a daemon
        inherits the cores that it may use."""
        cores = os.sched_getaffinity(0)
        if self.core >= 0:
            os.sched_setaffinity(0, cores - {self.core})
        try:
            yield
        finally:
            os.sched_setaffinity(0, cores)

    @contextmanager
    def _fresh(
        self, storage: Storage, arm: Arm, name: str, record_dir: Path | None
    ) -> Iterator[Attached]:
        if record_dir is not None:
            forget(record_dir)
        sections = self.bed.sections(self.sizes, storage.keys, arm.policy)
        if storage.model:
            sections["model"] = dict(storage.model)
        if self.core >= 0:
            sections["daemon"] |= {"isolate": self.cores == "alone", "cpu": self.core}
        with (
            serve(sections, self.bed.work, name=name, record=record_dir) as tier,
            self._aside(),
            (link := tier.at(name="demo-host")).attached() as (control, fabric),
        ):
            fabric.time_stages(True, all=record_dir is not None)
            yield Attached(link, control, fabric)
            self.bed.peaks.append(memory_peak_bytes(tier.ready.pid))
