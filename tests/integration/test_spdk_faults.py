"""Does storage spdk keep its contract if a real target dies, stops, returns wrong bytes or is slow?

Marked `spdk`; tests/reference/spdk_drives.py lists the requirements.
"""

import contextlib
import errno
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import spdk_drives

from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.storage import READ, SYNC, WRITE, Buffer, Done, Io, Storage, StorageConfig
from offstage.bindings.store import Store, StoreConfig
from offstage.dpu.config import values as config
from offstage.dpu.storage.erase import erase
from offstage.dpu.storage.preflight import check_store_file
from offstage.dpu.storage.spdk_own import RESTARTS_MAX, OwnTarget
from offstage.dpu.storage.spdk_target import Target

pytestmark = pytest.mark.spdk

KIB, MIB = 1 << 10, 1 << 20
SIZE_BYTES = 32 * MIB
TIMEOUT_NS = 3_000_000_000
TRANSPORTS = ("TCP", "VFIOUSER")


@pytest.fixture
def target() -> Iterator[Target]:
    """This test's own target, which may be stopped and killed."""
    with spdk_drives.start() as found:
        yield found


def open_drive(path: str, depth: int = 64) -> Storage:
    return Storage(StorageConfig("spdk", path, queue_depth_max=depth, timeout_ns=TIMEOUT_NS))


