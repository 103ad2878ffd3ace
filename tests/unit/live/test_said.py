"""Does a child that prints garbage or nothing, or dies, give one line with its cause?"""

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offstage.bindings import outside
from offstage.bindings.errors import DeviceTimeout, RunFailed
from offstage.bindings.outside import last_line, said_json
from offstage.bindings.storage import Buffer
from offstage.testbeds.beds import daemon, said
from offstage.testbeds.beds.child import Child
from offstage.testbeds.beds.qemu import session
from offstage.testbeds.beds.qemu.agent import Agent
from offstage.testbeds.beds.said import Lines, ask
from offstage.testbeds.bench import links, storage
from offstage.testbeds.bench.engines.l2 import rates_of
from offstage.testbeds.bench.engines.link import MARK, engine
from offstage.testbeds.doctor import hardware
from offstage.testbeds.doctor.check import Machine

SAYS = {
    "garbage": "print('Segmentation fault')",
    "nothing": "pass",
    "half": "import sys; sys.stdout.write('{\"endpoint\": ')",
    "another value": "print('[1, 2]')",
    "without its keys": "print('{}')",
    "deep": "print('[' * 100_000)",
    "no text": "import sys; sys.stdout.buffer.write(bytes([0xff, 0xfe, 10]))",
    "dies": "import sys; sys.exit('the drive is gone')",
}
MARKED = {
    "garbage": "print('ENGINE oops')",
    "another value": "print('ENGINE [1]')",
    "half": "print('ENGINE {')",
}


@pytest.fixture(params=SAYS)
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A program that prints this for any arguments, and a reason on stderr."""
    return script(tmp_path / "program", SAYS[request.param])


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!{sys.executable}\nimport sys; sys.stderr.write('a reason\\n')\n{text}\n")
    path.chmod(0o700)
    return path


def one_line(caught: Any, *parts: str) -> None:
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000
    assert any(part in str(caught.value) for part in parts), str(caught.value)


def test_a_daemon(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "offstage_words", lambda *words: [str(program)])
    with pytest.raises(RunFailed) as caught:
        daemon.start({}, tmp_path, stays=True)
    one_line(caught, "a reason", "the drive is gone")
    with (
        pytest.raises(RunFailed) as caught,
        daemon.serve({}, tmp_path),
    ):
        pytest.fail("it is taken for a daemon")
    one_line(caught, "a reason", "the drive is gone")


def test_a_program(program: Path, tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as caught:
        said_json(*ask([str(program)], "here", "run it", 60), "here", "run it", daemon.Ready)
    one_line(caught, "a reason", "the drive is gone")


def test_a_program_that_does_not_start_or_end(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="does not start"):
        ask([str(tmp_path / "none")], "here", "run it", 60)
    with pytest.raises(RunFailed, match="did not end in 0 s"):
        ask([str(script(tmp_path / "slow", "import time; time.sleep(60)"))], "here", "", 0.01)


def test_a_program_that_complains_where_it_prints() -> None:
    """A program like fio, which complains on stdout: its output is the reason."""
    words = [sys.executable, "-c", "import sys; print('no such pool'); sys.exit(3)"]
    with pytest.raises(RunFailed, match="ended with 3: no such pool"):
        ask(words, "here", "run it", 60)


def test_fio(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program.rename(tmp_path / "fio")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    file = tmp_path / "file"
    file.write_bytes(bytes(1 << 20))
    case = storage.Case(4096, 1, 1)
    with pytest.raises(RunFailed) as caught:
        storage.fio_reads(file, case, Buffer(1 << 16), 1, 1)
    one_line(caught, "a reason", "the drive is gone")


def test_a_link(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "sys", SimpleNamespace(executable=str(program)))
    with pytest.raises(RunFailed) as caught:
        links._in_a_process(next(iter(links.LINKS)), 4096, 1, 1)
    one_line(caught, "a reason", "the drive is gone")
    with pytest.raises(RunFailed, match="other end of the loop"), links._echo(4096):
        pytest.fail("it is no end of a loop")


@pytest.mark.parametrize("text", [*MARKED.values(), SAYS["nothing"], SAYS["dies"]])
def test_an_engine(text: str, tmp_path: Path) -> None:
    program = script(tmp_path / "python", text)
    with (
        pytest.raises(RunFailed) as caught,
        engine(program, tmp_path, None, {}, tmp_path / "log"),
    ):
        pytest.fail("it is taken for an engine")
    one_line(caught, "a reason", "the drive is gone")
    assert MARK == "ENGINE "


def test_a_child(capfd: pytest.CaptureFixture[str]) -> None:
    def act() -> Any:
        sys.stderr.write("a reason\n")
        sys.stderr.flush()
        print("Segmentation fault", flush=True)

    child = Child(os.getuid(), act)
    try:
        with pytest.raises(RunFailed) as caught:
            child.line()
        one_line(caught, "a reason")
    finally:
        child.kill()


def test_the_transfers(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "sys", SimpleNamespace(executable=str(program)))
    check = hardware._transfers(Machine(Path()))
    assert check.state == "missing" or "another value" in program.read_text()


ANSWERS = {
    b"garbage\n": RunFailed,
    b"[1]\n": RunFailed,
    b'{"return": 7}\n': RunFailed,
    b'{"return": {}}\n': RunFailed,
    b'{"error": "no"}\n': RunFailed,
    b"": DeviceTimeout,
    b"{": DeviceTimeout,
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_agent(answer: bytes, tmp_path: Path) -> None:
    """The guest gives an invalid answer to the first command."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "agent"))
    listener.listen()

    def serve() -> None:
        peer, _ = listener.accept()
        with peer, peer.makefile("rb") as asked:
            number = asked.readline().partition(b'"id": ')[2].partition(b"}")[0]
            peer.sendall(b'{"return": ' + number + b"}\n")
            asked.readline()
            peer.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    agent = Agent("guest", tmp_path / "agent", lambda: None)
    with listener:
        agent.connect(60)
        with pytest.raises(ANSWERS[answer]) as caught:
            agent.start(["/bin/true"])
        one_line(caught, "guest")
        agent.close()
        thread.join()


