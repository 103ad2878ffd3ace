"""Is a move started, tracked and refused as its record and this machine require?"""

import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from on_disk import snapshot

from offstage.bindings.errors import BadInput, DeviceTimeout, OffstageError, StoreFull
from offstage.bindings.figures import MoveStatus
from offstage.bindings.keys import checksum
from offstage.bindings.storage import Storage, StorageConfig
from offstage.bindings.store import Store, StoreConfig
from offstage.dpu.config.values import Config, load
from offstage.dpu.control.store_moves import HOPS_MAX, Moves, follow
from offstage.dpu.log import Log
from offstage.dpu.storage.storefile import FORWARD, FORWARD_MAGIC, FORWARD_OFFSET, StoreFile
from offstage.dpu.tenants.hosts import TenantState

SIZE_BYTES = 16 << 20
LBA = 4096
STORE = StoreConfig(payload_size_bytes=8 * LBA, layer_count=4, segment_size_bytes=1 << 20)


def config(path: Path) -> Config:
    given = {
        "storage.path": str(path),
        "storage.size": "16MiB",
        "store.segment": "1MiB",
        "storage.backend": "posix",
    }
    return load(overrides=given, environ={})


def made(path: Path) -> bytes:
    """Make a new store; return its uuid."""
    opened = StorageConfig("posix", str(path), size_bytes=SIZE_BYTES, lba_size_bytes=LBA)
    with Storage(opened) as storage, Store(storage, STORE, str(path)):
        pass
    with StoreFile(path) as file:
        return file.superblock.uuid


def forward(path: Path, to: Path, uuid: bytes, next_uuid: bytes, damage: bool = False) -> None:
    """Write the firmware's record of a switch from the page of the format, not with the firmware's
    code."""
    record = np.zeros(1, FORWARD)
    record["magic"] = int.from_bytes(FORWARD_MAGIC, "little")
    record["size_bytes"], record["moved_s"] = SIZE_BYTES, 7
    record["backend"][0, : len("posix")] = [bytes([one]) for one in b"posix"]
    name = str(to).encode()
    record["path"][0, : len(name)] = [bytes([one]) for one in name]
    record["uuid"] = np.frombuffer(uuid, FORWARD["uuid"])[0]
    record["next"] = np.frombuffer(next_uuid, FORWARD["next"])[0]
    data = bytearray(record.tobytes())
    data[-8:] = checksum(bytes(data[:-8])).to_bytes(8, "little")
    data[40] ^= damage
    with path.open("r+b") as file:
        file.seek(FORWARD_OFFSET)
        file.write(data)


def test_a_start_goes_where_the_blocks_are(tmp_path: Path) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    uuids = [made(path) for path in (one, two, three)]
    assert follow(config(one)) == (config(one), bytes(16))
    forward(one, two, uuids[0], uuids[1])
    forward(two, three, uuids[1], uuids[2])
    found, uuid = follow(config(one))
    assert (found.storage.path, found.storage.backend) == (str(three), "posix")
    assert uuid == uuids[2] and found.store == config(one).store


