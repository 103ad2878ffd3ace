"""What does a host reveal to a process that has its daemon's port but not its secret?"""

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from offstage.bindings.errors import BadInput, DeviceTimeout, OffstageError, Unreachable
from offstage.dpu import protocol as p
from offstage.host.fabrics import shm
from offstage.host.fabrics.zmq import connect
from offstage.host.link.control import Control

SECRET = b"s" * 32
USER = os.getuid()
GEOMETRY = p.Geometry(
    payload_size_bytes=1024, layer_count=1, block_tokens=16, slot_count=4, lba_size_bytes=512
)
LIMITS = p.Limits(
    message_size_bytes_max=1 << 20,
    session_max=4,
    session_chunk_max=4,
    demand_max=4,
    score_max=4,
    put_slot_count=4,
    host_timeout_ns=10**9,
)
Prove = Callable[[p.Hello, p.Challenge], bytes]


def honest(hello: p.Hello, said: p.Challenge, secret: bytes = SECRET) -> bytes:
    return p.prove_daemon(
        secret,
        hello.nonce,
        said.nonce,
        hello.tenant,
        hello.name,
        said.version,
        said.user,
        said.fabric_key,
    )


class Impostor:
    """Answers like a daemon, proves itself as `prove` says, and records every message."""

    def __init__(self, prove: Prove, port: int = 0, fabric_key: bytes = b"") -> None:
        self.prove, self.fabric_key, self.fabric = prove, fabric_key, ""
        self.heard: list[p.Request] = []
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.LINGER, 0)
        self._router.bind(f"tcp://127.0.0.1:{port or '*'}")
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self.port = int(self.endpoint.rpartition(":")[2])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._router.poll(10):
                route, _, data = self._router.recv_multipart()
                request = p.decode_request(data)
                self.heard.append(request)
                reply = self._answer(request)
                reply.id = request.id
                self._router.send_multipart([route, p.encode(reply)])

    def _answer(self, request: p.Request) -> p.Reply:
        if isinstance(request, p.Hello):
            said = p.Challenge(
                version=p.VERSIONS[0],
                nonce=secrets.token_bytes(16),
                user=USER,
                fabric_key=self.fabric_key,
                proof=b"",
            )
            said.proof = self.prove(request, said)
            return said
        if isinstance(request, p.Prove):
            return p.Welcome(
                version=p.VERSIONS[0],
                ticket=b"t" * 16,
                boot_id=0,
                geometry=GEOMETRY,
                storage="",
                limits=LIMITS,
            )
        if isinstance(request, p.Attach):
            return p.Attached(
                fabric="zmq",
                token="ab" * 16,
                endpoint=self.fabric,
                payload_size_bytes=1024,
                demand_max=4,
            )
        return p.Ok()

    def kinds(self) -> set[str]:
        return {type(one).__name__ for one in self.heard}

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)


@contextlib.contextmanager
def listening(prove: Prove, port: int = 0, fabric_key: bytes = b"") -> Iterator[Impostor]:
    one = Impostor(prove, port, fabric_key)
    try:
        yield one
    finally:
        one.close()


def login(endpoint: str, *, heartbeat: bool = False) -> Control:
    return Control(endpoint, tenant="red", secret=SECRET, timeout_s=2.0, heartbeat=heartbeat)


def other_secret(hello: p.Hello, said: p.Challenge) -> bytes:
    return honest(hello, said, b"x" * 32)


def reflected(hello: p.Hello, said: p.Challenge) -> bytes:
    """Return the host's own proof for the nonce."""
    said.nonce = hello.nonce
    return p.prove(SECRET, hello.nonce, hello.tenant, hello.name)


def replayed(hello: p.Hello, said: p.Challenge) -> bytes:
    """Return the valid proof of an earlier login."""
    return honest(p.Hello(versions=[6], name=hello.name, tenant="red", nonce=b"e" * 16), said)


def other_user(hello: p.Hello, said: p.Challenge) -> bytes:
    proof = honest(hello, said)
    said.user += 1
    return proof


def other_key(hello: p.Hello, said: p.Challenge) -> bytes:
    proof = honest(hello, said)
    said.fabric_key = zmq.curve_keypair()[0]
    return proof


