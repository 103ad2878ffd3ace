"""Volumes of values: which there are, and the port of a host that comes for one without a login."""

import errno
import secrets
from collections.abc import Callable

from offstage.bindings.errors import BadInput, OffstageError
from offstage.dpu.config.derive import NGUID
from offstage.dpu.config.values import Config
from offstage.dpu.control.drain import Drain
from offstage.dpu.control.ports import Ports
from offstage.dpu.sockets.door import Peer
from offstage.dpu.sockets.fd_passing import Volume
from offstage.dpu.storage.device import Device
from offstage.dpu.tenants.hosts import Host, Hosts, draining
from offstage.dpu.tenants.quotas import Quotas
from offstage.dpu.tenants.tenancy import owner_key

__all__ = ["Volumes"]

NGUID_DIGITS, DURABLE = 32, " durable"


class Volumes:
    """`leave` takes a host out again. The daemon's loop owns it."""

    def __init__(
        self,
        config: Config,
        hosts: Hosts,
        ports: Ports,
        quotas: Quotas,
        drain: Drain,
        device: Device,
        leave: Callable[[Host, str], None],
    ) -> None:
        self._device = device
        self._config, self._hosts, self._ports = config, hosts, ports
        self._quotas, self._drain, self._leave = quotas, drain, leave

    def open(self, name: str, nguid: str, peer: Peer, attach: bool) -> Volume:
        """The volume of a tenant for a process that the tenant's door has admitted. BadInput: there
        is none; Refused, StoreFull: the daemon takes no more hosts."""
        known = {one[:NGUID_DIGITS]: one for one in self._quotas.tenants[name].volumes}
        if not NGUID.fullmatch(nguid) or (known and nguid not in known):
            raise BadInput(
                "no such volume", nguid, "name one of the tenant's volumes", errno=errno.ENOENT
            )
        if not self._config.limits.values:
            raise BadInput(
                "the daemon stores nothing by key",
                name,
                "set limits.values at its start",
                errno=errno.ENOTSUP,
            )
        if self._config.pod.map:
            raise BadInput(
                "a member of a pod has no volumes",
                name,
                "ask a daemon of no pod",
                errno=errno.ENOTSUP,
            )
        arena = self._config.arena
        chunks = -(-self._config.limits.context_tokens // arena.block_tokens)
        volume = Volume(
            chunks * arena.layers * arena.payload_bytes,
            self._config.storage.size_bytes,
            known.get(nguid, "").endswith(DURABLE),
        )
        return volume._replace(token=self._attach(name, peer)) if attach else volume

    def own(self, ticket: bytes, peer: Peer) -> None:
        """Where a tenant's users do not share, a host has values of its user alone, or, of a user
        whom the kernel does not name, of nobody else."""
        host = self._hosts.find(ticket)
        assert host.port is not None and host.tenant is not None
        if host.tenant.sharing == "user":
            named = self._hosts.is_named(peer.uid)
            key = owner_key(host.tenant.secret, peer.uid) if named else secrets.token_bytes(16)
            self._device.own_port(host.port, key)

    def _attach(self, name: str, peer: Peer) -> str:
        if self._drain.refuses:
            raise draining()
        host = self._hosts.connected(self._hosts.tenants[name], peer.pid)
        try:
            return self._ports.attach(host, "shm").token
        except OffstageError:
            self._leave(host, "left")
            raise