@pytest.mark.parametrize("line", ["garbage\n", "[]\n", "{}\n", "\n"])
def test_a_daemon_in_a_guest(line: str, tmp_path: Path) -> None:
    (tmp_path / "node.ready").write_text(line)
    (tmp_path / "node.log").write_text("a reason\n")
    guest: Any = SimpleNamespace(agent=SimpleNamespace(poll=lambda pid: None))
    with pytest.raises(RunFailed) as caught:
        session._ready(guest, 1, tmp_path / "node")
    one_line(caught, "a reason")


def test_a_line_without_end_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, for a line and for a whole output."""
    for module in (said, outside):
        monkeypatch.setattr(module, "BYTES_MAX", 1 << 17)
    endless = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    with subprocess.Popen(
        [sys.executable, "-c", endless], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        with pytest.raises(RunFailed, match="a line of more than 131,072 bytes"):
            Lines(process.stdout.fileno()).next(60)
        process.kill()
    whole = [sys.executable, "-c", "print('x' * (1 << 18))"]
    with pytest.raises(RunFailed, match="it says more than 131,072 bytes"):
        said_json(*ask(whole, "here", "", 60), "here", "")


def test_lines_come_one_at_a_time() -> None:
    read, write = os.pipe()
    os.write(write, b"one\ntwo\nthr")
    lines = Lines(read)
    assert [lines.next(0), lines.next(0)] == [b"one\n", b"two\n"]
    with pytest.raises(TimeoutError):
        lines.next(0)
    os.close(write)
    assert [lines.next(0), lines.next(0)] == [b"thr", b""]
    os.close(read)


@pytest.mark.parametrize("form", ["{", "{}", '{"metrics": []}', '{"metrics": {"op_1": {}}}'])
def test_figures_in_another_form(form: str) -> None:
    with pytest.raises(RunFailed, match="unknown format"):
        rates_of(f"keys data verified OK\n{form}", 1, 1, "fs")


def test_the_last_line_is_what_says_why() -> None:
    assert last_line("a\nwhy\n\n") == "why" and last_line(" \n") == "it printed nothing"