def pattern(storage: Storage, seed: int) -> Buffer:
    """Write the whole drive with bytes of a seed; returns the buffer."""
    buffer = Buffer(SIZE_BYTES)
    buffer.view[:] = bytes((i * 7 + seed) & 255 for i in range(4096)) * (SIZE_BYTES // 4096)
    done = storage.run(
        Io(WRITE, at, at, MIB, buffer, at, durable=True) for at in range(0, SIZE_BYTES, MIB)
    )
    assert {end.result for end in done} == {MIB}
    return buffer


def wait(storage: Storage, seconds: float) -> list[Done]:
    """Return the completions within `seconds`, or until nothing is in flight."""
    found: list[Done] = []
    end = time.monotonic() + seconds
    while storage.stats()["in_flight"] > 0 and time.monotonic() < end:
        found += storage.poll(timeout_ns=10_000_000)
    return found


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("size", [4 * KIB, 64 * KIB, MIB])
@pytest.mark.parametrize("depth", [1, 8, 32, 128])
def test_bytes_come_back_at_every_depth_and_size(transport: str, size: int, depth: int) -> None:
    """Reads return what was written, at every queue depth and size, in any order."""
    path = spdk_drives.drive(transport, SIZE_BYTES)
    places = list(range(0, SIZE_BYTES, size))[: 2 * depth]
    noise, back = Buffer(len(places) * size), Buffer(len(places) * size)
    noise.view[:] = os.urandom(noise.size_bytes)
    with open_drive(path, depth) as storage:
        written = storage.run(Io(WRITE, i, at, size, noise, at) for i, at in enumerate(places))
        assert {end.result for end in written} == {size}
        read = storage.run(
            Io(READ, i, at, size, back, at) for i, at in reversed(list(enumerate(places)))
        )
    assert sorted(end.user for end in read) == list(range(len(places)))
    assert bytes(back.view) == bytes(noise.view)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", [READ, WRITE], ids=["read", "write"])
def test_a_killed_target_ends_every_io_with_an_error(
    target: Target, transport: str, kind: int
) -> None:
    """After a kill with I/Os in flight, each ends once, within the deadline, and close does not
    hang."""
    path = target.serve(target.memory_drive("killed", SIZE_BYTES), transport)
    buffer = Buffer(64 * 64 * KIB)
    with open_drive(path) as storage:
        ios = [Io(kind, i, i * 64 * KIB, 64 * KIB, buffer, i * 64 * KIB) for i in range(64)]
        assert storage.submit(ios) == 64
        target.signal(signal.SIGKILL)
        done = wait(storage, 10)
        assert sorted(end.user for end in done) == list(range(64))
        failed = {end.result for end in done} - {64 * KIB}
        assert failed <= {-errno.EIO, -errno.ETIMEDOUT}
        assert storage.submit(ios[:1]) == 1  # a later I/O gets the error too
        assert [end.result for end in wait(storage, 10)] in ([-errno.EIO], [-errno.ETIMEDOUT])
        began = time.monotonic()
    assert time.monotonic() - began < 15  # close has its own limit


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", [READ, WRITE], ids=["read", "write"])
def test_a_stopped_target_is_cut_off_and_taken_back(
    target: Target, transport: str, kind: int
) -> None:
    """If it stops with I/Os in flight, they end with -ETIMEDOUT; it serves again, with every byte
    in place, once it resumes."""
    path = target.serve(target.memory_drive("stopped", SIZE_BYTES), transport)
    with open_drive(path) as storage:
        want = pattern(storage, 1)
        buffer = Buffer(32 * 64 * KIB)
        buffer.view[:] = want.view[: buffer.size_bytes]  # a write repeats what is there
        ios = [Io(kind, i, i * 64 * KIB, 64 * KIB, buffer, i * 64 * KIB) for i in range(32)]
        target.signal(signal.SIGSTOP)
        assert storage.submit(ios) == 32
        done = wait(storage, 10)
        assert sorted(end.user for end in done) == list(range(32))
        assert {end.result for end in done} == {-errno.ETIMEDOUT}
        target.signal(signal.SIGCONT)
        back = Buffer(SIZE_BYTES)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            (one,) = storage.run([Io(READ, 0, 0, MIB, back)])
            if one.result == MIB:
                break
        read = storage.run(Io(READ, at, at, MIB, back, at) for at in range(0, SIZE_BYTES, MIB))
        assert {one.result for one in read} == {MIB}
        assert bytes(back.view) == bytes(want.view)


def test_a_short_stop_is_not_noticed(target: Target) -> None:
    """An I/O succeeds if the target is late within the deadline."""
    path = target.serve(target.memory_drive("late", SIZE_BYTES))
    buffer = Buffer(64 * KIB)
    with open_drive(path) as storage:
        target.signal(signal.SIGSTOP)
        storage.submit([Io(READ, 1, 0, 64 * KIB, buffer)])
        assert wait(storage, 0.2) == []
        target.signal(signal.SIGCONT)
        assert [end.result for end in wait(storage, 10)] == [64 * KIB]


def test_a_target_that_is_back_in_time_is_not_noticed(target: Target) -> None:
    """Requests in flight complete on the same drive after the connection was lost and made
    again."""
    path = target.serve(target.memory_drive("back", SIZE_BYTES))
    nqn = path.split("subnqn:")[1]
    listener = dict(word.split(":", 1) for word in path.split()[:-1])
    with Storage(StorageConfig("spdk", path, queue_depth_max=64, timeout_ns=20 * 10**9)) as storage:
        want = pattern(storage, 2)
        target.call("nvmf_subsystem_remove_listener", nqn=nqn, listen_address=listener)
        back = Buffer(SIZE_BYTES)
        ios = [Io(READ, at, at, MIB, back, at) for at in range(0, SIZE_BYTES, MIB)]
        assert storage.submit(ios) == len(ios)
        wait(storage, 0.5)
        target.call("nvmf_subsystem_add_listener", nqn=nqn, listen_address=listener)
        wait(storage, 20)
        assert storage.stats()["in_flight"] == storage.stats()["errors"] == 0
        assert bytes(back.view) == bytes(want.view)


def test_a_flush_after_a_loss_fails_once(target: Target) -> None:
    """The writer gets an error, since the contents of a write cache may be lost."""
    path = target.serve(target.memory_drive("flush", SIZE_BYTES))
    nqn = path.split("subnqn:")[1]
    listener = dict(word.split(":", 1) for word in path.split()[:-1])
    buffer = Buffer(64 * KIB)
    with Storage(StorageConfig("spdk", path, queue_depth_max=4, timeout_ns=20 * 10**9)) as storage:
        assert storage.run([Io(WRITE, 1, 0, 64 * KIB, buffer)])[0].result == 64 * KIB
        target.call("nvmf_subsystem_remove_listener", nqn=nqn, listen_address=listener)
        storage.submit([Io(READ, 2, 0, 64 * KIB, buffer)])
        wait(storage, 0.3)
        target.call("nvmf_subsystem_add_listener", nqn=nqn, listen_address=listener)
        wait(storage, 20)
        assert [one.result for one in storage.run([Io(SYNC, 3)])] == [-errno.EIO]
        assert [one.result for one in storage.run([Io(SYNC, 4)])] == [0]


def test_errors_of_a_drive_are_those_of_io_uring(target: Target) -> None:
    """A drive's errors, timeouts and delays appear as the seam specifies."""
    target.memory_drive("below", SIZE_BYTES)
    target.call("bdev_error_create", base_name="below")
    slow = 200_000
    target.call(
        "bdev_delay_create",
        base_bdev_name="EE_below",
        name="slow",
        avg_read_latency=slow,
        p99_read_latency=slow,
        avg_write_latency=0,
        p99_write_latency=0,
    )
    path = target.serve("slow")
    buffer = Buffer(4 * KIB)
    read = Io(READ, 1, 0, 4 * KIB, buffer)
    with open_drive(path) as storage:
        began = time.monotonic()
        assert storage.run([read])[0].result == 4 * KIB
        assert time.monotonic() - began > 0.15  # the drive's own delay, so no cache answered
        inject = {"name": "EE_below", "io_type": "read", "num": 1}
        target.call("bdev_error_inject_error", error_type="failure", **inject)
        assert storage.run([read])[0].result == -errno.EIO
        assert storage.run([read])[0].result == 4 * KIB
        target.call("bdev_error_inject_error", error_type="pending", **inject)
        storage.submit([read])
        assert [one.result for one in wait(storage, 10)] == [-errno.ETIMEDOUT]


def test_several_drives_are_one(target: Target) -> None:
    """Reads over a stripe of three drives return what was written, also after a reopen."""
    paths = [target.serve(target.memory_drive(f"stripe{i}", 8 * MIB)) for i in range(3)]
    noise, back = Buffer(3 * MIB), Buffer(3 * MIB)
    noise.view[:] = os.urandom(noise.size_bytes)
    with open_drive(", ".join(paths)) as storage:
        assert storage.size_bytes == 24 * MIB
        done = storage.run([Io(WRITE, 0, 65536, 3 * MIB - 65536, noise, 65536), Io(SYNC, 1)])
        assert {end.user: end.result for end in done} == {0: 3 * MIB - 65536, 1: 0}
    with open_drive(", ".join(paths)) as storage:
        storage.run([Io(READ, 0, 65536, 3 * MIB - 65536, back, 65536)])
    assert bytes(back.view[65536:]) == bytes(noise.view[65536:])
    with open_drive(paths[1]) as storage:
        storage.run([Io(READ, 0, 0, 128 * KIB, back)])
    assert bytes(back.view[: 128 * KIB]) == bytes(noise.view[128 * KIB : 256 * KIB])


def test_a_namespace_has_one_user(target: Target) -> None:
    """A second storage is refused while the first is open, and admitted afterwards."""
    path = target.serve(target.memory_drive("one", SIZE_BYTES))
    with open_drive(path), pytest.raises(OffstageError, match="in use"):
        open_drive(path)
    open_drive(path).close()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "not a transport id"),
        ("nonsense", "not a transport id"),
        ("trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:4420", "subnqn is missing"),
        ("trtype:TCP adrfam:IPv4 traddr:127.0.0.1 subnqn:nqn.a", "trsvcid is missing"),
        ("trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:1 subnqn:nqn.2026-01.a:b", "refused"),
        ("trtype:TCP adrfam:IPv4 traddr:nowhere trsvcid:1 subnqn:nqn.2026-01.a:b", "traddr"),
        ("trtype:VFIOUSER traddr:/nowhere subnqn:nqn.2026-01.a:b", "cannot be connected"),
        ("trtype:PCIe traddr:0000:ff:1f.7", "lspci"),
        # refused by a build without RDMA, or by one with it but without a device
        (
            "trtype:RDMA adrfam:IPv4 traddr:127.0.0.1 trsvcid:1 subnqn:nqn.2026-01.a:b",
            "configure|No such device",
        ),
    ],
)
def test_what_cannot_be_reached_is_one_line(path: str, words: str) -> None:
    """Every wrong path gets an immediate error with its fix."""
    spdk_drives.program()
    with pytest.raises(OffstageError, match=words) as caught:
        open_drive(path)
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)


