"""Do daemon and host each authenticate the other?"""

import io
import json
import os
from pathlib import Path

import pytest
from service_world import ASKED, SECRETS, World, hello

from offstage.bindings.errors import BadInput
from offstage.dpu import protocol as p
from offstage.dpu.log import Log
from offstage.dpu.protocol.login import prove_daemon
from offstage.dpu.tenants.hosts import (
    CHALLENGE_LIFE_S,
    CHALLENGES_MAX,
    Host,
    Hosts,
    Refused,
    TenantState,
)


def test_the_daemon_proves_itself_before_the_host_does(world: World) -> None:
    """The daemon proves the secret over the host's nonce with its user, in the same way for every
    tenant's name, but not without a nonce or to a version that would not ask for it."""
    for tenant, secret in SECRETS.items():
        asks = p.Hello(versions=[6, 5], name="h", tenant=tenant, nonce=ASKED)
        said = world.answer(b"", asks)
        assert isinstance(said, p.Challenge) and said.version == 6 and said.user == os.getuid()
        words = (said.nonce, tenant, "h", 6, os.getuid(), b"")
        assert said.proof == prove_daemon(secret, ASKED, *words)
        assert said.proof != prove_daemon(secret, b"b" * 16, *words)
    assert isinstance(world.answer(b"", hello("nobody")), p.Challenge)
    with pytest.raises(BadInput, match="nonce"):
        p.decode_request(p.encode(p.Hello(versions=[6], name="h", tenant="red", nonce=b"short")))
    old = p.Hello(versions=[5, 4], name="h", tenant="red", nonce=ASKED)
    assert world.code(b"", old) == "invalid"


def test_login_needs_the_secret_of_that_tenant_and_a_nonce_counts_once(world: World) -> None:
    """A login with another tenant's secret, a replayed proof, or an invented name is refused."""
    for tenant, secret in (
        ("red", SECRETS["blue"]),
        (p.OPERATOR, SECRETS["red"]),
        ("nobody", b"\0" * 32),
    ):
        refused = world.login(tenant, secret)
        assert isinstance(refused, p.Error) and refused.code == "unauthenticated"
    assert world.hosts.counts["logins_refused"] == 3
    challenge = world.answer(b"", hello("red"))
    assert isinstance(challenge, p.Challenge)
    proof = p.Prove(
        nonce=challenge.nonce, proof=p.prove(SECRETS["red"], challenge.nonce, "red", "h")
    )
    assert isinstance(world.answer(b"", proof), p.Welcome)
    assert world.code(b"", proof) == "unauthenticated"


def test_a_secret_file_that_is_replaced_is_said_and_changes_nothing(tmp_path: Path) -> None:
    """The secret read at the start names the blocks and stays valid. A changed file is logged once,
    and named in the error of a login with the new secret, until the old one is back."""
    stream = io.StringIO()
    file = tmp_path / "red.secret"
    tenant = TenantState("red", 0, b"r" * 32, 8, secret_file=str(file))
    log = Log("info", stream, text=False)
    hosts = Hosts(None, [tenant], b"o" * 32, 8, log)  # type: ignore[arg-type]

    def login(secret: bytes) -> Host:
        nonce = hosts.challenge(hello("red")).nonce
        return hosts.login(nonce, p.prove(secret, nonce, "red", "h"))

    for text, replaced in ((b"r", False), (b"n", True), (b"n", True), (b"r", False)):
        file.write_text((text * 32).hex())
        file.chmod(0o600)
        hosts.note_secrets()
        assert login(b"r" * 32).tenant is tenant
        with pytest.raises(Refused) as refused:
            login(b"n" * 32)
        assert ("was replaced" in refused.value.fix) is replaced
    assert stream.getvalue().count("secret_replaced") == 1
    file.unlink()
    hosts.note_secrets()
    assert stream.getvalue().count("secret_replaced") == 2


def test_a_login_that_fails_is_one_line_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Does the log say who asked for which tenant, from where and why not; and no secret?"""
    stream, now_s = io.StringIO(), [0.0]
    monkeypatch.setattr("offstage.dpu.tenants.hosts.time.monotonic", lambda: now_s[0])
    tenant = TenantState("red", 0, b"r" * 32, 8)
    log = Log("info", stream, text=False)
    hosts = Hosts(None, [tenant], b"o" * 32, 8, log)  # type: ignore[arg-type]
    for name, secret, why in (
        ("red", b"n" * 32, "a wrong proof"),
        ("nobody", b"n" * 32, "no such tenant"),
        ("red", b"", "it did not prove that it has the secret"),
        ("nobody", b"", "no such tenant"),
    ):
        nonce = hosts.challenge(hello(name), route=b"one", address="10.0.0.7").nonce
        if secret:
            with pytest.raises(Refused):
                hosts.login(nonce, p.prove(secret, nonce, name, "h"), b"one")
        else:  # it has seen that the daemon has another secret, and left
            now_s[0] += CHALLENGE_LIFE_S / 2
            hosts.note_unproved()
            now_s[0] += CHALLENGE_LIFE_S
            hosts.note_unproved()
        (line,) = map(json.loads, stream.getvalue().splitlines())
        told = {key: line[key] for key in ("event", "tenant", "host", "address", "why")}
        assert told == {
            "event": "login_refused",
            "tenant": name,
            "host": "h",
            "address": "10.0.0.7",
            "why": why,
        }
        assert "6e6e" not in stream.getvalue() and "nnnn" not in stream.getvalue()
        stream.seek(0)
        stream.truncate()


def test_unanswered_challenges_and_logins_are_bounded(world: World) -> None:
    """The memory that an unauthenticated peer can use is bounded."""
    for _ in range(CHALLENGES_MAX + 50):
        world.answer(b"", hello("red"))
    assert len(world.hosts._challenges) <= CHALLENGES_MAX
    for _ in range(8):
        assert isinstance(world.login("red"), p.Welcome)
    refused = world.login("red")
    assert isinstance(refused, p.Error) and refused.code == "limit"
