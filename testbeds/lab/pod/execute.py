"""All points of a spec, on the cores of this machine or a dask cluster, and their figures.

The unit of work is a pod, a schedule and a seed with all of its faults, because a fault is compared
with the run without it. The result of a unit depends on nothing else, so neither the number of
processes nor the order in which they end changes a figure. The death of a process ends the run.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from offstage.bindings.durable import replacing
from offstage.bindings.errors import RunFailed, needs
from offstage.host.request_file import Recorded
from offstage.host.request_record import ServedRun
from offstage.testbeds.lab.pod.point_figures import PodPoint, figures_of
from offstage.testbeds.lab.pod.run import Ran, run_point
from offstage.testbeds.lab.pod.spec import PodSpec, Point, points
from offstage.testbeds.lab.run.parts import code_version
from offstage.testbeds.lab.run.spread import spread
from offstage.testbeds.progress import Progress

__all__ = ["compute", "write_parquet"]

Unit = tuple[Point, ...]
ABSENT = {
    "unreadable_blocks": "no read fails in this model",
    "late_blocks": "a host waits for all of a prefix before it computes the rest",
    "wasted_blocks": "hosts read only what they use",
}


def compute(
    spec: PodSpec,
    progress: Progress,
    jobs: int,
    cluster: str = "",
    served: list[Recorded] | None = None,
) -> list[PodPoint]:
    """The figures of every point, in the spec's order; `served` gets the records of its requests.
    BadInput: the file is not a trace. RunFailed: a process died, or the cluster cannot be
    reached."""
    needs("pyarrow", "parquet", "lab pod")
    wanted = points(spec)
    units = sorted(
        {
            tuple(
                other
                for other in wanted
                if replace(other, fault="none") == replace(one, fault="none")
            )
            for one in wanted
        },
        key=lambda unit: (-unit[0].daemons, unit),
    )
    progress.start("pods", len(wanted), "points")
    found: dict[Point, tuple[PodPoint, Recorded | None]] = {}
    keep = served is not None
    there = partial(_unit, spec, keep=keep, code=code_version() if cluster else "")
    for unit, figures in spread(
        units,
        partial(_unit, spec, keep=keep),
        there=there,
        jobs=jobs,
        cluster=cluster,
        command="lab pod",
        fix="repeat the command",
    ):
        found |= dict(zip(unit, figures, strict=True))
        progress.advance(len(unit))
        progress.note(f"{unit[0].daemons} daemons, {unit[0].schedule}")
    if served is not None:
        served += [kept for one in wanted if (kept := found[one][1]) is not None]
    return [found[one][0] for one in wanted]


def write_parquet(figures: Sequence[PodPoint], path: Path) -> None:
    """Write a row for each point; separate columns hold the cost of a fault. RunFailed if the file
    cannot be written."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = []
    for one in figures:
        row = msgspec.to_builtins(one)
        loss = row.pop("loss") or {}
        names = ("tokens", "share", "lowest", "back_s", "back_less_s")
        rows.append(row | {f"loss_{name}": loss.get(name) for name in names})
    with replacing(path) as beside:
        pq.write_table(pa.Table.from_pylist(rows), beside)


def _unit(
    spec: PodSpec, unit: Unit, keep: bool = False, code: str = ""
) -> list[tuple[PodPoint, Recorded | None]]:
    """The figures of a unit, and its records if they are kept. Its first point is the run without a
    fault, if it has faults."""
    if code and code != code_version():
        raise RunFailed(
            "the worker runs different code", "--cluster", "install the same Offstage everywhere"
        )
    ran = {one: run_point(spec, one) for one in unit}
    without = {one: ran.get(replace(one, fault="none")) for one in unit}
    figures = [
        figures_of(spec, one, ran[one], None if one.fault == "none" else without[one])
        for one in unit
    ]
    return [
        (each, (_about(one, ran[one]), ran[one].records) if keep else None)
        for one, each in zip(unit, figures, strict=True)
    ]


def _about(point: Point, ran: Ran) -> ServedRun:
    """What the records of a point are of."""
    label = f"{point.daemons} daemons, {point.schedule}, fault {point.fault}, seed {point.seed}"
    return ServedRun(label=label, provenance="modelled", used=ran.used, absent=ABSENT)
