"""Do this machine's testbeds start, compare their arms on one live daemon, and end completely?"""

import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput
from offstage.testbeds.beds import netns
from offstage.testbeds.beds.here import Up, find
from offstage.testbeds.cli import run

REFERENCE = Path(__file__).resolve().parents[1] / "reference"
SIZES = ["--sessions", "1", "--steps", "4"]


def check_report(out: Path, link: str) -> None:
    """Check three arms, each compared with the first, the testbed that ran them, and which parts
    were real."""
    summary = json.loads((out / "summary.json").read_text())
    none, window, every = summary["runs"]
    assert [one["name"] for one in summary["runs"]] == ["none", "window", "window+ema+shared"]
    assert none["coverage"] == 0 and none["traffic_ratio"] == 1
    assert window["hit"] > none["hit"] and every["hit"] > none["hit"]
    for one in summary["runs"]:
        assert one["blocks_verified"] == one["demands"] > 0 == one["blocks_corrupt"]
        assert 0 < one["busy_share"] <= 1 and one["stages"]
    machine = summary["machine"]
    assert machine["dpu"]["store"].endswith("store.kv") and machine["dpu"]["cores"] > 0
    assert set(machine["real"]) == {"gpu", "host software", "dpu", "dpu software", "link", "drive"}
    assert link in machine["real"]["link"]
    assert link in (out / "report.html").read_text()


@pytest.mark.slow
def test_one_that_is_up_is_used_and_stays_until_it_is_put_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`run`, as `up` names it, uses the daemon of `up` and restores its policy; `down` ends it."""
    out = tmp_path / "bed"
    assert run(["testbed", "up", "local", *SIZES, "--out", str(out)]) == 0
    following = shlex.split(capsys.readouterr().out.splitlines()[-1])[1:]
    assert following[:3] == ["testbed", "run", "local"]
    up = find(out)
    assert up is not None
    with up.operator.control() as control:
        before = control.policy()
    try:
        assert run(["testbed", "up", "local", "--out", str(out)]) == 2  # one is already up
        assert run(following) == 0
        again = find(out)
        assert again is not None and again.pid == up.pid
        with up.operator.control() as control:
            assert control.policy() == before
        check_report(out, "memory that host and daemon share")
    finally:
        assert run(["testbed", "down", "local", "--out", str(out)]) == 0
    command = Path(f"/proc/{up.pid}/cmdline")  # empty for an ended child of this process
    assert find(out) is None and not (command.exists() and command.read_bytes())


@pytest.mark.parametrize("state", [{"bed": "local"}, {"bed": "pod"}])
def test_no_other_command_takes_the_folder_of_one_that_is_up(
    state: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither another testbed nor a demo: what is up stays on record, and can be put down."""
    up = str(state["bed"])
    other = {"local": "pod", "pod": "local"}[up]
    with subprocess.Popen(["sh", "-c", "read line", "serve"], stdin=subprocess.PIPE) as daemon:
        state |= {"pid": daemon.pid} if up == "local" else {"processes": {"dpu0": daemon.pid}}
        (tmp_path / "testbed.json").write_text(json.dumps(state))
        (tmp_path / "work").mkdir()
        (tmp_path / "work/.offstage").touch()
        (tmp_path / "work/store.kv").write_bytes(b"blocks")
        demo = ["demo", "--sessions", "1", "--steps", "4", "--context-tokens", "4096"]
        beds = [["testbed", verb, other] for verb in ("up", "run", "down")]
        for words in (*beds, demo):
            assert run([*words, "--out", str(tmp_path)]) == 2, words
            assert f"offstage testbed down {up} --out {tmp_path}" in capsys.readouterr().err
        assert json.loads((tmp_path / "testbed.json").read_text()) == state
        assert (tmp_path / "work/store.kv").read_bytes() == b"blocks"


def test_two_namespaces_are_linked_shaped_and_gone_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host runs in one, the daemon in the other, at the requested rate."""
    try:
        netns.check()
    except BadInput as error:
        pytest.skip(str(error))
    words = ["testbed", "run", "netns", *SIZES, "--out", str(tmp_path)]
    assert run([*words, "--rate", "10gbit"]) == 0
    check_report(tmp_path, "veth between two namespaces of one kernel, shaped by tbf rate 10gbit")
    for option, wrong in (
        *(("--rate", one) for one in ("nonsense", "nan", "inf", "0gbit", "10", "10bit")),
        *(("--delay", one) for one in ("nonsense", "0us", "nan", "1h")),
    ):
        assert run([*words, f"{option}={wrong}"]) == 2, wrong
        assert option in capsys.readouterr().err
    assert run([*words, "--rate=-1gbit"]) == 2
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    left = done.stdout.split()  # ignores those of concurrent runs
    assert not [name for name in left if name.endswith(f"-{os.getpid()}")]


def test_arms_with_a_corrupt_block_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each arm's host is a process that exits with 1; the summary of all arms is there, and the
    exit code is 1."""
    words = Up.host

    def damaged(up: Up, *more: str) -> list[str]:
        made = words(up, *more)
        code = (
            f"import sys; sys.path.insert(0, {str(REFERENCE)!r}); import pytest\n"
            "from damaged import damage_fetches; damage_fetches(pytest.MonkeyPatch())\n"
            "from offstage.testbeds.cli import main; main()"
        )
        at = made.index("-m")
        return [*made[:at], "-c", code, *made[at + 2 :]]

    monkeypatch.setattr(Up, "host", damaged)
    assert (
        run(["testbed", "run", "local", *SIZES, "--out", str(tmp_path), "--context-tokens", "4096"])
        == 1
    )
    said = capsys.readouterr().err
    assert "were not what prefill wrote" in said and ", and 2 more" in said
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [one["blocks_corrupt"] > 0 for one in summary["runs"]] == [True] * 3
    assert (tmp_path / "report.html").exists() and find(tmp_path) is None
