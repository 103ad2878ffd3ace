"""The results of an experiment, computed from its parts: ledger, figures, manifest.

Model: parts are read one after another in the order of the spec, so the ledger's bytes do not
depend on the processes that computed them or on interruptions. Only the sums by request of each
part stay in memory.
"""

import hashlib
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

import offstage
from offstage.bindings.notes import Note
from offstage.bindings.storage import preset
from offstage.bindings.units import format_rate
from offstage.host.decode.step_cost import read
from offstage.testbeds.lab.results.block_use import block_use
from offstage.testbeds.lab.results.bootstrap import RESAMPLES, Bootstrap
from offstage.testbeds.lab.results.cold_start import cold_start, pair_undisturbed
from offstage.testbeds.lab.results.ledger import BoundTotals, RunTotals, bound_totals, totals
from offstage.testbeds.lab.results.ledger_file import LEDGER_NAME, Described, LedgerFile
from offstage.testbeds.lab.results.measure import measure
from offstage.testbeds.lab.results.summary import Failed, LabSummary, Manifest, PointSummary
from offstage.testbeds.lab.results.tiers_served import tiers_served
from offstage.testbeds.lab.results.vacuous import notes_of, seeds_alike
from offstage.testbeds.lab.results.whole_model import whole_model
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.bounds import bound_key
from offstage.testbeds.lab.run.experiment import Experiment, Variant
from offstage.testbeds.lab.run.plan import Point, Task
from offstage.testbeds.lab.run.requests import requests_of
from offstage.testbeds.lab.run.source import build, digest, recurs, trace_notes, trace_path
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.lab.spec.tiers import tiers_of
from offstage.testbeds.lab.spec.weights import undisturbed
from offstage.testbeds.machine import machine
from offstage.testbeds.progress import Progress

__all__ = ["finish", "manifest"]

ROOT = Path(__file__).resolve().parents[3]


def finish(experiment: Experiment, folder: Path, out: Path, progress: Progress) -> LabSummary:
    """Write `ledger.parquet` to `out` and return the summary; parts are in `folder`."""
    points = [point for variant in experiment.variants for point in variant.points]
    progress.start("figures", len(points), "points")
    summaries: list[PointSummary] = []
    gave: dict[int, list[bytes]] = {}
    failed = [Failed(point=label, message=message) for label, message in experiment.refused]
    unmeasured: list[Failed] = []
    said = {
        point.number: Described(point.info(variant.spec, variant.label), recurs(variant.spec))
        for variant in experiment.variants
        for point in variant.points
    }
    with LedgerFile(out / LEDGER_NAME, said) as ledger:
        for variant in experiment.variants:
            found, alone = _variant(experiment, variant, folder, ledger, gave, progress)
            summaries += found
            unmeasured += alone
    pair_undisturbed(summaries, _undisturbed(experiment))
    for failure in experiment.failures:
        if failure.point < 0:
            failed.append(Failed(point="bounds", message=failure.message))
            continue
        variant, point = experiment.point(failure.point)
        failed.append(Failed(point=_name(variant, point), message=failure.message))
    spec = msgspec.to_builtins(experiment.variants[0].spec)
    return LabSummary(
        name=experiment.spec.name,
        spec=spec,
        manifest=manifest(experiment),
        points=summaries,
        notes=[*notes_of(summaries), *seeds_alike(gave.values()), *_drawn(experiment)],
        failed=list({one.point + one.message: one for one in [*failed, *unmeasured]}.values()),
        requests=[
            row
            for variant in experiment.variants
            if variant.spec.workload.kind == "requests"
            for row in requests_of(variant.spec, progress)
        ],
    )


def _undisturbed(experiment: Experiment) -> dict[str, str]:
    """By the label of a variant with a stream of weights, that of the same one without."""
    labels = {msgspec.json.encode(one.spec): one.label for one in experiment.variants}
    pairs = (
        (one.label, labels.get(msgspec.json.encode(undisturbed(one.spec))))
        for one in experiment.variants
        if undisturbed(one.spec) is not one.spec
    )
    return {label: other for label, other in pairs if other is not None}


def _drawn(experiment: Experiment) -> list[Note]:
    """Notes on requests that are not counted, on traces, and on what was drawn."""
    specs = [variant.spec for variant in experiment.variants]
    works = [spec.workload for spec in specs]
    shares = sorted({one.warm_up_share for one in works if one.warm_up_share})
    notes = [
        Note(
            "warm-up", f"the first {share:.3g} of the requests fill the caches and count in no rate"
        )
        for share in shares
    ]
    traced = {msgspec.json.encode((one.workload, one.geometry)): one for one in specs}
    notes += dict.fromkeys(note for spec in traced.values() for note in trace_notes(spec))
    if len(specs[0].seeds) > 1 and any(one.kind == "requests" for one in works):
        notes.append(
            Note(
                "seeds-unused",
                f"caches of requests use only seed {specs[0].seeds[0]}: the others have no effect",
                "give one seed",
            )
        )
    notes += dict.fromkeys(
        Note(
            "layers-drawn",
            f"{spec.geometry.model}: {len(found.layers)} of the {found.of} layers that select were "
            "drawn: stalls in ms and bytes a token are theirs, whole_model has the model's",
        )
        for spec in specs
        if (found := spec.staged) and len(found.layers) < found.of
    )
    if not any(one.predicted for one in works):
        return notes
    return [
        *notes,
        Note(
            "predicted-drawn",
            "predictions are drawn, not captured: their accuracy is that "
            "measured on captures of pycode-3m",
        ),
    ]


