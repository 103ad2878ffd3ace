"""The results of an experiment, made of its parts: ledger, figures, manifest.

Model: parts are read one after another in the order of the spec, so the ledger has the same bytes
whoever computed them and however often it was interrupted. Of each part only the sums by request
are kept.
"""

import hashlib
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from offstage.bindings.notes import Note
from offstage.bindings.storage import preset
from offstage.bindings.units import format_rate
from offstage.host.decode_cost import read
from offstage.testbeds.lab.bounds.predictors import PREDICTORS
from offstage.testbeds.lab.results.ledger import (
    BoundTotals,
    RunTotals,
    bound_totals,
    pool_bounds,
    totals,
)
from offstage.testbeds.lab.results.ledger_file import LEDGER_NAME, Described, LedgerFile
from offstage.testbeds.lab.results.measure import measure
from offstage.testbeds.lab.results.summary import Failed, LabSummary, PointSummary, RequestsRow
from offstage.testbeds.lab.results.tiers_served import tiers_served
from offstage.testbeds.lab.results.vacuous import notes_of, seeds_alike
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.bounds import bound_key, bound_keys
from offstage.testbeds.lab.run.experiment import Experiment, Variant
from offstage.testbeds.lab.run.plan import Point, Task
from offstage.testbeds.lab.run.source import build, digest, trace_notes, trace_path
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.lab.spec.tiers import tiers_of
from offstage.testbeds.machine import machine
from offstage.testbeds.progress import Progress

__all__ = ["bounds_rows", "bounds_table", "finish", "manifest", "requests_of"]

ROOT = Path(__file__).resolve().parents[3]


def finish(experiment: Experiment, folder: Path, out: Path, progress: Progress) -> LabSummary:
    """Write `ledger.parquet` to `out` and give the summary; parts are in `folder`."""
    points = [point for variant in experiment.variants for point in variant.points]
    progress.start("figures", len(points))
    summaries: list[PointSummary] = []
    gave: dict[int, list[bytes]] = {}
    failed = [Failed(point=label, message=message) for label, message in experiment.refused]
    unmeasured: list[Failed] = []
    said = {
        point.number: Described(point.info(variant.spec, variant.label), _recurring(variant.spec))
        for variant in experiment.variants
        for point in variant.points
    }
    with LedgerFile(out / LEDGER_NAME, said) as ledger:
        for variant in experiment.variants:
            found, alone = _variant(experiment, variant, folder, ledger, gave, progress)
            summaries += found
            unmeasured += alone
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


