"""Does libdoca_kv keep what its headers and the page promise where a caller errs or the daemon
goes: freed tasks, limits, lines on standard error, daemons that died, froze or came back?"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doca_kv import SUCCESS, Client, Refused, load
from live_daemon import LAYERS, PAYLOAD, Daemon, daemon

MOST = 8192 // 64 * LAYERS * PAYLOAD  # a session's tokens, in blocks of all layers
OPTIONS = {"limits__values": "256", "limits__sessions": "16"}
IO_FAILED = "DOCA_ERROR_IO_FAILED"


@pytest.fixture(scope="module")
def library() -> tuple[Any, Any]:
    return load()


def socket_of(tier: Daemon) -> str:
    return str(Path(tier.runtime_dir) / "host-0.sock")


def free(client: Client, task: Any) -> None:
    client.lib.doca_task_free(client.lib.doca_kv_io_task_store_as_task(task))


FREES_LATE = """
import sys
sys.path[:0] = sys.argv[1].split(":")
from doca_kv import Client, load
client = Client(load(), sys.argv[2], tasks=16384)
lib, general = client.lib, client.lib.doca_kv_io_task_store_as_task(client.allocate("store"))
lib.doca_task_free(general)
assert lib.doca_kv_io_unbind_dev(client.io, client.dev) == 0
assert lib.doca_ctx_stop(client.ctx) == 0
lib.doca_task_free(general)
"""


def test_a_task_freed_again_after_the_stop_is_a_line(
    tmp_path: Path, library: tuple[Any, Any]
) -> None:
    """In a process that unmaps what it frees, and so would die of it."""
    with daemon(tmp_path, **OPTIONS) as tier:
        place = ":".join([str(Path(__file__).parents[1] / "reference"), *filter(None, sys.path)])
        words = [sys.executable, "-c", FREES_LATE, place, socket_of(tier)]
        env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        assert done.returncode == 0 and "freed twice" in done.stderr


def test_memory_of_a_freed_task_is_used_last(
    tmp_path: Path, library: tuple[Any, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """All that was free before is allocated first, so a second free hits no other task."""
    with daemon(tmp_path, **OPTIONS) as tier:
        client = Client(library, socket_of(tier), tasks=4)
        tasks = [client.allocate("store") for _ in range(4)]
        for i in (2, 0, 3):
            free(client, tasks[i])
        taken = [client.allocate("store") for _ in range(2)]
        assert taken == [tasks[2], tasks[0]]
        free(client, tasks[3])
        assert "freed twice" in capfd.readouterr().err
        for task in (*taken, tasks[1]):
            free(client, task)
        assert capfd.readouterr().err == ""
        client.close()


def test_only_a_task_that_succeeded_reads_as_success(
    tmp_path: Path, library: tuple[Any, Any]
) -> None:
    with daemon(tmp_path, **OPTIONS) as tier:
        client, lib = Client(library, socket_of(tier)), library[1]
        task = client.allocate("store")
        general = lib.doca_kv_io_task_store_as_task(task)
        assert lib.doca_task_get_status(general) == lib.DOCA_ERROR_IN_PROGRESS
        assert lib.doca_task_submit(general) == lib.DOCA_ERROR_INVALID_VALUE  # it has no key
        assert lib.doca_task_get_status(general) == lib.DOCA_ERROR_INVALID_VALUE
        free(client, task)
        client.close()


def test_a_path_is_as_long_as_an_address_of_a_socket(
    tmp_path: Path, library: tuple[Any, Any]
) -> None:
    """One that is too long leaves the path that was set before."""
    ffi, lib = library
    longest: Any = ffi.new("uint32_t *")
    assert lib.doca_kv_nvme_kernel_dev_cap_get_max_path_len(longest) == 0
    assert longest[0] == 108
    attr: Any = ffi.new("struct doca_kv_nvme_kernel_dev_create_attr **")
    device: Any = ffi.new("struct doca_kv_nvme_kernel_dev **")
    assert lib.doca_kv_nvme_kernel_dev_create_attr_create(attr) == 0
    set_path = lib.doca_kv_nvme_kernel_dev_create_attr_set_path
    assert set_path(attr[0], b"p" * 107) == 0
    with daemon(tmp_path, **OPTIONS) as tier:
        path = socket_of(tier).encode()
        assert set_path(attr[0], path) == 0
        for wrong in (b"p" * 108, b"offstage:" + b"p" * 96):
            assert set_path(attr[0], wrong) == lib.DOCA_ERROR_TOO_BIG
        assert lib.doca_kv_nvme_kernel_dev_create(attr[0], device) == 0
        said: Any = ffi.new("char[108]")
        assert lib.doca_kv_nvme_kernel_dev_get_path(device[0], said, 108) == 0
        assert ffi.string(said) == path
    lib.doca_kv_nvme_kernel_dev_create_attr_destroy(attr[0])
    lib.doca_kv_nvme_kernel_dev_destroy(device[0])


def test_a_hold_without_an_end_stays(tmp_path: Path, library: tuple[Any, Any]) -> None:
    """It has the daemon's only session, until its value is retrieved."""
    with daemon(tmp_path, limits__values="256", limits__sessions="1") as tier:
        first, second = (Client(library, socket_of(tier)) for _ in range(2))
        assert first.wait(first.store(b"k", [b"value"])) == [SUCCESS]
        key = first.ffi.from_buffer(b"k")
        asks: Any = first.ffi.new("struct offstage_kv_ahead[1]")
        asks[0].key, asks[0].key_len, asks[0].within_ns = key, 1, 2**64 - 1
        assert first.lib.offstage_kv_io_prefetch(first.io, asks, 1) == 0 and asks[0].result == 0
        time.sleep(1.2)
        waiting = second.retrieve(b"k", [bytearray(5)])
        second.lib.doca_ctx_flush_tasks(second.ctx)
        for _ in range(300):
            for client in (first, second):
                client.lib.doca_pe_progress(client.pe)
            time.sleep(0.001)
        assert waiting not in second.ended
        assert first.value(b"k", 5) == b"value" and second.wait(waiting) == [SUCCESS]
        first.close()
        second.close()


