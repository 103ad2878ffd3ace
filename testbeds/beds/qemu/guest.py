"""One virtual machine: its command line, its process, its end.

A guest's root file system is shared and read-only. Its writes stay in its memory; files that must
outlive it are written to `/share`, a folder of this machine. QEMU emulates the processor
everywhere: a machine that offers KVM does not always run it, and nothing here is timed.

A guest is a process of this user. It is ended only by process id, after a check that the id has
not been reused.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.outside import last_line
from offstage.testbeds.beds.qemu.agent import Agent
from offstage.testbeds.beds.qemu.images import AARCH64, Image, needs

__all__ = ["Guest", "GuestSpec", "Process", "start"]

STOP_TIMEOUT_S = 10.0
QBOOT = Path("/usr/share/qemu/qboot.rom")
"""Firmware that only starts a kernel; part of QEMU for x86."""


@dataclass(frozen=True, kw_only=True)
class GuestSpec:
    """The hardware of one guest. `share` is the folder of this machine that it sees as /share;
    `devices` are QEMU options, passed unchanged."""

    name: str
    image: Image
    share: Path
    address: str = ""
    """Its address with prefix length; needs a network device named `eth0`."""
    modules: Sequence[str] = ()
    memory_mib: int = 1024
    cpus: int = 1
    kernel_arguments: str = ""
    devices: Sequence[str] = ()


@dataclass(frozen=True)
class Process:
    """A process that may have ended; `started` distinguishes it from a later one with the same
    id."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> "Process":
        """The process that has this id now."""
        return cls(pid, _start_time(pid) or 0)

    def alive(self) -> bool:
        """Whether it still runs."""
        return self.started != 0 and _start_time(self.pid) == self.started

    def end(self) -> None:
        """SIGTERM, then SIGKILL. Returns when the process has ended."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + STOP_TIMEOUT_S
            if self.alive():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, number)
            while self.alive() and time.monotonic() < deadline:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(self.pid, os.WNOHANG)
                time.sleep(0.02)


@dataclass
class Guest:
    """A started guest. `folder` contains its sockets and its console log."""

    name: str
    folder: Path
    process: Process
    agent: Agent = field(init=False)

    def __post_init__(self) -> None:
        self.agent = Agent(self.name, self.folder / f"{self.name}.agent", self.check)

    def check(self) -> None:
        """RunFailed with the last line of its console if the guest has ended."""
        if self.process.alive():
            return
        said = last_line(self.console.read_text(encoding="utf-8", errors="replace"))
        raise RunFailed(f"the guest ended: {said}", str(self.console), "read that log")

    @property
    def console(self) -> Path:
        """The output of its kernel, its first process and QEMU."""
        return self.folder / f"{self.name}.console"

    def end(self) -> None:
        """End it by process id. Data in /share and on its drives is kept."""
        self.agent.close()
        self.process.end()


def start(spec: GuestSpec, folder: Path, *, stays: bool) -> Guest:
    """Start a guest without waiting; `guest.agent.connect` waits for it. Its sockets and its log
    are in `folder`, whose path must be short because of the limit on Unix socket paths. It ends
    with this process unless it `stays`. BadInput if QEMU is missing."""
    arch = spec.image.arch
    needs((arch.emulator, arch.package))
    command = _command(spec, folder)
    if not stays:
        command = ["setpriv", "--pdeathsig", "KILL", "--", *command]
    guest = Guest(spec.name, folder, Process(0, 0))
    guest.agent.path.unlink(missing_ok=True)
    with guest.console.open("ab") as console:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
        )
    guest.process = Process.of(process.pid)
    return guest


def _command(spec: GuestSpec, folder: Path) -> list[str]:
    image = spec.image
    if "," in str(spec.share) or not spec.share.is_dir():
        raise BadInput(
            "a guest cannot share this folder",
            str(spec.share),
            "give another one; QEMU does not allow commas",
        )
    if image.arch is AARCH64:
        board = ["-M", "virt,gic-version=3", "-cpu", "cortex-a76"]
        console = "ttyAMA0"
    else:
        board = ["-M", "q35", "-cpu", "max"]
        board += ["-bios", str(QBOOT)] if QBOOT.exists() else []
        console = "ttyS0"
    words = [
        f"console={console} quiet panic=-1 mitigations=off no_timer_check net.ifnames=0",
        f"offstage.name={spec.name} offstage.address={spec.address}",
        f"offstage.modules={','.join(spec.modules)}",
        spec.kernel_arguments,
    ]
    return [
        image.arch.emulator,
        *board,
        "-accel",
        "tcg,thread=multi",
        "-smp",
        str(spec.cpus),
        "-m",
        str(spec.memory_mib),
        "-nographic",
        "-nodefaults",
        "-no-reboot",
        "-serial",
        f"file:{folder / spec.name}.console",
        "-kernel",
        str(image.kernel),
        "-initrd",
        str(image.initrd),
        "-append",
        " ".join(words),
        "-drive",
        f"file={image.rootfs},if=none,id=root,format=raw,readonly=on",
        "-device",
        "virtio-blk-pci,drive=root",
        "-device",
        "virtio-rng-pci",
        "-fsdev",
        f"local,id=share,path={spec.share},security_model=none",
        "-device",
        "virtio-9p-pci,fsdev=share,mount_tag=share",
        "-device",
        "virtio-serial-pci",
        "-chardev",
        f"socket,id=agent,path={folder / spec.name}.agent,server=on,wait=off",
        "-device",
        "virtserialport,chardev=agent,name=agent",
        *spec.devices,
    ]


def _start_time(pid: int) -> int | None:
    """A process's start time in kernel ticks; None if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else int(fields[19])
