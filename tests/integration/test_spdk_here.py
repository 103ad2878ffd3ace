"""Does storage spdk use the features of this machine's drive: placement handles, and huge pages?

Marked `spdk`; the drive is the one whose PCI address is in OFFSTAGE_SPDK_PCIE, and its contents are
lost. QEMU has one with flexible data placement: docs/how-to/links-and-drives.md. Each writer is a
separate process, since SPDK keeps its memory, and its hold on a drive, until the process ends.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import spdk_drives

pytestmark = pytest.mark.spdk

PCI = Path("/sys/bus/pci")
WAIT_S = 300
RECORD_SECTORS = (16384 + 4096) // 512
BLOCKS = (60, 120)  # of tenants 0 and 1
WRITER = """
import json, sys
from offstage.bindings.storage import Storage, StorageConfig
from offstage.bindings.store import Store, StoreConfig
path, blocks = sys.argv[1], json.loads(sys.argv[2])
shape = StoreConfig(payload_size_bytes=16384, layer_count=1, segment_size_bytes=1 << 20,
                    tenant_max=2)
where = StorageConfig("spdk", path, size_bytes=64 << 20, queue_depth_max=64, lba_size_bytes=4096,
                      timeout_ns=60 * 10**9, discard=True)
with Storage(where) as storage, Store(storage, shape) as store:
    for tenant, count in enumerate(blocks):
        for one in range(count):
            block = bytes([tenant + 1]) * 16384
            assert store.put_wait(1000 * tenant + one, 0, block, tenant=tenant) == 0
"""
OPENER = """
import json, mmap, sys
from pathlib import Path
from offstage.bindings.storage import Storage, StorageConfig
path, huge, leave = sys.argv[1], sys.argv[2] == "huge", int(sys.argv[3])
free = int(Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read_text())
if free > leave:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000 | mmap.MAP_POPULATE  # MAP_HUGETLB
    held = mmap.mmap(-1, (free - leave) << 21, flags=flags)
with Storage(StorageConfig("spdk", path, queue_depth_max=4, huge=huge)) as storage:
    print(json.dumps({"warning": storage.warning, "free": free}))
"""


def child(text: str, *arguments: str) -> str:
    """Run a new process; returns its output."""
    done = subprocess.run(
        [sys.executable, "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def bind(address: str, driver: str) -> None:
    """Give the drive to vfio-pci, or (driver "") back to the kernel."""
    device = PCI / "devices" / address
    if (device / "driver").exists():
        (device / "driver/unbind").write_text(address)
    (device / "driver_override").write_text(driver or "\n")
    (PCI / "drivers_probe").write_text(address)


def _space(address: str) -> str:
    """Return the kernel's device of the first namespace, once it has found it. One that a subsystem
    may offer by several paths (nvme0c0n1) has their common name (nvme0n1)."""
    end = time.monotonic() + WAIT_S
    while not (found := list((PCI / "devices" / address).glob("nvme/nvme*/nvme*n1"))):
        assert time.monotonic() < end, "the kernel does not take the drive: modprobe nvme"
        time.sleep(0.1)
    return "/dev/" + re.sub(r"c\d+n", "n", found[0].name)


def placement(address: str) -> dict[int, int]:
    """Return the sectors left in the reclaim unit of each placement handle, as the drive reports;
    empty if it has no placement."""
    bind(address, "")
    try:
        space = _space(address)
        said = subprocess.run(
            ["nvme", "fdp", "status", space],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        ).stdout
    finally:
        bind(address, "vfio-pci")
    rows = re.findall(r"Unit Handle Identifier (\d+).*?RUAMW\): (\d+)", said, re.DOTALL)
    return {int(handle): int(left) for handle, left in rows}


def test_each_tenants_segments_have_a_handle_of_their_own() -> None:
    """The drive itself counts in-place rewrites on its first handle, each tenant's records on one
    of the others, and nothing on unused handles."""
    path = spdk_drives.drive("PCIe", 64 << 20)
    address = os.environ["OFFSTAGE_SPDK_PCIE"]
    if shutil.which("nvme") is None or not os.access(PCI / "drivers_probe", os.W_OK):
        pytest.skip("the drive's own account needs root and nvme-cli; apt-get install nvme-cli")
    before = placement(address)
    if len(before) < 4:
        pytest.skip(
            "no drive with four placement handles; QEMU 8 has one: docs/how-to/links-and-drives.md"
        )
    child(WRITER, path, json.dumps(BLOCKS))
    unit_sectors = 16 << 20 >> 9
    used = {
        handle: (before[handle] - left) % unit_sectors
        for handle, left in placement(address).items()
    }
    assert used[0] > 0
    assert (used[1], used[2]) == tuple(count * RECORD_SECTORS for count in BLOCKS)
    assert used[3] == 0


def test_too_few_huge_pages_are_said() -> None:
    """A drive that maps memory itself reports that SPDK's is in base pages and how many huge pages
    it needs; if base pages were chosen, it reports nothing."""
    path = spdk_drives.drive("PCIe", 64 << 20)

    def opened(pages: str, leave: int) -> Any:
        return json.loads(child(OPENER, path, pages, str(leave)))

    assert "fewer than 48 huge pages of 2 MiB were free" in opened("huge", 47)["warning"]
    assert "vm.nr_hugepages=96" in opened("huge", 47)["warning"]
    assert opened("base", 47)["warning"] == ""
    enough = opened("huge", 10**6)
    if enough["free"] >= 48:
        assert enough["warning"] == ""
