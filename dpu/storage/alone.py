"""A core for the reactor alone, so that other work of the machine does not stand in its way.

The reactor's thread is pinned and goes ahead of all ordinary threads (SCHED_FIFO, lowest
priority); all other threads of the process keep off its core. Other processes may still be put
there, but run only while the reactor sleeps.

What can fail: `BadInput` where this user may not, or the process has only one core.
"""

import os
from pathlib import Path

from offstage.bindings.errors import BadInput

__all__ = ["REACTOR", "set_alone", "spare_core"]

REACTOR = "ofs-reactor"
"""The name of the reactor's thread."""


def spare_core(cpu: int, where: str) -> int:
    """`cpu`, or for -1 the last core that this process may use."""
    core = cpu if cpu >= 0 else max(os.sched_getaffinity(0))
    if not os.sched_getaffinity(0) - {core}:
        raise BadInput("this process has one core only", where, "give it two, or leave this off")
    return core


def set_alone(cpu: int) -> None:
    """Give the reactor of this process `cpu`, or for -1 the last core, to itself."""
    where = "daemon.isolate"
    core = spare_core(cpu, where)
    rest = os.sched_getaffinity(0) - {core}
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            mine = name == REACTOR
            os.sched_setaffinity(int(task.name), {core} if mine else rest)
            if mine:
                first = os.sched_get_priority_min(os.SCHED_FIFO)
                os.sched_setscheduler(int(task.name), os.SCHED_FIFO, os.sched_param(first))
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        except OSError as error:
            raise BadInput(
                f"the reactor may not have a core to itself ({error.strerror})",
                where,
                "run as root, or leave it off",
            ) from None
