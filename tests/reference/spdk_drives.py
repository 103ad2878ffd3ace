"""Drives of a real SPDK target, for the tests marked `spdk`.

One nvmf_tgt serves all tests of a process; it starts with the first drive and ends with the
process. OFFSTAGE_SPDK_PCIE has the address of a drive of this machine, whose contents are lost;
OFFSTAGE_SPDK_RDMA has the IP address of an RDMA device, or the transport id of a drive that another
machine's target serves. If something is missing, the test skips and names the fix.
"""

import atexit
import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from offstage.bindings import spdk
from offstage.bindings.errors import BadInput, Missing
from offstage.dpu.storage.spdk_target import MEMORY_MIB, Target

__all__ = ["drive", "ends_by", "program", "start"]

WANTED = "build with SPDK, name its nvmf_tgt in OFFSTAGE_NVMF_TGT, pip install '.[spdk]'"
CHILD = """
import faulthandler, resource, sys
from pathlib import Path
sys.path[:0] = {folders!r}
import test_storage
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
test_storage.{mistake}(test_storage.SIDES[{side!r}], Path({folder!r}))
"""


def program() -> str:
    """Return the path of SPDK's nvmf_tgt; skips if it or the extension is missing."""
    found = shutil.which(os.environ.get("OFFSTAGE_NVMF_TGT", "nvmf_tgt"))
    try:
        spdk.ensure()
    except BadInput as error:
        pytest.skip(f"{error}; {WANTED}")
    if found is None:
        pytest.skip(f"no nvmf_tgt; {WANTED}")
    return found


def start(memory_mib: int = MEMORY_MIB) -> Target:
    """Start a target, which the caller closes."""
    try:
        return Target(program(), memory_mib=memory_mib)
    except Missing as error:
        pytest.skip(f"{error}; {WANTED}")


@functools.cache
def _target() -> Target:
    target = start(2 * MEMORY_MIB)  # for the drives of all tests
    atexit.register(target.close)
    return target


@functools.cache
def drive(transport: str, size_bytes: int) -> str:
    """Return the transport id of a drive in memory, with sectors of 512 B, or of the one that the
    environment names. A child process uses its parent's."""
    if transport == "PCIe":
        address = os.environ.get("OFFSTAGE_SPDK_PCIE", "")
        if not address:
            pytest.skip(
                "no drive of this machine; bind one that may be lost to vfio-pci, and "
                "give its PCI address in OFFSTAGE_SPDK_PCIE"
            )
        return f"trtype:PCIe traddr:{address}"
    host = "127.0.0.1"
    if transport == "RDMA":
        host = os.environ.get("OFFSTAGE_SPDK_RDMA", "")
        if not host:
            pytest.skip(
                "no RDMA device; build SPDK --with-rdma, name one in OFFSTAGE_SPDK_RDMA "
                "(rdma link add rxe0 type rxe netdev eth0)"
            )
        if host.startswith("trtype:"):
            return host
    name = f"OFFSTAGE_TEST_DRIVE_{transport}_{size_bytes}"
    if name not in os.environ:
        target = _target()
        made = target.memory_drive(f"{transport.lower()}{size_bytes}", size_bytes, 512)
        os.environ[name] = target.serve(made, transport, host=host)
    return os.environ[name]


def ends_by(test: Path, mistake: str, side: str, folder: Path) -> int:
    """Make a mistake of tests/contract/test_storage.py in a new process; returns the signal that
    ended it, or 0."""
    folders = [str(test.parent), str(Path(__file__).parent)]
    text = CHILD.format(folders=folders, mistake=mistake, side=side, folder=str(folder))
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode <= 0, done.stderr
    return -done.returncode
