"""Runs programs of this machine to completion and kills their whole process group on interruption.

A build starts programs that start others. Each runs in a new session, so that Ctrl-C reaches
this process alone, which then ends the whole group.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

__all__ = ["finished", "uninterrupted"]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Defers Ctrl-C and SIGTERM to the end of the block, for work that must not be left half
    done. Signals reach the main thread; on other threads this has no effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    kept = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def finished(
    command: Sequence[str],
    timeout_s: float,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[str]":
    """The command's output and exit code. On subprocess.TimeoutExpired or an interrupt the
    command and all its children are killed."""
    process: subprocess.Popen[str] | None = None
    try:
        with uninterrupted():
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                errors="replace",
                start_new_session=True,
                cwd=cwd,
                env=env,
            )
        out, err = process.communicate(timeout=timeout_s)
    except BaseException:
        if process is not None:
            with uninterrupted(), contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)
