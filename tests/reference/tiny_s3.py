"""A server with the part of S3 that the archive uses, in memory, with faults on command.

It complements the real one (swift_server.py) with what no real server does on command: be full,
answer errors, delay, return wrong bytes. It checks no signature.
"""

import hashlib
import threading
import time
import urllib.parse
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from xml.sax.saxutils import escape

__all__ = ["BUCKET", "TinyS3"]

BUCKET = "kv-archive"
PAGE = 5  # names on a page: so few that a listing has several


class TinyS3:
    """Serves within a `with` block. `objects`: name to bytes. `fail`: (status, code) for every
    call, `fail_puts` for puts; `delay_s`: before each answer; `cut`: how many objects are sent
    without their second half; `page`: the answer to every call, as from a server without S3;
    `drips`: every answer comes a byte at a time and never ends; `keeps`: a delete is confirmed but
    not done; `hidden`: objects that the next listing omits."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fail: tuple[int, str] | None = None
        self.fail_puts: tuple[int, str] | None = None
        self.delay_s = 0.0
        self.cut = 0
        self.page = b""
        self.drips = self.keeps = False
        self.hidden: set[str] = set()
        self.calls: list[str] = []

    def __enter__(self) -> Self:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _listing(objects: Iterable[str], query: dict[str, str]) -> bytes:
    after = query.get("continuation-token", "")
    names = sorted(
        one for one in objects if one > after and one.startswith(query.get("prefix", ""))
    )
    page, more = names[:PAGE], len(names) > PAGE
    text = "".join(f"<Contents><Key>{escape(one)}</Key></Contents>" for one in page)
    text += f"<IsTruncated>{str(more).lower()}</IsTruncated>"
    text += f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if more else ""
    return f"<ListBucketResult>{text}</ListBucketResult>".encode()


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _name(self) -> str:
        path = urllib.parse.unquote(self.path.split("?")[0]).lstrip("/")
        return path.partition("/")[2]

    @property
    def _query(self) -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(self.path.partition("?")[2]))

    def _error(self, status: int, code: str) -> None:
        self._send(status, f"<Error><Code>{code}</Code></Error>".encode())

    def _send(self, status: int, data: bytes, part: int = 1, tag: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if tag:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(data[: len(data) // part] if self.command != "HEAD" else b"")

    def log_message(self, format: str, *args: object) -> None:
        pass


def _handler(tiny: TinyS3) -> type[BaseHTTPRequestHandler]:
    class Handler(_Answers):
        def do_PUT(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            if self._fails(tiny.fail or tiny.fail_puts):
                return
            tiny.objects[self._name] = data
            self._send(200, b"", tag=_tag(data))

        def do_GET(self) -> None:
            if self._fails(tiny.fail):
                return
            if "list-type" in self._query:
                self._send(200, _listing(set(tiny.objects) - tiny.hidden, self._query))
                tiny.hidden = set()
            elif self._name in tiny.objects:
                self.close_connection = tiny.cut > 0
                tiny.cut -= self.close_connection
                self._send(200, tiny.objects[self._name], 2 if self.close_connection else 1)
            else:
                self._error(404, "NoSuchKey")

        def do_HEAD(self) -> None:
            if self._fails(tiny.fail):
                return
            data = tiny.objects.get(self._name)
            self._send(404 if data is None else 200, data or b"", tag=_tag(data or b""))

        def do_DELETE(self) -> None:
            if not self._fails(tiny.fail):
                if not tiny.keeps:
                    tiny.objects.pop(self._name, None)
                self._send(204, b"")

        def _fails(self, how: tuple[int, str] | None) -> bool:
            tiny.calls.append(f"{self.command} {self._name}")
            time.sleep(tiny.delay_s)
            if tiny.drips:
                self._drip()
                return True
            bucket = self.path.split("?")[0].lstrip("/").split("/")[0]
            if how is None and bucket != BUCKET:
                how = (404, "NoSuchBucket")
            if tiny.page:
                self._send(200, tiny.page)
            elif how is not None:
                self._error(*how)
            return bool(tiny.page) or how is not None

        def _drip(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 30))
            self.end_headers()
            self.close_connection = True
            try:
                while tiny.drips:
                    self.wfile.write(b"x")
                    time.sleep(0.05)
            except OSError:
                pass  # the client has gone

    return Handler
