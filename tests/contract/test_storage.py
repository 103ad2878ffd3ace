"""Does every side of the storage seam keep the one contract of storage.h?

A new back end is one line in SIDES; one of an installed package is found automatically. Where the
kernel forbids io_uring its cases skip with that reason; so do those of SPDK without a target (`-m
spdk`; tests/reference/spdk_drives.py lists the requirements).
"""

import errno
import faulthandler
import os
import resource
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import spdk_drives
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from on_disk import snapshot

from offstage.bindings import sides
from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.firmware import lib
from offstage.bindings.storage import (
    DISCARD,
    READ,
    SYNC,
    WRITE,
    Buffer,
    Clock,
    Io,
    Storage,
    StorageConfig,
    preset,
)

LBA = 512
SIZE_BYTES = 256 * LBA
DEPTH = 4
SCHEDULED = preset("xl-flash").params | {
    "scheduled": 1,
    "read_command_ps": 300_000,
    "program_command_ps": 300_000,
    "write_buffer_bytes": 16384,
}
"""A drive that tells its ends later."""


@dataclass(frozen=True)
class Side:
    """How to open one back end; `file` says whether it needs a path."""

    backend: str
    file: bool
    options: dict[str, Any]

    def open(self, folder: Path, **more: Any) -> Storage:
        config: dict[str, Any] = {
            "size_bytes": SIZE_BYTES,
            "queue_depth_max": DEPTH,
            "lba_size_bytes": 0 if self.options.get("direct") else LBA,
            "nvme": preset("xl-flash").params,
        }
        if self.file:
            config["path"] = str(folder / "device")
        config |= self.options | more
        try:
            return Storage(
                StorageConfig(self.backend, **config), Clock(simulated=self.backend == "sim")
            )
        except OffstageError as error:
            if error.errno in (errno.EPERM, errno.ENOSYS):
                pytest.skip(str(error))
            raise


@dataclass(frozen=True)
class SpdkSide(Side):
    """A drive of a real target; a marker in the folder stands for its file."""

    def open(self, folder: Path, **more: Any) -> Storage:
        path = spdk_drives.drive(str(self.options["transport"]), SIZE_BYTES)
        options = {name: value for name, value in self.options.items() if name != "transport"}
        storage = Side(self.backend, False, options).open(folder, path=path, **more)
        if not (folder / "device").exists():
            zeros = Buffer(SIZE_BYTES)
            storage.run([Io(WRITE, 0, 0, SIZE_BYTES, zeros)])
            storage.close()
            storage = Side(self.backend, False, options).open(folder, path=path, **more)
            (folder / "device").touch()
        return storage


SIDES: dict[str, Side] = {
    "posix": Side("posix", True, {}),
    "posix-direct": Side("posix", True, {"direct": True}),
    "io_uring": Side("io_uring", True, {}),
    "io_uring-direct": Side("io_uring", True, {"direct": True}),
    "emulated-memory": Side("emulated", False, {}),
    "emulated-spin": Side("emulated", False, {"busy_spin": True}),
    "emulated-posix": Side("emulated", True, {"inner": "posix"}),
    "emulated-io_uring": Side("emulated", True, {"inner": "io_uring", "direct": True}),
    "sim": Side("sim", False, {}),
    "emulated-scheduled": Side("emulated", False, {"nvme": SCHEDULED}),
    "sim-scheduled": Side("sim", False, {"nvme": SCHEDULED}),
    "skeleton": Side("skeleton", False, {}),
    "spdk-tcp": SpdkSide("spdk", True, {"transport": "TCP"}),
    "spdk-pcie": SpdkSide("spdk", True, {"transport": "PCIe"}),
    "spdk-rdma": SpdkSide("spdk", True, {"transport": "RDMA"}),
    "spdk-vfio-user": SpdkSide("spdk", True, {"transport": "VFIOUSER"}),
    **{name: Side(name, True, {}) for name in sides.offered()},
}


