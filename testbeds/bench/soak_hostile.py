"""The hostile host of `offstage bench soak`: a user with a secret who runs every known attack.

Each attack is a separate process, all concurrently. Every few seconds all are killed without
notice and start over. None may affect other tenants; what an attack is refused is not counted.
"""

import contextlib
import mmap
import os
import signal
import socket
import struct
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import zmq

from offstage.bindings.errors import OffstageError
from offstage.dpu import protocol as p
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics.shm import fetch_descriptors, open_driver
from offstage.host.link.control import Control
from offstage.testbeds.beds.child import ends_with_its_parent
from offstage.testbeds.bench.soak_board import Board, Turns
from offstage.testbeds.bench.tenants_hosts import FLOODS, Host

__all__ = ["ATTACKS", "GRANTED", "Target", "hostile"]

ROUND_S = 5.0
BEGIN_S = 120.0
LOOK_S = 0.05
PAUSE_S = 0.05
NICE = 10  # hosts have cores of their own where they are deployed
GRANTED = "granted"
"""Operator requests that were answered, and must not be."""
FILLED = 256  # blocks to demand: twice the tenant's part of the arena
MUTE = 300  # open connections of each kind
PARTS = 5_000
TCP = "tcp://"
# region.h: ofs_port_header up to its offsets, the words behind it, and ofs_sqe
HEADER = struct.Struct("<QIIQQIIIIQQQQ")
SQE = struct.Struct("<QHHHHIIIIIIIIQQ")
TAIL, HEAD, DONE_TAIL, DONE_HEAD = 256, 320, 384, 448
U32 = struct.Struct("<I")
PORT_BYTES_MAX = 64  # bytes of one scribble


@dataclass(frozen=True)
class Target:
    """The daemon's endpoints, the tenant's login, and the victim's name."""

    where: Endpoint
    metrics_port: int
    victim: str


Attack = Callable[[Target, Board], None]


def flooding(kind: str) -> Attack:
    """A flood of `offstage bench tenants`."""

    def attack(target: Target, board: Board) -> None:
        with contextlib.closing(Host(target.where)) as host:
            if kind == "demands":
                host.fill(FILLED)
            FLOODS[kind](host, Turns(board, kind))

    return attack


def multipart(target: Target, board: Board) -> None:
    """Messages of thousands of parts, from an unknown sender."""
    context = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(target.where.address)
    dealer.setsockopt(zmq.SNDTIMEO, 1000)
    parts = [bytes(200)] * PARTS
    while True:
        board.add("multipart")
        with contextlib.suppress(zmq.Again):
            dealer.send_multipart(parts)
        time.sleep(PAUSE_S)


def mute(target: Target, board: Board) -> None:
    """Connections that send nothing, or half a message: control, metrics and hand-out."""
    host, port = target.where.address.removeprefix(TCP).rsplit(":", 1)
    with _login(target) as control:
        attached = control.attach("shm")
        open_driver(attached, BEGIN_S).close()
    kinds: list[tuple[int, Any, bytes]] = [
        (socket.AF_INET, (host, int(port)), b"\xff" + bytes(8) + b"\x7f"),
        (socket.AF_INET, ("127.0.0.1", target.metrics_port), b"GET /metrics HT"),
        (socket.AF_UNIX, attached.socket_path, b"0123"),
    ]
    held: deque[socket.socket] = deque()
    while True:
        for family, address, said in kinds:
            one = socket.socket(family)
            held.append(one)
            one.settimeout(1.0)
            with contextlib.suppress(OSError):
                one.connect(address)
                one.sendall(said[: len(held) % (len(said) + 1)])
            board.add("mute")
        while len(held) > MUTE * len(kinds):
            held.popleft().close()
        time.sleep(PAUSE_S / 10)


def logins(target: Target, board: Board) -> None:
    """The victim's name with guessed secrets, repeatedly."""
    hello = p.Hello(versions=list(p.VERSIONS), name="host", tenant=target.victim, nonce=bytes(16))
    with _login(target) as control:
        raw = control.dealer(target.where.address)  # a host would notice that its secret is another
        while True:
            board.add("logins")
            said = _ask(raw, hello)
            if isinstance(said, p.Challenge):
                guess = p.Prove(nonce=said.nonce, proof=os.urandom(32))
                if isinstance(_ask(raw, guess), p.Welcome):
                    board.add(GRANTED)


def _ask(raw: "zmq.Socket[bytes]", request: p.Request) -> p.Reply | None:
    with contextlib.suppress(zmq.Again):
        raw.send_multipart([b"", p.encode(request)], zmq.NOBLOCK)
        if raw.poll(1000):
            return p.decode_reply(raw.recv_multipart()[-1])
    return None