@pytest.mark.parametrize(
    "prove", [other_secret, reflected, replayed, other_user, other_key, lambda *_: b""]
)
def test_a_daemon_without_the_secret_hears_only_hello(prove: Prove) -> None:
    """Given a proof from a wrong secret, the host's own, an old one, one of other words, or none,
    the host sends only Hello and reports one line."""
    with listening(prove) as impostor:
        with pytest.raises(BadInput, match="cannot prove that it has the secret") as caught:
            login(impostor.endpoint)
        assert impostor.kinds() == {"Hello"} and "\n" not in str(caught.value)


@pytest.mark.parametrize("heartbeat", [False, True])
def test_a_process_that_takes_over_the_port_hears_only_hello(heartbeat: bool) -> None:
    """A process that takes the port of a daemon that ended does not receive the host's next
    call."""
    with listening(honest) as daemon:
        control = login(daemon.endpoint, heartbeat=heartbeat)
        control.set_generating(1, True)
    with listening(other_secret, daemon.port) as impostor:
        with pytest.raises(OffstageError):
            control.append(1, [b"c" * 16])
        until_s = time.monotonic() + 10
        while heartbeat and not control.lost and time.monotonic() < until_s:
            time.sleep(0.02)
        assert bool(control.lost) == heartbeat
        control.close()
        assert impostor.kinds() == {"Hello"}


def test_a_daemon_that_comes_back_proves_itself_and_goes_on() -> None:
    """After a broken connection the next call reaches a daemon that has the secret; calls made
    during the outage fail without side effects."""
    with listening(honest) as daemon:
        control = login(daemon.endpoint)
    for _ in range(2):
        with pytest.raises(
            (Unreachable, DeviceTimeout)
        ):  # depends on whether zmq noticed the end in time
            control.set_generating(1, True)
    with listening(honest, daemon.port) as again:
        control.set_generating(1, True)
        assert [type(one) for one in again.heard] == [p.Hello, p.SetGenerating]
        control.close()


def test_the_zmq_fabric_needs_the_proved_key() -> None:
    """A process at the fabric's endpoint without the daemon's key receives no frame."""
    mine = zmq.curve_keypair()[0]
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    plain, keyed = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
    keyed.curve_publickey, keyed.curve_secretkey = zmq.curve_keypair()
    keyed.curve_server = True
    for one in (plain, keyed):
        one.bind("tcp://127.0.0.1:*")
        with listening(honest, fabric_key=mine) as daemon:
            daemon.fabric = one.getsockopt_string(zmq.LAST_ENDPOINT)
            with login(daemon.endpoint) as control, connect(control) as driver:
                driver._socket.send_multipart([b"ticket", b"plaintext"], zmq.NOBLOCK)
                assert not one.poll(500)
    context.destroy(linger=0)


def test_a_fabric_without_a_key_gets_nothing() -> None:
    """The fabric of a daemon whose libzmq lacks CURVE is refused in one line."""
    with listening(honest) as daemon, login(daemon.endpoint) as control:
        with pytest.raises(BadInput, match="libzmq has no CURVE"):
            connect(control)


def test_descriptors_come_from_the_daemons_user(tmp_path: Path) -> None:
    """Another user's process at the daemon's Unix socket does not receive the token."""
    if Path("/proc/self/uid_map").read_text().split() != ["0", "0", "4294967295"] or USER != 0:
        pytest.skip("takes another user; run it as root, outside of a user namespace")
    path = tmp_path / "s"
    server = socket.socket(socket.AF_UNIX)
    os.seteuid(30_002)  # the kernel reports the credentials that the listener had at that time
    try:
        inside = Path(f"/tmp/ofs-{secrets.token_hex(8)}")
        server.bind(str(inside))
        server.listen()
    finally:
        os.seteuid(0)
    inside.rename(path)
    attached = p.Attached(
        fabric="shm",
        token="cafe",
        socket_path=str(path),
        user=30_001,
        payload_size_bytes=1024,
        demand_max=4,
    )
    with pytest.raises(BadInput, match="user 30002 listens there"):
        shm.fetch_descriptors(attached, 2.0)
    peer, _ = server.accept()
    assert peer.recv(100) == b""
    server.close()
