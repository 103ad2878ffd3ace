"""Does the running daemon survive errors of its drive, EIO and ENOSPC, under io_uring where
possible?

The store reads nothing past the new end of a truncated file. A loop device returns the errors of a
block device: its backing file is truncated (EIO), or is sparse on a file system that fills up
(ENOSPC). The kernel refuses writes beyond the file size limit (EFBIG), which is lowered from
outside while the daemon runs. Acknowledged blocks that still exist are served, wrong bytes never
are. Each affected caller gets a one-line error, and the daemon continues and recovers when the
drive does.
"""

import errno
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_daemon import CHUNKS, LAYERS, TENANT, Daemon, Text, daemon, fetch, open_text, put, until

import offstage
from offstage.bindings.driver import Driver
from offstage.bindings.errors import OffstageError
from offstage.dpu import protocol as p
from offstage.dpu.storage.storefile import SEGMENTS_OFFSET, StoreFile
from offstage.host.fabrics.shm import open_driver
from offstage.host.link.control import Control

SEGMENT = 256 << 10
STORE = 64 << 20
Place = tuple[int, int]  # ordinal, layer


def fill(driver: Driver, text: Text) -> list[Place]:
    """Put the whole text; returns the acknowledged blocks."""
    done = []
    for layer in range(LAYERS):
        for first in range(0, CHUNKS, 16):
            ordinals = put(driver, text, layer, list(range(first, first + 16)))
            done += [(ordinal, layer) for ordinal in ordinals]
    return done


def served(driver: Driver, text: Text, places: list[Place]) -> dict[Place, int]:
    """Return how the fetch of each block ended; fetched bytes are checked."""
    return {(one, layer): fetch(driver, text, layer, [one])[0] for one, layer in places}


def cut(backing: Path) -> int:
    """Truncate the file at its highest used segment; returns the blocks from there on."""
    with StoreFile(backing) as file:
        used = [one for one in file.segments() if one.state == "used"]
        last = max(used, key=lambda one: one.index)
        gone = sum(one.whole for one in file.blocks(last))
    os.truncate(backing, SEGMENTS_OFFSET + last.index * SEGMENT)
    return gone


def check_cut(tier: Daemon, backing: Path) -> None:
    """Truncate the file below a text that is on the store and not in the arena."""
    with (
        tier.control(p.OPERATOR) as operator,
        tier.control() as control,
        open_driver(control.attach("shm")) as driver,
    ):
        text = open_text(control, 1)
        places = fill(driver, text)
        assert len(places) == CHUNKS * LAYERS
        operator.reset()
        subprocess.run(["sync", str(backing)], check=True)
        gone = cut(backing)
        ends = served(driver, text, places)
        assert 0 < gone < len(places)
        failed = [place for place, rc in ends.items() if rc != 0]
        assert len(failed) == gone and {ends[place] for place in failed} <= {
            -errno.EIO,
            -errno.ENOENT,
        }, ends
        device = operator.status()["device"]
        assert device["store"]["io_errors"] + device["check_failures"] > 0
        other = open_text(control, 2)  # new writes succeed
        fresh = fill(driver, other)
        operator.reset()
        assert fresh and set(served(driver, other, fresh).values()) == {0}
    tier.process.send_signal(signal.SIGTERM)
    assert tier.process.wait(120) == 0
    assert "Traceback" not in tier.log.read_text()


def test_a_store_that_is_cut_short_under_the_daemon(tmp_path: Path) -> None:
    """With a file under O_DIRECT short reads are errors, not data, and the rest is served."""
    with daemon(tmp_path, storage__size=f"{STORE}") as tier:
        check_cut(tier, tmp_path / "store.ofs")


