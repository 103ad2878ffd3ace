"""Does `offstage testbed` start a pod, with a real etcd where available, drive it and end it?"""

import json
import os
import shutil
from pathlib import Path

import pytest
from against_schema import checked
from damaged import damage_fetches

from offstage.testbeds.beds import pod
from offstage.testbeds.cli import run


def ran(out: Path, verb: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, object]:
    assert run(["testbed", verb, "pod", "--out", str(out), "--format", "json", *more]) == 0
    return checked(f"testbed {verb}", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("etcd", [True, False])
def test_up_run_drain_down(
    etcd: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four daemons serve and agree, the map can change after a member of etcd was killed, a second
    `up` is refused, and no process is left afterwards."""
    if etcd and shutil.which("etcd") is None:
        pytest.skip("needs etcd: apt-get install etcd-server etcd-client")
    if not etcd:
        monkeypatch.setattr(shutil, "which", lambda name: None)
    up = ran(tmp_path, "up", capsys)
    pids = up["pids"]
    assert isinstance(pids, dict) and len(pids) == 4 + 3 * etcd
    assert str(up["map"]).startswith("etcd:") is etcd
    try:
        assert run(["testbed", "up", "pod", "--out", str(tmp_path)]) == 2
        assert "already up" in capsys.readouterr().err
        done = ran(tmp_path, "run", capsys)
        members = done["members"]
        assert isinstance(members, dict) and len(members) == 4
        assert [one["state"] for one in members.values()] == ["served"] * 4
        assert done["blocks_verified"] == done["demands"] != 0
        if etcd:
            os.kill(pids["etcd0"], 9)
        assert run(["pod", "drain", str(up["map"]), "dpu3", "--format", "json"]) == 0
        shares = checked("pod drain", capsys.readouterr().out)["members"]
        assert shares["dpu3"]["share"] == 0
    finally:
        assert ran(tmp_path, "down", capsys)["ended"] is True
    assert pod.find(tmp_path) is None and ran(tmp_path, "down", capsys)["ended"] is False
    for pid in pids.values():
        status = Path(f"/proc/{pid}/status")
        assert not status.exists() or "Z (zombie)" in status.read_text()


def test_a_corrupt_block_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """pod.json is there, the exit code is 1, and no process is left."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    damage_fetches(monkeypatch)
    words = ["--sessions", "1", "--steps", "4", "--context-tokens", "4096"]
    assert run(["testbed", "run", "pod", "--out", str(tmp_path), *words]) == 1
    assert "were not what prefill wrote" in capsys.readouterr().err
    assert json.loads((tmp_path / "pod.json").read_text())["blocks_corrupt"] > 0
    assert pod.find(tmp_path) is None