@pytest.fixture(
    params=[
        pytest.param(side, marks=pytest.mark.spdk if side.backend == "spdk" else (), id=name)
        for name, side in SIDES.items()
    ]
)
def side(request: pytest.FixtureRequest) -> Side:
    found: Side = request.param
    return found


@pytest.fixture
def storage(side: Side, tmp_path: Path) -> Iterator[Storage]:
    with side.open(tmp_path) as opened:
        yield opened


def one(storage: Storage, io: Io) -> int:
    """Return the result of a single I/O."""
    done = storage.run([io])
    assert [end.user for end in done] == [io.user]
    return done[0].result


def test_what_was_written_is_read(storage: Storage) -> None:
    """Reads return written bytes, through registered and unregistered memory, durable or not."""
    registered, plain = Buffer(4 * 4096), Buffer(4 * 4096)
    storage.register(registered)
    for source, target, durable in ((registered, plain, True), (plain, registered, False)):
        source.view[:] = os.urandom(source.size_bytes)
        target.view[:] = bytes(target.size_bytes)
        assert one(storage, Io(WRITE, 1, 8192, 8192, source, 4096, durable)) == 8192
        assert one(storage, Io(SYNC, 2)) == 0
        assert one(storage, Io(READ, 3, 8192, 8192, target, 4096)) == 8192
        assert target.view[4096:12288] == source.view[4096:12288]
        assert bytes(target.view[:4096]) == bytes(4096)
        assert bytes(target.view[12288:]) == bytes(4096)
    storage.unregister(registered)
    assert one(storage, Io(READ, 4, 8192, 8192, registered, 0)) == 8192
    assert registered.view[:8192] == plain.view[4096:12288]


def test_a_full_queue_is_busy_and_every_completion_comes_once(storage: Storage) -> None:
    """The limit is kept, and each accepted I/O ends exactly once with its own number."""
    buffer = Buffer(4096 * (storage.queue_depth_max + 1))
    ios = [Io(READ, 100 + i, 0, 4096, buffer, i * 4096) for i in range(storage.queue_depth_max + 1)]
    assert storage.submit(ios) == storage.queue_depth_max == DEPTH
    assert storage.submit(ios[-1:]) == -errno.EAGAIN
    assert storage.stats()["in_flight"] == DEPTH
    assert storage.stats()["busy"] == 2
    done = storage.drain()
    assert sorted(end.user for end in done) == [io.user for io in ios[:DEPTH]]
    assert {end.result for end in done} == {4096}
    assert storage.poll() == []
    assert storage.submit(ios[-1:]) == 1
    assert [end.user for end in storage.drain()] == [ios[-1].user]
    assert storage.stats() | {"busy": 0} | {
        name: 0 for name in storage.stats() if name.startswith("emulation")
    } == dict.fromkeys(storage.stats(), 0) | {
        "reads": DEPTH + 1,
        "bytes_read": (DEPTH + 1) * 4096,
    }


