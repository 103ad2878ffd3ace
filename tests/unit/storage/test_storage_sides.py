"""Do single sides keep their guarantees beyond the contract: emulated delays, fallbacks, refusals
at open?"""

import errno
import json
import select
import subprocess
import sys
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.storage import (
    READ,
    WRITE,
    Buffer,
    Clock,
    Io,
    Storage,
    StorageConfig,
    preset,
)

TLC = preset("gen5-tlc").params


def emulated(clock: Clock, **more: object) -> Storage:
    config = {"size_bytes": 1 << 20, "queue_depth_max": 8, "nvme": TLC, "busy_spin": True} | more
    return Storage(StorageConfig("emulated", **config), clock)  # type: ignore[arg-type]


def test_an_emulated_read_is_neither_early_nor_counted_late_when_on_time() -> None:
    """A completion is held back until the model's time, to the nanosecond."""
    clock = Clock(simulated=True, now_ns=10**9)
    with emulated(clock) as storage:
        storage.submit([Io(READ, 1, 0, 4096, Buffer(4096))])
        due_ns = storage.due_ns
        assert due_ns == pytest.approx(10**9 + 60_000, abs=1_000)
        clock.advance_to(due_ns - 1)
        assert storage.poll() == []
        clock.advance_to(due_ns)
        assert [end.result for end in storage.poll()] == [4096]
        stats = storage.stats()
        assert stats["emulation_late"] == stats["emulation_late_ns_max"] == 0


def test_what_comes_after_the_models_time_is_counted() -> None:
    """The statistic behind an emulated figure takes 4 % as noise and counts 10 % as late."""
    clock = Clock(simulated=True, now_ns=10**9)
    with emulated(clock) as storage:
        for late_ns, count in ((2_400, 0), (6_000, 1), (900_000, 2)):
            storage.submit([Io(READ, 1, 0, 4096, Buffer(4096))])
            clock.advance_to(storage.due_ns + late_ns)
            assert len(storage.poll()) == 1
            assert storage.stats()["emulation_late"] == count
            assert storage.stats()["emulation_late_ns_max"] == late_ns
        assert storage.stats()["emulation_late_ns_sum"] == 2_400 + 6_000 + 900_000
        # A buffered write takes 15 us; 900 ns is 6 % of it and still below what a poll can see.
        storage.submit([Io(WRITE, 1, 0, 4096, Buffer(4096))])
        clock.advance_to(storage.due_ns + 900)
        assert len(storage.poll()) == 1 and storage.stats()["emulation_late"] == 2


def test_a_batch_of_reads_begins_before_the_next_poll(tmp_path: Path) -> None:
    """The drive starts on a batch at submission, without waiting for a poll."""
    config = StorageConfig("io_uring", str(tmp_path / "f"), size_bytes=1 << 16, queue_depth_max=4)
    buffer = Buffer(2 * 4096)
    try:
        storage = Storage(config)
    except OffstageError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS):
            pytest.skip(str(error))
        raise
    with storage:
        assert storage.submit([Io(READ, i, 4096 * i, 4096, buffer, 4096 * i) for i in (0, 1)]) == 2
        assert select.select([storage.wait_fd], [], [], 10)[0]  # before any poll
        assert sorted(end.user for end in storage.drain()) == [0, 1]


def test_the_modelled_drive_bounds_the_queue() -> None:
    """The shorter of the caller's and the drive's queue counts."""
    with emulated(Clock(), nvme=TLC | {"queue_depth_max": 3}) as storage:
        assert storage.queue_depth_max == 3
    with emulated(Clock()) as storage:
        assert storage.queue_depth_max == 8


@pytest.mark.parametrize("inner", ["emulated", "sim", "nonsense"])
def test_a_model_over_a_model_is_refused(inner: str) -> None:
    """Two timings cannot be stacked and their sum published."""
    with pytest.raises(BadInput):
        emulated(Clock(), inner=inner)


def test_cached_pages_are_read_in_place(tmp_path: Path) -> None:
    """posix over the page cache completes the read of a cached page without a thread."""
    config = StorageConfig("posix", str(tmp_path / "f"), size_bytes=1 << 16, queue_depth_max=4)
    buffer = Buffer(4096)
    with Storage(config) as storage:
        storage.run([Io(WRITE, 1, 0, 4096, buffer)])
        storage.submit([Io(READ, 2, 0, 4096, buffer)])
        assert [end.user for end in storage.poll()] == [2]


