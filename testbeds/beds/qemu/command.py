"""Programs of this machine that are run to their end, and ended whole where that is cut short.

A build starts programs that start others. Each is a session of its own, so that Ctrl-C comes to
this process alone, which then ends all of them.
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
    """Ctrl-C and SIGTERM act at its end: for what must not be half done. They come to the main
    thread; on another there is nothing to do."""
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
    """What the command said and its code. subprocess.TimeoutExpired, or an interrupt: it has been
    killed, and whatever it had started."""
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
