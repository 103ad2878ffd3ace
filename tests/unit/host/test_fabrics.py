"""Do the host's fabrics refuse wrong or hostile messages in one line each?"""

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from offstage.bindings.bare_device import BareConfig, BareDevice
from offstage.bindings.errors import BadInput, Incompatible, OffstageError, RunFailed
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.keys import checksum
from offstage.dpu import protocol as p
from offstage.dpu.protocol import zmq_messages
from offstage.host.fabrics.shm import open_driver
from offstage.host.fabrics.zmq import ZmqDriver

PAYLOAD = 1024
ROWS = np.random.default_rng(2).integers(0, 256, (3, PAYLOAD), np.uint8)
Answer = Callable[[Any, list[bytes]], list[bytes]]


class Server:
    """A ROUTER that answers every request as `answer` says."""

    def __init__(self, answer: Answer) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self.context.socket(zmq.ROUTER)
        port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self._answer = answer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        dealer = self.context.socket(zmq.DEALER)
        dealer.connect(f"tcp://127.0.0.1:{port}")
        attached = p.Attached(
            fabric="zmq",
            token="ab" * 16,
            endpoint=f"tcp://127.0.0.1:{port}",
            payload_size_bytes=PAYLOAD,
            demand_max=3,
        )
        self.client = ZmqDriver(dealer, attached, put_slot_count=2)

    def _run(self) -> None:
        while not self._stop.is_set():
            if self._router.poll(20):
                routing, ticket, body, *payload = self._router.recv_multipart()
                assert ticket == b"\xab" * 16
                reply = self._answer(zmq_messages.decode_fabric_request(body), payload)
                if reply:
                    self._router.send_multipart([routing, *reply])

    def close(self) -> None:
        self.client.close()
        self._stop.set()
        self._thread.join()
        self.context.destroy(linger=0)


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], ZmqDriver]]:
    servers: list[Server] = []

    def start(answer: Answer) -> ZmqDriver:
        servers.append(Server(answer))
        return servers[-1].client

    yield start
    for server in servers:
        server.close()


def good_reply(request: zmq_messages.FabricFetch) -> zmq_messages.FabricFetchReply:
    """Return a reply in which all blocks arrived, with ROWS as their bytes."""
    count = len(request.ordinals) // 4
    return zmq_messages.FabricFetchReply(
        id=request.id,
        ends=bytes(count),
        rcs=bytes(4 * count),
        lengths=np.full(count, PAYLOAD, "<u4").tobytes(),
        checksums=np.array([checksum(row) for row in ROWS[:count]], "<u8").tobytes(),
        hit_count=count,
        failed_count=0,
        retry_count=0,
        torn_count=0,
        stall_ns=5,
        copy_ns=7,
    )


def fetch(client: ZmqDriver, count: int = 3, **more: Any) -> tuple[Any, Any]:
    target = np.zeros((count, PAYLOAD), np.uint8)
    ordinals = np.arange(count, dtype=np.uint32)
    keys = np.zeros((count, 2), np.uint64)
    return client.fetch(FetchRequest(0, 1, 0, ordinals, keys, target, **more)), target


def test_a_row_damaged_on_the_way_is_not_handed_out(serve: Callable[[Answer], ZmqDriver]) -> None:
    damaged = ROWS.copy()
    damaged[1, 77] ^= 4

    def answer(request: Any, _: list[bytes]) -> list[bytes]:
        return [p.encode(good_reply(request)), damaged.tobytes()]

    done, target = fetch(serve(answer))
    assert done.rcs.tolist() == [0, -errno.EBADMSG, 0] and done.ends[1] == 255
    assert done.failed_count == 1
    assert np.array_equal(target[[0, 2]], ROWS[[0, 2]]) and not target[1].any()


