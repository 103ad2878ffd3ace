"""What an attached host gets: descriptors through its tenant's hand-out socket, a blob that is all,
or the ZMQ fabric."""

from pathlib import Path
from typing import Any

from offstage.bindings.attachment import Attachment
from offstage.bindings.errors import BadInput
from offstage.dpu.config import Config
from offstage.dpu.control_socket import ControlSocket
from offstage.dpu.door import door_of
from offstage.dpu.fd_passing import FdPassing, Handed
from offstage.dpu.log import Log
from offstage.dpu.zmq_fabric import ZmqFabric

__all__ = ["Attachments"]

FRAME_EXTRA_BYTES = 65_536  # what a message may have besides its blocks


class Attachments:
    """Both ways; the ZMQ fabric begins to listen when the first host asks for it."""

    def __init__(
        self, runtime_dir: Path, control: ControlSocket, config: Config, log: Log
    ) -> None:  # fmt: skip
        self._control, self._config, self._log = control, config, log
        self._fabric: ZmqFabric | None = None
        self._hand_outs: dict[str, FdPassing] = {}
        try:
            for number, tenant in enumerate(config.tenants):
                path = runtime_dir / f"handout-{number}.sock"
                self._hand_outs[tenant.name] = FdPassing(path, log, door_of(tenant))
        except BadInput:
            self.close()
            raise

    def filenos(self) -> list[int]:
        """What to poll for readability, for `serve`."""
        return [fd for one in self._hand_outs.values() for fd in one.filenos()]

    def serve(self, ready: set[int]) -> list[Handed]:
        """Hand out to those who show their token; returns the hosts that took theirs."""
        return [handed for one in self._hand_outs.values() for handed in one.serve(ready)]

    def expire(self) -> None:
        """Drop what nobody came for."""
        for one in self._hand_outs.values():
            one.expire()

    def offer(
        self, fabric: str, tenant: str, ticket: bytes, attachment: Attachment
    ) -> dict[str, Any]:
        """Take the attachment over; returns what `Attached` says of it."""
        if fabric == "shm":
            hand_out = self._hand_outs[tenant]
            token = hand_out.promise(ticket, attachment)
            return {"token": token, "socket_path": str(hand_out.path), "blob": attachment.blob}
        if fabric in ("nixl", "verbs"):
            return {"token": "", "blob": attachment.blob}
        try:
            if self._fabric is None:
                self._fabric = self._open_fabric()
        except BadInput:
            attachment.close()
            raise
        self._fabric.admit(ticket, attachment)
        return {"token": ticket.hex(), "endpoint": self._fabric.endpoint}

    def open(self, fabric: str, endpoint: str) -> None:
        """Serve a fabric from now on; zmq listens at once. BadInput where it cannot."""
        if fabric == "zmq" and self._fabric is None:
            self._fabric = self._open_fabric(endpoint)
        elif endpoint and (self._fabric is None or endpoint != self._fabric.endpoint):
            raise BadInput(f"{fabric} takes no endpoint now", endpoint,
                           f"leave it out, or remove {fabric} first and let its hosts "
                           "leave")  # fmt: skip

    def shut(self, fabric: str) -> None:
        """Nobody is left on it: zmq ends to listen."""
        if fabric == "zmq" and self._fabric is not None:
            self._fabric.close()
            self._fabric = None

    def endpoint(self, fabric: str) -> str:
        """Where a fabric listens now; "" where it does not."""
        if fabric == "shm":
            return " ".join(str(one.path) for one in self._hand_outs.values())
        zmq = self._fabric if fabric == "zmq" else None
        return zmq.endpoint if zmq is not None else ""

    def forget(self, ticket: bytes) -> None:
        """The host is gone, wherever it was."""
        for one in self._hand_outs.values():
            one.forget(ticket)
        if self._fabric is not None:
            self._fabric.remove(ticket)

    def close(self) -> None:
        """Close both."""
        for one in self._hand_outs.values():
            one.close()
        if self._fabric is not None:
            self._fabric.close()

    def _open_fabric(self, endpoint: str = "") -> ZmqFabric:
        daemon = self._config.daemon
        endpoint = endpoint or daemon.fabric_endpoint
        if not endpoint:
            base = daemon.endpoint
            tcp = base.startswith("tcp://")
            endpoint = base.rpartition(":")[0] + ":*" if tcp else base + ".fabric"
        blocks_bytes = self._config.limits.put_slots * self._config.arena.payload_bytes
        fabric = ZmqFabric(
            self._control.context, endpoint, blocks_bytes + FRAME_EXTRA_BYTES, self._log
        )
        try:
            self._control.secure(fabric.socket)
            fabric.start()
        except BadInput:
            fabric.close()
            raise
        self._log.info("zmq_fabric", endpoint=fabric.endpoint)
        return fabric
