"""The demo: prefill once, then every arm on every storage, then the summary.

One daemon writes every context; all runs then read the same store. A model decodes one session of
its own; without a model several sessions select what is drawn for them.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

import offstage
from offstage.host.decode.layer import DemandObserver
from offstage.host.decode.record import AgentRecord
from offstage.host.decode.session import Context
from offstage.testbeds.beds.local import DaemonSizes, LocalBed
from offstage.testbeds.live.arm_bed import MEASURED, ArmBed, Attached, Storage
from offstage.testbeds.live.baseline import Baselines
from offstage.testbeds.live.curve import DemandTrace, hit_versus_traffic
from offstage.testbeds.live.demo_options import Arm, DemoOptions
from offstage.testbeds.live.drive import decode, prefill
from offstage.testbeds.live.results import RunResult, RunWorkload, Summary
from offstage.testbeds.live.run_figures import against_reference
from offstage.testbeds.live.warm_up import LEAD_S, first_guesses
from offstage.testbeds.live.workload import Workload, describe, prepare
from offstage.testbeds.machine import memory_peak_bytes, run_machine
from offstage.testbeds.progress import Progress, note_hit

__all__ = ["repeatable", "run"]

READ_BYTES = 8 << 20
ANSWER_TOKENS = 128
TRAFFIC = 1.1
"""Reads that guesses may bring the model's runs to, over those of LRU at 2 k. The table compares
with LRU in the demo's own buffer, which reads less."""


@dataclass(frozen=True)
class _Shared:
    """What all runs of a demo share. `contexts`: what the host kept of the prefill; `trace`: the
    demands, and each session's first guesses."""

    options: DemoOptions
    workload: Workload
    arms: ArmBed
    progress: Progress
    contexts: dict[int, Context]
    trace: DemandTrace


def run(options: DemoOptions, progress: Progress) -> Summary:
    """Run the whole demo into `options.out`; the report puts it into words. BadInput for options,
    RunFailed for a run."""
    begun = time.monotonic()
    options.check()
    bed = _make_bed(options)
    summary = (_drawn if options.model is None else _answered)(options, bed, progress)
    summary.machine = run_machine(_peaks(bed), time.monotonic() - begun)
    if not options.keep_store:
        shutil.rmtree(bed.work, ignore_errors=True)
    return summary


def repeatable(options: DemoOptions, progress: Progress) -> Callable[[Path], Summary]:
    """Prefill once. Each call runs the last arm anew on this machine's disk, without a curve, and
    records it into the folder that it is given, on the same file system. The store stays in
    `options.out`, which the caller deletes. BadInput and RunFailed as `run`."""
    options.check()
    bed, workload = _make_bed(options), prepare(options)
    shared = _prefilled(options, workload, bed, progress)

    def again(folder: Path) -> Summary:
        begun = time.monotonic()
        result = _measure(shared, MEASURED, options.arms[-1], said=f" {folder.name}")
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / bed.records.name, ignore_errors=True)
        bed.records.rename(folder / bed.records.name)
        summary = _summary(options, [result], _describe(options, workload))
        summary.machine = run_machine(_peaks(bed), time.monotonic() - begun)
        return summary

    return again


def _answered(options: DemoOptions, bed: LocalBed, progress: Progress) -> Summary:
    """A real model's answer with each of its arms, on this machine's disk."""
    from offstage.testbeds.live.model.arms import run_arms
    from offstage.testbeds.live.model.options import ModelOptions

    assert options.model is not None, "`run` asks"
    asked = ModelOptions(
        model=options.model,
        text=options.document,
        steps=ANSWER_TOKENS,
        pool_ratio=1.0,
        generate=True,
        traffic=TRAFFIC,
        command=options.command,
    )
    slots = round(options.buffer_ratio * asked.selections[0])
    answer, runs, workload = run_arms(asked, options.question, bed, MEASURED, slots, progress)
    return _summary(options, runs, workload, model=answer)