def test_what_lies_outside_is_refused(storage: Storage) -> None:
    """Every I/O outside the contract is refused at once, with nothing left in flight."""
    buffer = Buffer(SIZE_BYTES + 4096)
    lba, size = storage.lba_size_bytes, storage.size_bytes
    outside = [
        Io(READ, 0, size, lba, buffer),
        Io(WRITE, 0, size - lba, 2 * lba, buffer),
        Io(READ, 0, 2**64 - lba, 2 * lba, buffer),
        Io(READ, 0, 0, size + lba, buffer),
        Io(READ, 0, lba // 2, lba, buffer),
        Io(WRITE, 0, 0, lba + 1, buffer),
        Io(READ, 0, 0, lba, buffer, 8),
        Io(READ, 0, 0, 0, buffer),
        Io(READ, 0, 0, lba, None),
        Io(SYNC, 0, 0, lba, buffer),
        Io(7, 0, 0, lba, buffer),
    ]
    for io in outside:
        assert storage.submit([io]) == -errno.EINVAL, io
    assert storage.stats()["in_flight"] == 0
    assert one(storage, Io(READ, 5, size - lba, lba, buffer)) == lba


def test_a_sleeper_is_woken(storage: Storage) -> None:
    """Waiting on the descriptor, or polling where there is none, ends with the completion."""
    if storage.clock.simulated:
        assert storage.wait_fd == -1
        return
    buffer = Buffer(4096)
    for user in range(20):
        assert storage.submit([Io(READ, user, 0, 4096, buffer)]) == 1
        assert [end.user for end in storage.poll(timeout_ns=10**10)] == [user]


def test_a_reopened_file_keeps_its_bytes(side: Side, tmp_path: Path) -> None:
    """Data survive the storage exactly if there is a file below it."""
    buffer = Buffer(4096)
    buffer.view[:] = b"\xa5" * 4096
    with side.open(tmp_path) as storage:
        assert one(storage, Io(WRITE, 1, 4096, 4096, buffer, durable=True)) == 4096
    buffer.view[:] = b"\x5a" * 4096
    with side.open(tmp_path) as storage:
        assert one(storage, Io(READ, 1, 4096, 4096, buffer)) == 4096
    assert bytes(buffer.view) == (b"\xa5" if side.file else b"\0") * 4096


@pytest.mark.parametrize(
    "wrong",
    [{"queue_depth_max": 0}, {"queue_depth_max": 4097}, {"lba_size_bytes": 768}],
    ids=str,
)
def test_bad_configuration_is_one_line_with_a_fix(
    side: Side, tmp_path: Path, wrong: dict[str, int]
) -> None:
    """An impossible configuration is refused at open, before the file is touched."""
    with pytest.raises(BadInput, match="choose") as caught:
        side.open(tmp_path, **wrong)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "device").exists()


def test_what_a_file_became_after_it_was_looked_at_is_left_as_it_is(
    side: Side, tmp_path: Path
) -> None:
    """The open itself refuses a dangling link, other data behind a link, and a file of another
    user; it creates, grows and writes nothing."""
    if not side.file or side.backend == "spdk":
        pytest.skip("has no file")
    side.open(tmp_path).close()  # skips where the kernel forbids it
    (tmp_path / "device").unlink()
    (tmp_path / "anothers").write_bytes(b"x" * 100)
    before = snapshot(tmp_path)
    for target in ("nowhere", "anothers"):
        (tmp_path / "device").symlink_to(tmp_path / target)
        with pytest.raises(OffstageError):
            side.open(tmp_path)
        (tmp_path / "device").unlink()
        assert snapshot(tmp_path) == before
    if os.getuid() == 0:
        (tmp_path / "device").touch(0o600)
        os.chown(tmp_path / "device", 4242, 4242)
        before = snapshot(tmp_path)
        with pytest.raises(OffstageError, match=r"(?i)permission"):
            side.open(tmp_path)
        assert snapshot(tmp_path) == before


def registered(side: Side, folder: Path) -> tuple[Storage, Buffer]:
    storage, buffer = side.open(folder), Buffer(4096)
    storage.register(buffer)
    return storage, buffer


def free_first(side: Side, folder: Path) -> None:
    storage, buffer = registered(side, folder)
    lib.ofs_dma_free(buffer._dma)
    assert storage


