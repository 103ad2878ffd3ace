"""Fits `dpu_x86_measured` to the samples of a recorded run.

Model: each stage that `samples.py` has maps to one or two parameters, so nothing is searched, and
none of the judged figures is looked at. Costs of the reactor are a regression of its processor time
on its work: commands, demands and scores where it decides, reads where it submits and publishes;
processor time says the same beside other work, where the clock does not. Scores come with every
command of a workload alike, so runs of contexts of different lengths tell the two apart. The
service of reads is drawn from all reads of the run, by cause and by the reads beside them
(`services.py`). What remains are waits, of which the model has one each: their medians. They are
those between two processes, and that of a command for the reactor before its first read and after
its last, of which the costs of these reads are no part.

What can fail: `BadInput`, one line, for a run with too few samples of a parameter.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.asic_model.blocks import Number
from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.samples import COSTS, WORK, Cost, Samples
from offstage.asic_model.services import rows_of
from offstage.bindings.errors import BadInput
from offstage.bindings.stages import Stages

__all__ = ["LEAST", "fit", "write_preset"]

LEAST = 100
"""Samples of a parameter without which nothing is fitted."""
PS = 1000  # in a ns
QUANTILES = {"least": 0.0, "p50": 0.5, "p90": 0.9, "p99": 0.99, "most": 1.0}
MEDIAN_Z = 1.96
MAY_LACK = ("starts", "wakes", "rests", "cold_scores")
"""Work that a drive or a busy reactor may not have: it costs nothing there."""


def fit(
    preset: Preset,
    samples: Samples,
    stages: Stages,
    where: str,
    *,
    block_bytes: int,
    least: int = LEAST,
) -> Preset:
    """The preset with the costs of one run. `stages`: those of its host (answer, copy, check).
    `least`: a parameter with fewer samples is refused; 0: it keeps the preset's value."""
    found: dict[str, Cost] = {}
    for work, name in zip(WORK, COSTS, strict=True):
        turns = len(samples.turns)
        if work not in MAY_LACK:
            turns = int((samples.turns[work] > 0).sum())
        if _enough(turns, least, f"undisturbed turns with {work}", where):
            found[f"cores.{name}"] = _ps(samples.ranges[work])
    if _enough(len(samples.around), least, "commands that waited for their reads", where):
        reads = samples.costs["begun"] + samples.costs["ended"] * samples.awaited
        found["cores.answer"] = _ps(_median(np.maximum(samples.around - reads, 0)))
    answer = stages["answer"] if "answer" in stages else None
    if _enough(len(samples.ring), least, "commands with the time when they were sent", where):
        median = _ps(_median(samples.ring))
        after = answer.ns_p50 * PS if answer is not None else 0
        found["front_end.latency"] = Cost(
            median.value + after, median.low + after, median.high + after, median.count
        )
    copied = stages["copy"].count if "copy" in stages else 0
    if _enough(copied, least, "copied blocks", where):
        check = stages["check"].ns_p50 if "check" in stages else 0
        rate = block_bytes / ((stages["copy"].ns_p50 + check) / 1e9)
        found["front_end.lane_rate"] = Cost(rate, rate * 7 / 8, rate, copied)  # of a bucket
    fitted = _with(preset, found)
    if preset.nvme.drive == "disk" and _enough(len(samples.service), least, "reads", where):
        fitted = _with_disk(fitted, samples)
    return fitted


def _enough(count: int, least: int, what: str, where: str) -> bool:
    if count < least:
        raise BadInput(
            f"has {count} {what}, and a fit needs {least}", where, "record more steps or sessions"
        )
    return count > 0


def _ps(cost: Cost) -> Cost:
    return Cost(cost.value * PS, cost.low * PS, cost.high * PS, cost.count)


def _median(values: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> Cost:
    """The median, with the order statistics around it that bound it with 95 %."""
    ordered, count = np.sort(values), len(values)
    apart = MEDIAN_Z * np.sqrt(count) / 2
    low, high = (int(np.clip(count / 2 + side * apart, 0, count - 1)) for side in (-1, 1))
    return Cost(float(np.median(values)), float(ordered[low]), float(ordered[high]), count)


def _with(preset: Preset, found: dict[str, Cost]) -> Preset:
    """With costs in base units, their intervals as ranges, and their numbers as source."""
    for name, cost in found.items():
        block, _, key = name.partition(".")
        table = getattr(preset, block)
        number: Number = getattr(table, key)
        number = msgspec.structs.replace(
            number,
            value=cost.value / number.scale,
            low=cost.low / number.scale,
            high=cost.high / number.scale,
            tag="measured",
            source=f"fitted to a run: {cost.count} samples, range of 95 %",
        )
        table = msgspec.structs.replace(table, **{key: number})
        preset = msgspec.structs.replace(preset, **{block: table})
    return preset


def _with_disk(preset: Preset, samples: Samples) -> Preset:
    took = np.maximum(samples.service - samples.held, 1)
    mean, count = float(took.mean()), len(took)
    wide = float(MEDIAN_Z * took.std() / np.sqrt(count))
    found = {
        "disk.service": Cost(mean * PS, max(mean - wide, 1) * PS, (mean + wide) * PS, count),
        "disk.together": _ps(_median(took)),
    }
    for name, share in QUANTILES.items():
        value = float(np.quantile(took, share)) / mean
        found[f"disk.{name}"] = Cost(value, value, value, count)
    fitted = _with(preset, found)
    disk = fitted.disk
    assert disk is not None
    rows = rows_of(samples.cause, samples.beside, took)
    service = msgspec.structs.replace(disk.service, spread=rows)
    disk = msgspec.structs.replace(disk, service=service)
    # The wait in the disk's queue is part of the service, so there is no second one before it.
    disk = fitted.with_({"disk.depth": max(disk.depth.value, fitted.nvme.reads.value)}).disk
    assert disk is not None
    return msgspec.structs.replace(fitted, disk=msgspec.structs.replace(disk, service=service))


def write_preset(preset: Preset, path: Path, fitted_to: str) -> None:
    """Write what the fit changed, as a TOML file that extends the preset. BadInput where it cannot
    be written."""
    before = dict(read_preset(preset.name).numbers())
    lines = [
        f"# Fitted to {fitted_to} by `offstage asic validate`.",
        f'extends = "{preset.name}"',
        f"calibrated = {str(preset.calibrated).lower()}",
    ]
    tables: dict[str, list[str]] = {}
    for name, number in preset.numbers():
        if number != before.get(name):
            block, _, key = name.partition(".")
            tables.setdefault(block, []).append(
                f'{key} = {{ value = {number.value!r}, unit = "{number.unit}", '
                f'low = {number.low!r}, high = {number.high!r}, tag = "measured", '
                f'source = "{number.source}"{_spread(number.spread)} }}'
            )
    for block, rows in tables.items():
        lines += ["", f"[{block}]", *rows]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"cannot be written ({error.strerror})", str(path), "give another --out"
        ) from None


def _spread(rows: Sequence[Sequence[float]]) -> str:
    if not rows:
        return ""
    shown = ("[" + ", ".join(f"{one:.6g}" for one in row) + "]" for row in rows)
    return f", spread = [{', '.join(shown)}]"
