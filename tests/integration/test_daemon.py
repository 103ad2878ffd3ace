"""Does the real daemon, as a separate process, start, serve, refuse, drain and survive?"""

import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import time
import urllib.request
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zmq
from live_daemon import WAIT_S, sections_of, started, until

from offstage.bindings.attachment import Attachment
from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput, RunFailed, StoreFull
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import block_keys
from offstage.bindings.private import read_secret
from offstage.dpu import protocol as p
from offstage.dpu.watch.recorder import read_records, replay_log
from offstage.host.link.control import Control
from offstage.testbeds.beds.daemon import Daemon, offstage_words, write_config

PAYLOAD = 4096
TENANTS = ("red", "blue")
OPTIONS = {
    "daemon.endpoint": "tcp://127.0.0.1:*",
    "daemon.metrics_endpoint": "127.0.0.1:0",
    "arena.size": "4MiB",
    "arena.payload": "4KiB",
    "arena.layers": "2",
    "storage.size": "32MiB",
    "store.segment": "256KiB",
    "limits.demands": "64",
    "limits.put_slots": "16",
    "limits.ports": "4",
    "limits.context_tokens": "8192",
    "limits.chunks": "1024",
    "limits.sessions": "8",
    "limits.log": "1MiB",
    "limits.records": "65536",
}


def options(changed: Mapping[str, str]) -> dict[str, str]:
    return OPTIONS | {name.replace("__", "."): value for name, value in changed.items()}


def daemon(tmp_path: Path, **changed: str) -> AbstractContextManager[Daemon]:
    return started(tmp_path, options(changed), TENANTS)


def events(served: Daemon) -> list[dict[str, Any]]:
    return [json.loads(line) for line in served.log.read_text().splitlines()]


