"""After Ctrl-C during `offstage testbed`, are all processes gone, and does the next command work?

The guests here are sleeping scripts, since no test here needs an emulated processor.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from offstage.testbeds.beds.qemu import pair
from offstage.testbeds.beds.qemu.agent import Agent
from offstage.testbeds.beds.qemu.command import finished, uninterrupted
from offstage.testbeds.beds.qemu.guest import Process
from offstage.testbeds.beds.qemu.images import AARCH64, X86_64, Arch, Image
from offstage.testbeds.cli import run

DEADLINE_S = 100.0


def once(ready: Callable[[], object], number: int) -> threading.Thread:
    """Send signal `number` to the main thread, as a terminal does, once `ready` returns true."""

    def send() -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not ready() and time.monotonic() < until_s:
            time.sleep(0.01)
        ident = threading.main_thread().ident
        assert ident is not None
        signal.pthread_kill(ident, number)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def gone(pids: list[int]) -> bool:
    """Wait for all of them to exit; return whether they did."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        if not any(Process.of(pid).alive() for pid in pids):
            return True
        time.sleep(0.01)
    return False


def numbers(path: Path, count: int) -> list[int]:
    """The process ids in a file, once it has `count` of them."""
    found = path.read_text().split("\n")[:-1] if path.exists() else []
    return [int(one) for one in found] if len(found) == count else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with images, wheels and emulators that do nothing. Returns the file that lists the
    process id of each guest."""
    pids, programs = tmp_path / "pids", tmp_path / "bin"
    programs.mkdir()
    for arch in (X86_64, AARCH64):
        emulator = programs / arch.emulator
        emulator.write_text(
            '#!/bin/sh\ncase "$*" in *,help) exit;; esac\n'
            f"echo booted; echo $$ >> {pids}; exec sleep 1000\n"
        )
        emulator.chmod(0o755)

    def image(arch: Arch, progress: object) -> Image:
        return Image(arch, tmp_path / arch.name)

    def wheel(image: Image) -> Path:
        path = tmp_path / f"{image.arch.name}.whl"
        path.touch()
        return path

    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("OFFSTAGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pair, "get", image)
    monkeypatch.setattr(pair.wheel, "build", wheel)
    return pids


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("verb", ["up", "run"])
def test_guests_that_boot_are_ended(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, number: int
) -> None:
    """An interrupted `up` or `run` prints one line, exits with 130 and leaves no guest."""
    before = signal.getsignal(signal.SIGTERM)
    sender = once(lambda: numbers(machine, 2), number)
    try:
        assert run(["testbed", verb, "qemu", "--out", str(tmp_path / "out")]) == 130
    finally:
        sender.join()
        signal.signal(signal.SIGTERM, before)
    said = capsys.readouterr().err
    assert said.splitlines()[-1].endswith("interrupted") and "Traceback" not in said
    assert gone(numbers(machine, 2))
    assert (tmp_path / "out/share/node.console").read_text() == "booted\n"
    assert run(["testbed", "down", "qemu"]) == 0
    assert "nothing was running" in capsys.readouterr().out


def test_a_build_ends_with_all_that_it_started(tmp_path: Path) -> None:
    """The user interrupts a build whose script has started a compiler."""
    pids = tmp_path / "pids"
    sender = once(lambda: numbers(pids, 2), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        finished(
            [
                "sh",
                "-c",
                f"echo $$ > {pids}; (echo $(exec sh -c 'echo $PPID') >> {pids}; "
                "exec sleep 1000) & wait",
            ],
            DEADLINE_S,
        )
    sender.join()
    assert gone(numbers(pids, 2))
    with pytest.raises(subprocess.TimeoutExpired):
        finished(["sleep", "1000"], 0.1)
    done = finished([sys.executable, "-c", "import sys; print(1); sys.exit(3)"], DEADLINE_S)
    assert (done.returncode, done.stdout) == (3, "1\n")


def test_an_interrupt_waits_for_what_must_be_whole() -> None:
    """The signal is deferred, and raised once, after the section that it may not interrupt."""
    whole = False
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        whole = True
    assert whole and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_command_in_a_guest_is_ended_and_its_late_answer_skipped(tmp_path: Path) -> None:
    """After an interrupt between a call and its answer, the guest's command is killed, and the late
    answer is not taken for the new call's."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "agent"))
    listener.listen()
    commands: list[list[str]] = []

    def answer(said: dict[str, dict[str, object]], late: list[bytes]) -> bytes:
        arguments = said["arguments"]
        if said["execute"] == "guest-sync":  # QEMU keeps late bytes for the next connection
            return b"".join(late) + msgspec.json.encode({"return": arguments["id"]}) + b"\n"
        if said["execute"] == "guest-exec":
            commands.append([str(arguments["path"]), *map(str, arguments["arg"])])
            return b'{"return": {"pid": 7}}\n'
        late.append(b'{"return": {"exited": true, "exitcode": 0}}\n')
        once(lambda: True, signal.SIGINT).join()
        return b""

    def serve() -> None:
        late: list[bytes] = []
        for _ in range(2):
            connection, _ = listener.accept()
            with suppress(OSError), connection, connection.makefile("rb") as lines:
                for line in lines:
                    connection.sendall(answer(msgspec.json.decode(line), late))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    agent = Agent("guest", tmp_path / "agent", lambda: None)
    agent.connect(DEADLINE_S)
    with pytest.raises(KeyboardInterrupt):
        agent.run(["/bin/long"], DEADLINE_S)
    agent.close()
    thread.join(DEADLINE_S)
    listener.close()
    assert commands == [["/bin/long"], ["/bin/kill", "-KILL", "7"]]
