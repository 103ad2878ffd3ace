"""Is what cannot be written, read or reached one line, and the right exit code?"""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from offstage.bindings.errors import DeviceTimeout, NoAnswer, Unreachable
from offstage.testbeds.cli import run
from offstage.testbeds.cli.common import one_line_errors

ROW = '{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]}\n'


def offstage(
    *arguments: str, out: int, **environ: str
) -> "subprocess.CompletedProcess[str]":
    code = "import sys; from offstage.testbeds.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], stdout=out, text=True,
                          stderr=subprocess.PIPE, check=False, timeout=120,
                          env={**os.environ, **environ})  # fmt: skip


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_full_output_is_one_line_and_exit_1(tmp_path: Path, form: str) -> None:
    """Does an output without room end in one line, whatever is printed?"""
    trace = tmp_path / "t.jsonl"
    trace.write_text(ROW)
    full = os.open("/dev/full", os.O_WRONLY)
    done = offstage("trace", "info", str(trace), "--format", form, out=full)
    os.close(full)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "cannot be written (No space left on device)" in done.stderr


def test_a_character_that_the_output_lacks_is_replaced(tmp_path: Path) -> None:
    """Is text printed on a terminal that cannot show all of it?"""
    trace = tmp_path / "t\u2192.jsonl"
    trace.write_text(ROW)
    done = offstage("trace", "info", str(trace), out=subprocess.PIPE, PYTHONIOENCODING="latin-1",
                    PYTHONUTF8="0", LC_ALL="C.UTF-8")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "t?.jsonl" in done.stdout


def test_json_without_bottom_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Is a decode cost of nested lists bad input with its line?"""
    deep = tmp_path / "deep.json"
    deep.write_text('{"a":' + "[" * 200_000)
    assert run(["demo", "--decode-cost", str(deep), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{deep}:1" in said


@pytest.mark.parametrize(("endpoint", "what"), [
    ("ipc:///nonexistent/offstage.sock", "nothing listens there"),
    ("tcp://no-such-host.invalid:7100", "cannot resolve 'no-such-host.invalid'"),
])  # fmt: skip
def test_nobody_there_is_exit_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], endpoint: str, what: str
) -> None:
    """Can a script tell a daemon that is away from bad input, and a name from a port?"""
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    secret.chmod(0o600)
    options = ["--endpoint", endpoint, "--secret", str(secret), "--runtime-dir", str(tmp_path)]
    assert run(["dpu", "status", *options]) == 3
    assert what in capsys.readouterr().err
    assert (Unreachable.exit_code, NoAnswer.exit_code) == (3, 3)


@pytest.mark.parametrize("error", [
    RecursionError("maximum depth"), OSError(errno.EMFILE, "Too many open files"), OSError("odd"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), MemoryError(),
    OSError(errno.ENOSPC, "No space left on device", "out/summary.json"),
])
def test_no_error_of_the_machine_is_a_traceback(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever reaches the entry point of the kinds that an input or a machine can cause."""
    with one_line_errors() as outcome:
        raise error
    said = capsys.readouterr().err
    assert outcome.code == 1 and said.startswith("offstage: ") and said.count("\n") == 1


def test_a_peer_that_is_late_is_not_reachable() -> None:
    """Can scripts tell a deadline from a run that failed?"""
    assert DeviceTimeout("no answer").exit_code == Unreachable("none").exit_code == 3
