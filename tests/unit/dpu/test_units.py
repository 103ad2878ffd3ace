"""Do Offstage's systemd units satisfy what the threat model says about them?"""

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = Path(__file__).resolve().parents[3] / "testbeds/presets/systemd"


def read(name: str) -> configparser.SectionProxy:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return parser["Service"]


def test_daemon_and_hosts_have_users_of_their_own() -> None:
    """Each unit has its own user; core dumps, capabilities and open folders are off."""
    daemon, host = read("offstage-dpu.service"), read("offstage-host@.service")
    assert (daemon["User"], host["User"]) == ("offstage", "offstage-%i")
    made = (UNITS / "offstage.sysusers.conf").read_text()
    assert "\nu offstage -" in made and "\nu offstage-red -" in made
    for unit in (daemon, host):
        assert unit["LimitCORE"] == "0" and unit["UMask"] == "0077"
        assert unit["StateDirectoryMode"] == "0700" and unit["CapabilityBoundingSet"] == ""
        assert unit["NoNewPrivileges"] == "yes"
    assert daemon["RuntimeDirectoryMode"] == "0711" and daemon["LimitMEMLOCK"] == "infinity"


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """systemd itself finds nothing wrong in them, once their programs are there."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze; apt-get install systemd")
    for unit in UNITS.glob("*.service"):
        text = unit.read_text().replace("/opt/offstage/bin/offstage", sys.executable)
        (tmp_path / unit.name.replace("@", "@red")).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.glob("*.service"))],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    wrong = [
        line
        for line in done.stderr.splitlines()
        if str(tmp_path) in line or line.startswith("offstage")
    ]
    assert not wrong, done.stderr
