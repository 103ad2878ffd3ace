"""Does a daemon whose sockets are attacked stay small, and available to all others?"""

import contextlib
import resource
import socket
import struct
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_daemon import WAIT_S, Daemon, daemon, scrape

from offstage.bindings.errors import StoreFull
from offstage.bindings.private import read_secret
from offstage.dpu import protocol as p
from offstage.dpu.tenants.tenancy import metrics_token
from offstage.host.fabrics import shm


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("limits"), daemon__metrics_endpoint="127.0.0.1:0") as tier:
        yield tier


@pytest.fixture(autouse=True)
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip(f"needs 4096 descriptors and may have {hard}; ulimit -Hn 4096")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def threads(tier: Daemon) -> int:
    lines = Path(f"/proc/{tier.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Threads:"))


def check_open(tier: Daemon) -> None:
    """Check that a host can log in, attach and map its region, and the operator gets an answer."""
    with tier.control(timeout_s=WAIT_S) as control:
        shm.open_driver(control.attach("shm"), WAIT_S).close()
    with tier.control(p.OPERATOR, timeout_s=WAIT_S) as operator:
        assert operator.status()["storage"]


def test_endless_handshakes_lock_no_host_out(tier: Daemon) -> None:
    """With 1,100 open connections that completed a handshake, host and operator are still admitted.
    Such connections once took every descriptor."""
    host, port = tier.endpoint.removeprefix("tcp://").split(":")
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    with contextlib.ExitStack() as held:
        for _ in range(1100):
            raw = held.enter_context(socket.create_connection((host, int(port)), timeout=WAIT_S))
            with contextlib.suppress(OSError):  # already displaced
                raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48))
                raw.sendall(bytes([4, len(ready)]) + ready)
        check_open(tier)
    with tier.control(p.OPERATOR) as operator:
        assert operator.status()["daemon"]["connections_displaced"] >= 800


def test_slow_scrapes_take_no_threads_and_no_place(tier: Daemon) -> None:
    """With 800 scrapes that never complete their request, none takes a thread, and the next one
    gets an answer."""
    before = threads(tier)
    with contextlib.ExitStack() as held:
        for _ in range(800):
            raw = held.enter_context(
                socket.create_connection(("127.0.0.1", tier.metrics_port), timeout=WAIT_S)
            )
            with contextlib.suppress(OSError):
                raw.sendall(b"GET /metrics HT")
        assert threads(tier) == before
        assert "offstage_messages_total" in scrape(tier, "")
        assert threads(tier) == before


def test_silent_hand_out_connections_lock_no_host_out(tier: Daemon) -> None:
    """With 200 silent connections to the hand-out, the next host gets its descriptors."""
    with contextlib.ExitStack() as held:
        for _ in range(200):
            mute = held.enter_context(socket.socket(socket.AF_UNIX))
            shm._reach(mute, str(tier.runtime_dir / "host-0.sock"), time.monotonic() + WAIT_S)
        check_open(tier)


def test_logins_of_a_tenant_leave_room_for_the_operator(tier: Daemon) -> None:
    """A tenant logs in until it is refused; the operator can still log in."""
    with contextlib.ExitStack() as held:
        with pytest.raises(StoreFull):
            for _ in range(1000):
                held.enter_context(tier.control(heartbeat=False))
        with tier.control(p.OPERATOR) as operator:
            assert len(operator.status()["hosts"]) > 16


def test_metrics_show_a_tenant_to_itself_and_to_the_operator(tier: Daemon) -> None:
    """A scrape without a token shows no tenant, with a tenant's that tenant, with the operator's
    all; with another it is refused."""
    red = metrics_token(read_secret(tier.runtime_dir / "red.secret"))
    operators = (tier.runtime_dir / "metrics.token").read_text().strip()
    for token in ("wrong", red[:-1]):
        with pytest.raises(urllib.error.HTTPError, match="401"):
            scrape(tier, token)
    text = scrape(tier, "")
    assert "offstage_messages_total" in text and "tenant=" not in text
    assert "offstage_put_blocks" not in text
    text = scrape(tier, red)
    assert 'tenant="red"' in text and "offstage_put_blocks" not in text
    text = scrape(tier, operators)
    assert 'tenant="red"' in text and "offstage_put_blocks_total" in text
