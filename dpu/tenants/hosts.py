"""Hosts that are logged in, their ports and sessions, and how these are reclaimed.

A host is identified by its ticket. It owns at most one port and any number of sessions; a request
that names another host's session is answered as if there were none. A host that falls silent, or
whose process exits, is reclaimed: its port is detached, and all its sessions, pins and leases
end. One thread owns this, the daemon's loop.
"""

import hashlib
import hmac
import os
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.private import read_secret
from offstage.dpu.log import Log
from offstage.dpu.protocol import OPERATOR, VERSIONS, Challenge, Hello
from offstage.dpu.protocol.login import outer_user, prove, prove_daemon
from offstage.dpu.sockets.fd_passing import Handed

__all__ = ["Host", "Hosts", "Refused", "TenantState", "check_selection", "draining"]

OPERATORS_MAX = 4  # logins reserved for operators
LOGINS_PER_PORT, LOGINS_SPARE = 4, 4  # of one tenant
CHALLENGES_MAX = 1024  # one of each connection
CHALLENGE_LIFE_S = 10.0


class Refused(OffstageError):
    """A request that is answered with an error of this protocol code."""

    def __init__(self, code: str, what: str, where: str = "", fix: str = "") -> None:
        super().__init__(what, where, fix)
        self.code = code


def draining() -> Refused:
    """The refusal of new work."""
    return Refused(
        "draining",
        "the daemon is draining and takes no new work",
        "",
        "offstage dpu undrain, unless it is being stopped; or use another",
    )


@dataclass(frozen=True)
class TenantState:
    """One tenant at run time: number in the device, secret, slots of the arena."""

    name: str
    index: int
    secret: bytes
    slot_count: int
    session_max: int = 1 << 16
    port_max: int = 1 << 16
    dirty_max: int = 0
    secret_file: str = ""
    sharing: str = "tenant"

    def check_fabric(self, fabric: str) -> None:
        """Refused if its users do not share and this fabric does not identify the user."""
        if self.sharing == "user" and fabric != "shm":
            raise Refused(
                "forbidden",
                f"the users of {self.name!r} do not share, and who comes "
                f"over {fabric} is of no user",
                fabric,
                "attach over shm, or set the tenant's sharing to 'tenant'",
            )

    @property
    def login_max(self) -> int:
        """Limit on hosts logged in."""
        return LOGINS_PER_PORT * self.port_max + LOGINS_SPARE


@dataclass
class Host:
    """One logged-in peer. `tenant` is None for an operator; `port` is None before its attach,
    `user` before it has taken its descriptors, or if the kernel does not identify it."""

    ticket: bytes
    name: str
    tenant: TenantState | None
    last_seen_s: float
    version: int = VERSIONS[0]
    port: int | None = None
    fabric: str = ""
    pid: int = 0
    pidfd: int = -1
    user: int | None = None
    connected: bool = False
    """It stays while its connection is open, and sends no heartbeats."""
    sessions: set[int] = field(default_factory=set)

    def opens(self) -> tuple[int, TenantState]:
        """The port and tenant that it opens sessions with; Refused if it has no port yet, or if the
        tenant's users do not share and its user is unknown."""
        if self.port is None or self.tenant is None:
            raise Refused("invalid", "the host has no port yet", self.name, "send Attach first")
        if self.tenant.sharing == "user" and self.user is None:
            raise Refused(
                "forbidden",
                "the tenant's users do not share, and the kernel has not said whose host this is",
                self.name,
                "take the descriptors first, as a user that has a number outside of its container",
            )
        return self.port, self.tenant

    def names(self, contents: list[bytes]) -> list[bytes]:
        """The chunk hashes for the device, 16 bytes each: unchanged, or, if the tenant's users do
        not share, hashes salted by user, so that users cannot name each other's."""
        if self.opens()[1].sharing == "tenant":
            return contents
        assert self.user is not None
        user = self.user.to_bytes(8, "little")
        return [
            b"".join(
                hashlib.blake2b(one[i : i + 16], digest_size=16, salt=user).digest()
                for i in range(0, len(one), 16)
            )
            for one in contents
        ]


@dataclass(frozen=True)
class _Challenge:
    nonce: bytes
    name: str
    tenant: str
    since_s: float
    version: int
    address: str


class Detaching(Protocol):
    """What detaches a port: the device, or a wrapper of it."""

    def detach(self, port: int) -> None: ...


