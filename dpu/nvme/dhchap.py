"""DH-HMAC-CHAP (NVM Express Base 2.0, 8.3.4.5): a host proves that it has its tenant's key.

SHA-256 and the null DH group. The controller proves itself too, where the host asks for that. The
messages are a host's before it has proved anything: whatever they hold, an answer is a message or a
refusal. Pure, but for random numbers.
"""

import base64
import hashlib
import hmac
import secrets
import struct
import zlib
from dataclasses import dataclass

__all__ = ["Authentication", "key_of", "text_of"]

COMMON, DHCHAP = 0, 1  # types of messages
NEGOTIATE, CHALLENGE, REPLY, SUCCESS1, SUCCESS2, FAILURE2, FAILURE1 = 0, 1, 2, 3, 4, 0xF0, 0xF1
SHA256, NULL_GROUP, HASH_BYTES = 1, 0, 32
FAILED, UNUSABLE, HASH_UNUSABLE, GROUP_UNUSABLE, BAD_PAYLOAD, BAD_MESSAGE = 1, 2, 4, 5, 6, 7
NEGOTIATE_HEAD, DESCRIPTOR_BYTES, LIST_BYTES = struct.Struct("<BBHHBB"), 64, 30
CHALLENGE_HEAD = struct.Struct("<BBHHBBBBHI")
REPLY_HEAD = struct.Struct("<BBHHBBBBHI")
SUCCESS1_HEAD = struct.Struct("<BBHHBBB7x")
FAILURE = struct.Struct("<BBHHBB")


def key_of(secret: bytes) -> bytes:
    """The key of a tenant's hosts, from its secret; it reveals neither that nor any other of it."""
    return hmac.new(secret, b"offstage nvme", hashlib.sha256).digest()


def text_of(key: bytes) -> str:
    """The key as hosts take it (Base 2.0, 8.3.4.5.8): to be transformed by SHA-256."""
    checked = key + zlib.crc32(key).to_bytes(4, "little")
    return f"DHHC-1:01:{base64.b64encode(checked).decode()}:"


@dataclass
class Authentication:
    """Of one queue. `host`: the NQN that it connected with, `subsystem`: that of its tenant, whose
    key is `key`. Each message of the host is `take`n, each answer is `give`n once."""

    key: bytes
    host: str
    subsystem: str
    proved: bool = False
    """The host has proved itself; nothing else of a queue may be served before."""
    refused: bool = False
    """It has failed: the connection ends after the answer."""
    _waits_for: int = NEGOTIATE
    _transaction: int = 0
    _sequence: int = 0
    _challenge: bytes = b""
    _answer: bytes = b""

    def take(self, message: bytes) -> None:
        """One message of the host."""
        if len(message) < 6:
            self._refuse(BAD_PAYLOAD)
            return
        kind, number, _, transaction = struct.unpack_from("<BBHH", message)
        wanted = COMMON if self._waits_for == NEGOTIATE else DHCHAP
        if (kind, number) == (COMMON, FAILURE2):
            self.refused, self._answer = True, b""
        elif (kind, number) != (wanted, self._waits_for) or self._answer:
            self._refuse(BAD_MESSAGE)
        elif number == NEGOTIATE:
            self._transaction = transaction
            self._negotiate(message)
        elif transaction != self._transaction:
            self._refuse(BAD_PAYLOAD)
        elif number == REPLY:
            self._reply(message)
        else:
            self._waits_for = NEGOTIATE  # SUCCESS2: it may begin anew

    def give(self) -> bytes:
        """The answer to the last message; b"": there is none."""
        answer, self._answer = self._answer, b""
        return answer

    def _refuse(self, why: int) -> None:
        self.proved, self.refused = False, True
        self._answer = FAILURE.pack(COMMON, FAILURE1, 0, self._transaction, 1, why)

    def _negotiate(self, message: bytes) -> None:
        if len(message) < NEGOTIATE_HEAD.size + DESCRIPTOR_BYTES:
            self._refuse(BAD_PAYLOAD)
            return
        *_, channel, count = NEGOTIATE_HEAD.unpack_from(message)
        offered = [
            message[at : at + DESCRIPTOR_BYTES]
            for at in range(NEGOTIATE_HEAD.size, len(message), DESCRIPTOR_BYTES)
        ][:count]
        known = [one for one in offered if len(one) == DESCRIPTOR_BYTES and one[0] == DHCHAP]
        if channel or not known:
            self._refuse(UNUSABLE)
            return
        hashes, groups = known[0][2], known[0][3]
        lists = known[0][4 : 4 + LIST_BYTES], known[0][4 + LIST_BYTES :]
        if SHA256 not in lists[0][:hashes]:
            self._refuse(HASH_UNUSABLE)
        elif NULL_GROUP not in lists[1][:groups]:
            self._refuse(GROUP_UNUSABLE)
        else:
            self._sequence = secrets.randbelow(0xFFFFFFFF) + 1  # 0: the host proves nothing
            self._challenge = secrets.token_bytes(HASH_BYTES)
            self._waits_for = REPLY
            self._answer = (
                CHALLENGE_HEAD.pack(
                    DHCHAP,
                    CHALLENGE,
                    0,
                    self._transaction,
                    HASH_BYTES,
                    0,
                    SHA256,
                    NULL_GROUP,
                    0,
                    self._sequence,
                )
                + self._challenge
            )

    def _reply(self, message: bytes) -> None:
        size = REPLY_HEAD.size
        if len(message) < size + 2 * HASH_BYTES:
            self._refuse(BAD_PAYLOAD)
            return
        _, _, _, _, length, _, mutual, _, group_bytes, sequence = REPLY_HEAD.unpack_from(message)
        if length != HASH_BYTES or group_bytes:
            self._refuse(BAD_PAYLOAD)
            return
        response = message[size : size + HASH_BYTES]
        challenge = message[size + HASH_BYTES : size + 2 * HASH_BYTES]
        said = self._prove(self._challenge, self._sequence, b"HostHost", self.host, self.subsystem)
        if not hmac.compare_digest(response, said):
            self._refuse(FAILED)
            return
        own = bytes(HASH_BYTES)
        if mutual:
            own = self._prove(challenge, sequence, b"Controller", self.subsystem, self.host)
        self.proved = True
        self._waits_for = SUCCESS2 if mutual else NEGOTIATE
        head = SUCCESS1_HEAD.pack(
            DHCHAP, SUCCESS1, 0, self._transaction, HASH_BYTES, 0, bool(mutual)
        )
        self._answer = head + own

    def _prove(
        self, challenge: bytes, sequence: int, role: bytes, prover: str, other: str
    ) -> bytes:
        """A response to a challenge (Base 2.0, 8.3.4.5.5) under the key as it is for the host."""
        key = hmac.new(self.key, prover.encode() + b"NVMe-over-Fabrics", hashlib.sha256).digest()
        said = (
            challenge
            + struct.pack("<IHB", sequence, self._transaction, 0)
            + role
            + prover.encode()
            + b"\0"
            + other.encode()
        )
        return hmac.new(key, said, hashlib.sha256).digest()
