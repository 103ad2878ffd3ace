"""The demo: prefill once, then every arm on every storage, then the summary.

One daemon writes every session's context; all runs then read the same store. Each run has a
fresh daemon, which recovers the store and starts with a cold arena, so that all runs start
alike. Its decision log is replayed afterwards: a decision that a fresh core does not repeat
fails the run.
"""

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import offstage
from offstage.bindings.ledger import Ledger
from offstage.dpu.watch.recorder import forget, read_lost, replay_log
from offstage.host.decode.layer import DemandObserver
from offstage.host.decode.session import Context
from offstage.testbeds.beds.daemon import serve
from offstage.testbeds.beds.local import DaemonSizes, LocalBed
from offstage.testbeds.beds.status import counters_since, device_counters, stages, wear
from offstage.testbeds.live.baseline import Baselines
from offstage.testbeds.live.curve import DemandTrace, hit_versus_traffic
from offstage.testbeds.live.demo_options import ARMS, Arm, DemoOptions
from offstage.testbeds.live.drive import decode, prefill
from offstage.testbeds.live.host_run import machine_notes
from offstage.testbeds.live.model_results import ModelSummary
from offstage.testbeds.live.results import Provenance, RunResult, RunWorkload, Summary
from offstage.testbeds.live.run_figures import RunLabel, against_reference, run_result
from offstage.testbeds.live.warm_up import LEAD_S, first_guesses
from offstage.testbeds.live.wear import Written, run_wear, written
from offstage.testbeds.live.workload import Workload, describe, prepare
from offstage.testbeds.machine import memory_peak_bytes, run_machine
from offstage.testbeds.progress import Progress

__all__ = ["run"]

READ_BYTES = 8 << 20
ANSWER_TOKENS = 64


@dataclass(frozen=True)
class Storage:
    """One storage of the demo: its name in the report, the source of its times, and the daemon's
    `[storage]` keys."""

    name: str
    provenance: Provenance
    keys: Mapping[str, Any]


@dataclass(frozen=True)
class _Shared:
    """What all runs of a demo share. `contexts`: what the host kept of the prefill; `prefilled`:
    what the prefill wrote; `trace`: the demands, and each session's first guesses."""

    options: DemoOptions
    workload: Workload
    bed: LocalBed
    progress: Progress
    contexts: dict[int, Context]
    prefilled: Written | None
    trace: DemandTrace


def run(options: DemoOptions, progress: Progress) -> Summary:
    """Run the whole demo into `options.out`; the report puts it into words. BadInput for options,
    RunFailed for a run."""
    begun = time.monotonic()
    options.check()
    bed = _make_bed(options)
    answer = _answer(options, bed, progress)
    workload = prepare(options)
    measured = Storage("io_uring", "measured", {"backend": "auto", "direct": True})
    contexts, prefilled = _fill(options, workload, bed, measured.keys, progress)
    runs: list[RunResult] = []
    ahead: list[RunResult] = []
    trace = DemandTrace(first_guesses(options, workload, contexts) if options.warm_up else {})
    shared = _Shared(options, workload, bed, progress, contexts, prefilled, trace)
    baselines, beside = _fill_baselines(options, workload, bed, measured.keys, progress), []
    for storage in _storages(options, measured):
        if storage.provenance == "emulated":
            _warm_page_cache(bed.store)
        done = [
            _measure(shared, storage, arm, observe=trace if not runs and number == 0 else None)
            for number, arm in enumerate(options.arms)
        ]
        runs += [against_reference(one, done[0]) for one in done]
        if options.ahead:
            early = _measure(shared, storage, options.arms[-1], ahead=True)
            ahead.append(against_reference(early, done[0]))
        if storage.provenance == "emulated" and options.baselines:
            _warm_page_cache(baselines.store.path)
        beside += [
            baselines.measure(
                kind, contexts, storage.keys, (storage.name, storage.provenance), done[0], progress
            )
            for kind in options.baselines
        ]
    summary = Summary(
        runs=runs,
        workload=_describe(options, workload),
        machine=run_machine(memory_peak_bytes(), time.monotonic() - begun),
        seed=options.seed,
        sentence="",
        curve=hit_versus_traffic(options, trace, contexts, progress),
        definitions={},
        command=options.command,
        version=offstage.__version__,
        ahead=ahead,
        baselines=beside,
        model=answer,
        notes=workload.noted(
            options.slot_count, options.geometry.layer_count, options.pool_layer_blocks
        ),
    )
    if not options.keep_store:
        shutil.rmtree(bed.work, ignore_errors=True)
    return summary


def _answer(options: DemoOptions, bed: LocalBed, progress: Progress) -> ModelSummary | None:
    """A real model's answer with each of its arms, on this machine's disk; None without one."""
    if options.model is None:
        return None
    from offstage.testbeds.live.model.arms import run_arms
    from offstage.testbeds.live.model.options import ModelOptions

    asked = ModelOptions(
        model=options.model,
        text=options.document,
        steps=ANSWER_TOKENS,
        pool_ratio=1.0,
        generate=True,
        command=options.command,
    )
    slots = round(options.buffer_ratio * asked.selections[0])
    disk = {"backend": "auto", "direct": True}
    found = run_arms(asked, options.question, bed, disk, slots, progress)
    bed.store.unlink()  # the drawn sessions' blocks have another size
    return found