class Hosts:
    """The registry. `counts` are the daemon's own counters, shown by status and telemetry."""

    def __init__(
        self,
        device: Detaching,
        tenants: list[TenantState],
        operator_secret: bytes,
        hosts_max: int,
        log: Log,
    ) -> None:
        self._device, self._log, self._hosts_max = device, log, hosts_max
        self.tenants = {tenant.name: tenant for tenant in tenants}
        self.operator_secret = operator_secret
        self.fabric_key = b""  # of the ZMQ fabric, for the daemon's proof
        self._user = outer_user(os.getuid(), Path("/proc/self/uid_map").read_text())
        self._nameless = int(Path("/proc/sys/kernel/overflowuid").read_text())
        self._nobody = secrets.token_bytes(32)
        self._challenges: dict[bytes, _Challenge] = {}
        self._hosts: dict[bytes, Host] = {}
        self._replaced: set[str] = set()  # tenants whose secret file has changed
        self.counts: Counter[str] = Counter(
            messages=0, messages_bad=0, requests_failed=0, logins_refused=0, hosts_dead=0
        )

    def all(self) -> list[Host]:
        """All hosts logged in."""
        return list(self._hosts.values())

    def tenant(self, name: str, host: Host | None = None) -> TenantState:
        """The tenant of this name; Refused if there is none, or `host` belongs to another."""
        if host is not None and host.tenant and name != host.tenant.name:
            raise Refused(
                "forbidden",
                "a tenant may see and purge its own only",
                name,
                f"ask for {host.tenant.name!r}",
            )
        if name not in self.tenants:
            raise Refused("unknown", "no such tenant", name, f"one of {', '.join(self.tenants)}")
        return self.tenants[name]

    def of(self, tenant: TenantState) -> list[Host]:
        """The hosts of one tenant."""
        return [host for host in self._hosts.values() if host.tenant is tenant]

    def challenge(
        self, hello: Hello, version: int = VERSIONS[0], route: bytes = b"", address: str = ""
    ) -> Challenge:
        """A nonce for a login, and the daemon's proof. An unknown tenant gets both too, so that
        names cannot be probed. Each connection (`route`) has one at a time: a new one replaces
        its last. `address`: who asks, for the log."""
        now_s = time.monotonic()
        if route in self._challenges:
            self._unproved(route)
        self.note_unproved()
        nonce = secrets.token_bytes(16)
        self._challenges[route] = _Challenge(
            nonce, hello.name, hello.tenant, now_s, version, address
        )
        proof = prove_daemon(
            self._secret(hello.tenant),
            hello.nonce,
            nonce,
            hello.tenant,
            hello.name,
            version,
            self._user,
            self.fabric_key,
        )
        return Challenge(
            version=version, nonce=nonce, user=self._user, fabric_key=self.fabric_key, proof=proof
        )

    def note_unproved(self) -> None:
        """Forget challenges that are too old or too many, with a line for each."""
        now_s = time.monotonic()
        for known, one in list(self._challenges.items()):
            if one.since_s < now_s - CHALLENGE_LIFE_S or len(self._challenges) >= CHALLENGES_MAX:
                self._unproved(known)  # dicts keep order: the oldest go first

    def _unproved(self, route: bytes) -> None:
        """A host that has another secret leaves here, as the daemon's proof has told it so."""
        one = self._challenges.pop(route)
        known = one.tenant == OPERATOR or one.tenant in self.tenants
        self.refused(one, "it did not prove that it has the secret" if known else "no such tenant")

    def refused(self, login: Hello | _Challenge, why: str, address: str = "") -> None:
        """The log's line about a login that failed; never with a secret or a proof."""
        self._log.warning(
            "login_refused",
            tenant=login.tenant,
            host=login.name,
            address=address or getattr(login, "address", ""),
            why=why,
        )

    def _secret(self, tenant: str) -> bytes:
        """The secret for a login of this name; for an unknown one, a random secret."""
        if tenant == OPERATOR:
            return self.operator_secret
        return self.tenants[tenant].secret if tenant in self.tenants else self._nobody

    def login(self, nonce: bytes, proof: bytes, route: bytes = b"") -> Host:
        """Log in the host whose proof covers the nonce. A nonce works once, whatever the proof."""
        challenge = self._challenges.pop(route, None)
        if challenge is None or challenge.nonce != nonce:
            raise Refused(
                "unauthenticated", "the challenge is unknown or too old", "Prove", "say Hello again"
            )
        operator = challenge.tenant == OPERATOR
        tenant = self.tenants.get(challenge.tenant)
        expected = prove(self._secret(challenge.tenant), nonce, challenge.tenant, challenge.name)
        if not hmac.compare_digest(expected, proof) or not (tenant or operator):
            self.counts["logins_refused"] += 1
            self.refused(challenge, "a wrong proof" if tenant or operator else "no such tenant")
            fix = "give the tenant's secret file that the daemon uses"
            if challenge.tenant in self._replaced:
                fix = "its secret file was replaced after the daemon's start: give the old secret"
            raise Refused("unauthenticated", "the login is not proved", challenge.tenant, fix)
        try:
            return self._enter(challenge.name, tenant, challenge.version)
        except Refused as full:
            self.refused(challenge, full.what)
            raise

    def connected(self, tenant: TenantState, pid: int) -> Host:
        """Let in a process that the kernel has identified, for as long as it is connected."""
        host = self._enter(f"kv-{pid}", tenant, VERSIONS[0])
        host.connected = True
        return host

    def _enter(self, name: str, tenant: TenantState | None, version: int) -> Host:
        """A new host; without a tenant an operator. Refused: there are too many."""
        if len(self._hosts) >= self._hosts_max + (0 if tenant else OPERATORS_MAX):
            raise Refused(
                "limit",
                f"{self._hosts_max} hosts are logged in",
                "Prove",
                "raise limits.ports, or let one leave",
            )
        if tenant and len(self.of(tenant)) >= tenant.login_max:
            raise Refused(
                "limit",
                f"{len(self.of(tenant))} hosts of the tenant are logged in",
                tenant.name,
                "let one leave, or raise the tenant's ports",
            )
        host = Host(secrets.token_bytes(16), name, tenant, time.monotonic(), version)
        self._hosts[host.ticket] = host
        self._log.info("host_in", host=host.name, tenant=tenant.name if tenant else OPERATOR)
        return host

    def find(self, ticket: bytes) -> Host:
        """The host of a ticket, seen alive now."""
        host = self._hosts.get(ticket)
        if host is None:
            raise Refused(
                "unauthenticated",
                "this ticket names no host",
                "",
                "log in again: the daemon started anew, or took it for dead",
            )
        host.last_seen_s = time.monotonic()
        return host

    def whose(self, ticket: bytes) -> str:
        """The tenant of a ticket's host; empty where there is none. Any thread."""
        host = self._hosts.get(ticket)
        return "" if host is None else host.tenant.name if host.tenant else OPERATOR

    def note_secrets(self) -> None:
        """A tenant's secret stays that of the start: it names blocks. A changed file is logged
        once, and again only after it was restored."""
        for name, tenant in self.tenants.items():
            if not tenant.secret_file:
                continue
            try:
                replaced = read_secret(Path(tenant.secret_file)) != tenant.secret
            except BadInput:
                replaced = True  # gone, or what a start would refuse
            if replaced and name not in self._replaced:
                self._log.warning(
                    "secret_replaced",
                    tenant=name,
                    file=tenant.secret_file,
                    fix="put the old one back: hosts log in by it until the daemon "
                    "ends, and the store's blocks are found by it",
                )
            (self._replaced.add if replaced else self._replaced.discard)(name)

    def by_pidfd(self) -> dict[int, Host]:
        """Hosts whose process is watched, by the pidfd that becomes readable when it exits."""
        return {host.pidfd: host for host in self._hosts.values() if host.pidfd >= 0}

    def took(self, handed: Handed) -> None:
        """The host fetched its descriptors: from now on its process is watched."""
        host = self._hosts.get(handed.ticket)
        if host is None or host.pidfd >= 0:
            if handed.pidfd >= 0:
                os.close(handed.pidfd)
            return
        host.pid, host.pidfd = handed.pid, handed.pidfd
        host.user = handed.user if self.is_named(handed.user) else None

    def is_named(self, user: int) -> bool:
        """Whether the kernel names one user by this number, and not all that have none here."""
        return user != self._nameless

    def silent(self, timeout_s: float) -> list[Host]:
        """Hosts that have been silent for the timeout."""
        before_s = time.monotonic() - timeout_s
        return [
            host
            for host in self._hosts.values()
            if host.last_seen_s < before_s and not host.connected
        ]

    def remove(self, host: Host, reason: str) -> None:
        """Reclaim everything from the host; `reason` is "left" or why it counts as dead."""
        self._hosts.pop(host.ticket, None)
        if host.pidfd >= 0:
            os.close(host.pidfd)
            host.pidfd = -1
        session_count = len(host.sessions)
        host.sessions.clear()
        if host.port is not None:
            try:
                self._device.detach(host.port)
            except OffstageError as error:
                self._log.error("detach_failed", host=host.name, error=str(error))
            host.port = None
        if reason == "left":
            self._log.info("host_out", host=host.name)
            return
        self.counts["hosts_dead"] += 1
        self._log.warning(
            "host_dead", host=host.name, reason=reason, pid=host.pid, sessions=session_count
        )


def check_selection(tenant: TenantState, select_blocks: int) -> None:
    """Refused if `select_blocks` blocks of one layer never fit into the tenant's slots."""
    if select_blocks > tenant.slot_count:
        raise Refused(
            "invalid",
            f"a selection of {select_blocks} blocks never fits into "
            f"the tenant's {tenant.slot_count} slots",
            tenant.name,
            "raise arena.size or the tenant's share, or select fewer",
        )
