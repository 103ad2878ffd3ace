"""Does `dpu status` show a running daemon, once and over again, and does `serve` lead to it?"""

import os
import pty
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from against_schema import checked
from live_daemon import CONFIG, Daemon, daemon, open_text, put

from offstage.host.fabrics.shm import open_driver
from offstage.testbeds.beds.daemon import offstage_words
from offstage.testbeds.cli import run

ORDER = "up store arena demands reads prefetch hosts errors policy pod".split()
ALTERNATE, ORDINARY = "\x1b[?1049h", "\x1b[?1049l"
"""What switches a terminal to its second screen and back."""


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("daemon")) as tier:
        with tier.control() as control, open_driver(control.attach("shm")) as driver:
            put(driver, open_text(control, 1), 0, list(range(8)))
        yield tier


@pytest.fixture
def words(tier: Daemon) -> list[str]:
    return ["dpu", "status", "--endpoint", tier.endpoint, "--runtime-dir", str(tier.runtime_dir)]


def names(text: str) -> list[str]:
    """The first word of each line."""
    return re.findall(r"^(?:\x1b\[[\d;]*m)*([\w.]+)", text.replace("\r", ""), re.MULTILINE)


def test_ten_lines_and_all_the_rest_behind_all(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON has all of it."""
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert names(shown) == ORDER and re.search(r"^store +\S.* in 8 blocks; ", shown, re.MULTILINE)
    assert run([*words, "--all"]) == 0
    every = names(capsys.readouterr().out)
    assert len(every) > 100 and {"device.check_failures", "tenants.0.slots"} <= set(every)
    assert run([*words, "--format", "json"]) == 0
    document = checked("dpu status", capsys.readouterr().out)
    filled = {key for key, value in document.items() if value != {}}
    assert {name.partition(".")[0] for name in every} == filled - {"schema_version"}


def test_a_watched_daemon_is_one_snapshot_after_another(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON is a line of figures each time; an invalid interval is refused."""
    assert run([*words, "--watch", "100ms", "--count", "3"]) == 0
    shown = capsys.readouterr().out
    assert names(shown) == 3 * ORDER and "\x1b" not in shown and shown.count("\n\n") == 3
    assert run([*words, "--all", "--watch", "100ms", "--count", "1"]) == 0
    assert "device.check_failures" in names(capsys.readouterr().out)
    assert run([*words, "--watch", "100ms", "--count", "1", "--format", "json"]) == 0
    row = checked("dpu status", capsys.readouterr().out)
    assert row["hosts"] == 0 and row["hit"] is None and 0 <= row["reactor_busy_share"] <= 1
    for wrong in (["--watch", "1"], ["--watch", "1ms"], ["--count", "3"]):
        assert run([*words, *wrong]) == 2


@pytest.mark.parametrize("end", [b"q", b"\x03"], ids=["q", "Ctrl-C"])
def test_on_a_terminal_it_is_drawn_in_place_until_it_is_ended(end: bytes, words: list[str]) -> None:
    """Another key does nothing. The last snapshot stays, and the terminal is as it was."""
    said, code = on_terminal([*words, "--watch", "100ms"], b"x" + end, "; q ends", 3)
    assert code == 0 and "Traceback" not in said
    drawn, _, last = said.partition(ALTERNATE)[2].partition(ORDINARY)
    assert drawn.count("; q ends") >= 3 and "\n\n\n" not in drawn
    assert names(last)[: len(ORDER)] == ORDER


def test_serve_ends_with_the_command_that_shows_the_daemon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal; in a log for programs there is no such line."""
    sets = CONFIG | {
        "storage.path": f"{tmp_path}/store.ofs",
        "daemon.runtime_dir": f"{tmp_path}/r n",
    }
    words = ["dpu", "serve", *(f"--set={name}={value}" for name, value in sets.items())]
    parent, terminal = pty.openpty()
    process = subprocess.Popen(
        offstage_words(*words), stdout=subprocess.DEVNULL, stderr=terminal, stdin=subprocess.DEVNULL
    )
    os.close(terminal)
    try:
        said = b""
        while b"offstage dpu status" not in said or not said.endswith(b"\n"):
            said += os.read(parent, 4096)
        command = said.decode().splitlines()[-1]
        assert command.startswith("  offstage dpu status --endpoint tcp://127.0.0.1:")
        assert run(shlex.split(command)[1:]) == 0
        assert names(capsys.readouterr().out) == ORDER
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        os.close(parent)


def test_a_log_for_programs_has_no_line_for_people(tier: Daemon) -> None:
    lines = tier.log.read_text().splitlines()
    assert lines and all(line.startswith("{") for line in lines)


def on_terminal(words: list[str], keys: bytes, sign: str, signs: int) -> tuple[str, int]:
    """Run a command on a terminal of its own, and type `keys` once `sign` was shown `signs` times:
    what it showed, and its exit code."""
    pid, terminal = pty.fork()
    if pid == 0:
        command = offstage_words(*words)
        os.execv(command[0], command)
    said, typed = b"", False
    until_s = time.monotonic() + 60
    try:
        while True:
            assert time.monotonic() < until_s, f"it does not end: {said[-400:]!r}"
            try:
                said += os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
            if not typed and said.decode(errors="replace").count(sign) >= signs:
                typed = True
                os.write(terminal, keys)
        return said.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except BaseException:
        os.kill(pid, signal.SIGKILL)
        raise
    finally:
        os.close(terminal)
