"""The HTTP endpoint of the metrics: one thread, a few connections, each with a deadline.

A slow scrape occupies a connection, not a thread, and the oldest connection is closed to admit a
new one. `render` decides from the request's token what the response contains, if anything.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from offstage.bindings.errors import BadInput

__all__ = ["Scrapes"]

CONNECTIONS_MAX = 16
REQUEST_BYTES_MAX = 8192
SCRAPE_S = 10.0  # from the connect to the last byte
LOOK_S = 0.5
ACCEPTS_MAX = 16  # of one turn
BACKLOG = 1024

Render = Callable[[str], tuple[str, bytes] | None]


@dataclass(eq=False)
class _Scrape:
    connection: socket.socket
    until_s: float
    request: bytes = b""
    answer: bytes = b""


class Scrapes:
    """Answers GET with what `render` gives for the bearer token: content type and body, or 401."""

    def __init__(self, host: str, port: int, render: Render) -> None:
        """Listen and serve. BadInput where the port is taken."""
        self._render = render
        try:
            family, kind, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._listener = socket.socket(family, kind | socket.SOCK_CLOEXEC)
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(address)
            self._listener.listen(BACKLOG)
        except OSError as error:
            raise BadInput(
                f"the metrics endpoint cannot be opened ({error.strerror or error})",
                f"{host}:{port}",
                'choose another daemon.metrics_endpoint, or "" for none',
            ) from None
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._scrapes: list[_Scrape] = []  # oldest first
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="ofs-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and every connection."""
        self._stop = True
        self._thread.join(timeout=5)
        for scrape in list(self._scrapes):
            self._drop(scrape)
        self._listener.close()
        self._selector.close()

    def _run(self) -> None:
        while not self._stop:
            for key, _ in self._selector.select(LOOK_S):
                if key.data is None:
                    self._accept()
                elif key.data in self._scrapes:
                    self._serve(key.data)
            for scrape in [one for one in self._scrapes if one.until_s < time.monotonic()]:
                self._drop(scrape)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # none is left
            for _ in range(ACCEPTS_MAX):
                self._let_in(self._listener.accept()[0])

    def _let_in(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        if len(self._scrapes) >= CONNECTIONS_MAX:
            self._drop(self._scrapes[0])
        scrape = _Scrape(connection, time.monotonic() + SCRAPE_S)
        self._scrapes.append(scrape)
        self._selector.register(connection, selectors.EVENT_READ, scrape)

    def _serve(self, scrape: _Scrape) -> None:
        try:
            if not scrape.answer and not self._hear(scrape):
                return
            scrape.answer = scrape.answer[scrape.connection.send(scrape.answer) :]
        except BlockingIOError:
            return
        except OSError:
            scrape.answer = b""
        if not scrape.answer:
            self._drop(scrape)

    def _hear(self, scrape: _Scrape) -> bool:
        """Whether the request is whole; then the answer is there."""
        data = scrape.connection.recv(REQUEST_BYTES_MAX)
        scrape.request += data
        head, end, _ = scrape.request.partition(b"\r\n\r\n")
        if not data or len(scrape.request) > REQUEST_BYTES_MAX:
            raise ConnectionError("no request")
        if not end:
            return False
        scrape.answer = self._answer(head.decode("latin-1"))
        self._selector.modify(scrape.connection, selectors.EVENT_WRITE, scrape)
        return True

    def _answer(self, head: str) -> bytes:
        first, *lines = head.split("\r\n")
        method = first.partition(" ")[0]
        fields = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        if method not in ("GET", "HEAD"):
            return b"HTTP/1.1 405 Method Not Allowed\r\nConnection: close\r\n\r\n"
        scheme, _, token = fields.get("authorization", "").partition(" ")
        page = self._render(token.strip() if scheme.lower() == "bearer" else "")
        if page is None:
            return (
                b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer\r\n"
                b"Content-Length: 0\r\nConnection: close\r\n\r\n"
            )
        kind, body = page
        said = (
            f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
        ).encode()
        return said if method == "HEAD" else said + body

    def _drop(self, scrape: _Scrape) -> None:
        self._scrapes.remove(scrape)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(scrape.connection)
        scrape.connection.close()
