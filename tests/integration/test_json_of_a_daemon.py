"""Is what the commands to a daemon print what their JSON Schemas say?"""

from pathlib import Path

import pytest
from against_schema import checked
from live_daemon import TENANT, daemon

from offstage.testbeds.cli import run

ASKED = {
    "dpu status": "",
    "dpu status ": "--watch 100ms --count 2",
    "dpu ledger": "",
    "dpu ledger ": TENANT,
    "dpu policy show": "",
    "dpu policy set": "degree_max=3",
    "dpu fabric remove": "zmq",
    "dpu fabric add": "zmq",
    "dpu purge": f"{TENANT} --all",
    "dpu storage move": "path=moved.ofs",
    "dpu reset": "",
    "dpu drain": "",
    "dpu undrain": "",
}
"""A command, and its words, in the order in which they are run."""


def test_every_command_prints_what_its_schema_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One daemon for all of them; at the end its store is read without it."""
    monkeypatch.chdir(tmp_path)
    with daemon(tmp_path) as tier:
        at = ["--endpoint", tier.endpoint, "--runtime-dir", str(tier.runtime_dir)]
        for name, words in ASKED.items():
            assert run([*name.split(), *words.split(), *at, "--format", "json"]) == 0
            for line in capsys.readouterr().out.splitlines():
                checked(name.strip(), line)
        with tier.control(TENANT, name="h"):
            assert run(["dpu", "dismiss", "h", "--tenant", TENANT, *at, "--format", "json"]) == 0
            checked("dpu dismiss", capsys.readouterr().out)
    assert run(["dpu", "store", "moved.ofs", "--format", "json"]) == 0
    checked("dpu store", capsys.readouterr().out)