def _name(variant: Variant, point: Point) -> str:
    name = f"{point.label}, B = {point.buffer_over_k:g}k"
    if point.cap is not None:
        name += f", cap {format_rate(point.cap)}"
    return f"{variant.label}: {name}" if variant.label else name


def _variant(
    experiment: Experiment,
    variant: Variant,
    folder: Path,
    ledger: LedgerFile,
    gave: dict[int, list[bytes]],
    progress: Progress,
) -> tuple[list[PointSummary], list[Failed]]:
    """The figures of the variant's points; a point that ran without its `none` counts as failed.
    Adds to `gave`, for each point, a digest of each seed's rows."""
    spec, code = variant.spec, experiment.code
    runs: dict[int, list[RunTotals]] = {}
    names = {seed: Task(spec, seed, variant.points).parts(code) for seed in spec.seeds}
    for index, point in enumerate(variant.points):
        paths = [(seed, folder / f"{names[seed][index]}.npz") for seed in spec.seeds]
        progress.advance(1)
        if not all(path.exists() for _, path in paths):
            continue
        runs[point.number] = []
        for seed, path in paths:
            run = parts.read_run(path)
            ledger.add(point.number, seed, run.rows)
            runs[point.number].append(totals(run))
            digest = hashlib.sha256(run.rows.tobytes()).digest()
            gave.setdefault(point.number, []).append(digest)
    bounds: list[dict[parts.BoundKey, BoundTotals]] = []
    for seed in spec.seeds:
        path = folder / f"{Task(spec, seed, ()).parts(code)[0]}.npz"
        if path.exists():
            found = parts.read_bounds(path)
            bounds.append({key: bound_totals(one) for key, one in found.items()})
    measured, alone = [], []
    for point in variant.points:
        if point.number in runs and _none(variant, point).number in runs:
            measured.append(_point(variant, point, runs, bounds))
        elif point.number in runs:
            what = "ran, but `none` at its buffer, its reference, did not"
            alone.append(Failed(point=_name(variant, point), message=what))
    return measured, alone


def _point(
    variant: Variant,
    point: Point,
    runs: dict[int, list[RunTotals]],
    bounds: list[dict[parts.BoundKey, BoundTotals]],
) -> PointSummary:
    spec = variant.spec
    key = bound_key(spec, point)
    beside = [one[key] for one in bounds if key in one]
    if len(beside) != len(spec.seeds):
        beside = []
    info, own = point.info(spec, variant.label), runs[point.number]
    return measure(
        info,
        own,
        beside,
        none=runs[_none(variant, point).number],
        reference=runs.get(_reference(variant).number, []),
        tiers=tiers_served(spec, info, own) if spec.tier.below else (),
        weights=cold_start(spec, info, own),
        whole=whole_model(spec, info, own),
        use=block_use(spec, info, own, Bootstrap(len(own), RESAMPLES, 0)),
        recurring=recurs(spec),
    )


def _none(variant: Variant, point: Point) -> Point:
    """No prefetch, LRU, the same buffer: the reference of coverage and traffic."""
    return next(
        one
        for one in variant.points
        if (one.policy.use, one.eviction) == ("none", "lru")
        and one.buffer_over_k == point.buffer_over_k
        and not one.policy.parameters
    )


def _reference(variant: Variant) -> Point:
    wanted = variant.spec.reference
    return next(
        one
        for one in variant.points
        if (one.policy.use, one.eviction) == (wanted.use, wanted.eviction)
        and one.buffer_over_k == wanted.buffer_over_k
        and not one.policy.parameters
    )


def manifest(experiment: Experiment) -> Manifest:
    """That of the run, now."""
    first = experiment.variants[0].spec
    workloads = {
        variant.label or variant.spec.workload.kind: _workload(variant.spec)
        for variant in experiment.variants
    }
    presets = {
        name: hashlib.sha256(
            msgspec.json.encode(preset(name).params, order="deterministic")
        ).hexdigest()
        for name in sorted({one for variant in experiment.variants for one in _drives(variant)})
    }
    costs = {variant.spec.tier.decode_cost for variant in experiment.variants} - {""}
    return Manifest(
        command=shlex.join(["offstage", *sys.argv[1:]]),
        version=offstage.__version__,
        commit=_commit(),
        code_sha256=experiment.code,
        spec_sha256=digest(experiment.path),
        seeds=list(first.seeds),
        workloads=workloads,
        preset_sha256=presets,
        decode_cost={name: read(Path(name)).said() for name in sorted(costs)},
        machine=msgspec.structs.asdict(machine()),
    )


def _drives(variant: Variant) -> list[str]:
    """The NVMe presets that the variant ran on."""
    spec = variant.spec
    if not spec.tier.below:
        return [spec.tier.storage]
    return [one.drive for one in tiers_of(spec, spec.block_bytes) if one.drive]


def _workload(spec: Spec) -> dict[str, Any]:
    if spec.workload.kind == "requests":
        path = trace_path(spec.workload.file)
        return {"kind": "requests", "synthetic": False, "trace": path.name, "sha256": digest(path)}
    described = build(spec, spec.seeds[0]).describe()
    return {**described, "selector": spec.selection.selector}


def _commit() -> str:
    """The commit of a checkout, with `-dirty` if files were changed; empty outside a checkout."""
    ask = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        output = subprocess.run(ask, capture_output=True, errors="replace", timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return output.stdout.strip()
