"""Protects the daemon's process: its memory, its descriptors, and the files it creates.

Called once, before any secret is read. Linux makes root the owner of the `/proc` files of a process
that is not dumpable: another process of the same user can then neither trace it nor open
`/proc/PID/mem` or `/proc/PID/fd`, nor take a descriptor from it, and the kernel writes no core
dump.
"""

import ctypes
import os
import resource
import sys

from offstage.bindings.errors import BadInput
from offstage.dpu.config.values import Config

__all__ = ["keep_private", "make_room", "say_ready"]

PR_SET_DUMPABLE = 4
# Descriptors: of a connection at its gate, on both sides and in the socket behind it; of a port,
# its memory, its wake pair, its host's process; of NVMe/TCP; and of all the rest.
OF_A_CONNECTION, OF_A_PORT, OF_NVME, OF_THE_REST = 3, 8, 72, 64


def keep_private(*, traceable: bool = False) -> None:
    """Make new files private to the user, and the process inaccessible to all but root.
    `traceable`: only the former, for hosts that read it through the kernel (NIXL, one machine)."""
    os.umask(0o077)
    if traceable:
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise BadInput(
            f"cannot be kept from being traced ({os.strerror(ctypes.get_errno())})",
            "the daemon",
            "let its sandbox permit prctl",
        )


def make_room(config: Config) -> None:
    """Raise the descriptor limit to what the tables may need; BadInput if that is not allowed."""
    gates = 2 if "zmq" in config.daemon.fabrics else 1
    wanted = OF_THE_REST + OF_A_PORT * config.limits.ports
    wanted += OF_A_CONNECTION * config.limits.connections * gates
    wanted += OF_NVME if config.nvme.listen else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise BadInput(
            f"{hard} descriptors are allowed, and limits.connections = {config.limits.connections} "
            f"with limits.ports = {config.limits.ports} may take {wanted}",
            config.file or "configuration",
            f"ulimit -Hn {wanted}, or LimitNOFILE={wanted} in the unit; or lower "
            "limits.connections",
        )
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def say_ready(line: str, ready_fd: int | None, watch_fd: int | None) -> None:
    """Write the ready line to stdout, and to `ready_fd`, where there is one, which is closed.
    BadInput: it cannot be, or the descriptor that is to be watched is not open."""
    if watch_fd is not None:
        try:
            os.fstat(watch_fd)
        except (OSError, OverflowError):
            raise BadInput(
                "is not open", f"--watch-fd {watch_fd}", "give the number of an open descriptor"
            ) from None
    if ready_fd is not None:
        try:
            os.write(ready_fd, line.encode())
            os.close(ready_fd)
        except (OSError, OverflowError):
            raise BadInput(
                "cannot be written",
                f"--ready-fd {ready_fd}",
                "give the number of an open descriptor",
            ) from None
    sys.stdout.write(line)
    sys.stdout.flush()
