"""Bounded output of a process that we started: lines by a deadline, or all of it.

A process may die, hang, or print something unexpected, whether it is ours or another program;
each case is a RunFailed with one cause, the last line of its stderr if there is one. Owns
nothing except the process while `ask` runs.
"""

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from offstage.bindings.errors import RunFailed
from offstage.bindings.outside import BYTES_MAX, last_line

__all__ = ["Lines", "ask"]

_PIECE_BYTES = 1 << 16


class Lines:
    """Lines from a descriptor that the caller owns, one at a time."""

    def __init__(self, fd: int) -> None:
        self.fd, self.kept = fd, b""

    def next(self, wait_s: float) -> bytes:
        """The next line with its newline, or the partial line if the other end closed.
        TimeoutError if none came in time; RunFailed if the line is too long."""
        until_s = time.monotonic() + wait_s
        while b"\n" not in self.kept:
            if len(self.kept) > BYTES_MAX:
                raise RunFailed(f"it printed a line of more than {BYTES_MAX:,} bytes")
            left_s = max(0.0, until_s - time.monotonic())
            if not select.select([self.fd], [], [], left_s)[0]:
                raise TimeoutError
            piece = os.read(self.fd, _PIECE_BYTES)
            if not piece:
                break
            self.kept += piece
        line, end, self.kept = self.kept.partition(b"\n")
        return line + end

    def whole(self, wait_s: float) -> bytes:
        """As `next`, but empty if no whole line came in time."""
        try:
            line = self.next(wait_s)
        except TimeoutError:
            return b""
        return line if line.endswith(b"\n") else b""


def ask(
    words: Sequence[str],
    where: str,
    fix: str,
    timeout_s: float,
    *,
    given: str = "",
    environ: Mapping[str, str] | None = None,
) -> tuple[bytes, str]:
    """A program's output, at most BYTES_MAX + 1 bytes, and its stderr. RunFailed if it does not
    exist, does not end in time, or exits with another code than 0."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            done = subprocess.run(
                words,
                input=given.encode(),
                stdout=out,
                stderr=err,
                check=False,
                timeout=timeout_s,
                env=environ,
            )
            what = f"ended with {done.returncode}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            what = f"did not end in {timeout_s:.0f} s"
        except OSError as error:
            raise RunFailed(f"{words[0]} does not start ({error.strerror})", where, fix) from None
        out.seek(0)
        err.seek(max(0, err.seek(0, os.SEEK_END) - _PIECE_BYTES))
        said, complaint = out.read(BYTES_MAX + 1), err.read().decode(errors="replace")
    if what:
        name = Path(words[0]).name
        why = complaint if complaint.strip() else said[:_PIECE_BYTES].decode(errors="replace")
        raise RunFailed(f"{name} {what}: {last_line(why)}", where, fix)
    return said, complaint
