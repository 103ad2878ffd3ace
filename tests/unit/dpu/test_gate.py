"""Does the gate in front of the control socket limit what a peer can use, and lock no other out?"""

import contextlib
import io
import secrets
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
import zmq.auth
from on_disk import snapshot

from offstage.bindings.errors import BadInput
from offstage.dpu.config.values import load
from offstage.dpu.log import Log
from offstage.dpu.sockets import gate
from offstage.dpu.sockets.control_socket import ControlSocket
from offstage.dpu.sockets.gate import Gate, _Pair
from offstage.dpu.tenants.hosts import Hosts

WAIT_S = 120.0
MORE, LARGE = 1, 2


def quiet() -> Log:
    return Log("error", io.StringIO(), text=False)


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlSocket]:
    """Yield the daemon's own socket, which answers every message with its number of frames."""
    config = load(
        overrides={
            "daemon.endpoint": "tcp://127.0.0.1:*",
            "limits.connections": "8",
            "limits.message": "64KiB",
        },
        environ={},
    )
    control = ControlSocket(config, quiet())
    control.listen()
    control.open(tmp_path)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            control.poll(0.05, [])
            while (frames := control.receive()) is not None:
                control._socket.send_multipart([frames[0], str(len(frames)).encode()])

    server = threading.Thread(target=serve)
    server.start()
    yield control
    stop.set()
    server.join()
    control.close()


def shake(endpoint: str) -> socket.socket:
    """A raw connection that has done ZeroMQ's handshake (ZMTP 3.0, NULL) as a DEALER."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    raw = socket.create_connection((host, int(port)), timeout=WAIT_S)
    raw.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48))
    ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"
    raw.sendall(bytes([4, len(ready)]) + ready)
    answer = b""
    while len(answer) < 64 or b"READY" not in answer:  # messages begin only after READY
        piece = raw.recv(4096)
        if not piece:
            break  # displaced already
        answer += piece
    return raw


def ask(endpoint: str, frames: list[bytes]) -> bytes:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(endpoint)
        dealer.send_multipart(frames)
        assert dealer.poll(int(WAIT_S * 1000)), "no answer"
        return dealer.recv()


def test_a_message_that_does_not_end_is_not_kept(
    control: ControlSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message has frame after frame: its sender is stopped at the maximum length and
    disconnected, while others are answered. ZeroMQ alone would buffer them all."""
    monkeypatch.setattr(gate, "STALL_S", 1.0)
    sent = 0
    with shake(control.gate.endpoint) as raw, contextlib.suppress(OSError):
        frame = bytes([MORE | LARGE]) + struct.pack(">Q", 4096) + bytes(4096)
        while sent < 1 << 28:
            raw.sendall(frame)
            sent += len(frame)
    assert sent < 32 << 20, "it was read on"  # includes the kernel's buffers
    assert control.gate.counts["stalled"] == 1
    assert ask(control.gate.endpoint, [b"", b"x"]) == b"3"


def test_messages_come_through_whole_and_in_any_number(control: ControlSocket) -> None:
    """Many large messages of one peer, more than may wait at once, all get their answer."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(control.gate.endpoint)
        for _ in range(64):
            dealer.send_multipart([b"", secrets.token_bytes(64 << 10), b"end"])
        for _ in range(64):
            assert dealer.poll(int(WAIT_S * 1000)) and dealer.recv() == b"4"
    assert not control.gate.counts["stalled"]


def test_the_peer_with_most_connections_loses_one(control: ControlSocket, tmp_path: Path) -> None:
    """With eight connections allowed, fifty lock no other peer out, over the network's socket or
    the operator's."""
    with contextlib.ExitStack() as held:
        for _ in range(50):
            held.enter_context(shake(control.gate.endpoint))
        assert ask(control.gate.endpoint, [b"", b"x"]) == b"3"
        assert ask(f"ipc://{tmp_path}/operator.sock", [b"", b"x"]) == b"3"
        assert len(control.gate._pairs) <= 8 and control.gate.counts["displaced"] >= 42


def test_an_address_with_few_connections_keeps_them() -> None:
    """The flood's own connection is closed, even if another has been silent for longer."""
    one = gate.Gate(
        "tcp://127.0.0.1:*", connections_max=3, message_bytes_max=1, shared=False, log=quiet()
    )
    ends = [socket.socketpair() for _ in range(3)]
    for number, (pair, peer) in enumerate(zip(ends, ("quiet", "flood", "flood"), strict=True)):
        one._pairs[str(number)] = gate._Pair(*pair, peer, heard_s=float(number))
    one._make_room()
    assert [pair.peer for pair in one._pairs.values()] == ["quiet", "flood"]
    one.close()