def _drawn(experiment: Experiment) -> list[Note]:
    """What a reader has to know of what was drawn beside the selections, and was not counted."""
    specs = [variant.spec for variant in experiment.variants]
    works = [spec.workload for spec in specs]
    shares = sorted({one.warm_up_share for one in works if one.warm_up_share})
    notes = [
        Note("warm-up", f"the first {share:.3g} of the requests fill the caches and are in no rate")
        for share in shares
    ]
    traced = {msgspec.json.encode((one.workload, one.geometry)): one for one in specs}
    notes += dict.fromkeys(note for spec in traced.values() for note in trace_notes(spec))
    if len(specs[0].seeds) > 1 and any(one.kind == "requests" for one in works):
        notes.append(
            Note(
                "seeds-unused",
                f"caches of requests have seed {specs[0].seeds[0]} alone:"
                " the others have no effect",
                "give one seed",
            )
        )
    if not any(one.foretold for one in works):
        return notes
    return [
        *notes,
        Note(
            "foretold-drawn",
            "what is foretold is drawn with the agreement measured "
            "on captures of pycode-3m, and was captured nowhere",
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
    """The figures of its points; those that ran and have nothing to be compared with, as failed.
    `gave` gets of each point a digest of what each seed gave."""
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
            what = "ran, but `none` at its buffer did not, which it is compared with"
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
        recurring=_recurring(spec),
    )


def _recurring(spec: Spec) -> bool:
    """Whether the same requests come under every seed."""
    return spec.workload.kind in ("captured", "selections")


def _none(variant: Variant, point: Point) -> Point:
    """No prefetch, LRU, the same buffer: what coverage and traffic are relative to."""
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


def manifest(experiment: Experiment) -> dict[str, Any]:
    """What is needed to run it again, and to see that it was the same."""
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
    return {
        "command": shlex.join(["offstage", *sys.argv[1:]]),
        "version": version("offstage"),
        "commit": _commit(),
        "code_sha256": experiment.code,
        "spec_sha256": digest(experiment.path),
        "seeds": list(first.seeds),
        "workloads": workloads,
        "preset_sha256": presets,
        "decode_cost": {name: read(Path(name)).said() for name in sorted(costs)},
        "machine": machine(),
        "provenance": "modelled",
    }


def _drives(variant: Variant) -> list[str]:
    """The NVMe presets that it ran on."""
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
    """The commit of a checkout, `-dirty` behind it where files were changed; empty elsewhere."""
    ask = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        output = subprocess.run(ask, capture_output=True, errors="replace", timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return output.stdout.strip()


# What `offstage lab bounds` shows: the bounds of a spec, without a policy beside them.


def bounds_rows(experiment: Experiment, folder: Path) -> list[dict[str, Any]]:
    """One row for each variant, buffer, cap and bound, over all seeds, and one for a buffer that
    cannot hold what a layer demands together; parts are in `folder`."""
    rows = []
    for variant in experiment.variants:
        recurring = _recurring(variant.spec)
        seeds = [
            parts.read_bounds(
                folder / f"{Task(variant.spec, seed, ()).parts(experiment.code)[0]}.npz"
            )
            for seed in variant.spec.seeds
        ]
        for key in bound_keys(variant.spec):
            if not all(key in one for one in seeds):
                rows.append(
                    {
                        "workload": _workload_name(variant),
                        **_setting(variant, key),
                        "bound": "does not fit",
                        "hit": None,
                        "nontrivial_hit": None,
                        "reads": None,
                    }
                )
                continue
            pooled = pool_bounds([bound_totals(one[key]) for one in seeds], recurring)
            rows += [
                {
                    "workload": _workload_name(variant),
                    **_setting(variant, key),
                    **_figures(pooled, at, name),
                }
                for at, name in enumerate(pooled.names)
            ]
    return rows


def _workload_name(variant: Variant) -> str:
    return variant.label or variant.spec.workload.kind


def _setting(variant: Variant, key: parts.BoundKey) -> dict[str, Any]:
    grain, buffer_blocks, cap = key
    return {
        "buffer_over_k": buffer_blocks / grain / variant.spec.selection.k_blocks,
        "granules_per_block": grain,
        "cap_bytes_per_s": cap,
    }


def _figures(pooled: BoundTotals, at: int, name: str) -> dict[str, Any]:
    demands, nontrivial = int(pooled.demands.sum()), int(pooled.nontrivial.sum())
    return {
        "bound": name,
        "hit": int(pooled.hits[:, at].sum()) / demands if demands else None,
        "nontrivial_hit": (
            int(pooled.nontrivial_hits[:, at].sum()) / nontrivial if nontrivial else None
        ),
        "reads": pooled.reads.get(name),
    }


def bounds_table(rows: list[dict[str, Any]]) -> Table:
    """The rows for people."""
    table = Table(box=None, pad_edge=False)
    for column in ("workload", "B / k", "bound", "non-trivial hit", "hit", "reads"):
        table.add_column(column, justify="left" if column in ("workload", "bound") else "right")
    for row in rows:
        table.add_row(
            row["workload"],
            f"{row['buffer_over_k']:g}",
            _named(row["bound"]),
            _percent(row["nontrivial_hit"]),
            _percent(row["hit"]),
            "" if row["reads"] is None else f"{row['reads']:,}",
        )
    return table


def _named(bound: str) -> str:
    kinds = {"compulsory": "no prefetch: ", "belady": "no prefetch: "}
    kind = "predictor: " if bound in PREDICTORS else kinds.get(bound, "")
    return kind + bound.replace("_", " ")


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1%}"


# A spec of kind `requests`: the caches it names on its trace, as rows of the results.
#
# Policies are evictions here, and there is nothing to prefetch: what decides a hit is what was
# kept. No part is kept on disk, since a row takes a fraction of a second.


def requests_of(spec: Spec, progress: Progress) -> list[RequestsRow]:
    """Every eviction at every capacity, admission and TTL of the spec."""
    from offstage.testbeds.lab.bounds.prefix import RequestsOptions, run_requests

    work = spec.workload
    options = RequestsOptions(
        traces=(trace_path(work.file),),
        time_unit=work.time_unit or None,
        evictions=tuple(dict.fromkeys(one.eviction or one.use for one in spec.policy)),
        admissions=work.admission,
        ttls_s=tuple(one or None for one in work.ttl_s),
        capacity_shares=work.capacity_share,
        seed=spec.seeds[0],
        warm_up_share=work.warm_up_share,
    )
    names = [one.name for one in msgspec.structs.fields(RequestsRow)]
    return [
        RequestsRow(**{name: getattr(row, name) for name in names})
        for row in run_requests(options, progress).rows
    ]
