"""Does a daemon that dies say why, and does a running one end with its run?"""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offstage.bindings.errors import RunFailed
from offstage.testbeds.beds.daemon import offstage_words, serve
from offstage.testbeds.machine import memory_peak_bytes


def sections(**arena: object) -> dict[str, object]:
    """Configuration of a small daemon in memory."""
    return {
        "arena": {"size": "1MiB", "payload": "4KiB", "layers": 2, **arena},
        "storage": {"backend": "emulated", "size": "16MiB"},
        "store": {"segment": "256KiB"},
        "tenant": [{"name": "lab"}],
    }


def test_a_daemon_that_dies_at_its_start_is_quoted(tmp_path: Path) -> None:
    """The error quotes the daemon's last line, which names the wrong key."""
    with (
        pytest.raises(RunFailed, match=r"did not start.*layesr") as died,
        serve(sections(layesr=2), tmp_path),
    ):
        pytest.fail("it came up with a key that is none")
    assert died.value.where == str(tmp_path / "daemon.log")


def test_the_working_directory_shadows_no_module(tmp_path: Path) -> None:
    (tmp_path / "numbers.py").write_text("raise SystemExit('shadowed')")
    done = subprocess.run(
        offstage_words("--version"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and done.stdout.startswith("offstage "), done.stderr


def test_a_daemon_ends_with_its_run(tmp_path: Path) -> None:
    with serve(sections(), tmp_path) as tier:
        assert tier.process.poll() is None and tier.endpoint.startswith("ipc://")
    assert tier.process.returncode == 0
    assert '"drained"' in (tmp_path / "daemon.log").read_text()


def test_the_memory_of_a_daemon_is_its_own(tmp_path: Path) -> None:
    """Does a run report the daemon's memory, and not that of the process that started it? A child's
    `ru_maxrss` begins at its parent's."""
    host = b"x" * (512 << 20)
    with serve(sections(), tmp_path) as tier:
        assert 0 < memory_peak_bytes(tier.ready.pid) < len(host) < memory_peak_bytes()
    assert memory_peak_bytes(tier.ready.pid) == 0


def test_no_daemon_outlives_a_run_that_was_killed(tmp_path: Path) -> None:
    """After SIGKILL of the process that started it, the daemon drains and exits."""
    program = (
        "import json, sys, time, pathlib; from offstage.testbeds.beds.daemon import serve\n"
        "with serve(json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])) as tier:\n"
        "    print(tier.process.pid, flush=True); time.sleep(60)\n"
    )
    words = [sys.executable, "-c", program, json.dumps(sections()), str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        daemon = os.pidfd_open(int(starter.stdout.readline()))
        starter.kill()
    try:
        assert select.select([daemon], [], [], 30.0)[0], "the daemon lives on"
    finally:
        os.close(daemon)
    logged = (tmp_path / "daemon.log").read_text()
    assert '"starter_gone"' in logged and '"stopped"' in logged


def test_a_daemon_that_was_killed_fails_the_run(tmp_path: Path) -> None:
    with (
        pytest.raises(RunFailed, match="ended with status -9"),
        serve(sections(), tmp_path) as tier,
    ):
        os.kill(tier.process.pid, signal.SIGKILL)
        tier.process.wait()