def test_a_discard_is_taken_where_it_was_asked_for(side: Side, tmp_path: Path) -> None:
    """A discard removes its bytes, leaves adjacent ones, and allows the next write; a side that
    does not support it or has it disabled refuses it."""
    takes = side.backend in ("sim", "spdk")
    buffer, back = Buffer(SIZE_BYTES), Buffer(SIZE_BYTES)
    buffer.view[:] = os.urandom(SIZE_BYTES)
    asked = Io(DISCARD, 7, 8192, 16384)
    with side.open(tmp_path) as storage:
        assert storage.submit([asked]) == -errno.EINVAL
        assert one(storage, Io(WRITE, 1, 0, SIZE_BYTES, buffer, lifetime=3)) == SIZE_BYTES
    with side.open(tmp_path, discard=True) as storage:
        if side.backend == "sim":  # opened again, it is empty
            assert one(storage, Io(WRITE, 1, 0, SIZE_BYTES, buffer)) == SIZE_BYTES
        if not takes:
            assert storage.submit([asked]) == -errno.EINVAL
            return
        assert storage.submit([Io(DISCARD, 7, 8192, 16384, buffer)]) == -errno.EINVAL
        assert one(storage, asked) == 16384
        assert one(storage, Io(READ, 2, 0, SIZE_BYTES, back)) == SIZE_BYTES
        assert bytes(back.view[:8192]) == bytes(buffer.view[:8192])
        assert bytes(back.view[24576:]) == bytes(buffer.view[24576:])
        assert bytes(back.view[8192:24576]) != bytes(buffer.view[8192:24576])
        assert one(storage, Io(WRITE, 3, 8192, 16384, buffer, 8192)) == 16384
        assert one(storage, Io(READ, 4, 0, SIZE_BYTES, back)) == SIZE_BYTES
        assert bytes(back.view) == bytes(buffer.view)
        stats = storage.stats()
        assert (stats["discards"], stats["bytes_discarded"]) == (1, 16384)


def close_first(side: Side, folder: Path) -> None:
    storage, _ = registered(side, folder)
    lib.ofs_storage_close(storage._handle)


def in_order(side: Side, folder: Path) -> None:
    storage, buffer = registered(side, folder)
    storage.unregister(buffer)
    storage.close()
    lib.ofs_dma_free(buffer._dma)


def ends_by(mistake: Callable[[Side, Path], None], side: Side, folder: Path) -> int:
    """Return the signal that ends a child which makes `mistake`; 0 if none does."""
    if side.backend == "spdk":  # a child of fork would share its memory
        (name,) = (name for name, one in SIDES.items() if one is side)
        return spdk_drives.ends_by(Path(__file__), mistake.__name__, name, folder)
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        mistake(side, folder)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def test_what_is_registered_is_unregistered_before_it_is_unmapped(
    side: Side, tmp_path: Path
) -> None:
    """Either wrong order aborts, the buffer's and the storage's; the right one does not."""
    side.open(tmp_path).close()  # a side that cannot be opened here skips now, not in a child
    assert ends_by(free_first, side, tmp_path) == signal.SIGABRT
    assert ends_by(close_first, side, tmp_path) == signal.SIGABRT
    assert ends_by(in_order, side, tmp_path) == 0


BLOCKS = st.integers(0, SIZE_BYTES // 4096 - 1)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["read", "write", "sync"]), BLOCKS, st.integers(1, 4)),
        max_size=30,
    ),
)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_sequence_agrees_with_plain_bytes(
    side: Side, tmp_path: Path, steps: list[tuple[str, int, int]]
) -> None:
    """For any sequence, reads with several in flight return the last write."""
    (tmp_path / "device").unlink(missing_ok=True)
    model = bytearray(SIZE_BYTES)
    buffer = Buffer(SIZE_BYTES)
    with side.open(tmp_path) as storage:
        storage.register(buffer)
        for number, (kind, block, blocks) in enumerate(steps):
            offset = block * 4096
            size = min(blocks * 4096, SIZE_BYTES - offset)
            if kind == "write":
                model[offset : offset + size] = bytes([number + 1]) * size
                buffer.view[offset : offset + size] = model[offset : offset + size]
                assert one(storage, Io(WRITE, number, offset, size, buffer, offset)) == size
            elif kind == "sync":
                assert one(storage, Io(SYNC, number)) == 0
            else:
                buffer.view[:] = bytes(SIZE_BYTES)
                ios = [
                    Io(READ, at, offset + at, 4096, buffer, offset + at)
                    for at in range(0, size, 4096)
                ]
                done = storage.run(ios)
                assert sorted(end.user for end in done) == [io.user for io in ios]
                assert buffer.view[offset : offset + size] == model[offset : offset + size]