def test_a_host_that_named_itself_is_not_displaced_by_a_flood_from_its_address(
    control: ControlSocket,
) -> None:
    """Users of one machine share its address: the silent connection of a host that showed its
    ticket stays while fifty without one come and go."""
    control.gate.whose = {b"ticket": "red"}.get  # type: ignore[assignment]
    with contextlib.ExitStack() as held:
        context = held.enter_context(zmq.Context())
        dealer = held.enter_context(context.socket(zmq.DEALER))
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(control.gate.endpoint)
        dealer.send_multipart([b"ticket", b"x"])
        assert dealer.poll(int(WAIT_S * 1000)) and dealer.recv() == b"3"
        (name,) = [one for one, pair in control.gate._pairs.items() if pair.peer == "tenant red"]
        for _ in range(50):
            held.enter_context(shake(control.gate.endpoint))
        assert control.gate.counts["displaced"] >= 40 and name in control.gate._pairs


def test_a_taken_port_and_a_dead_daemons_path(tmp_path: Path) -> None:
    """A port in use is refused, and the path of a killed daemon is taken over."""
    first = gate.Gate(
        f"ipc://{tmp_path}/c", connections_max=8, message_bytes_max=1, shared=False, log=quiet()
    )
    first.listen()
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o600
    again = gate.Gate(
        f"ipc://{tmp_path}/c", connections_max=8, message_bytes_max=1, shared=True, log=quiet()
    )
    with pytest.raises(BadInput, match="in use"):
        again.listen()
    assert first._listener is not None
    first._listener.close()  # like a kill, this leaves the file
    again.listen()
    assert (tmp_path / "c").stat().st_mode & 0o777 == 0o666
    again.close()
    first.close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match="in use"):
            gate.Gate(
                f"tcp://127.0.0.1:{port}",
                connections_max=8,
                message_bytes_max=1,
                shared=False,
                log=quiet(),
            ).listen()


def test_hellos_of_one_connection_cost_no_other_its_login() -> None:
    """During a flood of Hello, a peer that said Hello before can still prove its login."""
    from offstage.dpu.protocol import OPERATOR, Hello, prove

    hosts = Hosts(None, [], b"secret" * 4, 8, quiet())  # type: ignore[arg-type]
    hello = Hello(versions=[6], name="cli", tenant=OPERATOR, nonce=b"a" * 16)
    nonce = hosts.challenge(hello, route=b"mine").nonce
    for _ in range(5000):
        hosts.challenge(hello, route=b"flood")
    assert hosts.login(nonce, prove(b"secret" * 4, nonce, OPERATOR, "cli"), b"mine").tenant is None


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """The daemon refuses to use its CURVE key if the mode is 0644."""
    zmq.auth.create_certificates(tmp_path, "server")
    (tmp_path / "clients").mkdir()
    (tmp_path / "server.key_secret").chmod(0o644)
    config = load(overrides={"daemon.curve_dir": str(tmp_path)}, environ={})
    control = ControlSocket(config, quiet())
    with pytest.raises(BadInput, match="chmod 600"):
        control.secure(control._socket)
    control.close()


def test_connections_of_many_addresses_displace_no_host() -> None:
    """Each address has one connection and a tenant has three: an unauthenticated one makes room for
    the next."""
    gate = Gate("ipc://@x", connections_max=8, message_bytes_max=1, shared=False, log=quiet())
    pairs = []
    for number, peer in enumerate(["tenant a"] * 3 + [f"10.0.0.{at}" for at in range(5)]):
        ends = socket.socketpair()
        pairs.append(_Pair(*ends, peer, float(number)))
        gate._pairs[str(number)] = pairs[-1]
    gate._make_room()
    assert [one.peer for one in pairs].count("tenant a") == 3 and pairs[3].peer == ""
    gate.close()


def test_a_gate_takes_the_place_of_no_file(tmp_path: Path) -> None:
    """A file, a link or a folder at the path of an endpoint is refused and left alone; a killed
    daemon's socket is replaced."""
    (tmp_path / "file").write_text("of somebody")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    before = snapshot(tmp_path)

    def gate_at(name: str) -> Gate:
        return Gate(
            f"ipc://{tmp_path / name}",
            connections_max=8,
            message_bytes_max=1024,
            shared=False,
            log=quiet(),
        )

    for name in ("file", "link", "folder"):
        one = gate_at(name)
        with pytest.raises(BadInput, match="no socket"):
            one.listen()
        one.close()
        assert snapshot(tmp_path) == before
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "left"))
    again = gate_at("left")
    again.listen()
    again.close()
    assert snapshot(tmp_path) == before
