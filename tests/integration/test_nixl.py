"""Do a daemon and a host in two processes exchange blocks over NIXL, and survive each other?

The daemon is a separate process; the host is this one, or a third. `ofs_*` of both ends run over
real agents with UCX. UCX reads its environment once per process, so TCP-only cases run in separate
processes.
"""

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offstage.bindings import nixl
from offstage.bindings.errors import BadInput, OffstageError, RunFailed
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.host.fabrics import Fabric
from offstage.host.link.control import Control
from offstage.testbeds.beds.daemon import Daemon, offstage_words, serve

pytestmark = [pytest.mark.nixl, pytest.mark.usefixtures("nixl_library")]

PAYLOAD, COUNT, LAYERS = 4096, 40, 2
NEVER_NS = 3_600_000_000_000  # would outlast the test


def start(folder: Path, *, nixl: bool = True) -> Any:
    folder.mkdir(exist_ok=True)
    sections = {
        "daemon": {"nixl": nixl, "host_timeout": "1s"},
        "arena": {"size": "3MiB", "payload": "4KiB", "layers": LAYERS, "block_tokens": 16},
        "storage": {"path": str(folder / "store"), "size": "64MiB"},
        "store": {"segment": "256KiB"},
        "limits": {"demands": 16, "put_slots": 8, "sessions": 4, "context_tokens": 8192},
        "tenant": [{"name": "lab"}],
    }
    return serve(sections, folder)


def attached(tier: Daemon) -> AbstractContextManager[tuple[Control, Fabric]]:
    return tier.at(fabric="nixl").attached()


def blocks() -> np.ndarray:
    return np.random.default_rng(5).integers(0, 256, (COUNT, PAYLOAD), np.uint8)


def session_of(control: Control) -> tuple[int, np.ndarray]:
    session = control.session_open(select_blocks=16)
    reply = control.append(session, [i.to_bytes(16, "little") for i in range(COUNT)])
    return session, block_keys(reply.keys, LAYERS)


def write_and_read(control: Control, fabric: Fabric) -> tuple[int, np.ndarray]:
    """Put and fetch more blocks than a window or a step holds; returns session and keys."""
    session, keys = session_of(control)
    ordinals = np.arange(COUNT, dtype=np.uint32)
    assert not fabric.put(PutRequest(session, 1, ordinals, blocks())).any()
    read(fabric, session, keys)
    return session, keys


def read(fabric: Fabric, session: int, keys: np.ndarray) -> None:
    target = np.zeros((COUNT, PAYLOAD), np.uint8)
    fabric.register(target)
    for step in range(2):
        target[:] = 0
        ordinals = np.arange(COUNT, dtype=np.uint32)
        done = fabric.fetch(FetchRequest(session, step, 1, ordinals, keys[1], target))
        assert not done.rcs.any() and np.array_equal(target, blocks())
    assert done.hit_count == COUNT
    fabric.unregister(target)


def test_blocks_go_there_and_back_and_the_next_host_finds_them(tmp_path: Path) -> None:
    """Two hosts use one daemon in turn; a closed port leaves nothing behind."""
    with start(tmp_path) as tier:
        with attached(tier) as (control, fabric):
            session, _ = write_and_read(control, fabric)
            fabric.release(session)
            control.session_close(session)
        with attached(tier) as (control, fabric):
            session, keys = session_of(control)
            read(fabric, session, keys)


def test_unregistered_memory_is_refused_in_one_line(tmp_path: Path) -> None:
    with start(tmp_path) as tier, attached(tier) as (control, fabric):
        session, keys = write_and_read(control, fabric)
        wanted = np.zeros(1, np.uint32)
        with pytest.raises(BadInput, match="not registered") as caught:
            fabric.fetch(
                FetchRequest(
                    session,
                    9,
                    1,
                    wanted,
                    np.ascontiguousarray(keys[1, :1]),
                    np.zeros((1, PAYLOAD), np.uint8),
                )
            )
        assert caught.value.errno == errno.EFAULT


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_daemon_that_goes_is_noticed_and_attached_again(tmp_path: Path, number: int) -> None:
    """A killed daemon says nothing, but the read of its boot id fails; one that ends in order says
    so. Either way a fetch without a deadline ends, and a restart has every acknowledged block."""
    killed = number == signal.SIGKILL
    ended = pytest.raises(RunFailed, match="status -9") if killed else contextlib.nullcontext()
    with ended, start(tmp_path) as tier:
        control, fabric = tier.at(fabric="nixl").connect()
        session, keys = write_and_read(control, fabric)
        os.kill(tier.ready.pid, number)
        wanted, target = np.zeros(1, np.uint32), np.zeros((1, PAYLOAD), np.uint8)
        fabric.register(target)
        key = np.ascontiguousarray(keys[0, :1])
        until_s = time.monotonic() + 20
        with pytest.raises(RunFailed, match="start the host again"):
            while time.monotonic() < until_s:  # a daemon that is shutting down answers for a while
                fabric.fetch(FetchRequest(session, 9, 0, wanted, key, target, timeout_ns=NEVER_NS))
        fabric.close()
        control.close()
    with start(tmp_path) as tier, attached(tier) as (control, fabric):
        session, keys = session_of(control)
        read(fabric, session, keys)


HOST = """
import sys
from pathlib import Path
sys.path.insert(0, str(Path({tests!r})))
import test_nixl as t
from offstage.host.endpoint import Endpoint
control, fabric = Endpoint({endpoint!r}, "lab", "nixl", runtime_dir=Path({where!r})).connect()
t.write_and_read(control, fabric)
print("written", flush=True)
{then}
fabric.close()
control.close()
print("left", flush=True)
"""


