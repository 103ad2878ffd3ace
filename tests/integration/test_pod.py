"""Are several real daemons one tier: placed, asked, purged, and one of them killed?"""

import json
from pathlib import Path

import pytest
from pod_daemons import TENANT, pod_of

from offstage.testbeds.cli import run


def test_a_purge_is_acknowledged_when_all_have_carried_it_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both members; then one is killed, and the purge says who is left."""
    with pytest.raises(AssertionError, match="killed"), pod_of(2, tmp_path) as pod:
        words = [pod.place, TENANT, "--runtime-dir", str(tmp_path), "--format", "json"]
        assert run(["pod", "purge", *words]) == 0
        assert set(json.loads(capsys.readouterr().out)["members"]) == {"dpu0", "dpu1"}
        pod.tiers[1].process.kill()
        pod.tiers[1].process.wait()
        assert run(["pod", "purge", *words]) == 1
        assert "dpu1: not carried out there" in capsys.readouterr().err
        assert run(["pod", "status", pod.place, "--runtime-dir", str(tmp_path)]) == 0
        shown = capsys.readouterr().out
        assert "yes" in shown and "no daemon answers" in shown
        raise AssertionError("one was killed: the others need not drain")