def test_a_wrong_subsystem_namespace_size_or_block_is_one_line(target: Target) -> None:
    """The error names what the target lacks, with the fix."""
    path = target.serve(target.memory_drive("wrong", SIZE_BYTES))
    for wrong, words in (
        ({"path": path + "x"}, "subnqn"),
        ({"path": path + " ns:7"}, "no active namespace 7"),
        ({"path": path, "size_bytes": 2 * SIZE_BYTES}, "storage.size"),
        ({"path": path, "lba_size_bytes": 512}, "storage.lba"),
    ):
        with pytest.raises(OffstageError, match=words) as caught:
            Storage(StorageConfig("spdk", queue_depth_max=4, **wrong))  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)


def test_a_target_that_is_stopped_at_open_is_given_up(target: Target) -> None:
    """An open ends if the target accepts and never answers."""
    path = target.serve(target.memory_drive("hung", SIZE_BYTES))
    target.signal(signal.SIGSTOP)
    with pytest.raises(OffstageError, match="does not answer"):
        open_drive(path)
    target.signal(signal.SIGCONT)


def test_what_listens_and_is_no_target_is_one_line() -> None:
    """Within a deadline, the error names the address of a port that accepts connections but sends
    nothing, or something else; SPDK's uninformative log is not shown."""
    spdk_drives.program()

    def refusal(port: int) -> str:
        where = f"traddr:127.0.0.1 trsvcid:{port} subnqn:nqn.2026-01.a:b"
        with pytest.raises(OffstageError) as caught:
            open_drive(f"trtype:TCP adrfam:IPv4 {where}")
        assert "\n" not in str(caught.value) and "[" not in str(caught.value)
        return str(caught.value)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        assert f"127.0.0.1:{port} takes a connection and does not answer" in refusal(port)
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(100)
        speaks = threading.Thread(target=_answer_as_no_target, args=(other,))
        speaks.start()
        assert "is not negotiated; check subnqn and address" in refusal(other.getsockname()[1])
        speaks.join()


