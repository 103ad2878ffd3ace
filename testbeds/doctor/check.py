"""A check, and the machine that it examines.

A check is `ok`, `missing` (something is not used, slower or not possible) or `required` (nothing
runs without it). It tells what it enables in Offstage and, unless it is ok, how to fix it. /sys,
/proc and /dev are read below the machine's root, so that a test can present a machine that it
does not have.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from offstage.dpu.storage.drives import Drive
    from offstage.host.arrays.fastest_transfer import Measured

__all__ = [
    "Check",
    "Machine",
    "RdmaPort",
    "Repair",
    "State",
    "command_path",
    "pkg_config",
    "run_quietly",
]

State = Literal["ok", "missing", "required"]
COMMAND_TIMEOUT_S = 30


@dataclass(frozen=True)
class Repair:
    """One step of `--fix`: write `text` to `path`, or, without a path, load the kernel module
    `text`. There is no other kind of step, and none touches a disk."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"echo {self.text} > {self.path}" if self.path else f"modprobe {self.text}"


@dataclass(frozen=True)
class RdmaPort:
    """A port of an RDMA device, with the GID that a fabric would use; `gid` is empty where there is
    none."""

    device: str
    port: str
    state: str
    link: str
    rate: str
    gid: str
    gid_index: int
    gid_type: str
    netdev: str
    mtu_bytes: int


@dataclass(frozen=True)
class Check:
    """One result: what was found, what it enables, and the fix unless it is ok. `details`: the
    single devices, for programs."""

    name: str
    state: State
    found: str
    purpose: str
    fix: str = ""
    repairs: tuple[Repair, ...] = ()
    details: "tuple[Drive | RdmaPort | Measured, ...]" = ()


@dataclass(frozen=True)
class Machine:
    """The examined paths: `folder` is where stores would be written, `root` replaces /."""

    folder: Path
    root: Path = Path("/")

    def read(self, path: str) -> str:
        """A kernel file, stripped; "" if it is absent or unreadable."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted; empty if it is absent."""
        try:
            return sorted(one.name for one in (self.root / path).iterdir())
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Whether the file or folder exists."""
        return (self.root / path).exists()

    def module(self, name: str) -> bool:
        """Whether a kernel module is loaded or built in."""
        return self.exists(f"sys/module/{name}")

    def loadable(self, name: str) -> bool:
        """Whether this kernel has a module of that name to load."""
        release = self.read("proc/sys/kernel/osrelease")
        listed = self.read(f"lib/modules/{release}/modules.dep") if release else ""
        return f"/{name}.ko" in listed or f"/{name.replace('_', '-')}.ko" in listed


def pkg_config(package: str, what: str = "--modversion") -> str | None:
    """pkg-config's answer for a package; None if it knows none."""
    done = run_quietly(["pkg-config", what, package])
    return done.stdout.strip() if done is not None and done.returncode == 0 else None


def run_quietly(words: list[str]) -> subprocess.CompletedProcess[str] | None:
    """Runs a command that changes nothing; None if it does not exist or does not end."""
    try:
        return subprocess.run(
            words,
            capture_output=True,
            errors="replace",
            check=False,
            timeout=COMMAND_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def command_path(*names: str) -> str | None:
    """The path of the first of these commands that is installed."""
    return next((found for name in names if (found := shutil.which(name))), None)
