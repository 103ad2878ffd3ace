"""What an attached host gets: descriptors through its tenant's hand-out socket, or a blob alone, or
the ZMQ fabric.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from offstage.bindings.attachment import Attachment
from offstage.bindings.errors import BadInput
from offstage.dpu.config.values import Config
from offstage.dpu.control.ports import Offer
from offstage.dpu.control.zmq_fabric import ZmqFabric
from offstage.dpu.log import Log
from offstage.dpu.sockets.control_socket import ControlSocket
from offstage.dpu.sockets.door import Peer, door_of, shared
from offstage.dpu.sockets.fd_passing import FdPassing, Handed, Volume
from offstage.dpu.sockets.gate import Gate

__all__ = ["Attachments"]

FRAME_EXTRA_BYTES = 65_536  # what a message may have besides its blocks


class Attachments:
    """All kinds of attachment; the ZMQ fabric starts to listen with its first host."""

    def __init__(self, runtime_dir: Path, control: ControlSocket, config: Config, log: Log) -> None:
        self._control, self._config, self._log = control, config, log
        self._runtime_dir = runtime_dir
        self._fabric: ZmqFabric | None = None
        self._gate: Gate | None = None  # of that fabric
        self._hand_outs: dict[str, FdPassing] = {}
        try:
            for number, tenant in enumerate(config.tenants):
                path = runtime_dir / f"host-{number}.sock"  # short: of 107 bytes with its folder
                self._hand_outs[tenant.name] = FdPassing(path, log, door_of(tenant))
        except BadInput:
            self.close()
            raise

    def filenos(self) -> list[int]:
        """What to poll for readability, for `serve`."""
        return [fd for one in self._hand_outs.values() for fd in one.filenos()]

    def serve(self, ready: set[int]) -> list[Handed]:
        """Hand out descriptors for valid tokens; returns the hosts that took theirs."""
        return [handed for one in self._hand_outs.values() for handed in one.serve(ready)]

    def left(self) -> list[bytes]:
        """The tickets of hosts of volumes that have closed their connection."""
        return [ticket for one in self._hand_outs.values() for ticket in one.left()]

    def serve_volumes(
        self,
        open_volume: Callable[[str, str, Peer, bool], Volume],
        own: Callable[[bytes, Peer], None],
    ) -> None:
        """From now on a volume is opened by `open_volume`, which is given the tenant's name first;
        `own` is called with a host's ticket before it is handed its descriptors."""
        for name, one in self._hand_outs.items():
            one.open_volume, one.own = partial(open_volume, name), own

    def expire(self) -> None:
        """Drop attachments that were not fetched in time."""
        for one in self._hand_outs.values():
            one.expire()

    def offer(self, fabric: str, tenant: str, ticket: bytes, attachment: Attachment) -> Offer:
        """Take the attachment over."""
        if fabric == "shm":
            hand_out = self._hand_outs[tenant]
            token = hand_out.promise(ticket, attachment)
            return Offer(token, str(hand_out.path), blob=attachment.blob)
        if fabric in ("nixl", "verbs"):
            return Offer(blob=attachment.blob)
        try:
            if self._fabric is None:
                self._fabric = self._open_fabric()
        except BadInput:
            attachment.close()
            raise
        self._fabric.admit(ticket, attachment)
        return Offer(ticket.hex(), endpoint=self.endpoint(fabric))

    def open(self, fabric: str, endpoint: str) -> None:
        """Start serving a fabric; zmq listens immediately. BadInput if it cannot."""
        if fabric == "zmq" and self._fabric is None:
            self._fabric = self._open_fabric(endpoint)
        elif endpoint and endpoint != self.endpoint(fabric):
            raise BadInput(
                f"{fabric} takes no endpoint now"
                if fabric == "zmq"
                else f"{fabric} has no endpoint",
                endpoint,
                "leave it out, or remove zmq first and let its hosts leave"
                if fabric == "zmq"
                else "leave --listen out: it is for zmq",
            )

    def shut(self, fabric: str) -> None:
        """The last host has left it: zmq stops listening."""
        if fabric == "zmq":
            self._close_fabric()

    def endpoint(self, fabric: str) -> str:
        """Where a fabric listens now; "" where it does not."""
        if fabric == "shm":
            return " ".join(str(one.path) for one in self._hand_outs.values())
        return self._gate.endpoint if fabric == "zmq" and self._gate is not None else ""

    def forget(self, ticket: bytes) -> None:
        """The host has left, over whatever fabric."""
        for one in self._hand_outs.values():
            one.forget(ticket)
        if self._fabric is not None:
            self._fabric.remove(ticket)

    def counts(self) -> dict[str, int]:
        """Of the connections of control and fabric together."""
        gates = [one for one in (self._control.gate, self._gate) if one is not None]
        total = {name: sum(one.counts[name] for one in gates) for name in self._control.gate.counts}
        return {
            "connections": total.pop("connections"),
            **{f"connections_{name}": count for name, count in total.items()},
        }

    def close(self) -> None:
        """Close both."""
        for one in self._hand_outs.values():
            one.close()
        self._close_fabric()

    def _close_fabric(self) -> None:
        if self._gate is not None:
            self._gate.close()
            self._gate = None
        if self._fabric is not None:
            self._fabric.close()
            self._fabric = None

    def _open_fabric(self, endpoint: str = "") -> ZmqFabric:
        daemon = self._config.daemon
        endpoint = endpoint or daemon.fabric_endpoint
        if not endpoint:
            base = daemon.endpoint
            tcp = base.startswith("tcp://")
            endpoint = base.rpartition(":")[0] + ":*" if tcp else base + ".fabric"
        blocks_bytes = self._config.limits.put_slots * self._config.arena.payload_bytes
        frame_max = blocks_bytes + FRAME_EXTRA_BYTES
        gate = self._gate = Gate(
            endpoint,
            connections_max=self._config.limits.connections,
            message_bytes_max=2 * frame_max,
            shared=shared(self._config),
            log=self._log,
        )
        gate.whose = self._control.gate.whose
        inner = self._runtime_dir / "fabric.sock"
        fabric = ZmqFabric(self._control.context, f"ipc://{inner}", frame_max, self._log, gate.took)
        try:
            gate.listen()
            self._control.secure_fabric(fabric.socket)
            fabric.start()
        except BadInput:
            fabric.close()
            self._close_fabric()
            raise
        gate.start(inner)
        self._log.info("zmq_fabric", endpoint=gate.endpoint)
        return fabric
