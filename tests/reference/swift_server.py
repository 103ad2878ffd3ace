"""OpenStack Swift with its S3 API on loopback: a real object store for the tests of the archive.

A proxy and one account, container and object server keep one replica in a folder of the test;
tempauth knows the user. Debian has them all: `apt-get install swift-proxy swift-account
swift-container swift-object`. The servers run under the distribution's Python, never the test's.
"""

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

__all__ = ["ACCESS", "BUCKET", "MISSING", "SECRET", "Swift"]

ACCESS, SECRET, BUCKET = "tier:writer", "not-a-secret", "kv-archive"
KINDS = ("account", "container", "object")
MISSING = (
    ""
    if all(shutil.which(f"swift-{one}-server") for one in (*KINDS, "proxy"))
    and Path("/etc/swift/swift.conf").exists()
    else "no Swift here: apt-get install swift-proxy swift-account swift-container swift-object"
)
PYTHON = "/usr/bin/python3"
STARTUP_S = 60.0
SERVER = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
devices = {folder}/devices
mount_check = false
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
PROXY = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {folder}
[pipeline:main]
pipeline = catch_errors healthcheck cache s3api tempauth proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:cache]
use = egg:swift#memcache
# tempauth wants the client to be there; nothing answers it, and nothing of S3 needs it.
memcache_servers = 127.0.0.1:1
[filter:s3api]
use = egg:swift#s3api
auth_pipeline_check = false
allow_multipart_uploads = false
[filter:tempauth]
use = egg:swift#tempauth
user_tier_writer = {secret} .admin
"""


def free_port() -> int:
    """A free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Swift:
    """The four servers; `stop` and `start` keep the stored objects."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.bucket: Any = None  # its client, set by the fixture
        self._processes: list[subprocess.Popen[bytes]] = []
        self.ports = {kind: free_port() for kind in (*KINDS, "proxy")}
        self.endpoint = f"http://127.0.0.1:{self.ports['proxy']}"
        (folder / "devices" / "d1").mkdir(parents=True)
        user = subprocess.check_output(["id", "-un"], text=True).strip()
        for kind in (*KINDS, "proxy"):
            text = PROXY if kind == "proxy" else SERVER
            (folder / f"{kind}.conf").write_text(
                text.format(
                    kind=kind, port=self.ports[kind], folder=folder, user=user, secret=SECRET
                )
            )
        for kind in KINDS:
            self._ring(kind)

    def _ring(self, kind: str) -> None:
        builder = str(self._folder / f"{kind}.builder")
        where = f"r1z1-127.0.0.1:{self.ports[kind]}/d1"
        for command in (["create", "4", "1", "1"], ["add", where, "1"], ["rebalance"]):
            subprocess.run(
                ["swift-ring-builder", builder, *command],
                check=True,
                capture_output=True,
                env=_environment(),
            )

    def start(self) -> None:
        """Start the servers; returns when the proxy answers."""
        for kind in (*KINDS, "proxy"):
            log = (self._folder / f"{kind}.log").open("ab")
            self._processes.append(
                subprocess.Popen(
                    [
                        PYTHON,
                        f"/usr/bin/swift-{kind}-server",
                        str(self._folder / f"{kind}.conf"),
                        "--verbose",
                    ],
                    stdout=log,
                    stderr=log,
                    env=_environment(),
                )
            )
            log.close()
        until = time.monotonic() + STARTUP_S
        while not self._answers():
            assert time.monotonic() < until, (self._folder / "proxy.log").read_text()[-2000:]
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            for port in self.ports.values():
                socket.create_connection(("127.0.0.1", port), 1).close()
            with urllib.request.urlopen(f"{self.endpoint}/healthcheck", timeout=1) as reply:
                return bool(reply.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def freeze(self, number: int) -> None:
        """Send all servers a signal: SIGSTOP or SIGCONT."""
        for process in self._processes:
            process.send_signal(number)

    def stop(self) -> None:
        """Kill the servers."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes.clear()


def _environment() -> dict[str, str]:
    """Return the environment of the distribution's own Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
