"""The only import of the compiled firmware: no other module imports `_firmware`.

`ffi` and `lib` are cffi's; `check_rc` turns the firmware's 0-or-negative-errno into the error tree
of `offstage.bindings.errors`. Importing this module checks that the extension was built from this
version of the headers, so that a stale build gives one error line and not a wrong struct offset.
"""

import errno
import os
from typing import Any

from offstage.bindings.errors import (
    BadInput,
    Corrupt,
    DeviceTimeout,
    Incompatible,
    OffstageError,
    RunFailed,
    StoreFull,
)

try:
    from offstage.bindings._firmware import ffi, lib
except ImportError as error:
    raise Incompatible(
        f"the firmware extension does not load ({error})",
        "offstage.bindings",
        "in a checkout run `make dev`, elsewhere reinstall offstage",
    ) from None

__all__ = ["ABI_VERSION", "check_rc", "ffi", "lib", "text_of"]

# The version of the headers that the Python side is written for: OFS_ABI_VERSION in ofs_base.h.
ABI_VERSION = 3

if lib.ofs_version() != ABI_VERSION:
    raise Incompatible(
        f"the firmware extension has ABI {lib.ofs_version()}, this release needs {ABI_VERSION}",
        "offstage.bindings",
        "in a checkout run `make dev`, elsewhere reinstall offstage",
    )

# What an errno from the firmware means to the person who reads it: class, meaning, fix.
MEANINGS: dict[int, tuple[type[OffstageError], str, str]] = {
    errno.EBADMSG: (Corrupt, "bytes failed their check", "the block is treated as a miss"),
    errno.EBUSY: (BadInput, "already in use", "stop the other user, or choose another path"),
    errno.EDQUOT: (StoreFull, "the tenant has its quota", "raise it, or close sessions"),
    errno.EEXIST: (BadInput, "already exists", "choose another path, or remove it"),
    errno.EFBIG: (StoreFull, "larger than the limit", "raise the limit or send less"),
    errno.EINVAL: (BadInput, "refused as invalid", "check the values given"),
    errno.EIO: (OffstageError, "the device reported an I/O error", "look at dmesg and the device"),
    errno.EISDIR: (BadInput, "is a directory", "give the path of a file or a block device"),
    errno.ENODEV: (BadInput, "no such device", "run `offstage doctor`"),
    errno.ENOENT: (BadInput, "no such file or object", "check the path"),
    errno.ENOMEM: (OffstageError, "not enough memory", "lower the arena or pool size"),
    errno.ENOSPC: (StoreFull, "no space left", "enlarge the store, or lower its TTL"),
    errno.ENOSYS: (Incompatible, "not supported by this kernel", "run `offstage doctor`"),
    errno.ENOTSUP: (Incompatible, "not supported here", "run `offstage doctor`"),
    errno.EACCES: (BadInput, "permission denied", "check the owner and the mode"),
    errno.EHOSTUNREACH: (RunFailed, "there is no way to the other side", "see whether it is up"),
    errno.ESTALE: (BadInput, "overtaken by a later one", "start the host again"),
    errno.EPERM: (BadInput, "not permitted", "run `offstage doctor`"),
    errno.EPROTO: (Incompatible, "of another version or format", "use the same release on both"),
    errno.EROFS: (BadInput, "is read-only", "mount it writable, or choose another path"),
    errno.ETIMEDOUT: (DeviceTimeout, "no answer within the deadline", "check that it is alive"),
}


def text_of(pointer: Any) -> str:
    """A text of C's, such as what it wrote into a buffer for an error; "" for none."""
    found = ffi.string(pointer) if pointer else ""
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def check_rc(rc: int, doing: str, where: str = "", fix: str = "") -> int:
    """`rc` where it is not negative; otherwise raise what the errno `-rc` means.

    `doing` is the phrase after "while", `where` the path or object, and `fix` replaces the
    general advice where the caller knows better.
    """
    if rc >= 0:
        return rc
    number = -rc
    kind, meaning, advice = MEANINGS.get(
        number, (OffstageError, os.strerror(number), "run `offstage doctor`")
    )
    name = errno.errorcode.get(number, f"errno {number}")
    raise kind(f"{meaning} ({name}) while {doing}", where, fix or advice, errno=number)
