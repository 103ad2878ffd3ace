"""Return codes of the driver that end a whole connection, as exceptions."""

import errno

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.firmware import check_rc

__all__ = ["gone"]

# Why the connection ended (fabric.h, `wait`), and the fix: each affects the whole fabric.
LOST = {
    errno.EPIPE: (
        "the daemon closed this port",
        "its log says why; if `offstage dpu status` finds none, start it; start the host again",
    ),
    errno.EHOSTUNREACH: (
        "the daemon's adapter does not answer",
        "see `offstage dpu status`, the link, and that its MTU passes; start the host again",
    ),
    errno.EACCES: (
        "the daemon's adapter refused a key",
        "its memory has moved on: start the host again",
    ),
    errno.EPROTO: ("the other side wrote what it may not", "use the same release on both sides"),
    errno.EKEYEXPIRED: (
        "the daemon is fenced: its lease was not confirmed in time",
        "it serves again when the service that keeps the pod's map answers it",
    ),
    errno.EIO: ("the adapter failed", "see dmesg; start the host again"),
}


def gone(rc: int, doing: str) -> None:
    """Raise what `rc` means; nothing where it is 0. RunFailed: the connection is over."""
    if rc == -errno.EFAULT:
        raise BadInput(
            f"the target is not registered while {doing}",
            "fabric",
            "register the array that contains the rows",
            errno=errno.EFAULT,
        )
    if -rc in LOST:
        what, fix = LOST[-rc]
        raise RunFailed(f"{what} while {doing}", "fabric", fix, errno=-rc)
    check_rc(rc, doing, "fabric")
