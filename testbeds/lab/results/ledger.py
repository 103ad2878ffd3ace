"""The ledger of a lab run: one row for every (session, step, layer), and what is computed from it.

The C engine writes the rows; `ledger.parquet` keeps them with the seed and the point beside them.
Every figure of a report is computed from these rows and the core's counters of the run.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.core import ENDS
from offstage.bindings.engine import ROW
from offstage.bindings.errors import RunFailed

__all__ = ["LEDGER_NAME", "ROW", "LedgerFile", "ledger_columns", "write_ledger"]


# `ledger.parquet`: the rows of every point and seed, the same bytes for the same rows.
#
# Each column is a field of `testbeds.lab.ledger.ROW`; ends have one column each. Settings of the
# writer are fixed and no time is written, so that two runs of one spec give one hash (with one
# version of pyarrow, whose name the file holds). Written beside its place and renamed at the end:
# a run that fails leaves none.

LEDGER_NAME = "ledger.parquet"
GROUP_ROWS_MAX = 1 << 18
"""Rows of one row group: about 20 MB in memory. A group never holds two points or seeds."""


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
    """A ledger being written; parts must come in a fixed order for the file to be the same."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        self.writer: Any = None

    def __enter__(self) -> "LedgerFile":
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([(name, pa.from_numpy_dtype(kind)) for name, kind in ledger_columns()])
        with self._refused():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.writer = pq.ParquetWriter(
                self.temporary, schema, version="2.6", compression="zstd", compression_level=3,
                use_dictionary=True, write_statistics=True, data_page_size=1 << 20,
            )  # fmt: skip
        return self

    def add(self, point: int, seed: int, rows: npt.NDArray[np.void]) -> None:
        """The rows `ROW` `[n]` of one point and seed."""
        import pyarrow as pa

        for first in range(0, len(rows), GROUP_ROWS_MAX):
            part = rows[first : first + GROUP_ROWS_MAX]
            columns = [np.full(len(part), point, np.uint16), np.full(len(part), seed, np.uint64)]
            columns += list(_flat(part))
            arrays = [pa.array(column) for column in columns]
            table = pa.Table.from_arrays(arrays, schema=self.writer.schema)
            with self._refused():
                self.writer.write_table(table, row_group_size=GROUP_ROWS_MAX)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            mend = "make room or name another place"
            raise RunFailed(f"cannot be written: {reason}", str(self.path), mend) from None


def _flat(rows: npt.NDArray[np.void]) -> Iterator[npt.NDArray[Any]]:
    for name in ROW.names or ():
        values = np.ascontiguousarray(rows[name])
        if values.ndim == 2:
            yield from (np.ascontiguousarray(values[:, at]) for at in range(values.shape[1]))
        else:
            yield values


def write_ledger(path: str | Path, parts: Iterable[tuple[int, int, npt.NDArray[np.void]]]) -> None:
    """Writes (point, seed, rows) one after another. RunFailed where the disk refuses."""
    with LedgerFile(path) as ledger:
        for point, seed, rows in parts:
            ledger.add(point, seed, rows)
