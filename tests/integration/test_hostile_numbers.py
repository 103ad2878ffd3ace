"""Can a number that a host sends, in any field of any message or command, cost more than a refusal:
an answer, the daemon, or what another host of the same tenant gets?"""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_bed import GUESS, INTEGERS, SQE, Attacker, Honest, RawPort, plain, refused_by, twisted
from live_daemon import LAYERS, PAYLOAD, Daemon, daemon

from offstage.bindings.keys import checksum
from offstage.bindings.layouts import VALUE_ASK, constant
from offstage.dpu import protocol as p
from offstage.dpu.protocol import zmq_messages
from offstage.dpu.protocol.pod_calls import ShardReport

KEY = bytes(range(16))
OF_HOSTS: list[Callable[[int], p.Request]] = [
    lambda session: p.Hello(versions=[6, 5], name="h", tenant="red", nonce=KEY),
    lambda session: p.Prove(nonce=KEY, proof=KEY * 2, incarnation=1, epoch=1),
    lambda session: p.Hold(
        name="a", incarnation=1, to="b", to_incarnation=1, nonce=KEY, proof=KEY * 2
    ),
    lambda session: p.Attach(fabric="shm", again=True),
    lambda session: p.Connect(blob=KEY),
    lambda session: p.SessionOpen(select_blocks=4, step_ns=1000),
    lambda session: p.Append(session=session, contents=[KEY]),
    lambda session: p.SetGenerating(session=session, generating=True),
    lambda session: p.SessionClose(session=session, keep=False),
    lambda session: p.Purge(tenant="red", keep_blocks=1),
    lambda session: p.Ledger(tenant="red"),
    lambda session: p.Shards(
        served=1,
        hot_per_s=1.0,
        reports=[ShardReport(name=KEY, demands=1, hot_per_s=1.0, made="a", gone="b", contents=KEY)],
    ),
    lambda session: p.Status(),
    lambda session: p.PolicyGet(),
    lambda session: p.Heartbeat(),
    lambda session: p.Detach(),
]
OF_OPERATORS: list[p.Request] = [
    p.PolicySet(changes={"eviction": "lru"}),
    p.StorageMove(changes={"size": "1KiB"}),
    p.Reset(),
    p.Drain(timeout_ns=1000),
    p.Undrain(),
    p.FabricShut(fabric="zmq"),
    p.FabricOpen(fabric="zmq"),
    p.Dismiss(tenant="red", name="absent"),
    p.Purge(tenant="red"),
    p.Ledger(),
]
HOSTILE_COMMANDS = int(os.environ.get("OFFSTAGE_HOSTILE_COMMANDS", "20000"))


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that at the end still runs and answers the operator, without an internal error."""
    with daemon(tmp_path, limits__sessions="32", limits__values="64") as tier:
        yield tier
        assert tier.process.poll() is None
        with tier.control(p.OPERATOR) as operator:
            assert operator.status()["daemon"]["requests_failed"] == 0, tier.log


def test_every_kind_of_request_is_tried() -> None:
    """This file covers every kind of request, including new ones."""
    tried = {type(make(1)) for make in OF_HOSTS} | {type(one) for one in OF_OPERATORS}
    assert tried == set(p.CALLS)


def test_no_field_of_a_request_harms_another_host(tier: Daemon) -> None:
    """Each value in each request of a host, also inside lists and structs, gets an answer, and the
    other host of the tenant is served."""
    codes: Counter[str] = Counter()
    with Honest(tier) as honest:
        attacker = Attacker(tier, "red")
        for make in OF_HOSTS:
            session = attacker.session()
            for message in twisted(plain(make(session))):
                reply = attacker.ask(message)
                codes[refused_by(reply)] += 1
                if isinstance(reply, p.Opened):
                    attacker.control.session_close(reply.session, keep=False)
                if not isinstance(reply, p.Error) and message["type"] in ENDS:
                    attacker.close()
                    attacker = Attacker(tier, "red")
                    session = attacker.session()
            honest.check()
        attacker.close()
    assert "internal" not in codes and codes["bad_message"] > 100, codes


ENDS = ("SessionClose", "Detach")
"""Calls that end the attacker's session if they succeed."""


def test_no_field_of_an_operators_request_harms_a_host(tier: Daemon) -> None:
    """The same holds for an operator, and for numbers as text in every key of the policy."""
    codes: Counter[str] = Counter()
    with Honest(tier) as honest:
        operator = Attacker(tier, p.OPERATOR)
        policy = operator.control.policy()
        policies = [p.PolicySet(changes={key: str(value)}) for key, value in policy.items()]
        for request in (*OF_OPERATORS, *policies):
            for message in twisted(plain(request)):
                codes[refused_by(operator.ask(message))] += 1
            assert isinstance(operator.ask(plain(p.Undrain())), p.Ok)
            operator.control.fabric_open("shm")
            honest.check()
        operator.close()
    assert "internal" not in codes and codes["bad_message"] > 100, codes


