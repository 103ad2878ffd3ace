"""Whatever a host sends on its admin queue, does it get an answer, and nothing before its proof?"""

import base64
import struct
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.nvme_tcp import FINAL, Asked
from offstage.dpu.nvme.admin import Subsystem
from offstage.dpu.nvme.controllers import Controllers
from offstage.dpu.nvme.dhchap import Authentication, key_of, text_of
from offstage.dpu.nvme.identify import DISCOVERY_NQN, Volume
from offstage.dpu.nvme.listener import subsystem_nqn

SECRET = bytes(range(32))
NQN, HOST = subsystem_nqn(SECRET), "nqn.2014-08.org.nvmexpress:uuid:host"
VOLUME = Volume(bytes(16), False, 1 << 30, 1 << 20)
REQUIRED, BUSY, PARAMETERS = 0x191, 0x181, 0x182
SECURITY = bytes([0, 1, 1, 0xE9])


@dataclass
class Recorded:
    """The target's side: what was answered, admitted and closed."""

    answers: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)
    admitted: dict[int, int] = field(default_factory=dict)
    closed: list[int] = field(default_factory=list)

    def answer(self, ticket: int, status: int, result: int = 0, data: bytes = b"") -> None:
        assert ticket not in self.answers and 0 <= result < 1 << 64
        self.answers[ticket] = status & ~FINAL, result, data

    def admit(self, connection: int, tenant: int = -1) -> None:
        self.admitted[connection] = tenant

    def hang_up(self, connection: int) -> None:
        self.closed.append(connection)


class World:
    """Controllers of one tenant, and hosts that ask them; `now_s` is the test's."""

    def __init__(self) -> None:
        self.target, self.ticket, self.now_s = Recorded(), 0, 0.0
        subsystem = Subsystem(NQN, key_of(SECRET), 3, (VOLUME,))
        self.controllers = Controllers(
            self.target, {NQN: subsystem}, "127.0.0.1", 4420, lambda event, **fields: None
        )

    def ask(
        self, connection: int, sqe: bytes, data: bytes = b"", room: int = 4096
    ) -> tuple[int, int, bytes] | None:
        """None: it is held."""
        self.ticket += 1
        asked = Asked(connection, self.ticket, sqe.ljust(64, b"\0"), data, room, 0)
        self.controllers.take(asked, self.now_s)
        return self.target.answers.get(self.ticket)

    def connect(
        self, connection: int, nqn: str = NQN, queue: int = 0, cntlid: int = 0xFFFF, kato: int = 0
    ) -> tuple[int, int]:
        data = bytearray(1024)
        data[16:18] = struct.pack("<H", cntlid)
        data[256 : 256 + len(nqn)] = nqn.encode()
        data[512 : 512 + len(HOST)] = HOST.encode()
        low = struct.pack("<HHHBBI", 0, queue, 31, 0, 0, kato)
        sqe = bytes([0x7F, 0, 0, 0, 1]).ljust(40, b"\0") + low
        answer = self.ask(connection, sqe, bytes(data))
        assert answer is not None
        return answer[:2]

    def prove(self, connection: int, secret: bytes = SECRET) -> None:
        """By the other end of the same exchange, whose bytes the integration tests check."""
        lists = bytes([1]).ljust(30, b"\0") + bytes(30)
        offer = struct.pack("<BBHHBB", 0, 0, 0, 7, 0, 1) + bytes([1, 0, 1, 1]) + lists
        self.ask(connection, fabrics(5, SECURITY), offer)
        got = self.ask(connection, fabrics(6, SECURITY))
        assert got is not None
        (sequence,) = struct.unpack_from("<I", got[2], 12)
        own = Authentication(key_of(secret), HOST, NQN)
        own._transaction = 7
        proof = own._prove(got[2][16:48], sequence, b"HostHost", HOST, NQN)
        reply = struct.pack("<BBHHBBBBHI", 1, 2, 0, 7, 32, 0, 0, 0, 0, 0) + proof + bytes(32)
        self.ask(connection, fabrics(5, SECURITY), reply)
        self.ask(connection, fabrics(6, SECURITY))

    def enable(self, connection: int) -> None:
        assert self.ask(connection, fabrics(0, struct.pack("<IIQ", 0, 0x14, 1))) == (0, 0, b"")


def fabrics(kind: int, low: bytes = b"") -> bytes:
    return bytes([0x7F, 0, 0, 0, kind]).ljust(40, b"\0") + low


