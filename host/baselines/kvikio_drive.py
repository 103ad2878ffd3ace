"""kvikio: NVIDIA's library for file I/O, by GPUDirect Storage or in its compatibility mode.

Blocks are read into host memory here, as over every fabric, because their bytes are checked there;
the page cache is bypassed. kvikio needs the CUDA driver's library even for host memory: if that or
kvikio does not load, `why_no_kvikio` gives the reason, and io_uring is used instead.
"""

import ctypes
import errno
import importlib
import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput, brings
from offstage.bindings.storage import Buffer, Done

__all__ = ["KvikioDrive", "why_no_kvikio"]

DRIVER_LIBRARY = "libcuda.so.1"
PAUSE_S = 20e-6


def why_no_kvikio() -> str:
    """Why kvikio cannot be used here, and the fix; "" if it can."""
    if importlib.util.find_spec("kvikio") is None:
        return f"kvikio is not installed ({brings('gpu-cuda12')})"
    try:
        ctypes.CDLL(DRIVER_LIBRARY)
    except OSError:
        return f"kvikio needs {DRIVER_LIBRARY}, which does not load (install the NVIDIA driver)"
    try:
        importlib.import_module("kvikio.defaults")
    except Exception as error:  # whatever a half-installed package raises
        return f"kvikio does not import: {error} (pip install --force-reinstall kvikio-cu12)"
    return ""


class KvikioDrive:
    """`Drive` over `kvikio.CuFile`. BadInput where kvikio cannot be used, or the file not opened.

    `name` ends in the mode that kvikio chose: compat, or gds."""

    def __init__(self, path: Path, row_count: int, stride_bytes: int, depth: int = 64) -> None:
        if why := why_no_kvikio():
            raise BadInput(why, "baseline", "use the io_uring drive")
        kvikio = importlib.import_module("kvikio")
        defaults = importlib.import_module("kvikio.defaults")
        # Otherwise the page cache would be memory that the tier in the comparison does not have.
        defaults.set({"auto_direct_io_read": True, "auto_direct_io_write": True, "num_threads": 8})
        try:
            self._file: Any = kvikio.CuFile(path, "r+")
        except (OSError, RuntimeError) as error:
            raise BadInput(f"kvikio cannot open it: {error}", str(path), "check the path") from None
        compat = bool(defaults.is_compat_mode_preferred())
        self.name = f"kvikio {kvikio.__version__} ({'compat' if compat else 'gds'})"
        self.warning, self.depth = "", depth
        self._buffer = Buffer(row_count * stride_bytes)
        self.rows = np.frombuffer(self._buffer.view, np.uint8).reshape(row_count, stride_bytes)
        self._flying: dict[int, Any] = {}

    def read(self, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
        return self._begin(self._file.pread, rows, offsets)

    def write(self, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
        return self._begin(self._file.pwrite, rows, offsets)

    def poll(self, timeout_ns: int = 0) -> list[Done]:
        until_ns = time.monotonic_ns() + timeout_ns
        while True:
            ended = [row for row, future in self._flying.items() if future.done()]
            if ended or not self._flying or time.monotonic_ns() >= until_ns:
                return [Done(row, _result(self._flying.pop(row))) for row in ended]
            time.sleep(PAUSE_S)

    def stats(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._file.close()

    def _begin(self, start: Any, rows: NDArray[np.int64], offsets: NDArray[np.int64]) -> int:
        room = min(len(rows), self.depth - len(self._flying))
        for row, offset in zip(rows[:room].tolist(), offsets[:room].tolist(), strict=True):
            self._flying[row] = start(self.rows[row], file_offset=offset)
        return room


def _result(future: Any) -> int:
    try:
        return int(future.get())
    except (OSError, RuntimeError):
        return -errno.EIO
