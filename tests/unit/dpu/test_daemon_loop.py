"""Does the daemon's loop end when it should, and not before?"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from control_messages import fields_of

from offstage.bindings.errors import DeviceTimeout
from offstage.dpu import protocol as p
from offstage.dpu.config.derive import derive
from offstage.dpu.config.values import load
from offstage.dpu.control.drain import AGAIN_S
from offstage.dpu.daemon import Daemon
from offstage.dpu.sockets.fd_passing import Handed
from offstage.dpu.tenants.hosts import Host


@pytest.fixture(autouse=True)
def restored_signals() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def make(tmp_path: Path, device: Any, **more: str) -> Daemon:
    overrides = {
        "daemon.endpoint": f"ipc://{tmp_path}/c",
        "daemon.runtime_dir": str(tmp_path / "run"),
        "daemon.metrics_endpoint": "",
        "storage.backend": "emulated",
        "arena.size": "16MiB",
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    config = load(overrides=overrides, environ={})
    return Daemon(config, derive(config), lambda: device)


def run(daemon: Daemon, *pauses_s: float) -> int:
    """Run it, with a SIGTERM after each pause; return the exit code."""

    def signals() -> None:
        for pause_s in pauses_s:
            time.sleep(pause_s)
            os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=signals)
    sender.start()
    code = daemon.run()
    sender.join()
    return code


def events(capfd: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]


def test_a_second_signal_stops_a_daemon_that_still_drains(
    tmp_path: Path, device: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """With blocks that never reach the store, it waits after one signal and stops at a later
    one."""
    device.dirty = 1
    assert run(make(tmp_path, device), 0.05, AGAIN_S + 0.2) == 0
    # Only a loop that kept running after the first signal can log the second.
    assert "stopped_undrained" in (logged := events(capfd)) and "drain_timeout" not in logged


def test_settings_without_effect_are_in_the_log(
    tmp_path: Path, device: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """One line for each reason once all is open; none for a daemon whose settings all have
    effect."""
    assert run(make(tmp_path, device, archive__queue="9", pod__weight="3"), 0.05) == 0
    assert events(capfd).count("setting_unused") == 2
    assert run(make(tmp_path, device), 0.05) == 0
    assert "setting_unused" not in events(capfd)


def test_a_signal_that_comes_twice_at_once_is_one_request(
    tmp_path: Path, device: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """timeout(1) signals the child and then its group: the drain is not skipped."""
    device.dirty = 1
    assert run(make(tmp_path, device, daemon__drain_timeout="300ms"), 0.05, 0.05, 0.05) == 1
    assert "drain_timeout" in (logged := events(capfd)) and "stopped_undrained" not in logged


def test_a_drain_ends_at_its_timeout_and_says_what_was_lost(
    tmp_path: Path, device: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """A drain that cannot end is bounded, and the loss is in the log and in the exit code."""
    device.dirty = 3
    assert run(make(tmp_path, device, daemon__drain_timeout="200ms"), 0.05) == 1
    assert "drain_timeout" in events(capfd)


def test_a_daemon_ends_with_its_starter(
    tmp_path: Path, device: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """Bytes on the watched descriptor are ignored; its end starts a drain."""
    watched, held = os.pipe()
    os.write(held, b"not the end")
    closer = threading.Timer(0.2, os.close, [held])
    closer.start()
    assert make(tmp_path, device).run(watch_fd=watched) == 0
    closer.join()
    os.close(watched)
    assert events(capfd)[-4:] == ["starter_gone", "terminating", "drained", "stopped"]


def test_a_reactor_that_does_not_answer_is_logged_and_the_daemon_still_ends(
    tmp_path: Path, device: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """A stuck reactor ends in log lines, a close that does not hang, and an exit code of its
    own."""

    def stuck(*_: Any, **__: Any) -> Any:
        raise DeviceTimeout("no answer", errno=110)

    closed: list[bool] = []
    device.close = closed.append
    daemon = make(
        tmp_path, device, daemon__drain_timeout="100ms", daemon__record_dir=str(tmp_path / "rec")
    )
    for name in ("ledger", "status", "records", "detach"):
        setattr(device, name, stuck)
    device.dirty = 1  # the firmware's own drain cannot tell stuck from not yet drained
    assert run(daemon, 0.7) == 1
    logged = events(capfd)
    assert {"reactor_silent", "record_failed", "drain_failed"} <= set(logged)
    assert logged[-1] == "stopped" and not closed  # joining its thread would never return
    assert (tmp_path / "rec/record.json").exists()


def test_a_failed_start_leaves_the_socket_free(tmp_path: Path, device: Any) -> None:
    """After a device fails to open, the next daemon can use socket and directory."""

    def fails() -> Any:
        raise DeviceTimeout("no device")

    config = make(tmp_path, device)
    config._close()
    broken = load(
        overrides={
            "daemon.endpoint": f"ipc://{tmp_path}/c",
            "arena.size": "16MiB",
            "daemon.runtime_dir": str(tmp_path / "run"),
            "daemon.metrics_endpoint": "",
            "storage.backend": "emulated",
        },
        environ={},
    )
    with pytest.raises(DeviceTimeout):
        Daemon(broken, derive(broken), fails)
    make(tmp_path, device)._close()


def test_a_host_that_comes_is_not_taken_for_one_whose_process_ended(
    tmp_path: Path, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection is closed after the loop was notified of it, and a new host's process gets its
    number in the same turn: the host stays until a turn in which its own process has ended."""
    daemon = make(tmp_path, device)
    pidfd = os.pidfd_open(os.getpid())
    host = Host(b"ticket", "new", None, time.monotonic())
    daemon.hosts._hosts[host.ticket] = host
    handed = [Handed(host.ticket, os.getpid(), pidfd, os.getuid())]
    daemon._next_tick_s = float("inf")
    monkeypatch.setattr(daemon.control, "poll", lambda pause_s, filenos: {pidfd})
    monkeypatch.setattr(daemon.attachments, "serve", lambda ready: [handed.pop()] if handed else [])
    try:
        daemon._turn()
        assert daemon.hosts.all() == [host] and host.pidfd == pidfd and host.user == os.getuid()
        daemon._turn()
        assert daemon.hosts.all() == []
    finally:
        daemon._close()


def test_no_request_ends_the_daemon(
    tmp_path: Path, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handler of each kind of message fails in turn with an internal error, which is answered
    and counted."""
    daemon = make(tmp_path, device)
    told: list[Any] = []

    def fails(*_: Any) -> Any:
        raise ValueError("embedded null byte")

    service = daemon.service
    monkeypatch.setattr(daemon.control, "send", lambda route, reply: told.append(reply))
    monkeypatch.setattr(daemon.deletes, "answer", lambda of, route, reply: told.append(reply))
    monkeypatch.setattr(daemon.hosts, "find", lambda ticket: Host(ticket, "h", None, 0.0))
    for name in ("_hello", "_prove", "_member", "admit"):
        monkeypatch.setattr(service, name, fails)
    for kind in p.CALLS:
        daemon._take([b"route", b"ticket", msgspec.msgpack.encode(fields_of(kind))])
    assert [(one.code, one.id) for one in told] == [("internal", 1)] * len(p.CALLS)
    assert daemon.hosts.counts["requests_failed"] == len(p.CALLS)
    daemon._close()
