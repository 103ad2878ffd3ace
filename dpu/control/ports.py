"""The port of each host, and the fabrics over which hosts may attach.

An operator can open and close a fabric while the daemon runs; a closed fabric ends when its last
host has left. The daemon's loop owns this.
"""

from typing import NamedTuple, Protocol

from offstage.bindings import nixl
from offstage.bindings.attachment import Attachment
from offstage.bindings.errors import OffstageError
from offstage.dpu import protocol as p
from offstage.dpu.config.derive import Derived, check_endpoint
from offstage.dpu.config.values import Config
from offstage.dpu.control.connects import Connects
from offstage.dpu.log import Log
from offstage.dpu.protocol.status import FabricReport
from offstage.dpu.storage.device import Device
from offstage.dpu.tenants.hosts import Host, Hosts, Refused, TenantState
from offstage.dpu.tenants.quotas import Quotas

__all__ = ["Attachments", "Offer", "Ports"]

# The side of the port behind each fabric: the driver of a ZMQ host runs in the daemon.
PORT_SIDES = {"shm": "shm", "verbs": "verbs", "nixl": "nixl", "zmq": "shm"}


class Offer(NamedTuple):
    """The fields of `Attached` that say where the blocks flow."""

    token: str = ""
    socket_path: str = ""
    endpoint: str = ""
    blob: bytes = b""


class Attachments(Protocol):
    """How an attached host gets its attachment."""

    def open(self, fabric: str, endpoint: str) -> None: ...

    def shut(self, fabric: str) -> None: ...

    def endpoint(self, fabric: str) -> str: ...

    def offer(self, fabric: str, tenant: str, ticket: bytes, attachment: Attachment) -> Offer: ...

    def forget(self, ticket: bytes) -> None: ...

    def counts(self) -> dict[str, int]: ...


class Ports:
    """The fabrics open now, and the hosts attached over each."""

    def __init__(
        self,
        config: Config,
        derived: Derived,
        device: Device,
        hosts: Hosts,
        attachments: Attachments,
        connects: Connects,
        quotas: Quotas,
        log: Log,
    ) -> None:
        """The configured fabrics start open."""
        self._config, self._derived, self._device = config, derived, device
        self._hosts, self._attachments, self._connects = hosts, attachments, connects
        self._quotas, self._log = quotas, log
        self._open: set[str] = set(config.daemon.fabrics)
        self._nixl_tenants: set[int] = set()

    def attach(self, host: Host, fabric: p.FabricName) -> p.Attached:
        """Attach a port for the host. Refused, StoreFull: there is none."""
        assert host.tenant is not None
        if host.port is not None:
            raise Refused("invalid", "this host is attached already", host.name, "detach first")
        if fabric not in self._open:
            raise Refused(
                "invalid",
                "this daemon does not serve this fabric",
                fabric,
                f"offstage dpu fabric add {fabric}, or attach over one of "
                f"{', '.join(sorted(self._open)) or 'none'}",
            )
        if fabric != "shm" and self._config.model.dilation > 1:
            raise Refused(
                "invalid",
                "this daemon's time is slower than the machine's",
                fabric,
                "attach over shm, which goes by its clock",
            )
        self._check_enabled(fabric)
        host.tenant.check_fabric(fabric)
        if fabric == "nixl":
            self._prepare_nixl(host.tenant.index)
        self._quotas.check(host.tenant, "ports")
        port, attachment = self._device.attach(host.tenant.index, PORT_SIDES[fabric])
        try:
            offered = self._attachments.offer(fabric, host.tenant.name, host.ticket, attachment)
        except OffstageError:
            self._device.detach(port)
            raise
        host.port, host.fabric = port, fabric
        return self._attached(fabric, offered)

    def attach_again(self, host: Host, fabric: p.FabricName) -> p.Attached:
        """Another connection to the port that the host has. Refused: it has none."""
        if host.port is None or host.fabric != fabric:
            raise Refused(
                "invalid",
                "the host has no port of this fabric",
                host.name,
                "attach, and open its sessions again",
            )
        self._connects.check(host.port)
        attachment = self._device.reattach(host.port)
        self._log.info("host_again", host=host.name)
        return self._attached(fabric, Offer(blob=attachment.blob))

    def open_fabric(self, fabric: str, endpoint: str) -> None:
        """Open the fabric to hosts. Refused, BadInput: it cannot be opened live."""
        self._check_enabled(fabric)
        if endpoint:
            check_endpoint(self._config, f"{fabric}'s", endpoint, "fabric add")
        self._attachments.open(fabric, endpoint)
        self._open.add(fabric)
        self._log.info("fabric_opened", fabric=fabric)

    def shut_fabric(self, fabric: str) -> None:
        """Close the fabric to new hosts; attached hosts continue."""
        self._open.discard(fabric)
        self.left(fabric)
        self._log.info("fabric_shut", fabric=fabric)

    def left(self, fabric: str) -> None:
        """A host has left it: a closed fabric ends with its last host."""
        if fabric and fabric not in self._open and not self._hosts_over(fabric):
            self._attachments.shut(fabric)

    def hosts_of(self, tenant: TenantState) -> int:
        """Hosts of a tenant that are attached."""
        return sum(1 for one in self._hosts.all() if one.tenant is tenant and one.fabric)

    def look(self) -> dict[str, FabricReport]:
        """Of each fabric, for the status."""
        return {
            name: FabricReport(
                open=name in self._open,
                hosts=self._hosts_over(name),
                endpoint=self._attachments.endpoint(name),
            )
            for name in PORT_SIDES
        }

    def _attached(self, fabric: p.FabricName, offered: Offer) -> p.Attached:
        return p.Attached(
            fabric=fabric,
            payload_size_bytes=self._config.arena.payload_bytes,
            demand_max=self._derived.demand_max,
            **offered._asdict(),
        )

    def _hosts_over(self, fabric: str) -> int:
        return sum(1 for one in self._hosts.all() if one.fabric == fabric)

    def _check_enabled(self, fabric: str) -> None:
        """Refuse a fabric that needs a setting at the start."""
        if fabric == "verbs" and not self._config.rdma.enabled:
            raise Refused(
                "invalid",
                "this daemon takes no hosts over RDMA",
                "rdma.enabled",
                "set it to true, or attach over zmq",
            )
        if fabric == "nixl" and not self._config.daemon.nixl:
            raise Refused(
                "forbidden",
                "this daemon takes no hosts over NIXL",
                "daemon.nixl",
                "set it to true where every host is trusted, or attach over zmq",
            )

    def _prepare_nixl(self, tenant: int) -> None:
        if tenant not in self._nixl_tenants:  # its region takes an agent at the first attach
            nixl.prepare()
            self._nixl_tenants.add(tenant)
