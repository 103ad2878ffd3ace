"""Inputs from runs: measured on a recorded run, and modelled from it.

Model: a folder written by `offstage demo`, `dpu serve --record` or `host run` gives the time of a
read of its storage, the time that the firmware adds to one, and the hit rate of a step's blocks,
each over all of its runs on one storage. A folder written by `offstage compare` gives the median
fetch of the column of the question's DPU. A file of `offstage bench sparse --out` gives what its
base setting read, and what a drive and a core served. A run does not show its drive's maximum, so
rates are unchanged: `offstage bench storage` measures them, and a file of numbers sets them.

Figures of a real drive are `measured`; those of an emulated drive or a model are `modelled`.
What can fail: `BadInput` for a folder without a run, a run of another version, and a comparison
without that DPU.
"""

from pathlib import Path

from offstage.asic_model.blocks import Number
from offstage.bindings.errors import BadInput
from offstage.bindings.outside import read_json
from offstage.bindings.stages import Stages
from offstage.testbeds.bench.sparse.result import SparseResult
from offstage.testbeds.plan.inputs import Inputs, Kind
from offstage.testbeds.report.compare.columns import Comparison
from offstage.testbeds.report.compare.recorded import Recorded, find_runs, of_machine, read_run

__all__ = ["with_runs"]

COMPARE_NAME = "compare.json"
FIRMWARE = ("ring_wait", "decide", "read_queue", "publish")
"""Stages of a fetch that the daemon adds to the drive's time."""


def with_runs(inputs: Inputs, folders: list[Path], dpu: str) -> Inputs:
    """The inputs with those of the runs in place of ours; measured values win over modelled
    ones."""
    for folder in folders:
        if folder.is_file():
            inputs = inputs.set(_decoded(folder), "modelled")
            continue
        compared = (folder / COMPARE_NAME).is_file()
        if compared:
            inputs = inputs.set(_compared(folder / COMPARE_NAME, dpu), "modelled")
            if not any(folder.rglob("decisions.log")):
                continue
        runs = [of_machine(read_run(path)) for path in find_runs(folder)]
        real = [one for one in runs if one.provenance == "measured"]
        kind: Kind = "measured" if real else "modelled"
        inputs = inputs.set(_of_run((real or runs)[0], dpu), kind)
    return inputs


def _of_run(run: Recorded, dpu: str) -> dict[str, Number]:
    """The inputs from one run."""
    stages, found = run.stages, {}
    source = f"run {run.path.name}, storage {run.record.storage}"
    if _counted(stages, "read_service"):
        found["tlc.latency"] = _times(stages, ("read_service",), f"{source}: a read, p50 to p90")
    if all(_counted(stages, name) for name in FIRMWARE):
        found[f"{dpu}.latency"] = _times(stages, FIRMWARE, f"{source}: {', '.join(FIRMWARE)}")
    if run.result is not None:
        hit = run.result.hit
        about = f"{source}: demands that were staged in time"
        found["serving.hit"] = Number(
            value=hit, unit="1", low=hit, high=hit, tag="measured", source=about
        )
    if not found:
        raise BadInput("the run read nothing", str(run.path), "record one with a cold start")
    return found


def _counted(stages: Stages, name: str) -> bool:
    return name in stages and stages[name].count > 0


def _times(stages: Stages, names: tuple[str, ...], source: str) -> Number:
    """The sum of stages: their medians, and up to their p90."""
    mid, high = (
        sum(float(getattr(stages[name], key)) for name in names) / 1e3
        for key in ("ns_p50", "ns_p90")
    )
    return Number(
        value=mid,
        unit="us",
        low=mid,
        high=max(mid, high),
        tag="measured",
        scale=1e-6,
        source=source,
    )


def _decoded(path: Path) -> dict[str, Number]:
    """From a bench of decoding from drives: of its base, the first setting."""
    found = read_json(
        path,
        "give what `offstage bench sparse --out` wrote",
        SparseResult,
        what="not a result of bench sparse",
    )
    if not found.carried or not found.carried[0].sessions:
        raise BadInput("no session decodes at its stated stall", str(path), "raise its --waits")
    one = found.carried[0]
    tokens_per_s = one.drive_reads_per_s * one.drives / one.reads_per_token
    core_us = 1e6 * one.core / tokens_per_s / found.layers
    told = f"{path.name}: {found.model}, {one.context_tokens:,} tokens, k {one.selected}"
    served = one.drive_reads_per_s * found.block_bytes
    return {
        "sparse.carried": _said(served / 1e9, "GB/s", 1e9, f"{told}, {found.drive}"),
        "sparse.missed": _said(one.reads_per_token / found.layers, "1", 1.0, told),
        "sparse.core": _said(core_us, "us", 1e-6, f"{told}, {found.device}"),
        "sparse.waits": _said(found.waits, "1", 1.0, told),
    }


def _said(value: float, unit: str, scale: float, source: str) -> Number:
    return Number(
        value=value, unit=unit, low=value, high=value, tag="derived", scale=scale, source=source
    )


def _compared(path: Path, dpu: str) -> dict[str, Number]:
    """The median fetch of that DPU's column."""
    found = read_json(
        path, "write it again with `offstage compare`", Comparison, what="not a comparison"
    )
    column = next((one for one in found.columns if one.device == dpu), None)
    if column is None:
        names = ", ".join(one.device for one in found.columns)
        raise BadInput(
            f"the comparison has no column of {dpu}",
            str(path),
            f"it has {names}: compare with --asic {dpu}, or give one of these as --dpu",
        )
    us = column.fetch_ns.p50 / 1e3
    number = Number(
        value=us,
        unit="us",
        low=us,
        high=us,
        tag="derived",
        scale=1e-6,
        source=f"{path.name}: median fetch of {column.label}",
    )
    return {f"{dpu}.latency": number}