def test_no_field_of_a_message_of_the_fabric_harms_another_host(tier: Daemon) -> None:
    """Fetches, puts, guesses, releases and commands on values over `zmq` are all answered, and the
    other host is served."""
    codes: Counter[str] = Counter()
    rows: Counter[int] = Counter()
    with Honest(tier) as honest:
        attacker = Attacker(tier, "red", "zmq")
        session = attacker.session()
        one = np.zeros(1, "<u4").tobytes()
        for request in (
            zmq_messages.FabricFetch(
                session=session,
                step=1,
                layer=0,
                selected_count=1,
                ordinals=one,
                keys=KEY,
                scores=bytes(8),
                packed=(0, 4, 0),
                timeout_ns=10**8,
            ),
            zmq_messages.FabricPut(
                session=session,
                layer=0,
                length_bytes=PAYLOAD,
                ordinals=one,
                checksums=checksum(bytes(PAYLOAD)).to_bytes(8, "little"),
                timeout_ns=10**8,
            ),
            zmq_messages.FabricHint(session=session, guesses=np.zeros(1, GUESS).tobytes()),
            zmq_messages.FabricRelease(session=session),
            zmq_messages.FabricValues(
                verb=3, asks=np.ones(2, VALUE_ASK).tobytes(), timeout_ns=10**8
            ),
        ):
            payload = [bytes(PAYLOAD)] if isinstance(request, zmq_messages.FabricPut) else []
            for message in twisted(plain(request)):
                reply = attacker.ask(message, *payload)
                codes[refused_by(reply)] += 1
                if isinstance(reply, zmq_messages.FabricPutReply):
                    rows.update(np.frombuffer(reply.rcs, "<i4").tolist())
            honest.check()
        attacker.close()
    assert "internal" not in codes and codes["bad_message"] > 100, codes
    assert rows[0] > 0 and rows[-errno.EBADMSG] > 0, rows


def numbers_of(kind: Any) -> Iterator[tuple[str, int]]:
    """Yield each field of a record with each number, truncated to its width."""
    for name in kind.names:
        found = kind[name]
        for number in sorted({one % 2 ** (8 * found.base.itemsize) for one in INTEGERS}):
            yield name, number


def test_no_field_of_a_command_harms_another_host(tier: Daemon) -> None:
    """Each field of each command, and of each guess in a HINT, gets one answer, and the other host
    of the tenant is served."""
    with Honest(tier) as honest, tier.control(heartbeat=False) as control:
        port = RawPort(control)
        session = control.session_open(select_blocks=4)
        control.append(session, [os.urandom(16) for _ in range(4)])
        guesses = port.payloads[: GUESS.itemsize].view(GUESS)
        for op in (*range(constant("OFS_OP_VALUES") + 2), 2**15):
            sane = np.zeros(1, SQE)
            sane["op"], sane["session"], sane["length"], sane["demand_count"] = op, session, 64, 1
            for name, number in numbers_of(SQE):
                command = sane.copy()
                command[name] = number
                assert len(port.run(command)) == 1
            honest.check()
        hint = np.zeros(1, SQE)
        hint["op"], hint["session"], hint["demand_count"] = constant("OFS_OP_HINT"), session, 1
        for name, number in numbers_of(GUESS):
            guesses[0] = (0, 0, 0, 1, 1, 4, 0)
            guesses[name] = number
            assert len(port.run(hint)) == 1
        honest.check()


@pytest.mark.slow
def test_commands_of_random_numbers_harm_no_other_host(tier: Daemon) -> None:
    """Commands with random, mostly small fields and random payloads are all answered, and the other
    host keeps reading. OFFSTAGE_HOSTILE_COMMANDS sets how many."""
    rng = np.random.default_rng(7)
    codes: Counter[int] = Counter()
    sent = 0
    with Honest(tier) as honest, tier.control(heartbeat=False) as control:
        port = RawPort(control)
        sessions = [control.session_open(select_blocks=8) for _ in range(2)]
        for session in sessions:
            control.append(session, [os.urandom(16) for _ in range(16)])
        while sent < HOSTILE_COMMANDS:
            count = int(rng.integers(1, port.entry_count + 1))
            noise = rng.bytes(4096)
            at = int(rng.integers(len(port.payloads) - len(noise)))
            port.payloads[at : at + len(noise)] = np.frombuffer(noise, np.uint8)
            for rc, times in Counter(port.run(drawn(rng, count, sessions))["rc"].tolist()).items():
                codes[rc] += times
            sent += count
        honest.check()
        read = honest.blocks
    print(f"{sent:,} commands, answered {dict(codes.most_common())}; {read:,} blocks read beside")
    assert codes[0] > 0 and codes[-errno.EINVAL] > 0 and sent >= HOSTILE_COMMANDS


def drawn(rng: np.random.Generator, count: int, sessions: list[int]) -> Any:
    """Return random commands like those of `offstage bench soak`."""

    def below(most: int) -> Any:
        return np.where(
            rng.random(count) < 0.9, rng.integers(0, most, count), rng.integers(0, 2**32, count)
        )

    commands = np.zeros(count, SQE)
    most = {
        "op": 6,
        "flags": 32,
        "layer": LAYERS + 1,
        "payload_index": 64,
        "step": 99,
        "selected_count": 99,
        "demand_count": 32,
        "score_count": 64,
        "ordinal": 20,
        "put_slot": 8,
        "length": 2 * PAYLOAD,
        "checksum": 9,
        "sent_ns": 2,
    }
    for name, end in most.items():
        commands[name] = below(end).astype(SQE[name], casting="unsafe")
    own = rng.choice(sessions, count)
    commands["session"] = np.where(rng.random(count) < 0.7, own, below(40))
    return commands