def messages(target: Target, board: Board) -> None:
    """Well-formed requests for other tenants' objects, and malformed messages."""
    rng = np.random.default_rng(os.getpid())
    ours: list[Callable[[int], p.Request]] = [
        lambda n: p.SessionClose(session=n, keep=bool(n % 2)),
        lambda n: p.SetGenerating(session=n, generating=True),
        lambda n: p.Append(session=n, contents=[os.urandom(16)] * (n % 200)),
        lambda n: p.SessionOpen(sink_blocks=n, window_blocks=n, select_blocks=n, step_ns=n),
    ]
    theirs: list[Callable[[int], p.Request]] = [
        lambda n: p.Reset(),
        lambda n: p.Drain(timeout_ns=n),
        lambda n: p.Undrain(),
        lambda n: p.Ledger(tenant=target.victim),
        lambda n: p.FabricShut(fabric="shm"),
        lambda n: p.Purge(tenant=target.victim, keep_blocks=0),
        lambda n: p.PolicySet(changes={"eviction": "fifo"}),
        lambda n: p.StorageMove(changes={"path": "/tmp/elsewhere"}),
    ]
    with _login(target) as control:
        raw = control.dealer(target.where.address)
        while True:
            board.add("messages")
            number = int(rng.integers(1 << 31)) if rng.random() < 0.2 else int(rng.integers(80))
            with contextlib.suppress(OffstageError):
                control.call(ours[int(rng.integers(len(ours)))](number))
            with contextlib.suppress(OffstageError):
                control.call(theirs[int(rng.integers(len(theirs)))](number))
                board.add(GRANTED)
            text = bytearray(p.encode(p.SessionClose(session=number)))
            text[int(rng.integers(len(text)))] ^= int(rng.integers(1, 256))
            with contextlib.suppress(zmq.Again):
                raw.send_multipart([os.urandom(16), rng.bytes(int(rng.integers(300)))], zmq.NOBLOCK)
                raw.send_multipart([os.urandom(16), bytes(text)], zmq.NOBLOCK)
            while raw.poll(0):
                raw.recv_multipart()


def commands(target: Target, board: Board) -> None:
    """Commands of random numbers in its own port, and random bytes over all writable memory."""
    rng = np.random.default_rng(os.getpid())
    with _login(target) as control:
        _, (region, port, bell) = fetch_descriptors(control.attach("shm"), BEGIN_S)
        os.close(region)
        sessions = [control.session_open(select_blocks=8) for _ in range(2)]
        for session in sessions:
            control.append(session, [os.urandom(16) for _ in range(16)])
        memory = mmap.mmap(port, os.fstat(port).st_size)
        header = HEADER.unpack_from(memory)
        while True:
            _burst(memory, header, rng, sessions)
            with contextlib.suppress(BlockingIOError):
                os.write(bell, b"!")
            if rng.random() < 0.05:
                _scribble(memory, rng)
            board.add("commands")
            time.sleep(PAUSE_S / 50)


def _burst(
    memory: mmap.mmap, header: tuple[int, ...], rng: np.random.Generator, sessions: list[int]
) -> None:
    entries, put_slots = header[5], header[7]
    submissions, payloads = header[9], header[11]

    def below(n: int) -> int:
        return int(rng.integers(n)) if rng.random() < 0.9 else int(rng.integers(1 << 32))

    (tail,) = U32.unpack_from(memory, TAIL)
    count = int(rng.integers(1, entries))
    for place in range(tail, tail + count):
        session = sessions[below(2) % 2] if rng.random() < 0.5 else below(128)
        SQE.pack_into(
            memory,
            submissions + place % entries * SQE.size,
            place,
            below(6) & 0xFFFF,
            below(3) & 0xFFFF,
            below(3) & 0xFFFF,
            below(entries) & 0xFFFF,
            session,
            below(99),
            below(99),
            below(64),
            below(64),
            below(40),
            below(put_slots),
            below(40 << 10),
            below(9),
            below(2),
        )
    noise = rng.bytes(int(rng.integers(1, 4096)))
    at = payloads + int(rng.integers(4096))
    memory[at : at + len(noise)] = noise
    ahead = count if rng.random() < 0.98 else int(rng.integers(1 << 32))
    U32.pack_into(memory, TAIL, (tail + ahead) % (1 << 32))
    memory[DONE_HEAD : DONE_HEAD + 4] = memory[DONE_TAIL : DONE_TAIL + 4]


def _scribble(memory: mmap.mmap, rng: np.random.Generator) -> None:
    """Writes anywhere, including the header and both rings."""
    for end in (4096, len(memory)):
        noise = rng.bytes(int(rng.integers(1, PORT_BYTES_MAX)))
        at = int(rng.integers(end - PORT_BYTES_MAX))
        memory[at : at + len(noise)] = noise


ATTACKS: dict[str, Attack] = {
    **{kind: flooding(kind) for kind in FLOODS},
    "multipart": multipart,
    "mute": mute,
    "logins": logins,
    "messages": messages,
    "commands": commands,
}


def hostile(target: Target, board: Board) -> dict[str, int]:
    """Rounds of all attacks, each ended by a kill, until it is stopped."""
    rounds = 0
    while rounds == 0 or not board.stopped():
        before = board.counts()
        attackers = [_begin(attack, target, board) for attack in ATTACKS.values()]
        try:
            until_s = time.monotonic() + BEGIN_S
            while not _all_began(before, board) and time.monotonic() < until_s:
                time.sleep(LOOK_S)
            until_s = time.monotonic() + ROUND_S
            while not board.stopped() and time.monotonic() < until_s:
                time.sleep(LOOK_S)
        finally:
            for attacker in attackers:
                os.kill(attacker, signal.SIGKILL)
                os.waitpid(attacker, 0)
        rounds += 1
    return {"rounds": rounds}


def _all_began(before: dict[str, int], board: Board) -> bool:
    now = board.counts()
    return all(now[name] > before[name] for name in ATTACKS)


def _begin(attack: Attack, target: Target, board: Board) -> int:
    """A process that attacks, and restarts when it fails."""
    pid = os.fork()
    if pid == 0:
        try:
            ends_with_its_parent()
            os.nice(NICE)
            while True:
                with contextlib.suppress(OffstageError, OSError, zmq.ZMQError):
                    attack(target, board)
                time.sleep(PAUSE_S)
        finally:
            os.write(2, traceback.format_exc().encode())
            os._exit(1)
    return pid


def _login(target: Target) -> Control:
    name = f"{target.where.tenant}-{os.getpid()}"
    return replace(target.where, name=name, timeout_s=10.0).control()