@contextlib.contextmanager
def stranger(path: str, answer: bytes, after_s: float = 0.0) -> Iterator[list[bytes]]:
    """A socket that answers so; what it was asked."""
    asked: list[bytes] = []
    Path(path).unlink(missing_ok=True)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), listener.accept()[0] as one:
                asked.append(one.recv(99))
                over.wait(after_s)
                one.sendall(answer)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        listener.settimeout(0.1)
        server = threading.Thread(target=serve)
        server.start()
        try:
            yield asked
        finally:
            over.set()
            server.join()
    Path(path).unlink()


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (b"\xff\0\0\0\0\0\0\0\1\x7f", "NOT_FOUND", "give a tenant's, as {folder}/host-0.sock"),
        (b"refused 1: \x1b[31mred\n", "NOT_PERMITTED", "refused 1: ?[31mred"),
        (b"", "IO_FAILED", "the daemon has closed the connection"),
    ],
)
def test_the_answer_of_a_stranger_is_not_printed(
    answer: bytes,
    error: str,
    says: str,
    tmp_path: Path,
    library: tuple[Any, Any],
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = str(tmp_path / "control.sock")
    with stranger(path, answer), pytest.raises(Refused, match=error):
        Client(library, path)
    line = capfd.readouterr().err
    assert line.endswith("\n") and line[:-1].isprintable()
    assert path in line and says.format(folder=tmp_path) in line


def test_an_idle_context_connects_to_the_next_daemon(
    tmp_path: Path, library: tuple[Any, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """Its first task there is served. Meanwhile tasks fail, and one line says why."""
    with daemon(tmp_path, **OPTIONS) as tier:
        client = Client(library, socket_of(tier))
        assert client.wait(client.store(b"k", [b"value"])) == [SUCCESS]
    for _ in range(3):
        capfd.readouterr()
        with daemon(tmp_path, **OPTIONS):
            for _ in range(100):
                client.lib.doca_pe_progress(client.pe)
            assert client.value(b"k", 9) == b"value"
        for _ in range(5):
            assert client.wait(client.exist(b"k")) == [IO_FAILED]
        assert capfd.readouterr().err.count("give the socket") == 1
    client.close()


def test_progress_does_not_wait_long_for_a_silent_daemon(
    tmp_path: Path, library: tuple[Any, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """It has given up when an answer comes after three seconds, and tries again only later."""
    with daemon(tmp_path, **OPTIONS) as tier:
        path = socket_of(tier)
        client = Client(library, path)
    with stranger(path, b"refused 5: late\n", 3.0) as asked:
        for _ in range(5):
            assert client.wait(client.exist(b"k")) == [IO_FAILED]
        lines = capfd.readouterr().err
        assert len(asked) == 1 and "the daemon does not answer" in lines and "late" not in lines
    with stranger(path, b"refused 5: early\n"):
        time.sleep(1.1)
        assert client.wait(client.exist(b"k")) == [IO_FAILED]
        assert "refused 5: early" in capfd.readouterr().err
    client.close()


def test_the_limits_are_those_of_the_next_daemon(tmp_path: Path, library: tuple[Any, Any]) -> None:
    """Also of a store that was submitted before it was connected to."""
    with daemon(tmp_path, **OPTIONS) as tier:
        client = Client(library, socket_of(tier))
        assert client.number("max_value_len") == MOST
    with daemon(tmp_path, **OPTIONS, limits__context_tokens="4096"):
        assert client.wait(client.store(b"k", [bytes(MOST)])) == ["DOCA_ERROR_TOO_BIG"]
        assert client.number("max_value_len") == MOST // 2
        assert client.wait(client.store(b"k", [bytes(MOST // 2)])) == [SUCCESS]
    client.close()
