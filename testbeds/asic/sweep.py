"""Computes a sweep's points on all cores or a dask cluster, and stores each as it completes.

Model: OUT has `points/`, one file for each point, named by everything that it depends on: the code,
the run, the preset's numbers, mode, drives and seed. The same command continues an interrupted
sweep, and points added to a spec are the only ones computed anew. `sweep.parquet` is built from the
points in their order, wherever they were computed. A worker reads the run once and keeps it.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from offstage.asic_model.copies import copies
from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.replay import closed_loop, decision_replay
from offstage.asic_model.result import ChipRun
from offstage.asic_model.trace import Trace, log_path, read_trace
from offstage.bindings.durable import replacing, write_bytes
from offstage.bindings.errors import BadInput, RunFailed, needs
from offstage.bindings.outside import read_json
from offstage.testbeds.asic.spec import Point, SweepSpec, load, points_of
from offstage.testbeds.lab.run.parts import code_version
from offstage.testbeds.lab.run.spread import spread
from offstage.testbeds.progress import Progress

__all__ = ["TABLE_NAME", "Job", "sweep"]

TABLE_NAME = "sweep.parquet"
FIX = "run the same command to continue"
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

Row = dict[str, str | int | float]


@dataclass(frozen=True)
class Job:
    """One point with all inputs of its computation; it may run on another machine."""

    point: Point
    run: str
    preset: str
    mode: str
    storage: str
    seed: int
    code: str
    heads: int
    copies: int

    @property
    def chip(self) -> Preset:
        """The point's preset."""
        return read_preset(self.preset).for_heads(self.heads).with_(self.point.values)


def sweep(path: Path, out: Path, progress: Progress, *, jobs: int, address: str = "") -> list[Row]:
    """Compute the missing points of a spec in `out`, write the table, return its rows."""
    needs("pyarrow", "parquet", "asic sweep")
    spec = load(path)
    log = log_path(path.parent / spec.run)
    heads = read_trace(log).heads  # refuses a bad log before any worker starts
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
            spec.copies,
        )
        for point in points
    ]
    folder = out / "points"
    _make(folder)
    names = {job.point.number: folder / f"{_name(job)}.json" for job in made}
    missing = [job for job in made if _read(names[job.point.number]) is None]
    progress.start("run", len(made), "chips")
    progress.advance(len(made) - len(missing))
    with contextlib.closing(
        spread(
            missing,
            compute,
            there=_remote,
            jobs=jobs,
            cluster=address,
            command="asic sweep",
            fix=FIX,
        )
    ) as results:
        for job, row in results:
            write_bytes(names[job.point.number], msgspec.json.encode(row))
            progress.advance(1)
    rows = []
    for job in made:
        found = _read(names[job.point.number])
        assert found is not None
        head: Row = {"point": job.point.number, "preset": spec.preset, **job.point.values}
        rows.append(head | found)
    _table(rows, out / TABLE_NAME)
    return rows


def compute(job: Job) -> Row:
    """The figures of one point."""
    trace = copies(_trace(job.run), job.copies)
    replay = closed_loop if job.mode == "closed-loop" else decision_replay
    return _row(replay(trace, job.chip, drive=job.storage, seed=job.seed))


@lru_cache(maxsize=1)
def _trace(path: str) -> Trace:
    return read_trace(Path(path))


def _row(run: ChipRun) -> Row:
    """A run as one row: distributions by quantile, units by utilisation."""
    row: Row = {name: getattr(run, name) for name in PLAIN}
    for name in ("fetch", "device", "read", "stall"):
        times = getattr(run, f"{name}_ns")
        row |= {f"{name}_ns_{quantile}": getattr(times, quantile) for quantile in TIMES}
    row["diverged"] = sum(run.diverged.values())
    row |= {f"used_{unit.name}": unit.utilisation for unit in run.units}
    row |= {
        f"found_{unit.name}": unit.hits / (unit.hits + unit.misses)
        for unit in run.units
        if unit.hits + unit.misses
    }
    return row


def _remote(job: Job) -> Row:
    """`compute` on a worker."""
    own = code_version()
    if not job.code.startswith(own):
        raise RunFailed(
            "the worker runs different code",
            "--cluster",
            "install the same Offstage on every worker",
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
            "give a recorded run, relative to the spec's folder",
        ) from None


def _name(job: Job) -> str:
    """A name that is equal if and only if the point's inputs are."""
    what = [job.code, job.mode, job.storage, job.seed, job.copies, job.chip]
    return hashlib.sha256(msgspec.json.encode(what, order="deterministic")).hexdigest()[:32]


def _read(path: Path) -> Row | None:
    """A stored point; None if absent or incomplete."""
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
            error.strerror or "cannot be created", str(folder), "give --out another folder"
        ) from None


def _table(rows: Sequence[Row], path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = dict.fromkeys(name for row in rows for name in row)
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in columns})
    with replacing(path) as temporary:
        pyarrow.parquet.write_table(table, temporary)
