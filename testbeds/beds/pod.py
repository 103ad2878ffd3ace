"""A pod on this machine: four daemons, with the map in an etcd of three if etcd is installed.

Each daemon is the one of `local`, in a folder below `work/dpus`; etcd's members are below
`work/etcd`. A daemon joins by itself, in etcd under a lease. All traffic is on loopback and Unix
sockets, so the bed cannot show the effects of separate links, separate drives or a failing rack.
`testbed.json` records what is up, so that another command can find it and stop it.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.outside import read_json
from offstage.dpu.pod.map import Member
from offstage.dpu.pod.membership import open_membership
from offstage.testbeds.beds.daemon import start
from offstage.testbeds.beds.local import STATE, DaemonSizes, LocalBed, runs

__all__ = ["DAEMONS", "PodBed", "begin_daemon", "down", "end", "find", "runs", "up"]

DAEMONS = 4
ETCD_MEMBERS = 3
START_S, STOP_S = 30.0, 60.0


@dataclass(frozen=True)
class PodBed:
    """A running pod. `processes`: process ids by name, daemons first."""

    out: Path
    place: str
    """The address of its map."""
    processes: dict[str, int]

    @property
    def runtime_dir(self) -> Path:
        """The folder of the daemons' runtime folders, by name."""
        return runtime_dir(self.out)


def runtime_dir(out: Path) -> Path:
    """The folder of the runtime folders of a bed's daemons."""
    return LocalBed(out).work / "dpus"


def up(out: Path, sizes: DaemonSizes, *, with_etcd: bool | None = None) -> PodBed:
    """Start a pod; `with_etcd` None: with etcd if it is installed. BadInput: one is already up.
    RunFailed: a process did not come up."""
    out = out.absolute()
    place, processes = LocalBed(out), dict[str, int]()
    place.take("pod.toml", STATE)
    try:
        where = str(out / "pod.toml")
        if (shutil.which("etcd") is not None) if with_etcd is None else with_etcd:
            where = "etcd:" + ",".join(_begin_etcd(place.work / "etcd", processes))
        else:
            (out / "pod.toml").unlink(missing_ok=True)
        membership = open_membership(where)
        shard = _shard_tokens(sizes)
        membership.change(lambda pod: replace(pod, shard_tokens=shard))
        membership.close()
        for number in range(DAEMONS):
            processes[f"dpu{number}"] = begin_daemon(out, f"dpu{number}", sizes, where)[1]
    except BaseException:
        _end(processes)
        raise
    (out / STATE).write_text(
        json.dumps({"bed": "pod", "place": where, "processes": processes}), encoding="utf-8"
    )
    return PodBed(out, where, processes)


def begin_daemon(out: Path, name: str, sizes: DaemonSizes, pod: str = "") -> tuple[Member, int]:
    """Start a daemon of a bed over its existing store, if any; returns it and its process. It
    joins the pod whose map is at `pod`; "": none."""
    place, home = LocalBed(out), runtime_dir(out) / name
    home.mkdir(parents=True, exist_ok=True)
    sections = place.sections(sizes, {"backend": "auto", "path": str(home / "store.kv")})
    sections["daemon"] |= {"endpoint": f"ipc://{home}/control", "runtime_dir": str(home)}
    sections["limits"]["sessions"] = 16 * sizes.sessions
    sections["pod"] = {"map": pod, "name": name}
    tier = start(sections, home, stays=True)
    return Member(name=name, endpoint=tier.endpoint), tier.ready.pid


def _shard_tokens(sizes: DaemonSizes) -> int:
    """An eighth of a context, 512 to 4,096 tokens, so that a short context is spread as well."""
    blocks = min(max(sizes.context_tokens // 8, 512), 4096) // sizes.block_tokens
    return blocks * sizes.block_tokens


def find(out: Path) -> PodBed | None:
    """The pod that is up in this folder; None if there is none or all its processes have ended."""
    try:
        state = read_json(out / STATE, "")
        found = PodBed(out.absolute(), state["place"], state["processes"])
    except (OSError, BadInput, KeyError, TypeError):
        return None
    return found if any(runs(pid, name) for name, pid in found.processes.items()) else None


def down(out: Path) -> bool:
    """Stop all of it; False if nothing was up. RunFailed: a daemon did not end."""
    found = find(out)
    if found is None:
        return False
    end(found)
    return True


def end(bed: PodBed) -> None:
    """Stop all processes of a bed, including those started after `up`. RunFailed as `down`."""
    _end({name: pid for name, pid in bed.processes.items() if runs(pid, name)})
    (bed.out / STATE).unlink(missing_ok=True)


def _begin_etcd(folder: Path, processes: dict[str, int]) -> list[str]:
    """Start three members of a new cluster on loopback; returns their client addresses."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with _free_ports(2 * ETCD_MEMBERS) as ports:
        names = [f"etcd{number}" for number in range(ETCD_MEMBERS)]
        clients = [f"127.0.0.1:{port}" for port in ports[:ETCD_MEMBERS]]
        peers = [f"http://127.0.0.1:{port}" for port in ports[ETCD_MEMBERS:]]
    cluster = ",".join(f"{name}={peer}" for name, peer in zip(names, peers, strict=True))
    for name, client, peer in zip(names, clients, peers, strict=True):
        with (folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    "etcd",
                    f"--name={name}",
                    f"--data-dir={folder / name}",
                    f"--listen-client-urls=http://{client}",
                    f"--advertise-client-urls=http://{client}",
                    f"--listen-peer-urls={peer}",
                    f"--initial-advertise-peer-urls={peer}",
                    f"--initial-cluster={cluster}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        processes[name] = process.pid
    membership = open_membership(f"etcd:{clients[0]}")
    until = time.monotonic() + START_S
    while True:
        try:
            membership.map()
            membership.close()
            return clients
        except RunFailed:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


@contextlib.contextmanager
def _free_ports(count: int) -> Iterator[list[int]]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        yield [one.getsockname()[1] for one in sockets]


def _end(processes: dict[str, int]) -> None:
    """Daemons first, since a drain may still need etcd; then etcd."""
    for some in (False, True):
        ending: dict[int, str] = {}
        for name, pid in processes.items():
            if name.startswith("etcd") is some:
                with contextlib.suppress(ProcessLookupError):
                    watched = os.pidfd_open(pid)
                    signal.pidfd_send_signal(watched, signal.SIGTERM)
                    ending[watched] = name
        for watched, name in ending.items():
            ended: Any = select.select([watched], [], [], STOP_S)[0]
            os.close(watched)
            if not ended:
                raise RunFailed(f"{name} did not end", "testbed pod", "see its log")
