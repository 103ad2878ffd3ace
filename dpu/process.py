"""What the daemon's process keeps to itself: its memory, its descriptors, and the files it makes.

Called once, before anything secret is read. Linux gives a process that is not dumpable to root:
another process of the same user can then neither trace it nor open `/proc/PID/mem` or
`/proc/PID/fd`, nor take a descriptor out of it, and the kernel writes no core of it.
"""

import ctypes
import os

from offstage.bindings.errors import BadInput

__all__ = ["keep_private"]

PR_SET_DUMPABLE = 4


def keep_private(*, traceable: bool = False) -> None:
    """Files that it makes are its user's alone; nobody but root looks into it. `traceable`: all
    but the last, for a fabric whose hosts read it through the kernel (NIXL on one machine)."""
    os.umask(0o077)
    if traceable:
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise BadInput(f"cannot be kept from being traced ({os.strerror(ctypes.get_errno())})",
                       "the daemon", "let its sandbox permit prctl")  # fmt: skip
