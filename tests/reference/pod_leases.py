"""Daemons of a pod with leases in a real etcd, which tests kill, stop and restart by name."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from pod_daemons import SHARD_TOKENS, TENANT

from offstage.bindings.errors import RunFailed
from offstage.dpu.pod.map import Member
from offstage.dpu.pod.membership.etcd import EtcdMembership
from offstage.testbeds.beds.daemon import Daemon, offstage_words, start

LEASE_S = 4
"""A loaded machine may stop a daemon for a second or two, and that is not what the tests ask."""
PATIENCE_S = 60.0


class Leased:
    """A pod with its map in etcd; runtime folders are in `folder`, by name."""

    def __init__(self, folder: Path, addresses: list[str], lease_s: int = LEASE_S) -> None:
        """Set up the map; no daemon runs yet."""
        self.folder, self.lease_s, self.place = folder, lease_s, f"etcd:{','.join(addresses)}"
        self.etcd = EtcdMembership(addresses)
        self.tiers: dict[str, Daemon] = {}
        self.etcd.change(lambda pod: replace(pod, shard_tokens=SHARD_TOKENS))

    def start(
        self,
        name: str,
        place: str = "",
        layers: int = 2,
        endpoint: str = "",
        within: Sequence[str] = (),
    ) -> Daemon:
        """Start a daemon on its own store, with the command prefix `within`; returns once it is a
        member."""
        home = self.folder / name
        home.mkdir(exist_ok=True)
        sections: dict[str, Any] = {
            "daemon": {"runtime_dir": str(home)},
            "arena": {"size": "3MiB", "payload": "4KiB", "layers": layers, "block_tokens": 16},
            "storage": {"backend": "posix", "size": "64MiB", "path": str(home / "store.kv")},
            "store": {"segment": "256KiB"},
            "limits": {"sessions": 64, "context_tokens": 8192},
            "pod": {"map": place or self.place, "name": name, "lease": f"{self.lease_s}s"},
            "tenant": [{"name": TENANT}],
        }
        if endpoint:
            sections["daemon"] |= {"endpoint": endpoint, "insecure": True}
        self.tiers[name] = start(sections, home, within=within)
        return self.tiers[name]

    def send(self, name: str, what: int) -> None:
        """Send a signal; if it stops or ends the daemon, wait until it has."""
        process = self.tiers[name].process
        process.send_signal(what)
        if what == signal.SIGSTOP:
            os.waitpid(process.pid, os.WUNTRACED)
        elif what != signal.SIGCONT:
            process.wait()

    def member(self, name: str) -> Member:
        """Return the member in the map."""
        found = self.etcd.map().find(name)
        assert found is not None
        return found

    def asked(self, name: str, within: Sequence[str]) -> dict[str, Any]:
        """Return the daemon's status, as a local program gets it. RunFailed: no answer."""
        done = subprocess.run(
            [
                *within,
                *offstage_words(),
                "dpu",
                "status",
                "--endpoint",
                self.member(name).endpoint,
                "--runtime-dir",
                str(self.folder / name),
                "--format",
                "json",
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        if done.returncode:
            raise RunFailed(done.stderr.strip(), name, "see its log")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def until(self, what: Callable[[], bool], said: str) -> float:
        """Wait until it holds; returns the seconds waited."""
        begun_s = time.monotonic()
        while True:
            with contextlib.suppress(RunFailed):
                if what():
                    return time.monotonic() - begun_s
            assert time.monotonic() - begun_s < PATIENCE_S, said
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until all members know the newest map."""

        def known() -> bool:
            epoch = self.etcd.map().epoch
            return all(one.carried_out >= epoch for one in self.etcd.alive())

        self.until(known, "not all know the newest map")

    def log(self, name: str) -> str:
        """The daemon's log."""
        return (self.folder / name / "daemon.log").read_text(encoding="utf-8")

    def close(self) -> None:
        """Kill all daemons that still run."""
        for tier in self.tiers.values():
            if tier.process.poll() is None:
                tier.process.kill()
                tier.process.wait()
        self.etcd.close()


@contextlib.contextmanager
def leased(folder: Path, addresses: list[str], *names: str) -> Iterator[Leased]:
    """A pod with a running daemon of each name."""
    pod = Leased(folder, addresses)
    try:
        for name in names:
            pod.start(name)
        yield pod
    finally:
        pod.close()
