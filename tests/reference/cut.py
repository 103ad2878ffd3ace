"""A proxy to a server on loopback that can be cut: open connections end, and no new one is
accepted."""

import contextlib
import socket
import threading


class Cut:
    """Forwards connections to `address` until `off`; again from `on`."""

    def __init__(self, address: str) -> None:
        """Start forwarding."""
        host, _, port = address.rpartition(":")
        self._to = (host, int(port))
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._lock = threading.Lock()
        self._ends: list[socket.socket] = []
        self._whole = True
        threading.Thread(target=self._accept, daemon=True).start()

    def off(self) -> None:
        """Cut: connections end, and new ones end at once."""
        with self._lock:
            self._whole = False
            ends, self._ends = self._ends, []
        for one in ends:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def on(self) -> None:
        """Forward again."""
        with self._lock:
            self._whole = True

    def close(self) -> None:
        """Stop forwarding."""
        self.off()
        self._socket.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                coming, _ = self._socket.accept()
                with self._lock:
                    whole = self._whole
                try:
                    if not whole:
                        raise OSError
                    going = socket.create_connection(self._to, timeout=5)
                    going.settimeout(None)
                except OSError:
                    coming.close()
                    continue
                with self._lock:
                    self._ends += [coming, going]
                for one, other in ((coming, going), (going, coming)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
