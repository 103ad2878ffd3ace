"""Does a daemon on Linux's own driver write each tenant's segments to a handle of their own?

A guest of QEMU has a drive with flexible data placement; what reached which handle is that drive's
own account, of statistics and of events, read by `nvme-cli`. Linux passes handles on from 6.16, so
the guest has a later kernel than Debian 12's.
"""

import json
import re
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from linux_guest import later_image, linux_guest

from offstage.bindings.errors import RunFailed
from offstage.testbeds.beds.daemon import write_config
from offstage.testbeds.beds.qemu import pair, session, wheel
from offstage.testbeds.beds.qemu.agent import Done
from offstage.testbeds.beds.qemu.guest import Guest

pytestmark = [pytest.mark.qemu, pytest.mark.timeout(1800)]

TENANTS = {session.TENANT: 4096, "blue": 8192}
"""Tokens of the one session of each, in the order of their handles; the second writes more than a
reclaim unit."""
BLOCKS_PER_TOKEN, RECORD = 4 / 64, 32768 + 4096
HANDLES, UNIT = 4, 16 << 20
NOT_FULLY_WRITTEN = 0
"""The one type of event that QEMU's drive logs: a handle went on to another reclaim unit."""
WAIT_S = 600.0
RUNTIME = "--endpoint ipc:///run/offstage/control --runtime-dir /run/offstage"


@dataclass(frozen=True)
class Account:
    """Bytes that the host has written, that reached the medium and that were erased; bytes left in
    the reclaim unit of each handle; (type, handle) of the host's events, and of the media's."""

    host: int
    media: int
    erased: int
    left: list[int]
    events: list[tuple[int, int]]
    media_events: list[tuple[int, int]]


@dataclass(frozen=True)
class Machine:
    """The guest with the drive, and the folder that it sees as /share."""

    guest: Guest
    share: Path

    def run(self, command: str) -> Done:
        return self.guest.agent.run(["/bin/sh", "-c", command], WAIT_S)

    def said(self, command: str) -> str:
        """The output of a command that succeeds."""
        return pair.checked(self.run(command), self.guest, command).out

    def account(self) -> Account:
        stats = self.said("nvme fdp stats /dev/nvme0 -e 1")
        host, media, erased = (
            int(re.search(rf"\({name}\): *(\d+)", stats)[1], 0)  # type: ignore[index]
            for name in ("HBMW", "MBMW", "MBE")
        )
        left = re.findall(r"RUAMW\): (\d+)", self.said(f"nvme fdp status {pair.NVME}"))
        return Account(
            host, media, erased, [512 * int(one) for one in left], self.events("-E"), self.events()
        )

    def events(self, whose: str = "") -> list[tuple[int, int]]:
        """Type and placement identifier of each that is in the drive's log."""
        said = self.said(f"nvme fdp events /dev/nvme0 -e 1 {whose}")
        found = re.findall(r"Event Type: (\w+).*?\(PID\): (\w+)", said, re.DOTALL)
        return [(int(kind, 0), int(handle, 0)) for kind, handle in found]

    def config(self, handles_min: int) -> Path:
        """The testbed's configuration with two tenants."""
        path = self.share / "run/dpu.toml"
        sizes = session.Sizes(sessions=3, context_tokens=max(TENANTS.values()), fabric="shm")
        endpoint = "ipc:///run/offstage/control"
        session._config(path, sizes, endpoint, pair.NVME, pair.NVME_BYTES)
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
        settings["storage"]["handles_min"] = handles_min
        settings["tenant"] = [{"name": name} for name in TENANTS]
        write_config(path, settings)
        return path


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    image, share = later_image(), tmp_path_factory.mktemp("share")
    if not pair._has_fdp(image.arch):
        pytest.skip("this QEMU has no drive with placement: version 8 or later has one")
    built = wheel.build(image)
    shutil.copy(built, share)
    (share / "run").mkdir()
    flash = pair._drive(share, fdp=True)
    with linux_guest(image, share, ["nvme"], flash, memory_mib=2048) as guest:
        found = Machine(guest, share)
        found.said(f"python3 -m zipfile -e /share/{built.name} /opt/offstage")
        yield found


def test_a_drive_must_have_the_handles_that_are_asked_for(machine: Machine) -> None:
    """Is one with fewer refused by the daemon, in one line with the fix, and not written?"""
    before = machine.account()
    config = machine.config(HANDLES + 1)
    with pytest.raises(RunFailed, match="can name 4 placement handles, not 5; lower storage"):
        with session._serving(machine.guest, config, machine.share / "run/refused"):
            pass
    assert machine.account() == before


def test_each_tenants_segments_have_a_handle_of_their_own(machine: Machine) -> None:
    """Does the drive count what the daemon wrote, headers on its first handle, each tenant's
    records on one of the others, and nothing on the last? Does it write no more than that? Do the
    events say which handle went on to another reclaim unit, and is only its rest counted twice?"""
    for handle in range(HANDLES):
        machine.said(f"nvme fdp set-events {pair.NVME} -p {handle} -e -t {NOT_FULLY_WRITTEN}")
    before = machine.account()
    assert before.left == [UNIT] * HANDLES and before.host == 0 and not before.events
    config = machine.config(HANDLES)
    with session._serving(machine.guest, config, machine.share / "run/placed"):
        for name, tokens in TENANTS.items():
            said = machine.said(
                f"{session.OFFSTAGE} host run {RUNTIME} --tenant {name} --fabric shm "
                f"--sessions 1 --context-tokens {tokens} --steps 2 --time-per-token 0ms "
                "--timeout 120s --format json"
            )
            run = json.loads(said)["runs"][0]
            assert run["blocks_verified"] > 0 and run["blocks_corrupt"] == 0
        status = json.loads(machine.said(f"{session.OFFSTAGE} dpu status {RUNTIME} --format json"))
        after = machine.account()
    storage = status["device"]["storage"]
    units = [after.events.count((NOT_FULLY_WRITTEN, handle)) for handle in range(HANDLES)]
    used = [UNIT * full + UNIT - left for full, left in zip(units, after.left, strict=True)]
    print(f"\n{before}\n{after}\nbytes by handle: {used}\nthe daemon: {storage}")
    assert storage["handles"] == HANDLES
    assert after.host == sum(used) == storage["bytes_written"]
    assert units == [0, 0, 1, 0] and len(after.events) == 1
    assert after.media - after.host == UNIT % RECORD  # what the last record found of the unit
    assert after.erased == 0 and not after.media_events
    headers, *tenants, rest = used
    assert headers > 0 and rest == 0
    blocks = [tokens * BLOCKS_PER_TOKEN for tokens in TENANTS.values()]
    assert [one / RECORD for one in tenants] == blocks
