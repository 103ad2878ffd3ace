"""Does a host over ZMQ get blocks that its step's answer does not vouch for?"""

import errno
from typing import Any, cast

import numpy as np
import pytest
import zmq

from offstage.bindings.driver import Driver, Fetch, FetchResult
from offstage.dpu import protocol as p
from offstage.dpu.log import Log
from offstage.dpu.zmq_fabric import _Worker

BLOCK_BYTES = 64


class HitDriver:
    """Each demand is a hit; whether the step is `answered` is the reactor's affair."""

    payload_size_bytes, demand_max, calls_max = BLOCK_BYTES, 8, 4

    def __init__(self, *, answered: bool) -> None:
        self._answered, self._fetches = answered, list[Fetch]()

    def limit_scores(self, *limits: int) -> None:
        pass

    def fetch_begin(
        self, session: int, step: int, layer: int, ordinals: Any, keys: Any, rows: Any, **_: Any
    ) -> Fetch:
        rows[: len(ordinals)] = 7
        self._fetches.append(Fetch(len(ordinals), None, ()))
        return self._fetches[-1]

    def poll(self, timeout_ns: int) -> list[Fetch]:
        ended, self._fetches = self._fetches, []
        return ended

    def fetch_end(self, fetch: Fetch) -> FetchResult:
        fetch.unanswered = not self._answered
        count = len(fetch.rcs)
        return FetchResult(
            fetch.ends, fetch.rcs, fetch.lengths, fetch.checksums, count, 0, 0, 0, 0, 0
        )

    def close(self) -> None:
        pass


@pytest.mark.parametrize("answered", [True, False])
def test_hits_of_a_step_that_was_not_answered_do_not_come(answered: bool) -> None:
    """A reactor past its fence answers no step, and a hit asks no reactor: decision 95."""
    context = zmq.Context[zmq.Socket[bytes]]()
    replies = context.socket(zmq.PULL)
    replies.bind("inproc://replies")
    driver = cast(Driver, HitDriver(answered=answered))
    worker = _Worker(driver, context, "inproc://replies", Log())
    fetch = p.FabricFetch(
        session=1, step=1, layer=0, ordinals=np.arange(2, dtype="<u4").tobytes(),
        keys=np.zeros(4, "<u8").tobytes(), scores=b"", selected_count=2, timeout_ns=10**9,
    )  # fmt: skip
    try:
        assert worker.offer(b"host", fetch, b"")
        assert replies.poll(10_000)
        _, body, rows = replies.recv_multipart()
    finally:
        worker.stop()
        replies.close(0)
        context.term()
    reply = p.decode_fabric_reply(body)
    assert isinstance(reply, p.FabricFetchReply)
    assert np.frombuffer(reply.rcs, "<i4").tolist() == [0 if answered else -errno.ETIMEDOUT] * 2
    assert reply.failed_count == (0 if answered else 2)
    assert rows == bytes([7 if answered else 0]) * 2 * BLOCK_BYTES
