"""Commands inside a guest, through QEMU's guest agent.

The agent is a Debian program in the guest that answers lines of JSON on a virtual serial port;
QEMU exposes that port here as a socket. Every call has a deadline, and every wait notices when
the guest has ended. One thread uses an `Agent`. A command's output stays in the guest's memory
until it ends, so a command with large output writes to a file in the shared folder.
"""

import base64
import contextlib
import json
import random
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offstage.bindings.errors import DeviceTimeout, RunFailed
from offstage.bindings.outside import said_json
from offstage.testbeds.beds.said import Lines

__all__ = ["Agent", "Done"]

CALL_TIMEOUT_S = 60.0
"""Timeout of one agent call; a guest under emulation on a busy machine is slow."""
POLL_S = 0.2


@dataclass(frozen=True)
class Done:
    """How a command in a guest ended."""

    code: int
    out: str
    err: str


class Agent:
    """The agent behind the socket `path`. `alive` raises if the guest has ended."""

    def __init__(self, name: str, path: Path, alive: Callable[[], None]) -> None:
        self.name = name
        self.path = path
        self.alive = alive
        self.socket: socket.socket | None = None
        self.lines = Lines(-1)

    def connect(self, timeout_s: float) -> None:
        """Wait until the guest has booted and answers. DeviceTimeout, or what `alive` raises."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            self.alive()
            with contextlib.suppress(OSError, DeviceTimeout):
                self._open()
                self._synchronize(min(2.0, deadline - time.monotonic()))
                return
            self.close()
            time.sleep(POLL_S)
        raise DeviceTimeout(f"does not answer within {timeout_s:.0f} s", self.name, "read its log")

    def close(self) -> None:
        """Close the socket; the guest and its commands keep running."""
        if self.socket is not None:
            self.socket.close()
        self.socket = None

    def start(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
        """Start a command; returns its process id in the guest."""
        done = self._call(
            "guest-exec",
            {
                "path": command[0],
                "arg": list(command[1:]),
                "capture-output": True,
                "env": [f"{key}={value}" for key, value in (environment or {}).items()],
            },
            "pid",
        )
        return int(done["pid"])

    def poll(self, pid: int) -> Done | None:
        """How the command ended, reported once; None while it runs."""
        status = self._call("guest-exec-status", {"pid": pid}, "exited")
        if not status["exited"]:
            return None
        code = int(status.get("exitcode", -int(status.get("signal", 0))))
        return Done(code, _text(status, "out-data"), _text(status, "err-data"))

    def wait(self, pid: int, timeout_s: float, tick: Callable[[], None] | None = None) -> Done:
        """Wait for a command's end; `tick` is called meanwhile. On DeviceTimeout or an interrupt
        the command is killed."""
        deadline = time.monotonic() + timeout_s
        try:
            while (done := self.poll(pid)) is None:
                if time.monotonic() > deadline:
                    raise DeviceTimeout(f"a command took longer than {timeout_s:.0f} s", self.name)
                if tick is not None:
                    tick()
                time.sleep(POLL_S)
        except BaseException:
            with contextlib.suppress(OSError, RunFailed, DeviceTimeout):
                self.start(["/bin/kill", "-KILL", str(pid)])
            raise
        return done

    def run(
        self, command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
    ) -> Done:
        """Start a command and wait for its end."""
        return self.wait(self.start(command, environment), timeout_s)

    def _open(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(CALL_TIMEOUT_S)
        self.socket.connect(str(self.path))
        self.lines = Lines(self.socket.fileno())

    def _synchronize(self, timeout_s: float) -> None:
        """Discard answers to earlier clients; the agent echoes a number known only to this call."""
        number = random.SystemRandom().randrange(1 << 31)
        self._send({"execute": "guest-sync", "arguments": {"id": number}})
        deadline = time.monotonic() + timeout_s
        while self._receive(deadline).get("return") != number:
            pass

    def _call(self, name: str, arguments: Mapping[str, Any], need: str) -> dict[str, Any]:
        self.alive()
        if self.socket is None:
            self.connect(CALL_TIMEOUT_S)
        try:
            self._send({"execute": name, "arguments": arguments})
            answer = self._receive(time.monotonic() + CALL_TIMEOUT_S)
        except BaseException as error:
            self.close()  # a late answer must not reach the next call
            if isinstance(error, DeviceTimeout | OSError):
                self.alive()
            if isinstance(error, OSError):
                raise DeviceTimeout("the agent's port was closed", self.name) from None
            raise
        found = answer.get("return")
        if not isinstance(found, dict) or need not in found:
            said = answer.get("error", answer)
            said = said.get("desc", said) if isinstance(said, dict) else said
            raise RunFailed(f"{name}: {said}", self.name, "read its log")
        return found

    def _send(self, message: Mapping[str, Any]) -> None:
        assert self.socket is not None, "connect comes first"
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def _receive(self, deadline: float) -> dict[str, Any]:
        try:
            line = self.lines.next(max(0.01, deadline - time.monotonic()))
        except TimeoutError:
            raise DeviceTimeout("the agent does not answer", self.name) from None
        if not line.endswith(b"\n"):
            self.alive()
            raise DeviceTimeout("the agent's port was closed", self.name)
        return said_json(line, "", self.name, "read its log")


def _text(status: Mapping[str, Any], name: str) -> str:
    return base64.b64decode(status.get(name, "")).decode("utf-8", "replace")
