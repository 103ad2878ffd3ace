"""SPDK's user-space NVMe driver: a side of the storage seam, in a separate extension.

`ensure` loads `_spdk`, which is built only where pkg-config finds SPDK, and passes its table to the
firmware by pointer; from then on a storage can be opened as `spdk`, with transport ids as its path
(docs/how-to/links-and-drives.md). The first storage opened initializes SPDK's environment, which
lasts until the process ends; a child of fork may not use it.
"""

import importlib.util
from typing import Any

from offstage.bindings import firmware
from offstage.bindings.errors import BadInput, Incompatible, OffstageError

__all__ = ["Memory", "ensure", "erase", "release"]

_loaded: Any = None


def _extension() -> Any:
    """cffi's `ffi` and `lib` of the extension, once its table is with the firmware."""
    global _loaded
    if _loaded is None:
        try:
            from offstage.bindings import _spdk
        except ImportError as error:
            absent = importlib.util.find_spec("offstage.bindings._spdk") is None
            raise BadInput(
                "storage spdk is not in this build" + ("" if absent else f" ({error})"),
                "storage.backend",
                "install SPDK, name its pkg-config folder in PKG_CONFIG_PATH and build again, "
                "or choose io_uring",
            ) from None
        if _spdk.lib.ofs_spdk_version() != firmware.ABI_VERSION:
            raise Incompatible(
                f"the SPDK extension has ABI {_spdk.lib.ofs_spdk_version()}, "
                f"this release needs {firmware.ABI_VERSION}",
                "offstage.bindings",
                "in a checkout run `make dev`, elsewhere reinstall offstage",
            )
        table = int(_spdk.ffi.cast("uintptr_t", _spdk.lib.ofs_spdk_ops()))
        rc = firmware.lib.ofs_storage_add(
            firmware.ffi.cast("const struct ofs_storage_ops *", table)
        )
        firmware.check_rc(int(rc), "adding storage spdk", "offstage.bindings")
        _loaded = _spdk
    return _loaded


def ensure() -> None:
    """Storage `spdk` can be opened from now on. BadInput where this build has none."""
    _extension()


def release() -> str:
    """The version of the SPDK that was compiled in, such as 26.05."""
    ffi, lib = _extension().ffi, _extension().lib
    text: Any = ffi.string(lib.ofs_spdk_release())
    return str(text.decode())


def erase(storage: Any) -> None:
    """Give every block of an open `Storage` of SPDK back to its drives. BadInput where a drive has
    no dataset management."""
    ffi, lib = _extension().ffi, _extension().lib
    handle = ffi.cast("void *", int(firmware.ffi.cast("uintptr_t", storage.handle)))
    firmware.check_rc(
        int(lib.ofs_spdk_erase(handle)),
        "erasing",
        "the drive",
        "overwrite it instead, or give another",
    )


class Memory:
    """`size_bytes` of SPDK's memory, which every transport reaches without a copy. Takes the
    place of a `Buffer`; there is some only while a storage of SPDK is or was open."""

    def __init__(self, size_bytes: int) -> None:
        ffi, lib = _extension().ffi, _extension().lib
        pointer = lib.ofs_spdk_memory_alloc(size_bytes)
        if pointer == ffi.NULL:
            raise OffstageError(f"SPDK cannot allocate {size_bytes} B", "spdk", "take less")
        self._pointer = ffi.gc(pointer, lib.ofs_spdk_memory_free)
        self.size_bytes = size_bytes
        self.address = firmware.ffi.cast("void *", int(ffi.cast("uintptr_t", pointer)))
        self.view = memoryview(firmware.ffi.buffer(self.address, size_bytes))
        self.pages = "SPDK's huge pages" if lib.ofs_spdk_is_huge() else "SPDK's base pages"

    def at(self, offset: int) -> Any:
        """The C address of byte `offset`."""
        assert 0 <= offset <= self.size_bytes
        return firmware.ffi.cast("uint8_t *", self.address) + offset
