"""NIXL, where it is installed: finds and loads its C library, and runs a bare loop as a baseline.

The firmware does not link it (`nixl.h`): `load` opens the library once in a process, which makes
`nixl` available as a fabric. NIXL's Python interface is not imported.
"""

import errno
import importlib.util
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.firmware import check_rc, ffi, lib, text_of

__all__ = ["FIX", "Loop", "find", "load", "prepare"]

RDMA_DEVICES = Path("/sys/class/infiniband")
FIX = "install it with: pip install --no-deps nixl-cu12"
PACKAGES = ("nixl_cu13", "nixl_cu12")
ERROR_SIZE = 512
BLOB_SIZE = 65_536


def find() -> Path | None:
    """Its C library: `OFFSTAGE_NIXL` where that is set, else of an installed wheel; None: none."""
    chosen = os.environ.get("OFFSTAGE_NIXL")
    if chosen:
        return Path(chosen)
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            library = Path(folder).parent / f".{package}.mesonpy.libs" / "libnixl_capi.so"
            if library.is_file():
                return library
    return None


def load() -> None:
    """Make `nixl` a fabric of this process. BadInput where NIXL is not there or does not load."""
    library = find()
    if library is None:
        raise BadInput("NIXL is not installed", "fabric nixl", FIX)
    os.environ.setdefault("NIXL_LOG_LEVEL", "FATAL")  # what matters comes back as an error
    if not (RDMA_DEVICES.is_dir() and any(RDMA_DEVICES.iterdir())):
        # The wheel's own libnl crashes when a process that loaded UCX's RDMA module ends.
        os.environ.setdefault("UCX_MODULES", "^ib")
    error: Any = ffi.new("char[]", ERROR_SIZE)
    if lib.ofs_nixl_load(str(library).encode(), error, ERROR_SIZE) < 0:
        what, _, fix = text_of(error).rpartition("; ")
        raise BadInput(what, str(library), fix)


def prepare() -> None:
    """Load it, and open the agent that the next tenant's region takes. BadInput as `load`.

    It takes about a second, which the reactor is thereby spared."""
    load()
    if lib.ofs_nixl_prepare() < 0:
        raise BadInput(
            "NIXL cannot open an agent over UCX",
            "fabric nixl",
            "include tcp in UCX_TLS; NIXL_LOG_LEVEL=INFO logs the reason",
        )


class Loop:
    """One end of a bare NIXL loop, the floor of the nixl fabric: memory, and an agent over it."""

    def __init__(self, size_bytes: int, *, target: bool) -> None:
        """A `target` serves reads and writes without further calls. OffstageError: NIXL refuses."""
        load()
        out: Any = ffi.new("struct ofs_nixl_loop **")
        check_rc(lib.ofs_nixl_loop_open(out, size_bytes, int(target)), "opening a NIXL agent")
        self._loop: Any = out[0]

    @classmethod
    def on_device(cls, address: int, size_bytes: int, device: int = 0) -> "Loop":
        """One end over memory of GPU `device` that the caller keeps: what is read lands there.
        BadInput where UCX reaches no GPU."""
        load()
        loop, out = cls.__new__(cls), ffi.new("struct ofs_nixl_loop **")
        rc = lib.ofs_nixl_loop_open_device(out, address, size_bytes, device)
        if rc == -errno.ENODEV:
            raise BadInput(
                "NIXL cannot access device memory here",
                f"GPU {device}",
                "use a machine with a GPU and a UCX built with CUDA",
                errno=-rc,
            )
        check_rc(rc, "opening a NIXL agent")
        loop._loop = out[0]
        return loop

    def export(self) -> bytes:
        """What the other end needs."""
        blob: Any = ffi.new("uint8_t[]", BLOB_SIZE)
        size: Any = ffi.new("uint32_t *")
        rc = lib.ofs_nixl_loop_export(self._loop, blob, BLOB_SIZE, size)
        check_rc(rc, "exporting a NIXL agent")
        return bytes(ffi.buffer(blob, size[0]))

    def run(
        self, target: bytes, size_bytes: int, batch: int, rounds: int, *, write: bool = False
    ) -> NDArray[np.uint64]:
        """`batch` reads (or writes) of `size_bytes` in parallel, `rounds` times: ns [rounds]."""
        times = np.zeros(rounds, np.uint64)
        rc = lib.ofs_nixl_loop_run(
            self._loop,
            target,
            len(target),
            int(write),
            size_bytes,
            batch,
            rounds,
            ffi.cast("uint64_t *", times.ctypes.data),
        )
        if rc < 0:
            raise OffstageError(
                "the NIXL loop does not run",
                "bench fabric",
                "give both ends the same UCX_TLS",
                errno=-rc,
            )
        return times

    def close(self) -> None:
        """Let go of it. Closing twice does nothing."""
        if self._loop is not None:
            lib.ofs_nixl_loop_close(self._loop)
            self._loop = None

    def __enter__(self) -> "Loop":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
