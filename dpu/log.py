"""Structured logs: one JSON object a line on stderr, plain text on a terminal.

Each event is limited to `RATE_MAX` lines a second. Suppressed lines are counted and the count is
logged with the next line, so a hostile peer cannot fill a disk. Thread-safe.
"""

import contextlib
import json
import sys
import threading
import time
from datetime import UTC, datetime
from typing import Any, TextIO

from offstage.bindings.errors import printable

__all__ = ["LEVELS", "Log"]

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
RATE_MAX = 20


class Log:
    """Writes events of at least `level` to `stream`; `text` chooses lines for people."""

    def __init__(
        self, level: str = "info", stream: TextIO | None = None, text: bool | None = None
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._text = self._stream.isatty() if text is None else text
        self._least = LEVELS[level]
        self._lock = threading.Lock()
        self._windows: dict[str, tuple[int, int]] = {}  # event -> (second, lines in it)
        self._suppressed: dict[str, int] = {}

    def tell(self, line: str) -> None:
        """Write a line for people, which a log for programs does not have."""
        if self._text:
            with self._lock, contextlib.suppress(OSError, ValueError):
                self._stream.write(printable(line) + "\n")
                self._stream.flush()

    def debug(self, event: str, **fields: Any) -> None:
        self._write("debug", event, **fields)

    def info(self, event: str, **fields: Any) -> None:
        self._write("info", event, **fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._write("warning", event, **fields)

    def error(self, event: str, **fields: Any) -> None:
        self._write("error", event, **fields)

    def _write(self, level: str, event: str, /, **fields: Any) -> None:
        if LEVELS[level] < self._least:
            return
        with self._lock:
            now_s = int(time.monotonic())
            second, lines = self._windows.get(event, (now_s, 0))
            lines = lines + 1 if second == now_s else 1
            self._windows[event] = (now_s, lines)
            if lines > RATE_MAX:
                self._suppressed[event] = self._suppressed.get(event, 0) + 1
                return
            if event in self._suppressed:
                fields = {**fields, "suppressed": self._suppressed.pop(event)}
            try:
                self._stream.write(self._line(level, event, **fields) + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                pass  # a closed stderr must not stop the daemon

    def _line(self, level: str, event: str, /, **fields: Any) -> str:
        now = datetime.now(UTC)
        if self._text:
            details = " ".join(f"{name}={printable(value)}" for name, value in fields.items())
            return f"{now:%H:%M:%S} {level:7} {event} {details}".rstrip()
        stamp = now.isoformat(timespec="milliseconds")
        return json.dumps({"ts": stamp, "level": level, "event": event, **fields}, default=str)
