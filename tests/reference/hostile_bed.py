"""A host that sends invalid numbers in every field of the messages and of the port's commands; and
an honest host of the same tenant, whose bytes are checked meanwhile."""

import contextlib
import math
import mmap
import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from live_daemon import CHUNKS, LAYERS, WAIT_S, Daemon, fetch, open_text, put, until

from offstage.bindings.layouts import layout
from offstage.dpu import protocol as p
from offstage.dpu.protocol import zmq_messages
from offstage.host.fabrics.shm import fetch_descriptors, open_driver
from offstage.host.link.control import Control

LONG = 100_000  # bytes: within what a socket takes as one message
INTEGERS = (0, -1, -(2**63), 2**31, 2**32 - 1, 2**32, 2**50, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (math.nan, math.inf, -math.inf, -1.0, 1e308, 5e-324)
TEXTS = ("", "\0", "-1", "1e999", "nan", str(2**31), str(2**63), str(2**64), "x" * LONG)
SQE, CQE = layout("struct ofs_sqe"), layout("struct ofs_cqe")
GUESS = layout("struct ofs_guess")
HEADER = layout("struct ofs_port_header")
TAIL, DONE_TAIL, DONE_HEAD = 256, 384, 448  # region.h: the words behind the header, in bytes
IN_PROGRESS = -115


def plain(value: Any) -> Any:
    """The plain values that a message is encoded from, with every field."""
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__}
        if config.array_like:
            return list(fields.values())
        return ({} if config.tag is None else {"type": config.tag}) | fields
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return value