def rss_bytes(served: Daemon) -> int:
    pages = Path(f"/proc/{served.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def refused(tmp_path: Path, **changed: str) -> str:
    """Start a daemon that must not start; returns its one line on stderr."""
    config = tmp_path / "refused.toml"
    write_config(config, sections_of(tmp_path, options(changed), TENANTS))
    done = subprocess.run(
        offstage_words("dpu", "serve", "--config", str(config)),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 2 and done.stdout == "", done
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1 and "Traceback" not in done.stderr, done.stderr
    return lines[0]


def take_driver(attached: p.Attached) -> Driver:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(attached.socket_path)
        client.sendall(attached.token.encode() + b"\n")
        said, fds, _, _ = socket.recv_fds(client, 64, 4)
    assert said == b"ok\n"
    try:
        return Driver(Attachment(attached.blob, tuple(fds)))
    finally:
        for fd in fds:
            os.close(fd)


def content(number: int) -> bytes:
    return number.to_bytes(16, "little")


def blocks_of(count: int, seed: int) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    return np.random.default_rng(seed).integers(0, 256, (count, PAYLOAD), np.uint8)


def write_and_read(control: Control, driver: Driver, count: int = 8) -> None:
    """Put `count` blocks of layer 1 and read them back, byte for byte."""
    session = control.session_open(select_blocks=count)
    appended = control.append(session, [content(number) for number in range(count)])
    written = blocks_of(count, 3)
    ordinals = np.arange(count, dtype=np.uint32)
    assert not driver.put(PutRequest(session, 1, ordinals, written)).any()
    keys = np.ascontiguousarray(block_keys(appended.keys, 2)[1])
    target = np.zeros((count, PAYLOAD), np.uint8)
    for step in range(2):
        target[:] = 0
        done = driver.fetch(FetchRequest(session, step, 1, ordinals, keys, target))
        assert not done.rcs.any() and np.array_equal(target, written)


def test_a_host_writes_and_reads_its_blocks_and_the_figures_tell(tmp_path: Path) -> None:
    """After login, attach, hand-out, put and fetch the bytes are the same, and ledger and metrics
    show it."""
    with daemon(tmp_path) as served:
        with served.control() as control:
            driver = take_driver(control.attach())
            write_and_read(control, driver)
            assert control.ledger().demands == 16
            driver.close()
        with served.control(p.OPERATOR) as operator:
            assert operator.ledger("red").demands == 16
            assert operator.ledger("blue").demands == 0
            assert operator.status()["device"]["puts"] == 8
            until(lambda: not operator.status()["device"]["ports"])

        def demands() -> float:
            token = (served.runtime_dir / "metrics.token").read_text().strip()
            request = urllib.request.Request(
                f"http://127.0.0.1:{served.metrics_port}/metrics",
                headers={"Authorization": f"Bearer {token}"},
            )
            with urllib.request.urlopen(request, timeout=WAIT_S) as reply:
                lines = reply.read().decode().splitlines()
            rows = [line for line in lines if line.startswith("offstage_demands_total{")]
            return sum(float(line.split()[-1]) for line in rows)

        until(lambda: demands() == 16)


def test_a_region_of_another_tenant_cannot_be_had(tmp_path: Path) -> None:
    """A host with another tenant's name, ticket or token gets nothing."""
    with daemon(tmp_path) as served:
        red_secret = read_secret(served.runtime_dir / "red.secret")
        with pytest.raises(BadInput, match="cannot prove"):
            served.control("blue", secret=red_secret)
        with served.control("red") as red, served.control("blue") as blue:
            attached, _ = red.attach(), blue.attach()
            take_driver(attached).close()
            with pytest.raises(AssertionError):  # the token was used: refused, no descriptors
                take_driver(attached)
            session = red.session_open(select_blocks=2)
            with pytest.raises(BadInput, match="no session"):
                blue.append(session, [content(1)])
            keys = red.append(session, [content(1)]).keys
            other = blue.append(blue.session_open(select_blocks=2), [content(1)]).keys
            assert keys != other  # the same content has other names in another tenant


def test_the_policy_changes_while_the_daemon_runs(tmp_path: Path) -> None:
    """A change applies at once, a wrong one is refused as a whole, and only the operator may make
    one."""
    with daemon(tmp_path) as served, served.control(p.OPERATOR) as operator:
        assert operator.policy_set({"prefetchers": ["window"], "degree_max": 7})["degree_max"] == 7
        with pytest.raises(BadInput, match="did you mean 'degree_max'"):
            operator.policy_set({"eviction": "lru", "degree_mx": 9})
        policy = operator.policy()
        assert policy["prefetchers"] == ["window"] and policy["eviction"] == "score"
        with served.control() as control, pytest.raises(BadInput, match="operator"):
            control.policy_set({"degree_max": 1})


def test_sigterm_drains_write_back_and_a_restart_has_the_blocks(tmp_path: Path) -> None:
    """Blocks that were only staged are on the store after SIGTERM, and the exit code is 0."""
    back = {"store__write": "back", "store__dirty_max": "64"}
    written = blocks_of(6, 9)
    ordinals = np.arange(6, dtype=np.uint32)
    contents = [content(number) for number in range(6)]
    with daemon(tmp_path, **back) as served:
        with served.control() as control:
            driver = take_driver(control.attach())
            session = control.session_open(select_blocks=6)
            control.append(session, contents)
            assert not driver.put(PutRequest(session, 0, ordinals, written)).any()
            served.process.send_signal(signal.SIGTERM)
            assert served.process.wait(WAIT_S) == 0
            driver.close()
        assert events(served)[-1]["event"] == "stopped"
        assert not any(event["level"] == "error" for event in events(served))
    with daemon(tmp_path, **back) as served, served.control() as control:
        driver = take_driver(control.attach())
        session = control.session_open(select_blocks=6)
        appended = control.append(session, contents)
        assert appended.stored_layers == [1] * 6
        target = np.zeros((6, PAYLOAD), np.uint8)
        keys = np.ascontiguousarray(block_keys(appended.keys, 2)[0])
        assert not driver.fetch(FetchRequest(session, 0, 0, ordinals, keys, target)).rcs.any()
        assert np.array_equal(target, written)
        driver.close()


def test_a_drained_daemon_takes_no_new_work_until_it_is_undrained(tmp_path: Path) -> None:
    """After `drain` new sessions are refused with a reason, and status still answers. After
    `undrain` the same daemon accepts sessions and puts again."""
    with daemon(tmp_path) as served, served.control(p.OPERATOR) as operator:
        with served.control() as control:
            control.attach()
            assert operator.drain(10.0).drained
            with pytest.raises(RunFailed, match="draining"):
                control.session_open(select_blocks=1)
        assert operator.status()["draining"]
        with served.control() as control:
            with pytest.raises(RunFailed, match=r"draining.*offstage dpu undrain"):
                control.attach()
            operator.undrain()
            assert not operator.status()["draining"]
            driver = take_driver(control.attach())
            write_and_read(control, driver)
            driver.close()


def test_a_store_whose_tenants_secret_is_lost_is_not_served(tmp_path: Path) -> None:
    """Another secret would find no block, so a start with a missing or different secret is refused
    and names the copy to restore. Once it is restored, the blocks are there. A tenant without a
    store starts normally."""
    with daemon(tmp_path) as served, served.control() as control:
        driver = take_driver(control.attach())
        write_and_read(control, driver)
        driver.close()
    kept = tmp_path / "store.ofs.red.secret"
    kept.unlink()
    (tmp_path / "store.ofs.blue.secret").unlink()
    line = refused(tmp_path)
    assert "secret of the tenant 'red' is gone" in line and f"cp {tmp_path}/run/red.secret" in line
    assert not kept.exists()
    (tmp_path / "run/red.secret").rename(tmp_path / "copy")
    (tmp_path / "store.ofs.green.secret").write_text("cd" * 32)
    line = refused(tmp_path)
    assert "of another tenant than 'red'" in line and "store.ofs.green.secret is there" in line
    (tmp_path / "copy").rename(tmp_path / "run/red.secret")
    kept.write_text("ab" * 32)
    kept.chmod(0o600)
    line = refused(tmp_path)
    assert "is not the one that named its blocks" in line and "store.ofs.red.mark" in line
    shutil.copy(tmp_path / "run/red.secret", kept)
    with daemon(tmp_path) as served, served.control() as control:
        take_driver(control.attach()).close()
        session = control.session_open(select_blocks=8)
        texts = [content(number) for number in range(8)]
        assert control.append(session, texts).stored_layers == [1] * 8


def test_a_killed_host_process_is_reclaimed_at_once(tmp_path: Path) -> None:
    """After kill -9 of a host, port and sessions are freed long before the heartbeat's timeout."""
    with daemon(tmp_path, daemon__host_timeout="1h") as served:
        pid = os.fork()
        if pid == 0:  # the host: attaches, opens sessions, then sleeps until it is killed
            try:
                control = served.control()
                take_driver(control.attach())
                control.session_open(select_blocks=2)
                control.session_open(select_blocks=2)
                time.sleep(60)
            finally:
                os._exit(1)
        with served.control(p.OPERATOR) as operator:
            until(lambda: operator.status()["device"]["sessions"] == 2)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            until(lambda: operator.status()["device"]["sessions"] == 0)
            status = operator.status()
            assert status["device"]["ports"] == 0 and status["daemon"]["hosts_dead"] == 1
        dead = [event for event in events(served) if event["event"] == "host_dead"]
        assert dead[0]["reason"] == "process gone" and dead[0]["pid"] == pid


def test_a_silent_host_is_dead_and_told_so(tmp_path: Path) -> None:
    """A host without heartbeats is reclaimed and notified; one with heartbeats stays."""
    with daemon(tmp_path, daemon__host_timeout="600ms") as served:
        silent = served.control(heartbeat=False)
        silent.attach()
        silent.session_open(select_blocks=2)
        with served.control(name="alive") as alive, served.control(p.OPERATOR) as operator:
            alive.attach()
            alive.session_open(select_blocks=2)
            until(lambda: operator.status()["daemon"]["hosts_dead"] == 1)
            assert alive.status()["sessions"] == 1
            with pytest.raises(BadInput, match="log in again"):
                silent.status()
        silent.close()
        with pytest.raises(RunFailed, match="log in again"):  # no traceback of its socket
            silent.status()
        assert silent.lost


def test_what_cannot_start_says_why_in_one_line(tmp_path: Path) -> None:
    """A second daemon, a taken port, another version's store, and bad values give one line and exit
    code 2."""
    with daemon(tmp_path) as served:
        line = refused(tmp_path)  # the same runtime directory
        assert f"pid {served.process.pid}" in line
        line = refused(tmp_path, daemon__runtime_dir=str(tmp_path / "other"))  # the same store
        assert "store.ofs" in line and str(served.process.pid) in line
        port = served.endpoint.rpartition(":")[2]
        taken = {
            "daemon__runtime_dir": str(tmp_path / "other"),
            "storage__path": str(tmp_path / "other.ofs"),
        }
        assert "in use" in refused(tmp_path, daemon__endpoint=f"tcp://127.0.0.1:{port}", **taken)
        metrics = f"127.0.0.1:{served.metrics_port}"
        assert "metrics" in refused(tmp_path, daemon__metrics_endpoint=metrics, **taken)
    assert "store.ofs" in refused(tmp_path, store__segment="512KiB")  # another geometry
    (tmp_path / "alien").write_bytes(b"\x7fELF" * 4096)
    assert "alien" in refused(tmp_path, storage__path=str(tmp_path / "alien"))
    assert "'gen6'" in refused(tmp_path, storage__nvme="gen6")


def test_garbage_and_a_gigabyte_on_the_socket_do_no_harm(tmp_path: Path) -> None:
    """Random frames, raw bytes and a claimed 1 GiB frame neither end the daemon nor cost much
    memory."""
    with daemon(tmp_path) as served, served.control(p.OPERATOR) as operator:
        before = rss_bytes(served)
        rng = np.random.default_rng(5)
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.connect(served.endpoint)
        for _ in range(300):
            frames = [rng.bytes(int(rng.integers(0, 200))) for _ in range(rng.integers(1, 6))]
            dealer.send_multipart(frames)
        dealer.send_multipart([b"", b"\xc1" * (1 << 20)])  # at the limit: answered
        dealer.send_multipart([b"", b"\xc1" * ((1 << 20) + 1)])  # above it: answered too
        until(lambda: operator.status()["daemon"]["messages_bad"] >= 302)
        reply = p.decode_reply(dealer.recv_multipart()[-1])
        assert isinstance(reply, p.Error) and reply.code == "bad_message"
        context.destroy(linger=0)
        host, port = served.endpoint.removeprefix("tcp://").split(":")
        sent = 0
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as raw:
            raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48))  # ZMTP 3.0 greeting
            ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
            raw.sendall(bytes([4, len(ready)]) + ready)
            raw.sendall(b"\x02" + struct.pack(">Q", 1 << 30))  # a frame of 1 GiB
            with contextlib.suppress(OSError):
                while sent < 1 << 30:
                    sent += raw.send(bytes(1 << 20))
        assert sent < 1 << 28, "the daemon read on"
        with socket.create_connection((host, int(port)), timeout=WAIT_S) as raw:
            raw.sendall(b"GET / HTTP/1.1\r\n\r\n" + rng.bytes(4096))
        with served.control() as control:
            driver = take_driver(control.attach())
            write_and_read(control, driver)
            driver.close()
        assert rss_bytes(served) - before < 64 << 20


