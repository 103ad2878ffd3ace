"""Cables for the daemons of a pod: each daemon has a network namespace, with one cable to etcd and
one to all others.

They end in two bridges of the test's own namespace: etcd is on one, hosts are on the other. A cut
cable drops packets silently, and no connection ends.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from offstage.bindings.errors import BadInput
from offstage.testbeds.beds import netns

NETWORKS = {"etcd": "10.79.2", "pod": "10.79.1"}
OURS = 254
"""The last part of the test's own address in both networks."""
KERNEL = "needs a kernel with network namespaces, veth and bridges"


class Cables:
    """`within[NAME]`: prefix of a command that runs there; `address[NAME]`: for hosts to use."""

    def __init__(self, names: tuple[str, ...]) -> None:
        """Connect all cables; skips if this machine cannot."""
        try:
            netns.check()
        except BadInput as error:
            pytest.skip(str(error))
        self.etcd_host = f"{NETWORKS['etcd']}.{OURS}"
        tag = f"{os.getpid()}"[-7:]
        self._bridges = {which: f"ofs{which[0]}b{tag}" for which in NETWORKS}
        self._spaces = {name: f"ofs-{name}-{os.getpid()}" for name in names}
        self._ends = {
            (name, which): f"o{number}{which[0]}{tag}"
            for number, name in enumerate(names)
            for which in NETWORKS
        }
        self.within = {name: ["ip", "netns", "exec", one] for name, one in self._spaces.items()}
        self.address = {name: f"{NETWORKS['pod']}.{1 + at}" for at, name in enumerate(names)}
        try:
            self._make(names)
        except BaseException:
            self.close()
            raise

    def cut(self, name: str, which: str) -> None:
        """Cut the cable to `etcd` or to the `pod`, at its bridge."""
        _ip("link", "set", self._ends[name, which], "nomaster")

    def fix(self, name: str, which: str) -> None:
        """Reconnect it."""
        _ip("link", "set", self._ends[name, which], "master", self._bridges[which])

    def part(self, *, apart: bool) -> None:
        """Isolate daemons from each other but not from hosts, or undo that."""
        for (_, which), end in self._ends.items():
            if which == "pod":
                _run("bridge", "link", "set", "dev", end, "isolated", "on" if apart else "off")

    def close(self) -> None:
        """Kill the processes inside, and remove everything."""
        for space in self._spaces.values():
            done = subprocess.run(
                ["ip", "netns", "pids", space], capture_output=True, text=True, check=False
            )
            for pid in done.stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)
        for one in [*self._ends.values(), *self._bridges.values()]:
            subprocess.run(["ip", "link", "delete", one], capture_output=True, check=False)

    def _make(self, names: tuple[str, ...]) -> None:
        for which, bridge in self._bridges.items():
            _ip("link", "add", bridge, "type", "bridge")
            _ip("address", "add", f"{NETWORKS[which]}.{OURS}/24", "dev", bridge)
            _ip("link", "set", bridge, "up")
        for number, name in enumerate(names):
            space = self._spaces[name]
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
            for which, network in NETWORKS.items():
                end, inside = self._ends[name, which], f"{which}0"
                _ip("link", "add", end, "type", "veth", "peer", "name", inside, "netns", space)
                _ip("-n", space, "address", "add", f"{network}.{1 + number}/24", "dev", inside)
                _ip("-n", space, "link", "set", inside, "up")
                _ip("link", "set", end, "up", "master", self._bridges[which])


@contextlib.contextmanager
def cables(*names: str) -> Iterator[Cables]:
    """Connect the cables, and remove them at the end."""
    made = Cables(names)
    try:
        yield made
    finally:
        made.close()


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if "not supported" in done.stderr or "Unknown device type" in done.stderr:
        pytest.skip(f"{KERNEL}: {done.stderr.strip()}")
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
