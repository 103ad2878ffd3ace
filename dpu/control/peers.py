"""Asks the other members of a pod for a promise, over their control sockets: `Hold` and `Held`.

Question and answer each prove knowledge of the pod's secret, which is stored with the map: anyone
who can change the map could break the promise anyway. There is no login, so a member needs no
secret of another member's tenants. Where control sockets use CURVE, members are not asked: then a
daemon that cannot reach the map serves for half its lease, as if it were cut off alone.
"""

import hmac
import secrets
import time
from collections.abc import Sequence

import zmq

from offstage.bindings.errors import BadInput
from offstage.dpu import protocol as p
from offstage.dpu.pod.map import Member, MemberIncarnation

__all__ = ["Peers", "answered", "asks_rightly"]

ANSWER_S = 0.3


class Peers:
    """Of one thread."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: the pod's; empty: no member is asked."""
        self._secret = secret
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def ask(self, own: MemberIncarnation, others: Sequence[Member]) -> list[MemberIncarnation]:
        """Ask all of them concurrently; returns those that promised within ANSWER_S."""
        if not self._secret:
            return []
        asked: dict[zmq.Socket[bytes], tuple[MemberIncarnation, bytes]] = {}
        poller = zmq.Poller()
        for one in others:
            nonce, other = secrets.token_bytes(16), (one.name, one.incarnation)
            proof = p.prove_member(self._secret, nonce, "hold", *own, *other)
            socket = self._context.socket(zmq.DEALER)
            socket.setsockopt(zmq.LINGER, 0)
            asked[socket] = (other, nonce)
            try:
                socket.connect(one.endpoint)
                question = p.Hold(
                    name=own[0],
                    incarnation=own[1],
                    to=one.name,
                    to_incarnation=one.incarnation,
                    nonce=nonce,
                    proof=proof,
                )
                socket.send_multipart([b"", p.encode(question)], zmq.NOBLOCK)
            except zmq.ZMQError:
                continue
            poller.register(socket, zmq.POLLIN)
        promised: list[MemberIncarnation] = []
        until_s = time.monotonic() + ANSWER_S
        while len(promised) < len(asked) and (left_s := until_s - time.monotonic()) > 0:
            for socket, _ in poller.poll(max(1, int(left_s * 1000))):
                other, nonce = asked[socket]
                poller.unregister(socket)
                if self._promised(socket.recv_multipart()[-1], own, other, nonce):
                    promised.append(other)
        for socket in asked:
            socket.close(0)
        return promised

    def close(self) -> None:
        """Close the sockets."""
        self._context.destroy(linger=0)

    def _promised(
        self, answer: bytes, own: MemberIncarnation, other: MemberIncarnation, nonce: bytes
    ) -> bool:
        try:
            reply = p.decode_reply(answer)
        except BadInput:
            return False
        expected = answered(self._secret, nonce, own, other)
        return isinstance(reply, p.Held) and hmac.compare_digest(reply.proof, expected)


def answered(
    secret: bytes, nonce: bytes, asking: MemberIncarnation, asked: MemberIncarnation
) -> bytes:
    """The proof that `asked` promises `asking`."""
    return p.prove_member(secret, nonce, "held", *asking, *asked)


def asks_rightly(secret: bytes, question: p.Hold) -> bool:
    """Whether the asking member knows the pod's secret."""
    expected = p.prove_member(
        secret,
        question.nonce,
        "hold",
        question.name,
        question.incarnation,
        question.to,
        question.to_incarnation,
    )
    return bool(secret) and hmac.compare_digest(question.proof, expected)