def _answer_as_no_target(listener: socket.socket) -> None:
    """Answer two connections: our probe's, which is closed again, and SPDK's."""
    for _ in range(2):
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\n" + bytes(200))
            connection.recv(1)


def test_a_child_of_fork_is_refused() -> None:
    """A child is kept from the memory that it shares with its parent."""
    path = spdk_drives.drive("TCP", SIZE_BYTES)
    open_drive(path).close()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            open_drive(path)
        except BadInput as error:
            code = 0 if "forked" in str(error) else 2
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_what_carries_something_is_refused_until_it_is_erased(target: Target) -> None:
    """A namespace with a partition table is refused as a store, named, and used once an erase is
    requested."""
    path = target.serve(target.memory_drive("taken", SIZE_BYTES))
    asked = config.load(
        overrides={"storage.backend": "spdk", "storage.path": path, "storage.size": "16MiB"}
    )
    check_store_file(asked)
    buffer = Buffer(4 * KIB)
    buffer.view[512:520] = b"EFI PART"
    with open_drive(path) as storage:
        storage.run([Io(WRITE, 0, 0, 4 * KIB, buffer), Io(WRITE, 1, 8 * MIB, 4 * KIB, buffer)])
    with pytest.raises(BadInput, match=r"GPT partition table.*dpu erase"):
        check_store_file(asked)
    with pytest.raises(BadInput, match=r"GPT partition table.*--yes"):
        erase(path, really=False)
    assert erase(path, really=True)["carried"] == "a GPT partition table"
    check_store_file(asked)
    with open_drive(path) as storage:  # data far from the head is gone too
        storage.run([Io(READ, 0, 8 * MIB, 4 * KIB, buffer)])
    assert not any(buffer.view)


