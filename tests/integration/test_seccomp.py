"""Do daemon and host work under the container's seccomp profile, and is the rest refused?

The profile is loaded as a container runtime loads it, into processes without capabilities.
"""

import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import under_seccomp

from offstage.testbeds.beds.daemon import offstage_words, serve

PROFILE = Path(__file__).resolve().parents[2] / "testbeds/presets/containers/seccomp.json"
DISABLED = Path("/proc/sys/kernel/io_uring_disabled")
SECTIONS = {
    "arena": {"size": "16MiB"},
    "storage": {"size": "256MiB"},
    "limits": {"sessions": 8},
}
REFUSED = (
    "add_key",
    "bpf",
    "chroot",
    "init_module",
    "kexec_load",
    "keyctl",
    "mount",
    "open_by_handle_at",
    "perf_event_open",
    "pidfd_getfd",
    "process_vm_readv",
    "ptrace",
    "reboot",
    "setns",
    "swapon",
    "umount2",
    "unshare",
    "userfaultfd",
)
CLONE_NEWUSER, AF_PACKET = 0x10000000, 17
ASK = """
import ctypes, json, sys
call = ctypes.CDLL(None, use_errno=True).syscall
found = {}
for name, number, first in json.loads(sys.argv[1]):
    ctypes.set_errno(0)
    call(number, first, 0, 0, 0, 0, 0)
    found[name] = ctypes.get_errno()
print(json.dumps(found))
"""


@pytest.fixture(scope="module", autouse=True)
def _libseccomp() -> None:
    if under_seccomp.library() is None:
        pytest.skip("no libseccomp; apt-get install libseccomp2")


def under(profile: Path) -> list[str]:
    return [sys.executable, str(Path(under_seccomp.__file__)), str(profile)]


def sections(folder: Path) -> dict[str, Any]:
    return {**SECTIONS, "storage": {**SECTIONS["storage"], "path": str(folder / "store.ofs")}}


def test_a_host_and_a_daemon_exchange_blocks_over_io_uring(tmp_path: Path) -> None:
    """Prefill, decode, the probe of the image and the drain, all under the profile."""
    if DISABLED.exists() and DISABLED.read_text().strip() != "0":
        pytest.skip("io_uring is disabled; sysctl kernel.io_uring_disabled=0")
    with serve(sections(tmp_path), tmp_path, within=under(PROFILE)) as daemon:
        state = Path(f"/proc/{daemon.ready.pid}/status").read_text()
        assert "Seccomp:\t2" in state and "CapEff:\t0000000000000000" in state
        assert daemon.storage == "io_uring"
        at = ["--endpoint", daemon.endpoint, "--runtime-dir", str(daemon.runtime_dir)]
        run = ["--sessions", "2", "--context-tokens", "4096", "--steps", "4", "--format", "json"]
        said = confined(*offstage_words("host", "run", *at, *run))
        assert json.loads(said)
        assert json.loads(confined(*offstage_words("dpu", "status", *at, "--format", "json")))


def confined(*words: str) -> str:
    done = subprocess.run(
        [*under(PROFILE), *words], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_the_three_calls_a_daemon_has_no_io_uring(tmp_path: Path) -> None:
    """So the profile is in force, and its first rule is what lets io_uring in."""
    profile = json.loads(PROFILE.read_text())
    taken = profile["syscalls"].pop(0)
    assert taken["names"] == ["io_uring_enter", "io_uring_register", "io_uring_setup"]
    (tmp_path / "less.json").write_text(json.dumps(profile))
    with serve(sections(tmp_path), tmp_path, within=under(tmp_path / "less.json")) as daemon:
        assert daemon.storage == "posix"


def test_what_neither_needs_is_refused() -> None:
    """As a call that the kernel does not have, before the kernel looks at its arguments."""
    asked = [(name, under_seccomp.number(name), 0) for name in REFUSED]
    asked += [("clone", under_seccomp.number("clone"), CLONE_NEWUSER)]
    asked += [("socket", under_seccomp.number("socket"), AF_PACKET)]
    assert all(number >= 0 for _, number, _ in asked)
    said = json.loads(confined(sys.executable, "-c", ASK, json.dumps(asked)))
    assert said == dict.fromkeys([*REFUSED, "clone", "socket"], errno.ENOSYS)
