"""Does a host whose address is slow to resolve delay only itself?"""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from offstage.bindings.errors import OffstageError, RunFailed
from offstage.dpu.config.derive import derive
from offstage.dpu.config.values import load
from offstage.dpu.control.connects import Connects
from offstage.dpu.daemon import Daemon
from offstage.host.link.control import Control

DEADLINE_S = 100.0


def ended(connects: Connects) -> list[Any]:
    """Return the next connect to end: its host, and the error."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        if found := connects.ended():
            return [(one.waiting, one.error) for one in found]
        time.sleep(0.001)
    raise AssertionError("no connect ended")


def test_a_port_is_detached_after_its_connect(device: Any) -> None:
    """The firmware cannot connect and detach a port at once: the detach of a leaving host is
    deferred, a second connect is refused, and a detach of another port is done at once."""
    woken = threading.Event()
    connects = Connects(device, woken.set)
    (slow, _), (other, _) = device.attach(0, "verbs"), device.attach(0, "verbs")
    device.resolves.clear()
    connects.begin(slow, b"far", "slow")
    with pytest.raises(OffstageError, match="being connected"):
        connects.begin(slow, b"near", "again")
    connects.detach(slow)
    connects.detach(other)
    assert list(device.ports) == [slow] and not connects.ended()
    device.resolves.set()
    assert woken.wait(DEADLINE_S)
    ((waiting, error),) = ended(connects)
    assert waiting == "slow" and isinstance(error, RunFailed) and not device.ports
    assert device.connected == [(slow, b"far")]


def test_what_a_connect_was_refused_for_comes_back(device: Any) -> None:
    """Firmware errors and unexpected exceptions are both returned; then the port can be
    connected."""
    connects = Connects(device, lambda: None)
    port, _ = device.attach(0, "verbs")
    connects.begin(port, b"nowhere", 1)
    ((_, error),) = ended(connects)
    assert isinstance(error, RunFailed) and error.errno == 113
    connects.begin(port + 1, b"", 2)
    ((_, error),) = ended(connects)
    assert isinstance(error, AssertionError)
    connects.begin(port, b"near", 3)
    connects.close()
    assert device.connected == [(port, b"near")]


@pytest.mark.parametrize("stopped", [False, True])
def test_the_daemon_answers_others_meanwhile(tmp_path: Path, device: Any, stopped: bool) -> None:
    """While one host's address is being resolved, another is answered, and a daemon that is stopped
    ends in order, detaching its ports after the connect."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    config = load(
        overrides={
            "daemon.endpoint": f"ipc://{tmp_path}/c",
            "daemon.runtime_dir": str(tmp_path / "run"),
            "daemon.metrics_endpoint": "",
            "storage.backend": "emulated",
            "arena.size": "16MiB",
        },
        environ={},
    )
    daemon = Daemon(config, derive(config), lambda: device)
    said: list[str] = []

    def connect(control: Control) -> None:
        try:
            control.connect(b"far")
            said.append("connected")
        except OffstageError:
            said.append("refused")

    def hosts() -> None:
        slow, other = (
            Control(daemon.endpoint, runtime_dir=tmp_path / "run", timeout_s=DEADLINE_S)
            for _ in range(2)
        )
        slow.attach("shm")
        device.resolves.clear()
        waits = threading.Thread(target=connect, args=(slow,), daemon=True)
        waits.start()
        assert device.resolving.wait(DEADLINE_S)
        other.attach("shm")
        other.session_open(select_blocks=4)
        said.append("another was answered")
        if stopped:
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Timer(0.3, device.resolves.set).start()
            return  # a daemon that has ended does not answer
        device.resolves.set()
        waits.join(DEADLINE_S)
        other.close()
        slow.close()
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=hosts)
    sender.start()
    assert daemon.run() == 0
    sender.join(DEADLINE_S)
    for number, handler in before.items():
        signal.signal(number, handler)
    assert said[0] == "another was answered" and device.connected == [(0, b"far")]
    assert not device.ports and (stopped or said[1:] == ["connected"])