def host_process(
    tier: Daemon, then: str = "", command: tuple[str, ...] = (sys.executable,), **environ: str
) -> "subprocess.Popen[str]":
    text = HOST.format(
        tests=str(Path(__file__).parent),
        endpoint=tier.endpoint,
        where=str(tier.runtime_dir),
        then=then,
    )
    return subprocess.Popen(
        [*command, "-c", text], stdout=subprocess.PIPE, text=True, env={**os.environ, **environ}
    )


def host_run(tier: Daemon, *words: str, **environ: str) -> "subprocess.CompletedProcess[str]":
    where = ["--endpoint", tier.endpoint, "--runtime-dir", str(tier.runtime_dir)]
    return subprocess.run(
        offstage_words(
            *"host run --tenant lab --fabric nixl --geometry tiny".split(), *where, *words
        ),
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environ},
    )


def test_a_killed_host_takes_nothing_with_it(tmp_path: Path) -> None:
    """Its port is reclaimed once it has been silent long enough; others go on meanwhile."""
    with start(tmp_path) as tier:
        process = host_process(tier, then="import time; time.sleep(600)")
        assert process.stdout is not None and process.stdout.readline() == "written\n"
        process.kill()
        process.wait()
        process.stdout.close()
        with attached(tier) as (control, fabric):
            session, keys = session_of(control)
            read(fabric, session, keys)
            with tier.control("operator") as operator:
                until_s = time.monotonic() + 20
                while len(operator.status()["hosts"]) > 2 and time.monotonic() < until_s:
                    time.sleep(0.1)
                assert [
                    one["fabric"] for one in operator.status()["hosts"] if one["tenant"] == "lab"
                ] == ["nixl"]
            read(fabric, session, keys)


def test_over_tcp_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """UCX emulates one-sided reads there: the daemon's agent serves them, the reactor does not."""
    monkeypatch.setenv("UCX_TLS", "tcp")
    with start(tmp_path) as tier:
        process = host_process(tier)
        assert process.communicate(timeout=60)[0].split() == ["written", "left"]
        assert process.returncode == 0


def test_two_ends_without_a_common_transport_say_so(tmp_path: Path) -> None:
    """If the host's UCX allows fewer transports than NIXL needs, the error is one line without
    traceback."""
    with start(tmp_path) as tier:
        done = host_run(tier, UCX_TLS="self")
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert "include tcp in UCX_TLS" in done.stderr.splitlines()[-1]


def test_memory_of_a_gpu_that_is_not_there_is_refused_in_one_line() -> None:
    """Memory claimed to be a GPU's on a machine without one is refused, and not read into."""
    if any(Path("/proc/driver/nvidia").glob("gpus/*")):
        pytest.skip("has a GPU: tests/gpu/run_all.py --only nixl_reads_into_gpu_memory")
    memory = np.zeros(1 << 20, np.uint8)
    with pytest.raises(BadInput, match="device memory here") as caught:
        nixl.Loop.on_device(memory.ctypes.data, memory.nbytes)
    assert "\n" not in str(caught.value) and caught.value.fix


def test_a_daemon_that_takes_none_says_how(tmp_path: Path) -> None:
    with start(tmp_path, nixl=False) as tier, pytest.raises(OffstageError) as caught:
        with attached(tier):
            pass
    assert "daemon.nixl" in str(caught.value) and "set it to true" in str(caught.value)


def test_host_run_finds_every_block_as_it_was_written(tmp_path: Path) -> None:
    with start(tmp_path) as tier:
        words = "--sessions 2 --context-tokens 4096 --steps 20 --time-per-token 1ms".split()
        done = host_run(tier, *words, "--out", str(tmp_path / "out"))
        assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    (one,) = summary["runs"]
    assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0
    assert one["blocks_verified"] == one["demands"] > 0
    assert summary["workload"]["fabric"] == "nixl"


NETWORK = """
ip netns add {a}; ip netns add {b}
ip link add {a} netns {a} type veth peer name {b} netns {b}
ip -n {a} addr add 10.213.7.1/24 dev {a}; ip -n {b} addr add 10.213.7.2/24 dev {b}
for n in {a} {b}; do ip -n $n link set lo up; ip -n $n link set $n up; done
"""


@pytest.fixture
def namespaces() -> Iterator[tuple[str, str]]:
    """Two network namespaces with one cable between them, and no route elsewhere."""
    names = (f"ofs{os.getpid()}a", f"ofs{os.getpid()}b")
    made = subprocess.run(
        ["sh", "-ec", NETWORK.format(a=names[0], b=names[1])], capture_output=True, text=True
    )
    try:
        if made.returncode != 0:
            pytest.skip(f"no network namespaces ({made.stderr.strip()}); run as root: iproute2")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def test_between_two_network_namespaces_and_when_the_cable_goes(
    tmp_path: Path, namespaces: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no shared loopback, only TCP over a cable. A cut cable ends a fetch without a
    deadline, with `start the host again`, and nothing hangs."""
    here, there = namespaces
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec ip netns exec {here} {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setattr(sys, "executable", str(python))  # the daemon's
    with start(tmp_path) as tier:
        monkeypatch.undo()
        cut = f"import subprocess; subprocess.run(['ip', 'link', 'set', {there!r}, 'down'])"
        process = host_process(
            tier,
            then=f"{cut}\ntry:\n    t.read(fabric, *t.session_of(control))\n"
            "except Exception as error:\n    print(error, flush=True)",
            command=("ip", "netns", "exec", there, sys.executable),
            UCX_TLS="tcp",
        )
        said = process.communicate(timeout=60)[0].splitlines()
        assert process.returncode == 0 and said[0] == "written" and said[-1] == "left"
        assert "start the host again" in said[1]