def test_a_fetch_is_split_and_joined(serve: Callable[[Answer], ZmqDriver]) -> None:
    """Seven demands in messages of three: the selection and its scores are sent once."""
    seen: list[tuple[int, int, int]] = []

    def answer(request: Any, _: list[bytes]) -> list[bytes]:
        count = len(request.ordinals) // 4
        seen.append((count, request.selected_count, len(request.scores) // 2))
        return [p.encode(good_reply(request)), ROWS[:count].tobytes()]

    done, target = fetch(serve(answer), 7, selected_count=9, scores=np.ones(4, np.uint16))
    assert seen == [(3, 5, 4), (3, 3, 0), (1, 1, 0)]
    assert len(done.rcs) == 7 and not done.rcs.any() and done.hit_count == 7
    assert done.stall_ns == 15
    assert np.array_equal(target, np.concatenate([ROWS, ROWS, ROWS[:1]]))


def test_puts_are_split_by_the_window(serve: Callable[[Answer], ZmqDriver]) -> None:
    def answer(request: Any, payload: list[bytes]) -> list[bytes]:
        count = len(request.ordinals) // 4
        assert len(payload[0]) == count * request.length_bytes and count <= 2
        rows = np.frombuffer(payload[0], np.uint8).reshape(count, -1)
        sums = np.array([checksum(row) for row in rows], "<u8").tobytes()
        assert sums == request.checksums
        return [p.encode(zmq_messages.FabricPutReply(id=request.id, rcs=request.ordinals))]

    client = serve(answer)
    rcs = client.put(PutRequest(0, 0, np.arange(3, dtype=np.uint32), ROWS, length_bytes=1000))
    assert rcs.tolist() == [0, 1, 2]  # this server answers with the ordinals
    assert client.stats()["puts"] == 1 and client.stats()["bytes_put"] == 1000
    with pytest.raises(BadInput, match="1025"):
        client.put(PutRequest(0, 0, np.zeros(1, np.uint32), np.zeros((1, 1025), np.uint8)))


@pytest.mark.parametrize(
    "answer",
    [
        lambda request, _: [b"\xff garbage"],
        lambda request, _: [p.encode(good_reply(request))],
        lambda request, _: [p.encode(good_reply(request)), b"short"],
        lambda request, _: [p.encode(p.Ok(id=request.id))],
        lambda request, _: [p.encode(zmq_messages.FabricPutReply(id=request.id, rcs=b""))],
        lambda request, _: [
            p.encode(p.Error(id=request.id, code="busy", what="too much", fix="wait"))
        ],
    ],
    ids=["garbage", "no payload", "short payload", "ok", "another reply", "error"],
)
def test_a_wrong_answer_is_one_line(serve: Callable[[Answer], ZmqDriver], answer: Answer) -> None:
    with pytest.raises(OffstageError) as caught:
        fetch(serve(answer))
    assert str(caught.value) and "\n" not in str(caught.value) and caught.value.fix


def test_silence_ends(serve: Callable[[Answer], ZmqDriver], monkeypatch: Any) -> None:
    """A late answer to an earlier request is not taken for the answer to the current one."""
    monkeypatch.setattr("offstage.host.fabrics.zmq.LINK_NS", 50_000_000)
    requests: list[Any] = []

    def answer(request: Any, _: list[bytes]) -> list[bytes]:
        requests.append(request)
        if len(requests) == 1:
            return []
        stale = good_reply(requests[0])
        return [p.encode(stale), ROWS.tobytes()]

    client = serve(answer)
    for _ in range(2):
        with pytest.raises(RunFailed, match="does not answer"):
            fetch(client, timeout_ns=1)
    client.close()
    with pytest.raises(RunFailed, match="closed"):
        fetch(client)


def hand_out(path: Path, said: bytes, fds: list[int]) -> threading.Thread:
    """Start a daemon's hand-out socket that sends `said` to one host."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def run() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(256)
            if fds:
                socket.send_fds(connection, [said], fds)
            elif said:
                connection.send(said)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def attached(path: Path, blob: bytes = b"") -> p.Attached:
    return p.Attached(
        fabric="shm",
        token="00",
        socket_path=str(path),
        blob=blob,
        payload_size_bytes=PAYLOAD,
        demand_max=3,
        user=os.getuid(),
    )


def real_blob() -> bytes:
    with BareDevice(BareConfig(), simulated=True) as device:
        return device.attachment.blob


def test_no_socket(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="zmq fabric"):
        open_driver(attached(tmp_path / "nothing"))


@pytest.mark.parametrize("said", [b"refused: no such token; attach again\n", b""])
def test_a_refused_token(tmp_path: Path, said: bytes) -> None:
    thread = hand_out(tmp_path / "s", said, [])
    with pytest.raises(RunFailed, match="no descriptors") as caught:
        open_driver(attached(tmp_path / "s"))
    thread.join()
    assert "\n" not in str(caught.value)


def test_descriptors_that_are_no_region(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.write(bytes(8192))
        file.flush()
        thread = hand_out(tmp_path / "s", b"ok\n", [file.fileno()] * 3)
        with pytest.raises(Incompatible, match="sealed"):
            open_driver(attached(tmp_path / "s", real_blob()))
        thread.join()
