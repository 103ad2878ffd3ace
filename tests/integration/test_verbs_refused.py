"""Is an adapter that differs from the request refused in one line with the fix?

Each attempt has its own process: a process opens one adapter.
"""

import os
import re
import shutil
import subprocess
import sys

import pytest

from offstage.bindings.verbs import Adapter

WAIT_S = 300
ATTEMPT = """
import resource
from offstage.bindings import verbs
from offstage.bindings.errors import OffstageError
try:
    {call}
except OffstageError as error:
    print(error)
"""
WITHOUT_LOCKS = ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]


def refusal(call: str, *before: str) -> str:
    """Return the one line that the call is refused with."""
    done = subprocess.run(
        [*before, sys.executable, "-c", ATTEMPT.format(call=call)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    return line


@pytest.mark.verbs
def test_an_adapter_gid_port_or_mtu_that_is_not_there(rdma: Adapter) -> None:
    """The error names the existing ones."""
    calls = {
        "device='nowhere'": (f"no RDMA device nowhere; choose one of .*{rdma.device}"),
        "port=99": f"{rdma.device} has no port 99; ",
        "gid_index=9999": r"has no GID 9999; choose gid_index from .*, or -1",
        f"mtu_bytes={2 * rdma.mtu_bytes}": f"carries packets of {rdma.mtu_bytes} B, not of "
        f"{2 * rdma.mtu_bytes}; set mtu to 0",
    }
    for options, words in calls.items():
        line = refusal(f"verbs.prepare(verbs.Rdma({options}))")
        assert re.search(words, line), line


def test_too_little_memory_may_be_locked() -> None:
    """Memory beyond the limit is refused before any is pinned, with the limit and the fix."""
    root = os.geteuid() == 0
    if root and shutil.which("setpriv") is None:
        pytest.skip("root may lock memory beyond any limit; apt-get install util-linux")
    lowered = "resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))"
    line = refusal(f"{lowered}; verbs.check_memlock(1 << 20)", *(WITHOUT_LOCKS if root else ()))
    assert "memlock is 64 KiB, and RDMA pins 1024 KiB; ulimit -l unlimited" in line
