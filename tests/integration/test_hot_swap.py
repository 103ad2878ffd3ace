"""Does a running daemon change its storage and its fabrics without losing a block or a session?

The daemon is the real one. Hosts put and fetch without pause while its blocks move from one file to
another; it is killed at random moments of a move and restarted with the old configuration. Tests
marked `spdk` move to real targets: tests/reference/spdk_drives.py lists the requirements.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spdk_drives
from live_daemon import (
    CHUNKS,
    CONFIG,
    LAYERS,
    PAYLOAD,
    WAIT_S,
    Daemon,
    Worker,
    block,
    check_text,
    daemon,
    fetch,
    open_text,
    put,
    scrape,
    until,
)

from offstage.bindings.errors import OffstageError, RunFailed
from offstage.bindings.fabric import PutRequest
from offstage.bindings.keys import checksum
from offstage.dpu.storage.spdk_target import Target
from offstage.dpu.storage.storefile import StoreFile, check, inspect
from offstage.host.fabrics import open_fabric
from offstage.host.fabrics.shm import open_driver
from offstage.host.link.control import Control
from offstage.testbeds.beds.daemon import offstage_words

Names = set[tuple[int, int, int]]
SMALL = {"storage__size": "24MiB"}
DRIVE_BYTES = 32 << 20
TEXTS = range(100, 106)


def begin(tier: Daemon, number: int, acknowledged: Names) -> tuple[Worker, threading.Thread]:
    """Start a host; its first calls have ended when this returns."""
    worker = Worker(tier, number, number, acknowledged)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert worker.busy.wait(WAIT_S)
    return worker, thread


def end(workers: list[tuple[Worker, threading.Thread]]) -> None:
    for worker, thread in workers:
        worker.stop.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        if worker.error is not None:
            raise worker.error


def moved(operator: Control, path: Path, **more: str) -> dict[str, Any]:
    """Move and wait for the end; returns the status of the move."""
    operator.storage_move({"path": str(path), **more})
    until(lambda: operator.status()["move"]["state"] != "running")
    return dict(operator.status()["move"])


def fill(tier: Daemon, numbers: range, acknowledged: Names) -> None:
    """Put whole texts, so that a move has something to do."""
    with tier.control() as control, open_driver(control.attach("shm")) as driver:
        for number in numbers:
            text = open_text(control, number)
            for layer in range(LAYERS):
                for first in range(0, CHUNKS, 16):
                    for one in put(driver, text, layer, list(range(first, first + 16))):
                        acknowledged.add((number, one, layer))
            control.session_close(text.session)


def room(tier: Daemon) -> int:
    """Return the capacity of the store that a host sees."""
    with tier.control() as control:
        return int(control.status()["store_payload_bytes"])


def test_blocks_move_under_load_from_side_to_side(tmp_path: Path) -> None:
    """Under load of two hosts, io_uring or posix moves to a larger file on posix, then to an
    emulated drive. All blocks are on the new storage only, no call of a host is refused, and the
    reported capacity grows."""
    acknowledged: Names = set()
    with daemon(tmp_path, **SMALL) as tier, tier.control("operator") as operator:
        fill(tier, range(100, 110), acknowledged)
        workers = [begin(tier, number, acknowledged) for number in range(2)]
        held = room(tier)
        for path, more in (
            (tmp_path / "second", {"backend": "posix", "size": "48MiB"}),
            (tmp_path / "third", {"backend": "emulated", "inner": "posix"}),
        ):
            status = moved(operator, path, **more)
            assert status["state"] == "done" and status["switched"] and not status["unrecorded"]
            assert status["blocks_copied"] >= 10 * CHUNKS * LAYERS and status["blocks_lost"] == 0
            assert operator.status()["storage"] == more["backend"]
            assert room(tier) > 1.9 * held
            fetched = [worker.fetched for worker, _ in workers]
            until(
                lambda seen=fetched: all(  # type: ignore[misc]
                    worker.fetched > old or worker.error or not thread.is_alive()
                    for (worker, thread), old in zip(workers, seen, strict=True)
                )
            )
            assert [(worker.error, thread.is_alive()) for worker, thread in workers] == [
                (None, True),
                (None, True),
            ]
        end(workers)
        for number in (*range(2), *range(100, 110)):
            check_text(tier, number, acknowledged)
        assert check(tmp_path / "third") == []
    # The daemon was killed: its successor follows the forward records to the end.
    with daemon(tmp_path, **SMALL) as tier:
        assert tier.storage == "emulated"
        for number in (*range(2), *range(100, 110)):
            check_text(tier, number, acknowledged)
    assert inspect(tmp_path / "store.ofs")["moved_to"] == str(tmp_path / "second")
    with StoreFile(tmp_path / "second") as second, StoreFile(tmp_path / "third") as third:
        forward = second.forward()
        assert forward is not None and forward.path == str(tmp_path / "third")
        assert forward.next == third.superblock.uuid and third.forward() is None


def test_killed_in_the_middle_of_a_move(tmp_path: Path) -> None:
    """Whenever the daemon dies, one store is whole and found, with all that was acknowledged."""
    rng = random.Random(5)
    acknowledged: Names = set()
    lives = 4
    for life in range(lives):
        with daemon(tmp_path, **SMALL) as tier, tier.control("operator") as operator:
            if life == 0:
                fill(tier, range(100, 106), acknowledged)
            for number in (*range(life), *range(100, 106)):
                check_text(tier, number, acknowledged)
            worker, thread = begin(tier, life, acknowledged)
            operator.storage_move({"path": str(tmp_path / f"{life}"), "backend": "posix"})
            # While blocks are copied, around the switch, and after it.
            if life % 3 == 1:
                until(lambda: operator.status()["move"]["state"] == "done")
            elif life % 3 == 2:
                until(lambda: operator.status()["move"]["blocks_copied"] > 500)
            time.sleep(rng.uniform(0, 0.05))
            tier.process.kill()
            thread.join(WAIT_S)
            assert not thread.is_alive()
        if worker.error is not None:
            raise worker.error
    with daemon(tmp_path, **SMALL) as tier:
        for number in (*range(lives), *range(100, 106)):
            check_text(tier, number, acknowledged)
    followed = 0
    for name in ("store.ofs", *(str(life) for life in range(lives))):
        with StoreFile(tmp_path / name) as file:
            followed += file.forward() is not None
    print(f"{len(acknowledged)} blocks acknowledged, {followed} of {lives} moves recorded")
    assert 0 < followed < lives + 1


def test_what_cannot_be_a_target_is_one_line_and_changes_nothing(tmp_path: Path) -> None:
    acknowledged: Names = set()
    (tmp_path / "alien").write_bytes(b"\x7fELF" * 100_000)
    (tmp_path / "folder").mkdir()
    with daemon(tmp_path, **SMALL) as tier, tier.control("operator") as operator:
        fill(tier, range(3), acknowledged)
        with daemon(other := tmp_path / "folder", **SMALL):
            pass
        shutil.copyfile(other / "store.ofs", tmp_path / "bare")
        rows = [
            ({"path": str(tmp_path / "store.ofs")}, "is the present storage"),
            ({"path": str(tmp_path / "alien")}, "not a store, and not empty"),
            ({"path": str(other / "store.ofs")}, "red.secret: belongs to another store"),
            ({"path": str(tmp_path / "bare")}, "there is a store here already"),
            ({"path": str(tmp_path / "small"), "size": "2MiB"}, "need"),
            ({"path": str(tmp_path / "absent/store")}, "its directory does not exist"),
            ({"path": str(tmp_path / "m"), "backend": "emulated"}, "keeps nothing over a restart"),
            ({"path": str(tmp_path / "lba"), "lba": "512"}, "lba cannot change"),
            ({"path": str(tmp_path / "x"), "colour": "red"}, "colour"),
            ({"backend": "posix"}, "no path"),
        ]
        for changes, said in rows:
            with pytest.raises(OffstageError, match=said) as refused:
                operator.storage_move(changes)
            assert len(str(refused.value).splitlines()) == 1
        with pytest.raises(OffstageError, match="only the operator"), tier.control() as host:
            host.storage_move({"path": str(tmp_path / "y")})
        assert operator.status()["move"]["state"] == "none"
        for number in range(3):
            check_text(tier, number, acknowledged)
        assert moved(operator, tmp_path / "good")["state"] == "done"


def test_the_command_moves_and_a_start_takes_no_other_store_for_the_new_one(tmp_path: Path) -> None:
    """The command's answer is true. If the target is lost or replaced, the start says so and makes
    no new store; where it finds the target, its log says so."""
    acknowledged: Names = set()
    with daemon(tmp_path, **SMALL) as tier:
        fill(tier, range(2), acknowledged)
        where = ["--endpoint", tier.endpoint, "--runtime-dir", str(tier.runtime_dir)]
        command = offstage_words("dpu", "storage", "move", f"path={tmp_path / 'to'}", *where)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0 and "done" in done.stdout, done.stderr
        again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert again.returncode == 2 and "is the present storage" in again.stderr
        assert len(again.stderr.splitlines()) == 1
    (tmp_path / "to").rename(tmp_path / "away")
    with pytest.raises(RunFailed, match="not the store that the blocks moved to"):
        with daemon(tmp_path, **SMALL):
            pass
    (tmp_path / "to").unlink()
    (tmp_path / "away").rename(tmp_path / "to")
    with daemon(tmp_path, **SMALL) as tier:
        _, own = tier.log.read_text().split("set storage.path\n")  # behind the refused start's line
        events = [json.loads(line) for line in own.splitlines()]
        moved = [one["serving"] for one in events if one["event"] == "store_moved"]
        assert moved == [str(tmp_path / "to")]
        for number in range(2):
            check_text(tier, number, acknowledged)


def test_a_fabric_is_added_and_removed_while_hosts_go_on(tmp_path: Path) -> None:
    """One host keeps its session over shm; another comes over zmq once it is added, and stays when
    it is removed."""
    assert "daemon.fabrics" not in CONFIG
    with (
        daemon(tmp_path, daemon__fabrics="shm", **SMALL) as tier,
        tier.control("operator") as operator,
        tier.control() as first,
        tier.control() as second,
        tier.control() as third,
        open_driver(first.attach("shm")) as driver,
    ):
        text = open_text(first, 1)
        assert len(put(driver, text, 0, [0, 1])) == 2
        with pytest.raises(OffstageError, match="does not serve this fabric"):
            second.attach("zmq")
        operator.fabric_open("zmq", f"ipc://{tmp_path}/fabric")
        shown = operator.status()["fabrics"]["zmq"]
        assert shown == {"open": True, "hosts": 0, "endpoint": f"ipc://{tmp_path}/fabric"}
        fabric = open_fabric(second, "zmq")
        assert operator.status()["fabrics"]["zmq"]["hosts"] == 1
        operator.fabric_shut("zmq")
        operator.fabric_shut("shm")
        with pytest.raises(OffstageError, match="attach over one of none"):
            third.attach("zmq")
        assert operator.status()["fabrics"]["zmq"]["endpoint"], "its host is still there"
        other = open_text(second, 2)
        source = np.stack([block(2, ordinal, 1) for ordinal in range(4)])
        assert source.shape == (4, PAYLOAD) and checksum(bytes(source[0]))
        assert (
            list(fabric.put(PutRequest(other.session, 1, np.arange(4, dtype=np.uint32), source)))
            == [0] * 4
        )
        assert fetch(driver, text, 0, [0, 1]) == [0, 0]
        fabric.close()
        second.close()
        until(lambda: not operator.status()["fabrics"]["zmq"]["endpoint"])
        assert fetch(driver, text, 0, [0, 1]) == [0, 0]
        operator.fabric_open("shm")
        with open_driver(third.attach("shm")):
            pass


def drives(target: Target) -> list[str]:
    """Return two transport ids: one over TCP, one over vfio-user."""
    return [
        target.serve(target.memory_drive(name, DRIVE_BYTES, 4096), transport)
        for name, transport in (("one", "TCP"), ("two", "VFIOUSER"))
    ]


@pytest.mark.spdk
@pytest.mark.timeout(400)
def test_blocks_move_to_spdk_and_back_under_load(tmp_path: Path) -> None:
    """From a file to TCP, to vfio-user, and back to a file every block is kept and no call of a
    host is refused. A start on the first file follows both records."""
    acknowledged: Names = set()
    with spdk_drives.start() as target:
        tcp, vfio = drives(target)
        with daemon(tmp_path, **SMALL) as tier, tier.control("operator") as operator:
            fill(tier, TEXTS, acknowledged)
            workers = [begin(tier, number, acknowledged) for number in range(2)]
            for path in (tcp, vfio):
                status = moved(operator, Path(path), backend="spdk")
                assert (status["state"], status["error"]) == ("done", "")
                assert status["switched"] and not status["unrecorded"]
                assert status["blocks_copied"] >= len(TEXTS) * CHUNKS * LAYERS
                assert status["blocks_lost"] == 0
                assert operator.status()["storage"] == "spdk"
                fetched = [worker.fetched for worker, _ in workers]
                until(
                    lambda seen=fetched: all(  # type: ignore[misc]
                        worker.fetched > old or worker.error or not thread.is_alive()
                        for (worker, thread), old in zip(workers, seen, strict=True)
                    )
                )
            with pytest.raises(OffstageError, match="is the present storage"):
                moved(operator, Path(vfio), backend="spdk")
            end(workers)
        with daemon(tmp_path, **SMALL) as tier, tier.control("operator") as operator:
            assert tier.storage == "spdk"
            for number in (*range(2), *TEXTS):
                check_text(tier, number, acknowledged)
            last = tmp_path / "last"
            assert moved(operator, last, backend="posix")["state"] == "done"
            for number in (*range(2), *TEXTS):
                check_text(tier, number, acknowledged)
            assert check(last) == []
        with daemon(tmp_path, **SMALL) as tier:
            assert tier.storage == "posix"
            for number in (*range(2), *TEXTS):
                check_text(tier, number, acknowledged)


def children(tier: Daemon) -> list[int]:
    """Return the programs that the daemon runs, started by any of its threads."""
    tasks = Path(f"/proc/{tier.process.pid}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def reads(tier: Daemon, number: int, acknowledged: Names) -> bool:
    try:
        return check_text(tier, number, acknowledged) > 0
    except AssertionError:
        return False


@pytest.mark.spdk
@pytest.mark.timeout(400)
def test_a_target_that_is_started_again_is_told(tmp_path: Path) -> None:
    """If it is killed below a working daemon, all blocks are there, the restart is a log line and a
    metric, and the next program runs."""
    acknowledged: Names = set()
    own = SMALL | {
        "storage__backend": "spdk",
        "storage__path": "",
        "storage__target": spdk_drives.program(),
        "storage__target_file": str(tmp_path / "store.ofs"),
        "storage__io_timeout": "60s",
        "daemon__metrics_endpoint": "127.0.0.1:0",
    }
    with daemon(tmp_path, **own) as tier:
        fill(tier, range(3), acknowledged)
        (program,) = children(tier)
        assert "target_restarted" not in tier.log.read_text()
        os.kill(program, signal.SIGKILL)
        until(lambda: reads(tier, 0, acknowledged))  # demands have their own deadline
        for number in range(3):
            check_text(tier, number, acknowledged)
        until(lambda: "target_restarted" in tier.log.read_text())
        lines = [json.loads(line) for line in tier.log.read_text().splitlines()]
        (said,) = (line for line in lines if line["event"] == "target_restarted")
        assert (said["level"], said["restarts"], said["down"]) == ("warning", 1, "")
        token = (tier.runtime_dir / "metrics.token").read_text().strip()
        metric = "\noffstage_storage_target_restarts_total 1.0\n"
        until(lambda: metric in scrape(tier, token))
        (again,) = children(tier)
        assert again != program


@pytest.mark.spdk
@pytest.mark.timeout(400)
def test_blocks_leave_the_daemons_own_target_which_then_ends(tmp_path: Path) -> None:
    """The target's program ends when the blocks are elsewhere, and a start that would begin it
    again goes to where they are."""
    acknowledged: Names = set()
    own = SMALL | {
        "storage__backend": "spdk",
        "storage__path": "",
        "storage__target": spdk_drives.program(),
        "storage__target_file": str(tmp_path / "store.ofs"),
    }
    with daemon(tmp_path, **own) as tier, tier.control("operator") as operator:
        fill(tier, range(3), acknowledged)
        with pytest.raises(OffstageError, match="is the present storage"):
            operator.storage_move({"path": str(tmp_path / "store.ofs"), "backend": "posix"})
        with pytest.raises(OffstageError, match="ends with the daemon"):
            operator.storage_move({"path": "x", "target": spdk_drives.program()})
        assert len(children(tier)) == 1
        assert moved(operator, tmp_path / "to", backend="posix")["state"] == "done"
        until(lambda: not children(tier))
        for number in range(3):
            check_text(tier, number, acknowledged)
    with daemon(tmp_path, **own) as tier:
        assert tier.storage == "posix"
        for number in range(3):
            check_text(tier, number, acknowledged)


@pytest.mark.spdk
@pytest.mark.timeout(400)
def test_a_target_that_dies_in_the_middle_of_a_move_ends_the_move(tmp_path: Path) -> None:
    """If the new drive is lost, the daemon continues on the old one, with all blocks."""
    acknowledged: Names = set()
    with spdk_drives.start() as target:
        tcp, _ = drives(target)
        slow = {"storage__io_timeout": "2s"}
        with daemon(tmp_path, **SMALL, **slow) as tier, tier.control("operator") as operator:
            fill(tier, TEXTS, acknowledged)
            operator.storage_move({"path": tcp, "backend": "spdk"})
            target.signal(9)
            until(lambda: operator.status()["move"]["state"] != "running")
            status = operator.status()["move"]
            for number in TEXTS:
                check_text(tier, number, acknowledged)
            # The move failed and said why.
            assert status["state"] == "failed" and status["error"], status
