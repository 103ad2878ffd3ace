"""A daemon's service without sockets, over a given device, and logins to it."""

import io
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from offstage.bindings.attachment import Attachment
from offstage.dpu import protocol as p
from offstage.dpu.config.derive import derive
from offstage.dpu.config.options import Tenant
from offstage.dpu.config.values import load
from offstage.dpu.control.connects import Connects
from offstage.dpu.control.drain import Drain
from offstage.dpu.control.ports import Offer
from offstage.dpu.control.service import Service
from offstage.dpu.log import Log
from offstage.dpu.tenants.hosts import Hosts, TenantState

SPOKEN = list(p.VERSIONS)
ASKED = b"a" * 16
SECRETS = {"red": b"r" * 32, "blue": b"b" * 32, p.OPERATOR: b"o" * 32}


def hello(tenant: str, name: str = "h") -> p.Hello:
    return p.Hello(versions=SPOKEN, name=name, tenant=tenant, nonce=ASKED)


class NoAttachments:
    """Closes attachments and records which hosts left."""

    def __init__(self) -> None:
        self.forgotten: list[bytes] = []
        self.listening: set[str] = set()

    def open(self, fabric: str, endpoint: str) -> None:
        self.listening.add(fabric)

    def shut(self, fabric: str) -> None:
        self.listening.discard(fabric)

    def endpoint(self, fabric: str) -> str:
        return f"{fabric}:7" if fabric in self.listening else ""

    def offer(self, fabric: str, tenant: str, ticket: bytes, attachment: Attachment) -> Offer:
        attachment.close()
        return Offer("token", "/path", blob=attachment.blob)

    def counts(self) -> dict[str, int]:
        return {"connections": 3}

    def forget(self, ticket: bytes) -> None:
        self.forgotten.append(ticket)


@dataclass
class World:
    """The service and its surroundings."""

    service: Service
    hosts: Hosts
    device: Any
    log: io.StringIO

    def answer(self, ticket: bytes, request: p.Request) -> p.Reply:
        return self.service.answer(ticket, request).reply

    def login(self, tenant: str, secret: bytes | None = None, name: str = "h") -> p.Reply:
        challenge = self.answer(b"", hello(tenant, name))
        assert isinstance(challenge, p.Challenge)
        proof = p.prove(secret or SECRETS[tenant], challenge.nonce, tenant, name)
        return self.answer(b"", p.Prove(nonce=challenge.nonce, proof=proof))

    def ticket(self, tenant: str) -> bytes:
        welcome = self.login(tenant)
        assert isinstance(welcome, p.Welcome)
        return welcome.ticket

    def session(self, ticket: bytes) -> int:
        assert isinstance(self.answer(ticket, p.Attach()), p.Attached)
        opened = self.answer(ticket, p.SessionOpen(select_blocks=4))
        assert isinstance(opened, p.Opened)
        return opened.session

    def code(self, ticket: bytes, request: p.Request) -> str:
        reply = self.answer(ticket, request)
        assert reply.id == request.id
        return reply.code if isinstance(reply, p.Error) else type(reply).__name__


def world_of(device: Any) -> World:
    """Return a world with two tenants that share 16 MiB of arena, over the given device."""
    config = load(overrides={"storage.backend": "emulated", "arena.size": "16MiB"}, environ={})
    config = replace(config, tenants=(Tenant(name="red"), Tenant(name="blue")))
    derived = derive(config)
    stream = io.StringIO()
    log = Log("debug", stream, text=False)
    tenants = [TenantState(n, i, SECRETS[n], 100) for i, n in enumerate(("red", "blue"))]
    connects = Connects(device, lambda: None)
    hosts = Hosts(connects, tenants, SECRETS[p.OPERATOR], 8, log)
    drain = Drain(device, 10**9, log)
    service = Service(config, derived, device, hosts, NoAttachments(), connects, drain, log)
    return World(service, hosts, device, stream)
