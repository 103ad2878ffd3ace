"""Writes a file of block scores, row group by row group, as they arrive.

A writer owns a temporary file next to the requested one, and the steps that wait to be written:
`row_group_bytes` of them plus one step. The requested file appears when it is complete.
What can fail: the path (BadInput, before anything is computed) and the disk (RunFailed).
"""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.durable import writable
from offstage.bindings.errors import BadInput, Interrupted, RunFailed, needs
from offstage.testbeds.workloads.selections.scores_file import (
    COLUMNS,
    METADATA_KEY,
    POSITION,
    SCORES,
    Header,
    schema,
)

__all__ = ["ROW_GROUP_BYTES", "Writer", "check_path"]

ROW_GROUP_BYTES = 8 << 20
"""Bytes of scores in a row group, before compression: a reader holds one."""

Scores = Mapping[str, npt.NDArray[np.float16]]


class Writer:
    """A file being written; a context manager.

    On exit without an error the file is renamed to `path`. On Ctrl-C it keeps complete steps: with
    at least one decode step the file is shorter and valid, and Interrupted says so; otherwise, and
    on every other error, nothing is left.
    """

    def __init__(
        self,
        path: str | Path,
        header: Header,
        scores: tuple[str, ...] = SCORES,
        row_group_bytes: int = ROW_GROUP_BYTES,
    ) -> None:
        needs("pyarrow", "parquet", str(path))
        import pyarrow.parquet as pq

        self.path = Path(path)
        self.header = header
        self.row_count = 0
        self.step_count = 0  # decode steps, over all sessions
        self.held_bytes_max = 0  # maximum bytes waiting
        self._schema = schema(scores)
        self._names = [name for name in COLUMNS if name in scores]
        self._limit_bytes = row_group_bytes
        self._waiting: list[tuple[int, int, Scores]] = []
        self._waiting_bytes = 0
        self._last = (-1, -1)
        self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        check_path(self.path)
        try:
            self._file: Any = pq.ParquetWriter(
                self._part,
                self._schema,
                compression="zstd",
                use_dictionary=False,
                store_schema=False,  # its copy of the metadata would lack what is known last
                write_page_checksum=True,
            )
        except OSError as error:
            self._remove()
            fix = "choose a path you may write to"
            raise BadInput(_reason(error), str(self.path), fix) from None

    def step(self, session: int, step: int, scores: Scores) -> None:
        """Add one step: a column of `[layers, groups, blocks]` float16 for each score.

        Steps come in order: sessions ascending, steps of one consecutive, a prefill window's step
        negative and -1 the last of them.
        """
        first = scores[self._names[0]]
        layers, groups = self.header.layer_count, self.header.group_count
        assert first.shape[:2] == (layers, groups), "scores of every layer and group"
        assert all(scores[name].shape == first.shape for name in self._names)
        assert (session, step) > self._last, "steps come in order"
        if self._waiting and session != self._waiting[0][0]:
            self._flush()
        self._last = (session, step)
        self._waiting.append((session, step, scores))
        self._waiting_bytes += first.nbytes * len(self._names)
        self.held_bytes_max = max(self.held_bytes_max, self._waiting_bytes)
        if self._waiting_bytes >= self._limit_bytes:
            self._flush()

    def tell(self, **parameters: Any) -> None:
        """Add to the header's parameters what is known only now; the header is written last."""
        given = self.header.parameters | parameters
        self.header = msgspec.structs.replace(self.header, parameters=given)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        decoded = self.step_count or any(step >= 0 for _, step, _ in self._waiting)
        if kind is not None and not (interrupted and decoded):
            self._drop()
            return
        try:
            self._finish()
        except BaseException:
            self._drop()
            raise
        if interrupted:
            raise Interrupted(
                f"interrupted; {self.path} has the {self.step_count} complete steps"
            ) from error

    def _finish(self) -> None:
        self._flush()
        with self._disk():
            self._file.add_key_value_metadata({METADATA_KEY: msgspec.json.encode(self.header)})
            self._file.close()
            self._part.replace(self.path)

    def _drop(self) -> None:
        # The footer may not fit either; the file is deleted in any case.
        with contextlib.suppress(Exception):
            self._file.close()
        self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self._part.unlink()

    def _flush(self) -> None:
        import pyarrow as pa

        # Taken out first: an interrupt from here on loses them, and never writes them twice.
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        layers, groups = self.header.layer_count, self.header.group_count
        rows = layers * groups
        blocks = np.array([scores[self._names[0]].shape[2] for _, _, scores in waiting])
        position = {
            "session": np.repeat([session for session, _, _ in waiting], rows),
            "step": np.repeat([step for _, step, _ in waiting], rows),
            "layer": np.tile(np.repeat(np.arange(layers), groups), len(waiting)),
            "group": np.tile(np.arange(groups), len(waiting) * layers),
            "blocks": np.repeat(blocks, rows),
        }
        columns = [pa.array(position[name], self._schema.field(name).type) for name in POSITION]
        ends = np.concatenate([[0], np.cumsum(np.repeat(blocks, rows))])
        for name in self._names:
            flat = np.concatenate([scores[name].reshape(-1) for _, _, scores in waiting])
            values = pa.array(flat.astype(np.float16, copy=False))
            kind = self._schema.field(name).type
            columns.append(pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values, type=kind))
        with self._disk():
            self._file.write_batch(pa.record_batch(columns, schema=self._schema))
        self.row_count += len(position["step"])
        self.step_count += sum(step >= 0 for _, step, _ in waiting)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunFailed(_reason(error), str(self.path), "nothing was kept") from None


def check_path(path: Path) -> None:
    """BadInput, as of `writable`, or where there is no such folder yet; creates nothing."""
    writable(path)
    if not path.parent.is_dir():
        raise BadInput("its folder is not there", str(path), "make it, or choose another path")


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)
