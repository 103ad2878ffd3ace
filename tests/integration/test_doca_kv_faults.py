"""Does libdoca_kv keep what its headers and the page promise where a caller errs or the daemon
goes: freed tasks, limits, lines on standard error, daemons that died, froze or came back?"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from doca_kv import Client, load
from live_daemon import Daemon, daemon

OPTIONS = {"limits__values": "256", "limits__sessions": "16"}


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
