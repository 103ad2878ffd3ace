"""Volumes of values: which there are, the port of a host that comes for one without a login, and
those of the listener of NVMe/TCP."""

import errno
import os
import secrets
from collections.abc import Callable
from pathlib import Path

from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput, OffstageError
from offstage.dpu.config.derive import NGUID
from offstage.dpu.config.values import Config
from offstage.dpu.control.drain import Drain
from offstage.dpu.control.ports import Ports
from offstage.dpu.log import Log
from offstage.dpu.nvme.dhchap import key_of, text_of
from offstage.dpu.nvme.identify import Volume as Namespace
from offstage.dpu.nvme.listener import NvmeListener, Served
from offstage.dpu.sockets.door import Peer
from offstage.dpu.sockets.fd_passing import Volume
from offstage.dpu.storage.device import Device
from offstage.dpu.tenants.hosts import Host, Hosts, TenantState, draining
from offstage.dpu.tenants.quotas import Quotas
from offstage.dpu.tenants.tenancy import owner_key, publish_dhchap

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
        volume = Volume(
            self._device.value_bytes_max(self._hosts.tenants[name].index),
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

    def listen(self, runtime_dir: Path, log: Log) -> NvmeListener:
        """Serve NVMe/TCP: the volumes of each tenant that lists some and whose users share. The
        key of its hosts is written to the runtime directory. BadInput: the address is taken."""
        listener = NvmeListener(self._config.nvme.listen, log)
        served: list[Served] = []
        try:
            for tenant in self._config.tenants:
                if tenant.volumes and tenant.sharing == "tenant":
                    state = self._hosts.tenants[tenant.name]
                    publish_dhchap(runtime_dir, tenant.name, text_of(key_of(state.secret)))
                    served.append(self._served(state, tenant.volumes))
            listener.start(served)
        except BaseException:
            listener.close()
            raise
        return listener

    def _served(self, tenant: TenantState, volumes: tuple[str, ...]) -> Served:
        host = self._hosts.connected(tenant, os.getpid())
        self._quotas.check(tenant, "ports")
        host.port, attachment = self._device.attach(tenant.index, "shm")
        host.fabric = "shm"
        try:
            driver = Driver(attachment)
        finally:
            attachment.close()
        size, most = self._config.storage.size_bytes, self._device.value_bytes_max(tenant.index)
        spaces = [
            Namespace(bytes.fromhex(one[:NGUID_DIGITS]), one.endswith(DURABLE), size, most)
            for one in volumes
        ]
        return Served(tenant.name, tenant.secret, driver, tuple(spaces))

    def _attach(self, name: str, peer: Peer) -> str:
        if self._drain.refuses:
            raise draining()
        host = self._hosts.connected(self._hosts.tenants[name], peer.pid)
        try:
            return self._ports.attach(host, "shm").token
        except OffstageError:
            self._leave(host, "left")
            raise
