"""The listener of NVMe over TCP: a subsystem for each tenant that lists volumes.

One thread owns the firmware's target and all that is said to hosts. For each tenant it has a port
as any host of it has, so quotas, metrics and a drain see one more host. Where that port ends, its
values end with an error, and the daemon is to be started again.
"""

import socket
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.nvme_tcp import Asked, NvmeTarget
from offstage.dpu.config.addresses import parse_host_port
from offstage.dpu.log import Log
from offstage.dpu.nvme.admin import Subsystem
from offstage.dpu.nvme.controllers import Controllers
from offstage.dpu.nvme.dhchap import key_of
from offstage.dpu.nvme.identify import Volume

__all__ = ["NvmeListener", "Served", "subsystem_nqn"]

TURN_S = 0.2  # the longest that a keep-alive timer is late, and a stop
BACKLOG = 64


@dataclass(frozen=True)
class Served:
    """A tenant: its name and secret, the driver of its port, which is the listener's from then on,
    and its volumes."""

    name: str
    secret: bytes
    driver: Driver
    volumes: tuple[Volume, ...]


def subsystem_nqn(secret: bytes) -> str:
    """The NQN of a tenant's subsystem: the same after every start, and without its name."""
    return f"nqn.2014-08.org.nvmexpress:uuid:{uuid.UUID(bytes=key_of(secret + b'nqn')[:16])}"


class NvmeListener:
    """It listens from the start on, and serves from `start` to `close`."""

    def __init__(self, listen: str, log: Log) -> None:
        """BadInput: the address is taken, or none."""
        self._log = log
        host, port = parse_host_port(listen, "nvme.listen")
        try:
            found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
            self._socket = socket.create_server(found[0][4], family=found[0][0], backlog=BACKLOG)
        except OSError as error:
            raise BadInput(
                f"NVMe/TCP cannot listen ({error.strerror})", listen, "choose another nvme.listen"
            ) from None
        self._socket.setblocking(False)
        self._address, self._port = self._socket.getsockname()[:2]
        self._stopping = threading.Event()
        self._target: NvmeTarget | None = None
        self._drivers: list[Driver] = []
        self._thread = threading.Thread(target=self._run, name="ofs-nvme-tcp", daemon=True)

    def start(self, tenants: Sequence[Served]) -> None:
        """Serve these tenants. RunFailed, BadInput: one cannot be served."""
        self._drivers = [one.driver for one in tenants]
        self._target = NvmeTarget(self._socket.fileno())
        subsystems = {}
        for one in tenants:
            number = self._target.add_tenant(
                one.driver,
                min(volume.value_bytes_max for volume in one.volumes),
                [(volume.nguid, volume.durable) for volume in one.volumes],
            )
            nqn = subsystem_nqn(one.secret)
            subsystems[nqn] = Subsystem(nqn, key_of(one.secret), number, one.volumes)
            self._log.info("nvme_subsystem", tenant=one.name, nqn=nqn)
        self._controllers = Controllers(
            self._target, subsystems, self._address, self._port, self._log.info
        )
        self._log.info("nvme_tcp", address=self._address, port=self._port)
        self._thread.start()

    def close(self) -> None:
        """Close every connection, and the drivers."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._target is not None:
            self._target.close()
        for driver in self._drivers:
            driver.close()
        self._socket.close()

    def _take(self, target: NvmeTarget, asked: Asked) -> None:
        """A fault of ours costs one connection."""
        try:
            self._controllers.take(asked, time.monotonic())
        except Exception as error:
            self._log.error("nvme_command_failed", error=f"{type(error).__name__}: {error}")
            target.hang_up(asked.connection)

    def _run(self) -> None:
        assert self._target is not None
        try:
            while not self._stopping.is_set():
                for asked in self._target.run(time.monotonic(), TURN_S):
                    self._take(self._target, asked)
                self._controllers.expire(time.monotonic())
        except OffstageError as error:
            self._log.error("nvme_tcp_ended", error=str(error))
