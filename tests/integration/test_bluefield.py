"""Is a DPU set up, driven and stopped over ssh? The other end is an sshd in a network namespace.

Programs that would change this machine (systemd, useradd, sysctl, pip) are replaced by scripts that
record their arguments; `systemctl` starts the command of the unit.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_daemon import until

from offstage.bindings.errors import BadInput
from offstage.testbeds.beds import netns
from offstage.testbeds.beds.daemon import offstage_words

SSHD = "/usr/sbin/sshd"
NOTE = """#!/bin/sh
echo "$(basename "$0") $*" >> {base}/asked
"""
SYSTEMCTL = (
    NOTE
    + """case "$1" in
restart) exec=$(sed -n 's/^ExecStart=//p' {base}/units/offstage-dpu.service)
  setsid sh -c "$exec" > {base}/dpu.out 2>&1 < /dev/null & echo $! > {base}/pid ;;
stop) kill $(cat {base}/pid) ;;
esac
"""
)
INVENTORY = """[dpu]
ssh = "root@10.77.0.1"
options = "-q -p 2222 -i {base}/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
address = "10.77.0.1"
wheel = "{base}/offstage_kv-0-py3-none-any.whl"
prefix = "{base}/opt"
etc = "{base}/etc"
units = "{base}/units"
sysusers = "{base}/sysusers"
user = "root"
runtime_dir = "{base}/run"
store = "{base}/store.ofs"
huge_pages = 3
"""


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    for name in ("bin", "opt/bin", "units", "sysusers"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("systemd-sysusers", "sysctl", "journalctl"):
        program(tmp_path / "bin" / name, NOTE.format(base=tmp_path))
    program(tmp_path / "bin/systemctl", SYSTEMCTL.format(base=tmp_path))
    program(tmp_path / "opt/bin/pip", NOTE.format(base=tmp_path))
    python = f"PYTHONPATH={':'.join(filter(None, sys.path))} exec {sys.executable}"
    program(tmp_path / "opt/bin/offstage", f'#!/bin/sh\n{python} -m offstage "$@"\n')
    (tmp_path / "offstage_kv-0-py3-none-any.whl").write_bytes(b"a wheel")
    (tmp_path / "inventory.toml").write_text(INVENTORY.format(base=tmp_path))
    return tmp_path


@pytest.fixture
def node(base: Path) -> Iterator[list[str]]:
    """The prefix of a command on the host; an sshd listens on the other side."""
    if not Path(SSHD).exists() or shutil.which("ssh-keygen") is None:
        pytest.skip("no sshd; apt-get install --no-install-recommends openssh-server")
    try:
        netns.check()
    except BadInput as error:
        pytest.skip(str(error))
    for name in ("key", "host_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(base / name)], check=True
        )
    shutil.copy(base / "key.pub", base / "authorized")
    (base / "sshd.conf").write_text(
        f"Port 2222\nListenAddress 10.77.0.1\nHostKey {base}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {base}/authorized\nStrictModes no\nUsePAM no\n"
        f"PermitRootLogin yes\nSetEnv PATH={base}/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    with netns.network() as link, (base / "sshd.log").open("wb") as log:
        sshd = subprocess.Popen(
            [*link.words("dpu"), SSHD, "-D", "-e", "-f", str(base / "sshd.conf")], stderr=log
        )
        try:
            listening = b"Server listening"
            until(lambda: sshd.poll() is not None or listening in (base / "sshd.log").read_bytes())
            assert sshd.poll() is None, (base / "sshd.log").read_text()
            yield link.words("node")
        finally:
            sshd.kill()
            sshd.wait()


def offstage(within: list[str], base: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [
        *within,
        *offstage_words(),
        "testbed",
        *words,
        "--out",
        str(base / "out"),
        "--inventory",
        str(base / "inventory.toml"),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)


def test_every_command_is_printed_and_none_is_run(base: Path) -> None:
    """--dry-run prints wheel, unit, user, huge pages, keys, settings, doctor on both, start."""
    done = offstage([], base, "up", "bluefield", "--dry-run")
    assert done.returncode == 0, done.stderr
    for said in (
        "offstage_kv-0-py3-none-any.whl",
        "pip install",
        "offstage-dpu.service",
        "systemd-sysusers",
        "vm.nr_hugepages=3",
        "keys make server",
        "keys make client",
        "keys add",
        "dpu.toml",
        "doctor-dpu.json",
        "doctor-host.json",
        "systemctl restart offstage-dpu",
    ):
        assert said in done.stdout, said
    assert not (base / "asked").exists() and not (base / "etc").exists()


@pytest.mark.slow
def test_a_dpu_is_set_up_driven_and_stopped_over_ssh(base: Path, node: list[str]) -> None:
    """A bare machine becomes three arms on a live daemon in one report. Doctor output of both ends
    and the log are copied back, a second `up` keeps the keys, and a wrong machine is one line."""
    done = offstage(node, base, "run", "bluefield", "--sessions", "1", "--steps", "4")
    try:
        assert done.returncode == 0, done.stderr
        out = base / "out"
        summary = json.loads((out / "summary.json").read_text())
        assert [one["name"] for one in summary["runs"]] == ["none", "window", "window+ema+shared"]
        for one in summary["runs"]:
            assert one["blocks_verified"] == one["demands"] > 0 == one["blocks_corrupt"]
        assert summary["machine"]["dpu"]["store"] == f"{base}/store.ofs"
        assert summary["machine"]["real"]["dpu"].startswith("real: ")
        for place in ("dpu", "host"):
            assert json.loads((out / f"doctor-{place}.json").read_text())["checks"]
        asked = (base / "asked").read_text()
        assert "pip install --quiet /tmp/offstage_kv-0" in asked
        assert "sysctl --quiet --write vm.nr_hugepages=3" in asked
        assert "User=root\nGroup=root\n" in (base / "units/offstage-dpu.service").read_text()
        key = (base / "etc/keys/server.key").read_bytes()
        assert (base / "etc/keys/server.key_secret").stat().st_mode & 0o077 == 0
    finally:
        down = offstage(node, base, "down", "bluefield")
    assert down.returncode == 0 and (out / "dpu.log").exists()
    assert (base / "etc/keys/server.key").read_bytes() == key
    (base / "authorized").write_text("")
    done = offstage(node, base, "down", "bluefield")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("offstage: systemctl stop offstage-dpu")
    Path("/tmp/offstage_kv-0-py3-none-any.whl").unlink()