def test_a_key_is_written_as_the_specification_writes_it() -> None:
    """The form of Base 2.0, 8.3.4.5.8: the key and its CRC-32, of a key to be transformed."""
    form, transform, coded, end = text_of(bytes(32)).split(":")
    assert (form, transform, end) == ("DHHC-1", "01", "")
    assert base64.b64decode(coded) == bytes(32) + bytes.fromhex("ad550a19")  # CRC-32 of 32 zeros


@given(st.lists(st.tuples(st.integers(1, 4), st.binary(max_size=64), st.binary(max_size=1100))))
def test_any_bytes_get_an_answer(commands: list[tuple[int, bytes, bytes]]) -> None:
    """Of strangers, of those in the middle of their proof, of proved hosts: one answer each, and
    no stranger is admitted."""
    world = World()
    world.connect(1)
    world.prove(1)
    world.enable(1)
    world.connect(2)
    world.connect(3, DISCOVERY_NQN)
    for connection, sqe, data in commands:
        answer = world.ask(connection, sqe, data)
        assert answer is not None or sqe[:1] == b"\x0c"
    assert set(world.target.admitted) == {1}
    assert not world.target.closed


@given(st.lists(st.binary(max_size=200), min_size=1))
def test_no_message_but_the_proof_proves(messages: list[bytes]) -> None:
    """Any messages, begun with a good offer or not: refused, or still waiting."""
    lists = bytes([1]).ljust(30, b"\0") + bytes(30)
    offer = struct.pack("<BBHHBB", 0, 0, 0, 7, 0, 1) + bytes([1, 0, 1, 1]) + lists
    one = Authentication(key_of(SECRET), HOST, NQN)
    one.take(offer)
    assert one.give()[:2] == bytes([1, 1])
    for message in messages:
        one.take(message)
        one.give()
        one.take(bytes([1, 2, 0, 0, 7, 0, 32, 0]) + message)
        one.give()
        assert not one.proved


@pytest.mark.parametrize("secret", [SECRET, bytes(32)], ids=["right", "wrong"])
def test_a_queue_is_admitted_by_its_own_proof(secret: bytes) -> None:
    """The proof of the admin queue does not count for a queue of values."""
    world = World()
    status, result = world.connect(1)
    assert status == 0 and result >> 17 & 1
    world.prove(1)
    world.enable(1)
    assert world.target.admitted == {1: -1}
    assert world.connect(2, queue=1, cntlid=result & 0xFFFF)[0] == 0
    assert world.ask(2, bytes([0x14])) == (REQUIRED, 0, b"")
    assert world.target.admitted == {1: -1}
    world.prove(2, secret)
    assert world.target.admitted == ({1: -1, 2: 3} if secret == SECRET else {1: -1})


def test_a_queue_needs_a_controller_that_is_proved_and_enabled() -> None:
    """Otherwise its number of queues and its keep-alive would be a stranger's."""
    world = World()
    _, result = world.connect(1)
    cntlid = result & 0xFFFF
    assert world.connect(2, queue=1, cntlid=cntlid)[0] == PARAMETERS
    world.prove(1)
    assert world.connect(3, queue=1, cntlid=cntlid)[0] == PARAMETERS
    world.enable(1)
    assert world.connect(4, queue=1, cntlid=cntlid)[0] == 0
    assert world.connect(5, queue=9, cntlid=cntlid)[0] == PARAMETERS
    assert world.connect(6, queue=2, cntlid=cntlid + 1)[0] == PARAMETERS


def test_a_controller_ends_with_its_admin_queue_or_its_timer() -> None:
    """And takes all its queues with it."""
    world = World()
    for first in (1, 11):
        _, result = world.connect(first, kato=500)
        world.prove(first)
        world.enable(first)
        world.connect(first + 1, queue=1, cntlid=result & 0xFFFF)
    assert world.controllers.counts() == (2, 4)
    world.controllers.take(Asked(1, 0, bytes(64), b"", 0, 0), 0.0)
    assert world.target.closed == [2] and world.controllers.counts() == (1, 2)
    world.controllers.expire(1.4)
    assert world.controllers.counts() == (1, 2)
    world.controllers.expire(1.6)
    assert sorted(world.target.closed) == [2, 11, 12]
    assert world.controllers.counts() == (0, 0)


def test_controllers_have_a_limit_and_come_back() -> None:
    """Strangers cannot use up the numbers of controllers for longer than they are connected."""
    world = World()
    statuses = [world.connect(one, DISCOVERY_NQN)[0] for one in range(1, 100)]
    assert statuses == [0] * 64 + [BUSY] * 35
    for one in range(1, 65):
        world.controllers.take(Asked(one, 0, bytes(64), b"", 0, 0), 0.0)
    assert world.connect(200)[0] == 0
