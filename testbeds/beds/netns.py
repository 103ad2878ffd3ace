"""Two machines in one kernel: network namespaces `dpu` and `node`, linked by a veth pair.

Each namespace has its own addresses, ports and /etc/hosts, which names the other; processes,
users and files are shared. The link is shaped if the kernel supports it: rate by the token
bucket (tbf), delay by netem. Needs root; errors name the fix. At exit everything is removed,
including the processes in the namespaces.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.outside import last_line
from offstage.bindings.units import parse_time

__all__ = ["ADDRESSES", "Network", "check", "end", "make", "network"]

ADDRESSES = {"dpu": "10.77.0.1", "node": "10.77.0.2"}
BURST = "256kb"
QUEUE_LATENCY = "50ms"
COMMAND_S = 60.0
RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kmgt]?)(i?)(bit|bps)", re.IGNORECASE)
RATE_BITS_PER_S_MIN, RATE_BITS_PER_S_MAX = 10**6, 10**13
DELAY_NS_MAX = 10**9
"""Beyond these a run takes hours, or hosts are silent for too long. Of what is no rate at all `tc`
makes one: of `nan` 0, of `-1gbit` the greatest."""


@dataclass(frozen=True)
class Network:
    """The two namespaces, each by the place it represents. `shaped`: the link's discipline as
    `tc` prints it; "" if none."""

    names: dict[str, str]
    shaped: str = ""

    def words(self, place: str, uid: int | None = None) -> list[str]:
        """The command prefix that runs a command in the namespace as that user."""
        within = ["ip", "netns", "exec", self.names[place]]
        if uid is None:
            return within
        return [*within, "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]


def check() -> None:
    """BadInput, with the fix, if this machine cannot create namespaces."""
    if os.getuid() != 0:
        raise BadInput("network namespaces need root", "testbed netns", "run it as root")
    for name, package in (("ip", "iproute2"), ("tc", "iproute2"), ("setpriv", "util-linux")):
        if shutil.which(name) is None:
            raise BadInput(
                f"the program {name} is missing", "testbed netns", f"apt-get install {package}"
            )


@contextmanager
def network(rate: str = "", delay: str = "") -> Iterator[Network]:
    """Create both, linked; `rate` and `delay` in `tc` syntax (10gbit, 50us). BadInput: see
    `check_link` and `check`, or the kernel lacks veth or the requested shaping."""
    made = make(f"{os.getpid()}", rate, delay)
    try:
        yield made
    finally:
        end(made.names)


def make(tag: str, rate: str = "", delay: str = "") -> Network:
    """As `network`, but kept until `end`."""
    check_link(rate, delay)
    check()
    names = {place: f"ofs-{place}-{tag}" for place in ADDRESSES}
    try:
        return Network(names, _make(names, rate, delay))
    except BaseException:
        end(names)
        raise


def check_link(rate: str, delay: str) -> None:
    """BadInput for a rate or a delay that no link has; "": none is asked for."""
    if rate:
        found = RATE.fullmatch(rate)
        bits = 0.0
        if found:
            number, prefix, binary, unit = found.groups()
            bits = float(number) * (1024 if binary else 1000) ** " kmgt".index(
                prefix.lower() or " "
            )
            bits *= 8 if unit.lower() == "bps" else 1
        if not RATE_BITS_PER_S_MIN <= bits <= RATE_BITS_PER_S_MAX:
            raise BadInput(
                f"{rate!r} is not the rate of a link", "--rate", "give 1mbit to 10tbit, as 10gbit"
            )
    if delay and not 0 < parse_time(delay, "--delay") <= DELAY_NS_MAX:
        raise BadInput(f"{delay!r} is out of range", "--delay", "give more than 0, to 1s")


def end(names: dict[str, str]) -> None:
    """Remove them, and end every process in them."""
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
    """One discipline, or netem with the rate inside it if both are given."""
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
        fix=f"this kernel does not support it: leave out --{'delay' if delay else 'rate'}",
    )
    return words


def _end(name: str) -> None:
    """Remove processes, namespace and hosts file; a missing one is no error."""
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
    _run("ip", *words, fix="does this kernel have network namespaces and veth?")


def _run(*words: str, fix: str) -> None:
    done = subprocess.run(
        words, capture_output=True, errors="replace", check=False, timeout=COMMAND_S
    )
    if done.returncode != 0:
        said = last_line(done.stderr)
        if "Cannot find" in said or "unknown" in said.lower() or "not supported" in said.lower():
            raise BadInput(said, " ".join(words[:6]), fix)
        raise RunFailed(said, " ".join(words), fix)