REFUSED = {
    "directory": ({"path": "."}, "directory"),
    "no such folder": ({"path": "none/file"}, "create the directory"),
    "no size": ({"path": "empty"}, "size"),
    "no path": ({"path": ""}, "path"),
    "too large": ({"path": "huge", "size_bytes": 1 << 60}, "smaller size"),
    "no such backend": ({"backend": "nvme"}, "choose one of auto"),
    "no model": ({"backend": "sim", "path": "", "size_bytes": 4096}, "nvme parameters"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_opened_is_one_line_with_a_fix(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every refusal names its cause and fix."""
    monkeypatch.chdir(tmp_path)
    wrong, fix = REFUSED[case]
    options = {"backend": "posix", "size_bytes": 0} | wrong
    with pytest.raises(OffstageError, match=fix) as caught:
        Storage(StorageConfig(**options))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value) and caught.value.fix


def test_a_file_that_was_cut_is_an_error_not_zeros(tmp_path: Path) -> None:
    """A read past the end of a truncated file ends with -EIO on every file side."""
    file = tmp_path / "f"
    for backend in ("posix", "io_uring"):
        config = StorageConfig(backend, str(file), size_bytes=1 << 16, queue_depth_max=4)
        try:
            storage = Storage(config)
        except OffstageError as error:
            pytest.skip(str(error))
        with storage:
            file.open("r+b").truncate(4096)
            done = storage.run([Io(READ, 1, 0, 8192, Buffer(8192))])
            assert [end.result for end in done] == [-errno.EIO]


# A seccomp filter that answers io_uring_setup (425 everywhere) with EPERM, as a hardened container
# and sysctl kernel.io_uring_disabled do.
FORBIDDEN = """
import ctypes, json, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
program = struct.pack("=" + "HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, 425, 6, 0, 0, 0x00050001,
                      6, 0, 0, 0x7FFF0000)
buffer = ctypes.create_string_buffer(program)
filter = struct.pack("@HP", 4, ctypes.addressof(buffer))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, filter, 0, 0) == 0
from offstage.bindings.errors import OffstageError
from offstage.bindings.storage import Storage, StorageConfig
found = {}
for backend in ("auto", "io_uring"):
    try:
        with Storage(StorageConfig(backend, sys.argv[1], size_bytes=65536)) as storage:
            found[backend] = [storage.name, storage.warning]
    except OffstageError as error:
        found[backend] = ["refused", str(error)]
print(json.dumps(found))
"""


def test_where_the_kernel_forbids_io_uring(tmp_path: Path) -> None:
    """ "auto" falls back with a warning, and "io_uring" is refused with the sysctl's name."""
    done = subprocess.run(
        [sys.executable, "-c", FORBIDDEN, str(tmp_path / "f")],
        capture_output=True,
        text=True,
        check=False,
    )
    if "AssertionError" in done.stderr:
        pytest.skip("seccomp filters are not allowed here; run outside the sandbox")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["auto"][0] == "posix" and "io_uring" in found["auto"][1]
    assert found["io_uring"][0] == "refused"
    known = ("kernel.io_uring_disabled", "liburing")  # liburing if it was built without it
    assert any(text in found["io_uring"][1] for text in known)


def test_registered_memory_may_come_and_go(tmp_path: Path) -> None:
    """Hosts can attach and detach without limit, with memory at the same address again."""
    config = StorageConfig("auto", str(tmp_path / "f"), size_bytes=1 << 16, queue_depth_max=4)
    with Storage(config) as storage:
        for number in range(600):  # more than the buffer table holds
            buffer = Buffer(8192)
            buffer.view[:] = number.to_bytes(2, "little") * 4096
            storage.register(buffer)
            assert storage.run([Io(WRITE, 1, 0, 8192, buffer)])[0].result == 8192
            buffer.view[:] = bytes(8192)
            assert storage.run([Io(READ, 1, 0, 8192, buffer)])[0].result == 8192
            assert bytes(buffer.view) == number.to_bytes(2, "little") * 4096
            storage.unregister(buffer)
        assert "not registered" not in storage.warning
