"""A sweep's points computed, on all cores or a dask cluster, and kept as they come.

Model: OUT holds `points/`, one file for each point, named by all that it depends on: the code, the
run, the preset's numbers, mode, drives and seed. The same command goes on where it was interrupted,
and what a spec adds is all that is computed anew. `sweep.parquet` is made of the points in their
order, whoever computed them. A worker reads the run once and keeps it.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.replay import closed_loop, decision_replay
from offstage.asic_model.result import ChipRun
from offstage.asic_model.trace import Trace, log_path, read_trace
from offstage.bindings.durable import replacing, write_bytes
from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.outside import read_json
from offstage.testbeds.asic.spec import Point, SweepSpec, load, points_of
from offstage.testbeds.lab.run.parts import code_version
from offstage.testbeds.lab.run.spread import spread
from offstage.testbeds.progress import Progress

__all__ = ["TABLE_NAME", "Job", "sweep"]

TABLE_NAME = "sweep.parquet"
MEND = "the same command goes on from what is done"
TIMES = ("mean", "p50", "p90", "p99", "p999", "max")
PLAIN = (
    "demands",
    "hits",
    "late",
    "misses",
    "tokens",
    "tokens_per_s",
    "seconds",
    "reads",
    "bytes_read",
    "bandwidth_bytes_per_s",
    "deadlines_missed",
    "binds_first",
    "hash",
)

Row = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One point with all that computes it; it may run on another machine."""

    point: Point
    run: str
    preset: str
    mode: str
    storage: str
    seed: int
    code: str
    heads: int

    @property
    def chip(self) -> Preset:
        """What the point runs on."""
        return read_preset(self.preset).for_heads(self.heads).with_(self.point.values)


def sweep(path: Path, out: Path, progress: Progress, *, jobs: int, address: str = "") -> list[Row]:
    """Compute what is missing of a spec in `out`, write the table, and give its rows."""
    spec = load(path)
    log = log_path(path.parent / spec.run)
    heads = read_trace(log).heads  # a log that is refused is so before any worker starts
    points = points_of(spec, path, heads)
    code = code_version() + _digest_of(log)
    made = [
        Job(
            point,
            str(log.resolve()),
            _preset(spec, path),
            spec.mode,
            spec.storage,
            spec.seed,
            code,
            heads,
        )
        for point in points
    ]
    folder = out / "points"
    _make(folder)
    names = {job.point.number: folder / f"{_name(job)}.json" for job in made}
    missing = [job for job in made if _read(names[job.point.number]) is None]
    progress.start("chips", len(made))
    progress.advance(len(made) - len(missing))
    with contextlib.closing(
        spread(
            missing,
            compute,
            there=_remote,
            jobs=jobs,
            cluster=address,
            command="asic sweep",
            mend=MEND,
        )
    ) as results:
        for job, row in results:
            write_bytes(names[job.point.number], msgspec.json.encode(row))
            progress.advance(1)
    rows = []
    for job in made:
        found = _read(names[job.point.number])
        assert found is not None
        head = {"point": job.point.number, "preset": spec.preset, **job.point.values}
        rows.append(head | found)
    _table(rows, out / TABLE_NAME)
    return rows


def compute(job: Job) -> Row:
    """The figures of one point."""
    trace = _trace(job.run)
    replay = closed_loop if job.mode == "closed-loop" else decision_replay
    return _row(replay(trace, job.chip, drive=job.storage, seed=job.seed))


@lru_cache(maxsize=1)
def _trace(path: str) -> Trace:
    return read_trace(Path(path))


def _row(run: ChipRun) -> Row:
    """A run in one line: distributions by quantile, units by how much they were used."""
    row: Row = {name: getattr(run, name) for name in PLAIN}
    for name in ("fetch", "device", "read", "stall"):
        times = getattr(run, f"{name}_ns")
        row |= {f"{name}_ns_{quantile}": getattr(times, quantile) for quantile in TIMES}
    row["diverged"] = sum(run.diverged.values())
    row |= {f"used_{unit.name}": unit.utilisation for unit in run.units}
    return row


def _remote(job: Job) -> Row:
    """On a worker."""
    own = code_version()
    if not job.code.startswith(own):
        raise RunFailed(
            "the worker runs other code", "--cluster", "install the same Offstage everywhere"
        )
    return compute(job)


def _preset(spec: SweepSpec, path: Path) -> str:
    name = spec.preset
    return str((path.parent / name).resolve()) if name.endswith(".toml") else name


def _digest_of(log: Path) -> str:
    try:
        return hashlib.sha256(log.read_bytes()).hexdigest()
    except OSError as error:
        raise BadInput(
            f"cannot be read ({error.strerror})",
            str(log),
            "give a recorded run, as seen from the spec's folder",
        ) from None


def _name(job: Job) -> str:
    """Equal where all that the point depends on is."""
    what = [job.code, job.mode, job.storage, job.seed, job.chip]
    return hashlib.sha256(msgspec.json.encode(what, order="deterministic")).hexdigest()[:32]


def _read(path: Path) -> Row | None:
    """A point that is there and whole."""
    try:
        row = read_json(path, "", Row)
    except BadInput:
        return None
    return row if set(PLAIN) <= set(row) else None


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(
            error.strerror or "cannot be made", str(folder), "give --out another folder"
        ) from None


def _table(rows: Sequence[Row], path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = dict.fromkeys(name for row in rows for name in row)
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns})
    with replacing(path) as beside:
        pyarrow.parquet.write_table(table, beside)
