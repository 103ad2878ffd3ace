"""Two machines of one kernel: network namespaces `dpu` and `node`, linked by a pair of veth.

Each has its own addresses, ports and /etc/hosts, in which the other is found by its name;
processes, users and files are one machine's. Where this kernel can shape the link, it is shaped: a
rate by the token bucket (tbf), a delay by netem. Needs root; what is missing is said with its mend.
Everything is gone at the end, processes in a namespace included.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.outside import last_line

__all__ = ["ADDRESSES", "Network", "check", "end", "make", "network"]

ADDRESSES = {"dpu": "10.77.0.1", "node": "10.77.0.2"}
BURST = "256kb"
QUEUE_LATENCY = "50ms"
COMMAND_S = 60.0


@dataclass(frozen=True)
class Network:
    """The two namespaces by the place that each stands for. `shaped`: what the link's kernel does
    to it, as `tc` says it; "" nothing."""

    names: dict[str, str]
    shaped: str = ""

    def words(self, place: str, uid: int | None = None) -> list[str]:
        """What a command is preceded by in order to run there, as that user."""
        within = ["ip", "netns", "exec", self.names[place]]
        if uid is None:
            return within
        return [*within, "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def check() -> None:
    """BadInput, with the mend, where this machine makes no namespaces."""
    if os.getuid() != 0:
        raise BadInput("network namespaces are made by root", "testbed netns", "run it as root")
    for name, package in (("ip", "iproute2"), ("tc", "iproute2"), ("setpriv", "util-linux")):
        if shutil.which(name) is None:
            raise BadInput(
                f"the program {name} is missing", "testbed netns", f"apt-get install {package}"
            )


@contextmanager
def network(rate: str = "", delay: str = "") -> Iterator[Network]:
    """Make both, linked; `rate` as `tc` takes it (10gbit), `delay` (50us). BadInput: see `check`,
    or where the kernel has no veth, or cannot shape as it is asked."""
    made = make(f"{os.getpid()}", rate, delay)
    try:
        yield made
    finally:
        end(made.names)


def make(tag: str, rate: str = "", delay: str = "") -> Network:
    """As `network`, to stay until `end`."""
    check()
    names = {place: f"ofs-{place}-{tag}" for place in ADDRESSES}
    try:
        return Network(names, _make(names, rate, delay))
    except BaseException:
        end(names)
        raise


def end(names: dict[str, str]) -> None:
    """Take them down, with every process in them."""
    for name in names.values():
        _end(name)


def _make(names: dict[str, str], rate: str, delay: str) -> str:
    for name in names.values():
        _ip("netns", "add", name)
        folder = Path("/etc/netns", name)
        folder.mkdir(parents=True, exist_ok=True)
        lines = ["127.0.0.1 localhost", *(f"{at} {one}" for one, at in ADDRESSES.items())]
        (folder / "hosts").write_text("\n".join(lines) + "\n", encoding="utf-8")
        _ip("-n", name, "link", "set", "lo", "up")
    dpu, node = names["dpu"], names["node"]
    _ip("-n", dpu, "link", "add", "ofs0", "type", "veth", "peer", "name", "ofs0", "netns", node)
    shaped = []
    for place, name in names.items():
        _ip("-n", name, "address", "add", f"{ADDRESSES[place]}/30", "dev", "ofs0")
        _ip("-n", name, "link", "set", "ofs0", "up")
        shaped = _shape(name, rate, delay)
    return " ".join(shaped)


def _shape(name: str, rate: str, delay: str) -> list[str]:
    """One discipline, or netem with the rate within it where both are asked for."""
    if delay:
        words = ["netem", "delay", delay, *(["rate", rate] if rate else [])]
    elif rate:
        words = ["tbf", "rate", rate, "burst", BURST, "latency", QUEUE_LATENCY]
    else:
        return []
    _run(
        "tc",
        "-n",
        name,
        "qdisc",
        "add",
        "dev",
        "ofs0",
        "root",
        *words,
        mend=f"this kernel cannot: leave out --{'delay' if delay else 'rate'}",
    )
    return words


def _end(name: str) -> None:
    """Processes, namespace and hosts file; one that is not there is no error."""
    done = subprocess.run(
        ["ip", "netns", "pids", name],
        capture_output=True,
        errors="replace",
        check=False,
        timeout=COMMAND_S,
    )
    for pid in done.stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    subprocess.run(
        ["ip", "netns", "delete", name], capture_output=True, check=False, timeout=COMMAND_S
    )
    shutil.rmtree(Path("/etc/netns", name), ignore_errors=True)


def _ip(*words: str) -> None:
    _run("ip", *words, mend="does this kernel have network namespaces and veth?")


def _run(*words: str, mend: str) -> None:
    done = subprocess.run(
        words, capture_output=True, errors="replace", check=False, timeout=COMMAND_S
    )
    if done.returncode != 0:
        said = last_line(done.stderr)
        if "Cannot find" in said or "unknown" in said.lower() or "not supported" in said.lower():
            raise BadInput(said, " ".join(words[:6]), mend)
        raise RunFailed(said, " ".join(words), mend)