def mounted(folder: Path, size: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("loop devices and mounts are root's; run it as root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"no mounts here ({done.stderr.strip()}); run it where root may mount")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The path of a loop device over a sparse file on a small file system, and the file."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted(folder, "16m")
    backing, device = folder / "backing", ""
    try:
        backing.touch()
        os.truncate(backing, STORE)
        done = subprocess.run(
            ["losetup", "--find", "--show", str(backing)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"no loop device ({done.stderr.strip()}); modprobe loop")
        device = done.stdout.strip()
        yield device, backing
    finally:
        if device:
            subprocess.run(["losetup", "--detach", device], check=False)
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def test_a_block_device_whose_reads_fail(tmp_path: Path, disk: tuple[str, Path]) -> None:
    """The loop device returns EIO for the truncated part of its file."""
    device, backing = disk
    with daemon(tmp_path, storage__size=f"{STORE}", storage__path=device) as tier:
        check_cut(tier, backing)


def test_a_block_device_that_fills_up_and_has_room_again(
    tmp_path: Path, disk: tuple[str, Path]
) -> None:
    """ENOSPC from the device during puts is reported as such, all acknowledged blocks are there and
    right, and puts succeed again once there is room."""
    device, backing = disk
    with (
        daemon(tmp_path, storage__size=f"{STORE}", storage__path=device) as tier,
        tier.control(p.OPERATOR) as operator,
        tier.control() as control,
        open_driver(control.attach("shm")) as driver,
    ):
        texts: list[tuple[Text, list[Place]]] = []
        while len(texts) < 100:  # 76 blocks of 8 KiB in a MiB: the disk holds about twenty texts
            if len(texts) >= 6:  # a host's limit of sessions
                control.session_close(texts[-6][0].session)
            text = open_text(control, len(texts) + 1)
            texts.append((text, fill(driver, text)))
            if len(texts[-1][1]) < CHUNKS * LAYERS:
                break
        full, stood = texts[-1]
        assert 10 < len(texts) < 100 and len(stood) < CHUNKS * LAYERS
        assert operator.status()["device"]["store_full"] > 0
        operator.reset()
        assert set(served(driver, full, stood).values()) <= {0}
        for text, places in texts[-5:-1]:
            assert set(served(driver, text, places).values()) == {0}
        missing = [(o, at) for at in range(LAYERS) for o in range(CHUNKS) if (o, at) not in stood]
        subprocess.run(["mount", "-o", "remount,size=64m", str(backing.parent)], check=True)
        for ordinal, layer in missing:
            assert put(driver, full, layer, [ordinal]) == [ordinal]
        operator.reset()
        assert set(served(driver, full, missing).values()) == {0}
        tier.process.send_signal(signal.SIGTERM)
        assert tier.process.wait(120) == 0
        assert "Traceback" not in tier.log.read_text()


def refuse_writes(tier: Daemon, refuse: bool) -> None:
    """Make writes to segments fail from now on, or succeed again; reads are unaffected."""
    _, most = resource.prlimit(tier.process.pid, resource.RLIMIT_FSIZE)
    bound = SEGMENTS_OFFSET if refuse else most
    resource.prlimit(tier.process.pid, resource.RLIMIT_FSIZE, (bound, most))


def test_a_drive_whose_writes_fail_and_go_on(tmp_path: Path) -> None:
    """If every segment write fails, each put is reported, all older blocks are served and counted,
    and a delete that cannot be written is an error. When writes succeed again, refused puts are
    accepted, and the delete survives a kill."""
    with daemon(tmp_path, storage__size=f"{STORE}", storage__io_timeout="1s") as tier:
        with (
            tier.control(p.OPERATOR) as operator,
            tier.control() as control,
            open_driver(control.attach("shm")) as driver,
        ):
            kept, gone = open_text(control, 1), open_text(control, 2)
            places = fill(driver, kept)
            assert len(places) == len(fill(driver, gone)) == CHUNKS * LAYERS
            refuse_writes(tier, True)
            late = open_text(control, 3)
            assert fill(driver, late) == []
            device = operator.status()["device"]
            assert device["store"]["io_errors"] > 0 and device["puts_failed"] >= len(places)
            with pytest.raises(OffstageError, match="the drive refuses the writes"):
                control.session_close(gone.session, keep=False)
            operator.reset()
            assert set(served(driver, kept, places).values()) == {0}
            refuse_writes(tier, False)
            assert len(fill(driver, late)) == len(places)
            control.session_close(late.session, keep=False)  # it waits for the other session too
        tier.process.send_signal(signal.SIGKILL)
        tier.process.wait(120)
        assert "delete_not_on_drive" in tier.log.read_text()
        assert "Traceback" not in tier.log.read_text()
    with daemon(tmp_path, storage__size=f"{STORE}") as tier, tier.control() as control:
        control.attach("shm")
        stored = [sum(open_text(control, number).stored) for number in (1, 2, 3)]
    assert stored == [CHUNKS * LAYERS, 0, 0]


def test_staged_blocks_outlast_a_drive_whose_writes_fail(tmp_path: Path) -> None:
    """In write-back, acknowledged blocks whose flush the drive refuses are retried until it accepts
    them, and are all there after a drain and a kill."""
    back = {"store__write": "back", "store__dirty_max": "32"}
    with daemon(tmp_path, storage__size=f"{STORE}", **back) as tier:
        with (
            tier.control(p.OPERATOR) as operator,
            tier.control() as control,
            open_driver(control.attach("shm")) as driver,
        ):
            refuse_writes(tier, True)
            text = open_text(control, 1)
            taken = put(driver, text, 0, list(range(16)))
            assert taken  # while a flush waits, puts get the drive's error
            until(lambda: operator.status()["device"]["flush_retries"] > 0)
            assert operator.status()["device"]["dirty_blocks"] == len(taken)
            refuse_writes(tier, False)
            until(lambda: operator.status()["device"]["dirty_blocks"] == 0)
        tier.process.send_signal(signal.SIGKILL)
        tier.process.wait(120)
    with daemon(tmp_path, storage__size=f"{STORE}") as tier, tier.control() as control:
        control.attach("shm")
        assert sum(open_text(control, 1).stored) == len(taken)


def value(number: int) -> bytes:
    return number.to_bytes(4, "big") * (16 << 10)


def refuses(operator: Control) -> bool:
    return bool(operator.status()["device"]["store"]["refuses_writes"])


def test_no_value_is_lost_for_one_that_the_drive_refuses(tmp_path: Path) -> None:
    """A full store on a drive that takes no writes, as one that is worn out: half as many values
    again as it has are refused, each with one line and counted, and every one that was there is
    read right meanwhile and after. When the drive takes writes again, so does the store."""
    small = {"storage__size": "16MiB", "limits__values": "1024"}
    with (
        daemon(tmp_path, **small) as tier,
        tier.control(p.OPERATOR) as operator,
        offstage.values(tier.endpoint, tenant=TENANT, runtime_dir=tier.runtime_dir) as mine,
    ):
        names = [number.to_bytes(16, "big") for number in range(500)]
        for number, name in enumerate(names[:300]):
            assert mine.store(name, value(number))
        refuse_writes(tier, True)
        while not refuses(operator):  # the daemon learns it by what fails
            with pytest.raises(OffstageError, match="EIO"):
                mine.store(names[300], value(300))
        kept = [at for at, length in enumerate(mine.lengths(names)) if length >= 0]
        assert 50 < len(kept) < 300  # the store is full, and has purged the oldest
        for number in range(300, 400):
            with pytest.raises(OffstageError, match="a value of 65,536 bytes: EIO") as caught:
                mine.store(names[number], value(number))
            assert "\n" not in str(caught.value)
            at = kept[number % len(kept)]
            assert mine.retrieve(names[at]) == value(at)
        device = operator.status()["device"]
        assert device["puts_failed"] >= 100 and refuses(operator)
        operator.reset()
        assert [mine.retrieve(names[at]) == value(at) for at in kept] == [True] * len(kept)
        until(lambda: "drive_refuses_writes" in tier.log.read_text())
        refuse_writes(tier, False)
        until(lambda: not refuses(operator))
        for number in range(400, 500):
            assert mine.store(names[number], value(number))
            assert mine.retrieve(names[number]) == value(number)
        until(lambda: "drive_takes_writes" in tier.log.read_text())
        assert tier.log.read_text().count("drive_refuses_writes") == 1
        assert "Traceback" not in tier.log.read_text()