def test_what_has_no_room_is_a_typed_error(tmp_path: Path) -> None:
    """Ports, sessions and chunks beyond the limits each get a typed error, and the daemon keeps
    running."""
    limits = {"limits__ports": "1", "limits__sessions": "2", "limits__context_tokens": "256"}
    with daemon(tmp_path, **limits) as served:
        with served.control() as first, served.control() as second:
            first.attach()
            with pytest.raises(StoreFull):
                second.attach()
            sessions = [first.session_open(select_blocks=1) for _ in range(2)]
            with pytest.raises(StoreFull):
                first.session_open(select_blocks=1)
            with pytest.raises(StoreFull):
                first.append(sessions[0], [content(n) for n in range(5)])
            assert len(first.append(sessions[0], [content(n) for n in range(4)]).keys) == 4


def test_a_recording_replays_to_the_same_decisions(tmp_path: Path) -> None:
    """A new core that is fed a live run's log makes the same decisions, with the same work."""
    run = tmp_path / "recorded"
    with daemon(tmp_path, daemon__record_dir=str(run)) as served:
        with served.control() as control:
            driver = take_driver(control.attach())
            write_and_read(control, driver, 16)
            driver.close()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(WAIT_S) == 0
    manifest = json.loads((run / "record.json").read_text())
    assert manifest["closed"] and not manifest["records_lost"] and not manifest["log_bytes_lost"]
    assert len(read_records(run)) == 32
    done = replay_log(run / "decisions.log")
    assert done.diverged_at is None and done.agreed > 0
    assert msgspec.to_builtins(done.work) == manifest["work"] and done.work["step"].events > 0


def test_a_recording_that_lacks_records_fails_its_run(tmp_path: Path) -> None:
    """With a fetch of 32 demands and a ring of 16 the daemon serves to its end, drains, records how
    much was lost, and exits with 1 and one line about it."""
    run = tmp_path / "recorded"
    with daemon(tmp_path, daemon__record_dir=str(run), limits__records="16") as served:
        with served.control() as control:
            driver = take_driver(control.attach())
            write_and_read(control, driver, 32)
            driver.close()
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(WAIT_S) == 1
        logged = served.log.read_text().splitlines()
    lost = json.loads((run / "record.json").read_text())["records_lost"]
    assert lost > 0 and any('"drained"' in line for line in logged)
    assert logged[-1].startswith(f"offstage: {run}: {lost} ledger records were lost (raise limits.")
