"""Testbeds of this machine: a daemon, and the endpoint at which that bed's host reaches it.

`local`: one machine, shared memory. `netns`: two network namespaces and messages under CURVE;
the link between them is shaped if the kernel supports it. `testbed.json` in the bed's folder
records what is up, so that another command can find it and stop it.
"""

import contextlib
import json
import os
import select
import signal
from dataclasses import dataclass, field
from pathlib import Path

import zmq.auth

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.outside import read_json
from offstage.host.endpoint import Endpoint
from offstage.testbeds.beds import netns
from offstage.testbeds.beds.daemon import offstage_words, start
from offstage.testbeds.beds.local import STATE, TENANT, DaemonSizes, LocalBed, runs

__all__ = ["BEDS", "Up", "down", "find", "up"]

BEDS = {
    "local": "one machine: a daemon and its host, over shared memory",
    "netns": "two network namespaces of this machine, by messages under CURVE (root)",
}
CONTROL_PORT, FABRIC_PORT = 7411, 7412
STOP_S = 120.0


@dataclass(frozen=True)
class Up:
    """A running bed. `real` says of each part whether it is real."""

    bed: str
    out: Path
    pid: int
    endpoint: str
    names: dict[str, str] = field(default_factory=dict)
    real: dict[str, str] = field(default_factory=dict)

    @property
    def operator(self) -> Endpoint:
        """The operator's endpoint, on the daemon's machine."""
        return Endpoint(
            self.endpoint, "operator", name="testbed", runtime_dir=LocalBed(self.out).runtime
        )

    def host(self, *words: str) -> list[str]:
        """The words of `offstage host run` for the bed's host, with `more` appended."""
        runtime, keys = LocalBed(self.out).runtime, LocalBed(self.out).work / "keys"
        within = netns.Network(self.names).words("node") if self.names else []
        way = ["--runtime-dir", str(runtime)]
        if self.names:
            way += ["--fabric", "zmq", "--curve-dir", str(keys / "client")]
        way += ["--endpoint", self.endpoint, "--tenant", TENANT]
        return [*within, *offstage_words("host", "run", *way, *words)]


def up(bed: str, out: Path, sizes: DaemonSizes, rate: str = "", delay: str = "") -> Up:
    """Start a bed. BadInput: one is already up in this folder, or this machine does not support
    it. RunFailed: the daemon ended."""
    place = LocalBed(out.absolute())
    place.take(STATE)
    sections = place.sections(sizes, {"backend": "auto"})
    network = None
    if bed == "netns":
        network = netns.make(f"{os.getpid()}", rate, delay)
        sections["daemon"] |= _over_the_link(place)
    try:
        within = network.words("dpu") if network else []
        tier = start(sections, place.work, within=within, stays=True)
        found = Up(
            bed,
            place.out,
            tier.ready.pid,
            tier.endpoint,
            network.names if network else {},
            _real(tier.storage, network),
        )
    except BaseException:
        if network is not None:
            netns.end(network.names)
        raise
    state = {
        "bed": bed,
        "pid": found.pid,
        "endpoint": found.endpoint,
        "names": found.names,
        "real": found.real,
    }
    (place.out / STATE).write_text(json.dumps(state), encoding="utf-8")
    return found


def _over_the_link(place: LocalBed) -> dict[str, str]:
    """The addresses of the namespaces, and the keys of both sides."""
    keys = place.work / "keys"
    old_mask = os.umask(0o077)
    try:
        if not keys.exists():
            _make_keys(keys)
    finally:
        os.umask(old_mask)
    address = netns.ADDRESSES["dpu"]
    return {
        "endpoint": f"tcp://{address}:{CONTROL_PORT}",
        "fabric_endpoint": f"tcp://{address}:{FABRIC_PORT}",
        "curve_dir": str(keys),
    }


def _make_keys(keys: Path) -> None:
    for folder in (keys / "clients", keys / "client"):
        folder.mkdir(parents=True)
    zmq.auth.create_certificates(keys, "server")
    zmq.auth.create_certificates(keys / "client", "client")
    (keys / "clients/client.key").write_bytes((keys / "client/client.key").read_bytes())
    (keys / "client/server.key").write_bytes((keys / "server.key").read_bytes())


def _real(storage: str, network: netns.Network | None) -> dict[str, str]:
    link = "none: memory that host and daemon share"
    if network is not None:
        shaped = f"shaped by {network.shaped}" if network.shaped else "not shaped"
        link = f"not real: veth between two namespaces of one kernel, {shaped}"
    return {
        "gpu": "not real: the host's processor decodes",
        "host software": "real",
        "dpu": "not real: this machine's own processor",
        "dpu software": "real",
        "link": link,
        "drive": f"real: a file of this machine, {storage}",
    }


def find(out: Path) -> Up | None:
    """The bed that is up in this folder; None if there is none or its daemon has ended."""
    try:
        state = read_json(out / STATE, "")
        words = [state[key] for key in ("pid", "endpoint", "names", "real")]
    except (BadInput, KeyError, TypeError):
        return None
    return Up(state["bed"], out.absolute(), *words) if runs(state["pid"], "dpu") else None


def down(out: Path) -> bool:
    """Drain and stop it; False if nothing was up. RunFailed: the daemon did not end."""
    found = find(out)
    if found is None:
        return False
    watched = os.pidfd_open(found.pid)
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(watched, signal.SIGTERM)
        if not select.select([watched], [], [], STOP_S)[0]:
            raise RunFailed(
                "the daemon did not end",
                f"pid {found.pid}",
                f"see {LocalBed(out).work / 'daemon.log'}",
            )
    finally:
        os.close(watched)
        netns.end(found.names)
    (out / STATE).unlink()
    return True