def absurd(value: Any) -> Iterator[Any]:
    """Values that a field with this value is not meant to hold."""
    if isinstance(value, bool):
        yield from (2, None)
    elif isinstance(value, int | float):
        yield from (*INTEGERS, *FLOATS)
    elif isinstance(value, bytes):
        yield from (
            b"\xff" * len(value),
            bytes(len(value)),
            b"",
            value[:-1],
            value + b"x",
            bytes(LONG),
            b"\xff" * LONG,
        )
    elif isinstance(value, str):
        yield from (*TEXTS, 2**64 - 1)
    elif isinstance(value, list):
        size = len(msgspec.msgpack.encode(value[:1])) + 1
        yield from ([], value[:1] * (LONG // size), None, [2**64 - 1])
    elif isinstance(value, dict):
        yield from ({}, {str(number): "x" for number in range(LONG // 10)}, None)


def twisted(message: Any) -> Iterator[Any]:
    """Copies of the message, each with one value, at any depth, made absurd."""
    if isinstance(message, dict):
        for name, one in message.items():
            if name != "type":
                for other in (*absurd(one), *twisted(one)):
                    yield {**message, name: other}
    elif isinstance(message, list):
        for place, one in enumerate(message):
            for other in (*absurd(one), *twisted(one)):
                yield [*message[:place], other, *message[place + 1 :]]


class Attacker:
    """A host, or the operator, that sends arbitrary bytes over its own socket."""

    def __init__(self, tier: Daemon, tenant: str, fabric: p.FabricName = "shm") -> None:
        self._tier, self._tenant, self._fabric = tier, tenant, fabric
        self._login()

    def _login(self) -> None:
        self.control = self._tier.control(self._tenant, timeout_s=WAIT_S, heartbeat=False)
        self._socket = self.control.dealer(self.control._connection.via)
        self.ticket = self.control._ticket
        if self._tenant != p.OPERATOR:
            attached = self.control.attach(self._fabric)
            if self._fabric == "zmq":
                self._socket = self.control.fabric_dealer(attached.endpoint)
                self.ticket = bytes.fromhex(attached.token)

    def session(self) -> int:
        session = self.control.session_open(select_blocks=4)
        self.control.append(session, [os.urandom(16) for _ in range(4)])
        return session

    def ask(self, message: Any, *payload: bytes) -> Any:
        """Send these bytes and return the answer, which always comes."""
        self._socket.send_multipart([self.ticket, msgspec.msgpack.encode(message), *payload])
        assert self._socket.poll(int(WAIT_S * 1000)), f"no answer to {str(message)[:300]}"
        body = self._socket.recv_multipart()[0]
        return (
            zmq_messages.decode_fabric_reply(body)
            if self._fabric == "zmq"
            else p.decode_reply(body)
        )

    def close(self) -> None:
        self._socket.close(0)
        self.control.close()


class Honest:
    """A host that reads its text repeatedly, with each block compared, on its own thread."""

    def __init__(self, tier: Daemon, number: int = 1) -> None:
        self._tier, self._number = tier, number
        self.blocks = 0
        self.error: BaseException | None = None
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Honest":
        self._thread.start()
        assert self._ready.wait(WAIT_S)
        self.check()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Check that it is still served: all requested blocks, with its own bytes."""
        before = self.blocks
        until(lambda: self.error is not None or self.blocks > before + 16)
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            with self._tier.control(timeout_s=WAIT_S, heartbeat=False) as control:
                self._work(control)
        except BaseException as error:
            self.error = error
        finally:
            self._ready.set()

    def _work(self, control: Control) -> None:
        rng = random.Random(self._number)
        with open_driver(control.attach("shm")) as driver:
            text = open_text(control, self._number)
            for layer in range(LAYERS):
                for first in range(0, CHUNKS, 8):
                    ordinals = list(range(first, first + 8))
                    assert put(driver, text, layer, ordinals) == ordinals
            self._ready.set()
            while not self._stop.is_set():
                layer, ordinals = rng.randrange(LAYERS), sorted(rng.sample(range(CHUNKS), 8))
                assert not any(fetch(driver, text, layer, ordinals, int(WAIT_S * 1e9)))
                self.blocks += 8


class RawPort:
    """A port whose submission ring the test writes directly."""

    def __init__(self, control: Control) -> None:
        _, (region, port, self._bell) = fetch_descriptors(control.attach("shm"), WAIT_S)
        os.close(region)
        memory = np.frombuffer(mmap.mmap(port, os.fstat(port).st_size), np.uint8)
        os.close(port)
        self.header: Any = memory[: HEADER.itemsize].view(HEADER)[0]
        entries = int(self.header["entry_count"])
        self._words: npt.NDArray[np.uint32] = memory[:1024].view(np.uint32)
        self._ring = self._piece(memory, "submissions_offset", entries, SQE)
        self._ended = self._piece(memory, "completions_offset", 2 * entries, CQE)
        self._tail = int(self._words[TAIL // 4])
        self._taken = int(self._words[DONE_TAIL // 4])
        self.payloads = memory[int(self.header["payloads_offset"]) :]
        self.entry_count = entries

    def _piece(self, memory: Any, offset: str, count: int, kind: Any) -> Any:
        begin = int(self.header[offset])
        return memory[begin : begin + count * kind.itemsize].view(kind)

    def run(self, commands: Any) -> Any:
        """Send commands, no more than the ring holds, and wait for their completions, in any
        order."""
        places = (self._tail + np.arange(len(commands))) % self.entry_count
        self._ring[places] = commands
        self._tail = (self._tail + len(commands)) % 2**32
        self._words[TAIL // 4] = self._tail
        found: list[Any] = []
        count, end_s = 0, time.monotonic() + WAIT_S
        while count < len(commands):
            with contextlib.suppress(BlockingIOError):
                os.write(self._bell, b"!")
            new = self._new()
            count += int((new["rc"] != IN_PROGRESS).sum())
            found.append(new)
            assert time.monotonic() < end_s, f"{count} of {len(commands)} commands were answered"
            if not len(new):
                time.sleep(0.0002)
        ended = np.concatenate(found)
        return ended[ended["rc"] != IN_PROGRESS]

    def _new(self) -> Any:
        tail = int(self._words[DONE_TAIL // 4])
        places = (self._taken + np.arange((tail - self._taken) % 2**32)) % len(self._ended)
        new = self._ended[places].copy()
        self._taken = tail
        self._words[DONE_HEAD // 4] = tail
        return new


def refused_by(reply: Any) -> str:
    """The code of a refusal; empty if it succeeded."""
    return reply.code if isinstance(reply, p.Error) else ""


__all__ = [
    "GUESS",
    "INTEGERS",
    "SQE",
    "Attacker",
    "Honest",
    "RawPort",
    "plain",
    "refused_by",
    "twisted",
]