def _fill(
    options: DemoOptions,
    workload: Workload,
    bed: LocalBed,
    storage: Mapping[str, Any],
    progress: Progress,
) -> tuple[dict[int, Context], Written | None]:
    """Write every session's full chunks; returns what the host keeps of them, by session number,
    and what was written."""
    sections = bed.sections(_sizes(options, workload), storage, ARMS[0].policy)
    with (
        serve(sections, bed.work, name="prefill") as tier,
        (link := tier.at(name="demo-host")).attached() as (control, fabric),
    ):
        empty = wear(link)
        contexts = prefill(options, workload, control, fabric, progress).contexts
        return contexts, written(empty, wear(link))


def _fill_baselines(
    options: DemoOptions,
    workload: Workload,
    bed: LocalBed,
    storage: Mapping[str, Any],
    progress: Progress,
) -> Baselines:
    """The baselines over a separate file, which is written if any of them is to run."""
    storages = len(options.storages)
    baselines = Baselines(options, workload, bed.work / "baseline.kv", storages)
    if options.baselines:
        baselines.fill(storage, progress)
    return baselines


def _measure(
    shared: _Shared,
    storage: Storage,
    arm: Arm,
    observe: DemandObserver | None = None,
    ahead: bool = False,
) -> RunResult:
    """Run one arm on one storage; `observe` sees every demand. `ahead`: as `Agent.ahead`.
    RunFailed if a check of the tier fails."""
    options, workload, bed = shared.options, shared.workload, shared.bed
    name = f"{storage.provenance}-{arm.name.replace('+', '-')}{'-ahead' if ahead else ''}"
    sections = bed.sections(_sizes(options, workload), storage.keys, arm.policy)
    shared.progress.start(
        f"{arm.name}{', a layer ahead' * ahead}, {storage.name}",
        sum(one.decode_steps for one in workload.plan.sessions),
    )
    record_dir = bed.work / f"{name}.record" if ahead else _record_dir(options, bed, name, arm)
    forget(record_dir)
    with (
        serve(sections, bed.work, name=name, record=record_dir) as tier,
        (link := tier.at(name="demo-host")).attached() as (control, fabric),
    ):
        before, begun_wear = device_counters(link), wear(link)
        record = decode(
            options,
            workload,
            shared.contexts,
            control,
            fabric,
            name,
            shared.progress,
            observe=observe,
            ahead=ahead,
            guesses=shared.trace.guesses if options.warms_up(arm) else None,
            lead_s=LEAD_S,
        )
        ledger, said = Ledger.of(control.ledger()), control.status()
        counters = counters_since(before, device_counters(link))
        timed, ended = stages(link, fabric), wear(link)
    storage_name = _shown(storage, said["storage"])
    lost = read_lost(record_dir)
    replayed = None if lost.log_bytes_lost else replay_log(record_dir / "decisions.log")
    decisions = -1 if replayed is None else replayed.agreed
    label = RunLabel(arm.name, storage_name, storage.provenance, arm.prefetchers)
    result = run_result(label, ledger, counters, record, decisions, machine_notes(said))
    result.records_lost, result.log_bytes_lost = lost.records_lost, lost.log_bytes_lost
    if replayed is not None and replayed.diverged_at is not None:
        result.log_diverged_at = replayed.diverged_at
    result.stages = timed
    result.wear = run_wear(result.ended.hits, shared.prefilled, written(begun_wear, ended), ended)
    result.staging_bytes = options.slot_count * options.geometry.block_bytes(0)
    return result


def _record_dir(options: DemoOptions, bed: LocalBed, name: str, arm: Arm) -> Path:
    """The folder of a run's recording. The run with the most prefetchers keeps its recording,
    for `offstage compare`: a log has the scores of every block, and the logs of all arms would
    take a hundred megabytes."""
    most = max(len(one.prefetchers) for one in options.arms)
    return bed.records / name if len(arm.prefetchers) == most else bed.work / f"{name}.record"


def _shown(storage: Storage, had: str) -> str:
    """The storage's name in the report: the one in use if the daemon chose it."""
    return had or storage.name if storage.provenance == "measured" else storage.name


def _make_bed(options: DemoOptions) -> LocalBed:
    bed = LocalBed(options.out.resolve())
    bed.take()
    bed.runtime.mkdir(exist_ok=True)
    bed.store.unlink(missing_ok=True)
    return bed


def _sizes(options: DemoOptions, workload: Workload) -> DaemonSizes:
    geometry, plan = options.geometry, workload.plan
    return DaemonSizes(
        payload_bytes=geometry.block_bytes(0),
        layers=geometry.layer_count,
        block_tokens=geometry.block_tokens,
        slots=options.slot_count,
        window_tokens=options.window_tokens,
        context_tokens=options.context_tokens + options.steps,
        stored_bytes=plan.stored_bytes,
        sessions=len(plan.sessions),
    )


def _storages(options: DemoOptions, measured: Storage) -> list[Storage]:
    emulated = Storage(
        f"emulated {options.nvme}",
        "emulated",
        {
            "backend": "emulated",
            "inner": "posix",
            "direct": False,
            "nvme": options.nvme,
            "busy_spin": True,
            "seed": options.seed,
        },
    )
    return [one for one in (measured, emulated) if one.provenance in options.storages]


def _warm_page_cache(path: Path) -> None:
    """Read the emulated drive's file into the page cache: a cold page would be slower than the
    emulated drive, and the daemon counts every I/O that completes later than the model says."""
    with path.open("rb", buffering=0) as store:
        while store.read(READ_BYTES):
            pass


def _describe(options: DemoOptions, workload: Workload) -> RunWorkload:
    return msgspec.structs.replace(
        describe(options, workload),
        buffer_ratio=options.buffer_ratio,
        slot_count=options.slot_count,
        window_tokens=options.window_tokens,
        nvme=options.nvme,
        warm_up=options.warm_up,
    )
