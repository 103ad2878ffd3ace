"""`ledger.parquet`: the rows of every point and seed, the same bytes for the same rows.

Each column is a field of `ROW`, with one column for each end; two more hold point and seed. The
file describes itself: `POINTS_KEY` of its schema describes each point. The settings of the writer
are fixed and no time is written, so that two runs of one spec give one hash (with one version of
pyarrow, which the file names). It is written next to its path and renamed at the end: a run that
fails leaves no ledger.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.engine import ROW
from offstage.bindings.errors import BadInput, RunFailed, needs
from offstage.bindings.layouts import ENDS
from offstage.bindings.outside import decode_json
from offstage.testbeds.lab.results.summary import PointInfo

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "FIX",
    "LEDGER_NAME",
    "Described",
    "LedgerFile",
    "describe",
    "ledger_columns",
    "ledger_rows",
]

LEDGER_NAME = "ledger.parquet"
POINTS_KEY = b"offstage.points"
GROUP_ROWS_MAX = 1 << 18
"""Rows of one row group: about 20 MB in memory. A group never holds two points or seeds."""
FIX = "name a folder that `offstage lab run --out` wrote, or run it again"


class Described(msgspec.Struct, frozen=True):
    """A ledger's description of one point. `recurring`: every seed has the same requests, as in a
    captured workload."""

    info: PointInfo
    recurring: bool = False


def ledger_columns() -> list[tuple[str, np.dtype[Any]]]:
    """Name and type of every column, in order."""
    columns: list[tuple[str, np.dtype[Any]]] = [
        ("point", np.dtype("<u2")),
        ("seed", np.dtype("<u8")),
    ]
    for name in ROW.names or ():
        base = ROW[name].base
        if ROW[name].shape:
            columns += [(f"{name.removesuffix('s')}_{end}", base) for end in ENDS]
        else:
            columns.append((name, base))
    return columns


class LedgerFile:
    """A ledger being written; parts must come in a fixed order for the file to be the same.

    points: the description of each point, by its number in the rows."""

    def __init__(self, path: str | Path, points: Mapping[int, Described]) -> None:
        self.path = Path(path)
        self.temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        self.points = {str(number): one for number, one in points.items()}
        self.writer: Any = None

    def __enter__(self) -> "LedgerFile":
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema(
            [(name, pa.from_numpy_dtype(kind)) for name, kind in ledger_columns()],
            {POINTS_KEY: msgspec.json.encode(self.points, order="deterministic")},
        )
        with self._refused():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.writer = pq.ParquetWriter(
                self.temporary,
                schema,
                version="2.6",
                compression="zstd",
                compression_level=3,
                use_dictionary=True,
                write_statistics=True,
                data_page_size=1 << 20,
            )
        return self

    def add(self, point: int, seed: int, rows: npt.NDArray[np.void]) -> None:
        """Append the rows `ROW` `[n]` of one point and seed."""
        import pyarrow as pa

        for first in range(0, len(rows), GROUP_ROWS_MAX):
            part = rows[first : first + GROUP_ROWS_MAX]
            columns = [np.full(len(part), point, np.uint16), np.full(len(part), seed, np.uint64)]
            columns += list(_flat(part))
            arrays = [pa.array(column) for column in columns]
            table = pa.Table.from_arrays(arrays, schema=self.writer.schema)
            with self._refused():
                self.writer.write_table(table, row_group_size=GROUP_ROWS_MAX)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with self._refused():
                self.writer.close()
                if kind is None:
                    self.temporary.replace(self.path)
        finally:
            with contextlib.suppress(OSError):
                self.temporary.unlink()

    @contextlib.contextmanager
    def _refused(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            fix = "free space, or name another path"
            raise RunFailed(f"cannot be written: {reason}", str(self.path), fix) from None


def _flat(rows: npt.NDArray[np.void]) -> Iterator[npt.NDArray[Any]]:
    for name in ROW.names or ():
        values = np.ascontiguousarray(rows[name])
        if values.ndim == 2:
            yield from (np.ascontiguousarray(values[:, at]) for at in range(values.shape[1]))
        else:
            yield values


def describe(path: str | Path) -> dict[int, Described]:
    """The points of a ledger, by number. BadInput if the file is not a ledger, or is an older one
    without descriptions of points."""
    needs("pyarrow", "parquet", str(path))
    import pyarrow.parquet as pq

    with _readable(path):
        said = (pq.read_schema(path).metadata or {}).get(POINTS_KEY)
        if said is None:
            raise BadInput("does not describe its points", str(path), FIX)
        return decode_json(said, str(path), FIX, dict[int, Described])


def ledger_rows(path: str | Path, point: int, columns: Sequence[str] = ()) -> "pa.Table":
    """The rows of one point over all seeds; only `columns`, or all columns if empty."""
    needs("pyarrow", "parquet", str(path))
    import pyarrow.parquet as pq

    with _readable(path):
        return pq.read_table(path, columns=list(columns) or None, filters=[("point", "=", point)])


@contextlib.contextmanager
def _readable(path: str | Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else "is not a Parquet file"
        raise BadInput(reason, str(path), FIX) from None
    except (pa.ArrowException, msgspec.MsgspecError) as error:
        line = " ".join(str(error).split()).rstrip(".")
        raise BadInput(f"cannot be read: {line}", str(path), FIX) from None