def _drawn(options: DemoOptions, bed: LocalBed, progress: Progress) -> Summary:
    """Sessions whose selections are drawn, with every arm on every storage."""
    workload = prepare(options)
    shared = _prefilled(options, workload, bed, progress)
    runs: list[RunResult] = []
    ahead: list[RunResult] = []
    baselines, beside = _fill_baselines(options, workload, bed, MEASURED.keys, progress), []
    for storage in _storages(options):
        if storage.provenance == "emulated":
            _warm_page_cache(bed.store)
        done = [
            _measure(shared, storage, arm, observe=shared.trace if not runs and not at else None)
            for at, arm in enumerate(options.arms)
        ]
        runs += [against_reference(one, done[0]) for one in done]
        if options.ahead:
            early = _measure(shared, storage, options.arms[-1], ahead=True)
            ahead.append(against_reference(early, done[0]))
        if storage.provenance == "emulated" and options.baselines:
            _warm_page_cache(baselines.store.path)
        beside += [
            baselines.measure(
                kind,
                shared.contexts,
                storage.keys,
                (storage.name, storage.provenance),
                done[0],
                progress,
            )
            for kind in options.baselines
        ]
    return _summary(
        options,
        runs,
        _describe(options, workload),
        curve=hit_versus_traffic(options, shared.trace, shared.contexts, progress),
        ahead=ahead,
        baselines=beside,
        notes=workload.noted(
            options.slot_count, options.geometry.layer_count, options.pool_layer_blocks
        ),
    )


def _peaks(bed: LocalBed) -> dict[str, int]:
    """Largest resident set of this process, and of the largest of the daemons."""
    return {"host": memory_peak_bytes(), "daemon": max(bed.peaks)}


def _summary(
    options: DemoOptions, runs: list[RunResult], workload: RunWorkload, **more: Any
) -> Summary:
    return Summary(
        runs=runs,
        workload=workload,
        machine=run_machine({}, 0.0),
        seed=options.seed,
        sentence="",
        definitions={},
        command=options.command,
        version=offstage.__version__,
        **{"curve": [], **more},
    )


def _prefilled(
    options: DemoOptions, workload: Workload, bed: LocalBed, progress: Progress
) -> _Shared:
    """Write every session's full chunks."""
    contexts: dict[int, Context] = {}

    def write(host: Attached) -> None:
        contexts.update(prefill(options, workload, host.control, host.fabric, progress).contexts)

    arms = ArmBed(bed, _sizes(options, workload), options.cores)
    arms.prefill(MEASURED, write)
    trace = DemandTrace(first_guesses(options, workload, contexts) if options.warm_up else {})
    return _Shared(options, workload, arms, progress, contexts, trace)


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
    said: str = "",
) -> RunResult:
    """Run one arm on one storage; `observe` sees every demand. `ahead`: as `Agent.ahead`. `said`:
    which of its repeats, in the names of what decoding writes. RunFailed if a check of the tier
    fails."""
    options, workload, bed = shared.options, shared.workload, shared.arms.bed
    name = f"{storage.provenance}-{arm.name.replace('+', '-')}{'-ahead' if ahead else ''}"
    shared.progress.start(
        f"{arm.name}{', a layer ahead' * ahead}, {storage.name}{said}",
        sum(one.decode_steps for one in workload.plan.sessions),
        "steps",
    )

    def drive(host: Attached) -> AgentRecord:
        return decode(
            options,
            workload,
            shared.contexts,
            host.control,
            host.fabric,
            name + said,
            shared.progress,
            observe=observe,
            ahead=ahead,
            guesses=shared.trace.guesses if options.warms_up(arm) else None,
            lead_s=LEAD_S,
        )

    # The run with the most prefetchers keeps its recording, for `offstage compare`: a log has the
    # scores of every block, and the logs of all arms would take a hundred megabytes.
    most = max(len(one.prefetchers) for one in options.arms)
    kept = len(arm.prefetchers) == most and not ahead
    record_dir = bed.records / name if kept else bed.work / f"{name}.record"
    result = shared.arms.measure(storage, arm, name, record_dir, drive)
    note_hit(shared.progress, result.hit)
    return result


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


def _storages(options: DemoOptions) -> list[Storage]:
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
    return [one for one in (MEASURED, emulated) if one.provenance in options.storages]


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