def test_a_record_that_is_not_whole_or_of_another_store_counts_as_none(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    uuids = [made(one), made(two)]
    forward(one, two, uuids[0], uuids[1], damage=True)
    assert follow(config(one))[1] == bytes(16)
    forward(one, two, uuids[1], uuids[1])
    assert follow(config(one))[1] == bytes(16)
    assert follow(config(tmp_path / "absent"))[1] == bytes(16)


def test_stores_that_name_each_other_are_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    uuids = [made(one), made(two)]
    forward(one, two, uuids[0], uuids[1])
    forward(two, one, uuids[1], uuids[0])
    with pytest.raises(BadInput, match=f"moved {HOPS_MAX} times"):
        follow(config(one))


def test_the_firmware_refuses_a_store_that_moved_and_one_that_is_another(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    uuids = [made(one), made(two)]
    forward(one, two, uuids[0], uuids[1])
    with pytest.raises(BadInput, match=r"the store moved to .*two \(posix\); set storage.path"):
        made(one)
    forward(two, one, uuids[1], uuids[0], damage=True)
    assert made(two) == uuids[1]


class Device:
    """Begins a move when permitted, and ends it as the test says."""

    def __init__(self, refuse: bool = False) -> None:
        self.let = threading.Event()
        self.refuse = refuse
        self.status = MoveStatus(state="running")

    def move(self, config: Config) -> None:
        assert self.let.wait(10)
        if self.refuse:
            raise StoreFull("too small", config.storage.path)

    def move_status(self) -> MoveStatus:
        return self.status


def moves_of(device: Any, path: Path) -> tuple[Moves, io.StringIO]:
    stream = io.StringIO()
    tenant = TenantState("default", 0, b"s" * 32, 8)
    return Moves(config(path), device, [tenant], Log("info", stream, text=False)), stream


def wait_begun(moves: Moves) -> None:
    while not moves.begun():
        assert moves.beginning


def test_one_move_at_a_time_and_the_next_from_where_the_last_went(tmp_path: Path) -> None:
    """While a move begins or runs, another is refused. Afterwards its target is the current
    storage."""
    (tmp_path / "one").write_bytes(b"")
    device = Device()
    moves, log = moves_of(device, tmp_path / "one")
    moves.begin({"path": str(tmp_path / "two")})
    assert (tmp_path / "two.default.secret").read_text().strip() == (b"s" * 32).hex()
    assert not moves.begun() and moves.beginning
    with pytest.raises(BadInput, match="a move is running"):
        moves.begin({"path": str(tmp_path / "three")})
    device.let.set()
    wait_begun(moves)
    moves.tick()
    with pytest.raises(BadInput, match="a move is running"):
        moves.begin({"path": str(tmp_path / "three")})
    device.status = MoveStatus(state="done", switched=1, path="two", blocks_copied=3, held_ns=1)
    (tmp_path / "two").write_bytes(b"")
    with pytest.raises(BadInput, match="is the present storage"):
        moves.begin({"path": str(tmp_path / "two")})
    assert "storage_moved" in log.getvalue()


def test_a_move_that_is_refused_or_fails_leaves_the_storage_what_it_was(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"")
    device = Device(refuse=True)
    moves, log = moves_of(device, tmp_path / "one")
    device.let.set()
    moves.begin({"path": str(tmp_path / "two")})
    with pytest.raises(StoreFull, match="too small"):
        wait_begun(moves)
    device.refuse = False
    moves.begin({"path": str(tmp_path / "two")})
    wait_begun(moves)
    device.status = MoveStatus(
        state="failed", path="two", error="it hangs", blocks_copied=3, held_ns=1
    )
    moves.tick()
    assert "it hangs" in log.getvalue()
    with pytest.raises(BadInput, match="is the present storage"):
        moves.begin({"path": str(tmp_path / "one")})
    moves.close()


@pytest.mark.parametrize("path", ["a\0b", "a\udc80b", "/" + "d" * 5000, "/dev/null", ""])
def test_a_path_that_cannot_be_is_refused_and_touches_nothing(path: str, tmp_path: Path) -> None:
    """Each of these is bad input, not an exception that ends the daemon."""
    (tmp_path / "one").write_bytes(b"")
    moves, _ = moves_of(Device(), tmp_path / "one")
    with pytest.raises(BadInput):
        moves.begin({"path": path})


@pytest.mark.parametrize("error", [StoreFull("too small"), DeviceTimeout("no answer")], ids=repr)
def test_a_refused_move_removes_the_files_it_made(error: OffstageError, tmp_path: Path) -> None:
    """The target's file and each tenant's files next to it are removed. Existing files stay, and so
    does everything if it is unknown whether the move has begun."""
    (tmp_path / "one").write_bytes(b"")
    (tmp_path / "there").write_bytes(b"")
    before = snapshot(tmp_path)

    def move(config: Config) -> None:
        Path(config.storage.path).touch()
        raise error

    device = Device()
    device.move = move  # type: ignore[method-assign]
    for target in ("two", "there"):
        moves, _ = moves_of(device, tmp_path / "one")
        moves.begin({"path": str(tmp_path / target)})
        with pytest.raises(type(error)):
            wait_begun(moves)
    after = snapshot(tmp_path)
    after["there"] = before["there"]  # modified by the test's own touch
    assert (after == before) == isinstance(error, StoreFull)


def test_a_move_leaves_the_secret_of_another_store(tmp_path: Path) -> None:
    """The secret next to the new place is kept: its store cannot be read with another."""
    (tmp_path / "one").write_bytes(b"")
    kept = tmp_path / "two.default.secret"
    kept.write_text("ab" * 32)
    moves, _ = moves_of(Device(), tmp_path / "one")
    with pytest.raises(BadInput, match="belongs to another store"):
        moves.begin({"path": str(tmp_path / "two")})
    assert kept.read_text() == "ab" * 32


def test_a_move_that_fails_by_a_mistake_of_ours_is_told(tmp_path: Path) -> None:
    """An exception on the move's thread reaches the caller, instead of an ok."""
    (tmp_path / "one").write_bytes(b"")
    device = Device()
    device.move = lambda config: 1 / 0  # type: ignore[assignment, return-value]
    moves, _ = moves_of(device, tmp_path / "one")
    moves.begin({"path": str(tmp_path / "two")})
    with pytest.raises(ZeroDivisionError):
        wait_begun(moves)
