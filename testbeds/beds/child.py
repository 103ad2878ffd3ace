"""A process under another user: a fork of this one that runs one function.

The other user may be unable to read this checkout or its Python, so the function's imports must
be done before the fork. The forking process should have no threads yet. RunFailed, with the
child's stderr, if it ends early or prints nothing.
"""

import ctypes
import json
import os
import select
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from offstage.bindings.errors import RunFailed
from offstage.bindings.outside import said_json
from offstage.testbeds.beds.said import Lines

__all__ = ["Child", "ends_with_its_parent"]

PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
DESCRIPTORS = 1024
COMPLAINT_BYTES = 1 << 28


def ends_with_its_parent() -> None:
    """Have the kernel end this process when its parent ends, for whatever reason."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Child:
    """Runs `act(*words)` as user and group `uid` and prints the result as a line of JSON. Its
    stdin stays open: `go` sends it a line. `log` receives its stderr; the default is an unnamed
    file."""

    def __init__(
        self,
        uid: int,
        act: Callable[..., Any],
        *words: Any,
        groups: tuple[int, ...] = (),
        log: Path | None = None,
    ) -> None:
        self._name = act.__name__
        given, self._given = os.pipe()
        self._said, saying = os.pipe()
        self._errors = tempfile.TemporaryFile() if log is None else log.open("w+b")
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self._become(uid, groups, given, saying)
                answer = act(*words)
                print(json.dumps(answer), flush=True)
                code = 0
            except SystemExit as done:
                code = int(done.code or 0)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.close(given)
        os.close(saying)
        self._lines = Lines(self._said)

    def _become(self, uid: int, groups: tuple[int, ...], given: int, saying: int) -> None:
        for number, fd in enumerate((given, saying, self._errors.fileno())):
            os.dup2(fd, number)
        os.closerange(3, DESCRIPTORS)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        os.setgroups(groups)
        os.setgid(uid)
        os.setuid(uid)
        os.chdir("/")
        os.environ["HOME"] = "/"
        # A change of user clears the dumpable flag and an exec would set it again, as this does.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        ends_with_its_parent()

    def line(self, wait_s: float = 120.0) -> dict[str, Any]:
        """The next line of its output."""
        try:
            found = self._lines.next(wait_s)
        except TimeoutError:
            raise self._failed("it printed nothing") from None
        if not found:
            raise self._failed("it ended")
        return said_json(found, self.complaint(), self._name, "see above")

    def go(self) -> None:
        """Let it read one line."""
        os.write(self._given, b"go\n")

    def wait(self, timeout: float = 120.0) -> int:
        """Its exit code, once it has ended."""
        if self.returncode is None:
            watched = os.pidfd_open(self.pid)
            try:
                if not select.select([watched], [], [], timeout)[0]:
                    raise self._failed("it did not end")
            finally:
                os.close(watched)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._said)
            os.close(self._given)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """No effect after it has ended."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it; no effect after it has ended."""
        self.send_signal(signal.SIGKILL)
        self.wait()

    def complaint(self) -> str:
        """Its stderr so far."""
        return os.pread(self._errors.fileno(), COMPLAINT_BYTES, 0).decode(errors="replace")

    def _failed(self, what: str) -> RunFailed:
        return RunFailed(f"{what}: {self.complaint().strip()[-2000:]}", self._name, "see above")