def test_a_file_that_carries_something_is_refused_by_its_own_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the daemon's own target, which ends with it, is not called a drive to erase. It is
    looked up from the daemon's directory, not the target's."""
    monkeypatch.chdir(tmp_path)
    file = Path("blocks")
    file.write_bytes(bytes(512) + b"EFI PART" + bytes(SIZE_BYTES - 520))
    asked = config.load(
        overrides={
            "storage.backend": "spdk",
            "storage.target": spdk_drives.program(),
            "storage.target_file": str(file),
            "storage.size": "32MiB",
        }
    )
    own = OwnTarget(asked.storage)
    try:
        storage = msgspec.structs.replace(asked.storage, path=own.path)
        with pytest.raises(BadInput, match=r"GPT partition table; give another$") as refused:
            check_store_file(msgspec.structs.replace(asked, storage=storage))
        assert refused.value.where == str(file)
    finally:
        own.close()


def test_a_drive_that_lies_and_one_that_is_short_of_memory(target: Target) -> None:
    """A flipped byte that the target reports as a success is a miss for the store and never a
    block. If a target lacks memory for an I/O, it is retried without an error."""
    target.memory_drive("below", SIZE_BYTES)
    target.call("bdev_error_create", base_name="below")
    inject = {"name": "EE_below", "io_type": "read", "num": 1}
    shape = StoreConfig(payload_size_bytes=16 * KIB, layer_count=1, segment_size_bytes=MIB)
    block = os.urandom(16 * KIB)
    where = StorageConfig(
        "spdk",
        target.serve("EE_below"),
        queue_depth_max=64,
        lba_size_bytes=4 * KIB,
        timeout_ns=TIMEOUT_NS,
    )
    with Storage(where) as storage, Store(storage, shape) as store:
        for key in (1, 2):
            assert store.put_wait(key, 0, block) == 0
        target.call("bdev_error_inject_error", error_type="nomem", **inject)
        assert store.get_wait(1, 0).payload == block
        target.call(
            "bdev_error_inject_error",
            error_type="corrupt_data",
            corrupt_offset=100,
            corrupt_value=block[100] ^ 0xFF,
            **inject,
        )
        done = store.get_wait(1, 0)
        assert (done.rc, done.payload) == (-errno.EBADMSG, None)
        assert store.stats()["checks_failed"] == 1
        assert store.get_wait(2, 0).payload == block


def test_a_target_that_admits_others_only_is_one_line(target: Target) -> None:
    """A host that is not in the target's list gets that reason."""
    path = target.serve(target.memory_drive("closed", SIZE_BYTES))
    nqn = path.split("subnqn:")[1]
    target.call("nvmf_subsystem_allow_any_host", nqn=nqn, allow_any_host=False)
    with pytest.raises(OffstageError, match="admits this host") as caught:
        open_drive(path)
    assert "\n" not in str(caught.value)
    host = "nqn.2026-01.io.offstage:admitted"
    target.call("nvmf_subsystem_add_host", nqn=nqn, host=host)
    open_drive(f"{path} hostnqn:{host}").close()


def test_a_target_of_our_own_is_started_again_where_it_was(tmp_path: Path) -> None:
    """After a kill it returns at its address with its bytes, it is given up after the limit of
    restarts, and the next starter cleans up after a killed one."""
    chosen = config.load(
        overrides={
            "storage.backend": "spdk",
            "storage.target": spdk_drives.program(),
            "storage.target_file": str(tmp_path / "blocks"),
            "storage.size": "32MiB",
        }
    ).storage
    left = Path(tempfile.mkdtemp(prefix="offstage-target-"))
    (left / "lock").touch()
    own = OwnTarget(chosen)
    try:
        assert not left.exists()
        with Storage(
            StorageConfig("spdk", own.path, queue_depth_max=64, timeout_ns=60 * 10**9)
        ) as storage:
            want, back = pattern(storage, 3), Buffer(SIZE_BYTES)
            for kill in range(1, RESTARTS_MAX + 1):
                os.kill(own.pid, signal.SIGKILL)
                (one,) = storage.run([Io(READ, 0, 0, MIB, back)])
                assert one.result == MIB and bytes(back.view[:MIB]) == bytes(want.view[:MIB])
                assert (own.restarts, own.given_up) == (kill, "")
        os.kill(own.pid, signal.SIGKILL)
        end = time.monotonic() + 100
        while not own.given_up and time.monotonic() < end:
            time.sleep(0.05)
        assert "died" in own.given_up and own.pid == 0
    finally:
        own.close()
