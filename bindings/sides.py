"""Sides of the storage seam by name: those of this build, and those of installed packages.

A package offers one in the entry-point group `offstage.storages`: a name, and a function without
arguments that returns the address of its `struct ofs_storage_ops` (storage.h). The table is added
to the firmware on the first use of the name. `headers` returns the headers that such a package is
compiled with: docs/how-to/add-a-storage.md, docs/examples/storage-mapped.
"""

import errno
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from offstage.bindings import firmware, spdk
from offstage.bindings.errors import BadInput, Incompatible

__all__ = ["BUILT_IN", "check", "ensure", "headers", "offered"]

GROUP = "offstage.storages"
BUILT_IN = ("auto", "io_uring", "posix", "emulated", "spdk")
FOR_TESTS = ("sim", "skeleton")
FIRMWARE = Path(__file__).resolve().parents[1] / "dpu/firmware"


def offered() -> dict[str, EntryPoint]:
    """What installed packages offer, by name; nothing of it is loaded."""
    return {one.name: one for one in entry_points(group=GROUP)}


def check(name: str, where: str) -> None:
    """BadInput if there is no storage of this name."""
    known = (*BUILT_IN, *sorted(offered()))
    if name not in known:
        raise BadInput(
            f"no storage {name!r}",
            where,
            f"choose one of {', '.join(known)}, or install its package",
        )


def ensure(name: str) -> None:
    """A storage of this name can be opened from now on. BadInput, Incompatible: why it cannot."""
    if name == "spdk":
        spdk.ensure()
    elif name not in (*BUILT_IN, *FOR_TESTS):
        check(name, "storage.backend")
        _add(offered()[name])


def headers() -> list[str]:
    """The folders of headers that a side is compiled with. In the second is `common.c` too, which
    belongs into every shared object that holds a side."""
    return [str(FIRMWARE / "include"), str(FIRMWARE / "src/storage")]


def _add(one: EntryPoint) -> None:
    package = one.dist.name if one.dist is not None else one.value.partition(":")[0]
    where = f"storage {one.name!r} of package {package!r}"
    try:
        table = int(one.load()())
    except (Exception, SystemExit) as error:
        raise BadInput(
            f"it does not load ({type(error).__name__}: {error})",
            where,
            "install it again, or choose another storage.backend",
        ) from None
    rc = firmware.lib.ofs_storage_add(firmware.ffi.cast("const struct ofs_storage_ops *", table))
    if rc == -errno.EPROTO:
        raise Incompatible(
            "it was built for another version of storage.h",
            where,
            "build it again with this release",
        )
    if rc == -errno.EEXIST:
        raise BadInput("another storage has this name", where, "give it another name")
    firmware.check_rc(int(rc), "adding a storage", where)
