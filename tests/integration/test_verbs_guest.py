"""Do the tests marked `verbs` pass over a soft RDMA device, in a guest of QEMU that has one?

The guest runs this checkout's tests by pytest, over its own build of it.
"""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from linux_guest import later_image, linux_guest

from offstage.testbeds.beds.qemu import pair, wheel
from offstage.testbeds.beds.qemu.guest import Guest

pytestmark = [pytest.mark.qemu, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]
RUNS_TESTS = (
    "_pytest",
    "pytest",
    "py",
    "pygments",
    "pluggy",
    "iniconfig",
    "packaging",
    "hypothesis",
    "_hypothesis_globals",
)
RUNS_TESTS += ("sortedcontainers", "attr", "attrs", "pytest_timeout")
WAIT_S = 3000.0
FILES = {
    "values": "integration/test_values_verbs.py integration/test_values_beside_blocks.py",
    "objects": "integration/test_objects_pinned.py",
    "connection": "integration/test_verbs_again.py",
}


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    image, share = later_image(), tmp_path_factory.mktemp("share")
    built = wheel.build(image)
    shutil.copy(built, share)
    shutil.copytree(ROOT / "tests", share / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", share)
    for name in RUNS_TESTS:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            origin, packed = Path(found.origin), found.submodule_search_locations is not None
            copy = shutil.copytree if packed else shutil.copy
            place = share / "packages" / (name if packed else origin.name)
            place.parent.mkdir(exist_ok=True)
            copy(origin.parent if packed else origin, place)
    network = ("-netdev", "user,id=here", "-device", "virtio-net-pci,netdev=here,romfile=")
    modules = ("ib_uverbs", "rdma_ucm", "rdma_rxe")
    with linux_guest(image, share, modules, network, memory_mib=2048) as found_guest:
        unpack = [
            "/usr/bin/python3",
            "-m",
            "zipfile",
            "-e",
            f"/share/{built.name}",
            "/opt/offstage",
        ]
        pair.checked(found_guest.agent.run(unpack, WAIT_S), found_guest, "unpacking Offstage")
        yield found_guest


@pytest.mark.parametrize("part", FILES)
def test_what_needs_an_adapter(guest: Guest, part: str) -> None:
    """Each runs, and passes; none is skipped."""
    command = (
        "cp -r /share/tests /share/pyproject.toml /tmp 2>/dev/null; cd /tmp/tests && "
        "PYTHONPATH=/opt/offstage:/share/packages /usr/bin/python3 -m pytest -q "
        f"-p no:cacheprovider -o addopts= -m verbs {FILES[part]}"
    )
    done = guest.agent.run(["/bin/sh", "-c", command], WAIT_S)
    print(done.out, done.err)
    assert done.code == 0 and " passed" in done.out and " skipped" not in done.out
