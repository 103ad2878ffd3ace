"""Can a host over ZMQ get blocks that its step's answer does not cover, or work beyond the limits
of a step or a port's window?"""

import contextlib
import errno
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import zmq

from offstage.bindings.driver import Driver
from offstage.bindings.fabric import Fetch, FetchRequest, FetchResult
from offstage.bindings.layouts import VALUE_ASK
from offstage.dpu import protocol as p
from offstage.dpu.control import zmq_fabric
from offstage.dpu.control.zmq_fabric import _Worker
from offstage.dpu.log import Log
from offstage.dpu.protocol import zmq_messages

BLOCK_BYTES = 64


class HitDriver:
    """Each demand is a hit; `answered` is whether the reactor answers the step."""

    payload_size_bytes, demand_max, calls_max = BLOCK_BYTES, 8, 4
    score_max, put_slot_count = 16, 4

    def __init__(self, *, answered: bool) -> None:
        self._answered, self._fetches = answered, list[Fetch]()

    def limit_scores(self, *limits: int) -> None:
        pass

    def fetch_begin(self, request: FetchRequest) -> Fetch:
        request.target[: len(request.ordinals)] = 7
        self._fetches.append(Fetch(request))
        return self._fetches[-1]

    def poll(self, timeout_ns: int) -> list[Fetch]:
        ended, self._fetches = self._fetches, []
        return ended

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        fetch.unanswered = not self._answered
        return fetch.result(hit_count=len(fetch.rcs))

    def close(self) -> None:
        pass


@contextlib.contextmanager
def worker_of(
    driver: HitDriver,
) -> Iterator[Callable[[zmq_messages.FabricRequest, bytes], list[bytes]]]:
    """Yield a function that returns a worker's answer, over this driver, to a request and its
    payload."""
    context = zmq.Context[zmq.Socket[bytes]]()
    replies = context.socket(zmq.PULL)
    replies.bind("inproc://replies")
    worker = _Worker(cast(Driver, driver), context, "inproc://replies", Log())

    def ask(request: zmq_messages.FabricRequest, payload: bytes) -> list[bytes]:
        assert worker.offer(b"host", request, payload)
        assert replies.poll(10_000)
        return replies.recv_multipart()[1:]

    try:
        yield ask
    finally:
        worker.stop()
        replies.close(0)
        context.term()


def fetch_of(**more: Any) -> zmq_messages.FabricFetch:
    return zmq_messages.FabricFetch(
        session=1,
        step=1,
        layer=0,
        ordinals=np.arange(2, dtype="<u4").tobytes(),
        keys=np.zeros(4, "<u8").tobytes(),
        selected_count=2,
        timeout_ns=10**9,
        **more,
    )


@pytest.mark.parametrize("answered", [True, False])
def test_hits_of_a_step_that_was_not_answered_do_not_come(answered: bool) -> None:
    """A reactor past its fence answers no step. Its hits are withheld, although a hit needs no
    reactor."""
    with worker_of(HitDriver(answered=answered)) as ask:
        body, rows = ask(fetch_of(), b"")
    reply = zmq_messages.decode_fabric_reply(body)
    assert isinstance(reply, zmq_messages.FabricFetchReply)
    assert np.frombuffer(reply.rcs, "<i4").tolist() == [0 if answered else -errno.ETIMEDOUT] * 2
    assert reply.failed_count == (0 if answered else 2)
    assert rows == bytes([7 if answered else 0]) * 2 * BLOCK_BYTES


def test_a_few_bytes_do_not_stand_for_millions_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Best scores come with the number of all scores; a number that no step can have is refused."""
    monkeypatch.setattr(zmq_fabric, "unpack", lambda packed: pytest.fail("scores were made"))
    with worker_of(HitDriver(answered=True)) as ask:
        for more in (
            {"packed": (2, 1 << 22, 1), "scores": bytes(6)},
            {"scores": bytes(34)},
            {"packed": (0, 2**32 - 1, 0), "scores": b""},
        ):
            said = zmq_messages.decode_fabric_reply(ask(fetch_of(**more), b"")[0])
            assert isinstance(said, p.Error) and "at most 16" in said.fix


def test_a_message_has_no_more_rows_than_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message with as many one-byte rows as a frame holds is refused before the shared thread
    processes each of them."""
    monkeypatch.setattr(zmq_fabric, "checksum", lambda row: pytest.fail("a row was looked at"))
    count = 100_000
    with worker_of(HitDriver(answered=True)) as ask:
        put = zmq_messages.FabricPut(
            session=1,
            layer=0,
            length_bytes=1,
            ordinals=bytes(4 * count),
            checksums=bytes(8 * count),
            timeout_ns=10**9,
        )
        said = zmq_messages.decode_fabric_reply(ask(put, bytes(count))[0])
    assert isinstance(said, p.Error) and "at most 4" in said.fix


def test_a_command_on_values_is_as_long_as_a_step_and_of_a_known_verb() -> None:
    """None, more than a command's demands, and a verb that a ring's 16 bits would make another one
    are refused before the driver is asked."""
    with worker_of(HitDriver(answered=True)) as ask:
        for count, verb in ((0, 1), (9, 1), (1, (1 << 16) + 3)):
            values = zmq_messages.FabricValues(
                verb=verb, asks=np.zeros(count, VALUE_ASK).tobytes(), timeout_ns=10**9
            )
            said = zmq_messages.decode_fabric_reply(ask(values, b"")[0])
            assert isinstance(said, p.Error) and said.where == "FabricValues"
