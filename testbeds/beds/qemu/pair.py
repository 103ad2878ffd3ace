"""The two guests of the testbed: `node`, x86, and `dpu`, aarch64 with an NVMe drive, on one link.

The link is a pair of Unix sockets between the two QEMUs, invisible to the machine's network.
Both guests see one folder of this machine as /share. A file in the cache records what runs, so
that `up`, `run` and `down` may be three programs; there is one pair for each cache.
"""

import contextlib
import fcntl
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.outside import decode_json, last_line
from offstage.testbeds.beds.local import claim
from offstage.testbeds.beds.qemu import wheel
from offstage.testbeds.beds.qemu.agent import Done
from offstage.testbeds.beds.qemu.command import uninterrupted
from offstage.testbeds.beds.qemu.guest import Guest, GuestSpec, Process, start
from offstage.testbeds.beds.qemu.images import AARCH64, X86_64, Arch, get
from offstage.testbeds.cache import cache_folder
from offstage.testbeds.progress import Progress

__all__ = ["DPU_ADDRESS", "NVME", "NVME_BYTES", "Pair", "alone", "checked", "down", "running", "up"]

NODE_ADDRESS, DPU_ADDRESS = "10.0.0.1", "10.0.0.2"
MAC = {"node": "52:54:00:00:00:01", "dpu": "52:54:00:00:00:02"}
NVME = "/dev/nvme0n1"
NVME_BYTES = 1 << 30
BOOT_TIMEOUT_S = 300.0
INSTALL_TIMEOUT_S = 300.0
MODULES = ("ib_uverbs", "rdma_ucm", "rdma_rxe", "nvme")


@dataclass
class Pair:
    """Both guests; `share` is the folder that they see as /share."""

    node: Guest
    dpu: Guest
    share: Path
    fdp: bool
    """Whether the drive supports flexible data placement."""

    def end(self) -> None:
        """End both."""
        _end((self.node, self.dpu), self.node.folder)


class _State(msgspec.Struct):
    """What the cache records of a running pair: (process id, start time) of each guest."""

    folder: str
    share: str
    fdp: bool
    node: tuple[int, int]
    dpu: tuple[int, int]


def up(out: Path, progress: Progress, *, stays: bool) -> Pair:
    """Build what is missing, start both guests and install Offstage in them. They end with this
    process unless they stay. On BadInput, RunFailed or DeviceTimeout nothing is left running."""
    if (pair := running()) is not None:
        pair.node.agent.close()
        raise BadInput(
            "a pair of guests is already running", str(_state_path()), "offstage testbed down qemu"
        )
    images = {arch: get(arch, progress) for arch in (X86_64, AARCH64)}
    progress.start("build", len(images), "wheels")
    wheels = []
    for arch, image in images.items():
        progress.note(arch.name)
        wheels.append(wheel.build(image))
        progress.advance(1)
    share = _share(out)
    for path in wheels:
        shutil.copy(path, share)
    folder = Path(tempfile.mkdtemp(prefix="offstage-qemu."))
    fdp = _has_fdp(AARCH64)
    started: list[Guest] = []
    try:
        progress.start("start", 2, "guests")
        for name, arch, address, drive in (
            ("node", X86_64, NODE_ADDRESS, []),
            ("dpu", AARCH64, DPU_ADDRESS, _drive(out, fdp)),
        ):
            spec = GuestSpec(
                name=name,
                image=images[arch],
                address=f"{address}/24",
                devices=[*_link(folder, name), *drive],
                share=share,
                modules=MODULES,
            )
            with uninterrupted():
                started.append(start(spec, folder, stays=stays))
        pair = Pair(started[0], started[1], share, fdp)
        _install(pair, wheels, progress)
        if stays:
            _write_state(pair)
    except BaseException:
        _end(started, folder, share)
        raise
    return pair


def _end(guests: Sequence[Guest], folder: Path, share: Path | None = None) -> None:
    """End the guests completely even on repeated Ctrl-C; copy their consoles to `share`."""
    with uninterrupted():
        for guest in guests:
            guest.end()
            if share is not None:
                with contextlib.suppress(OSError):
                    shutil.copy(guest.console, share)
        shutil.rmtree(folder, ignore_errors=True)


def running() -> Pair | None:
    """The pair that an earlier `up` left, with its agents connected; None if there is none."""
    state = _read_state()
    if state is None:
        return None
    node, dpu = (
        Guest(name, Path(state.folder), Process(*number))
        for name, number in (("node", state.node), ("dpu", state.dpu))
    )
    if not (node.process.alive() and dpu.process.alive()):
        return None
    for guest in (node, dpu):
        guest.agent.connect(BOOT_TIMEOUT_S)
    return Pair(node, dpu, Path(state.share), state.fdp)


def down() -> bool:
    """End the pair that `up` left; returns whether there was one."""
    state = _read_state()
    if state is None:
        return False
    found = False
    for number in (state.node, state.dpu):
        process = Process(*number)
        found |= process.alive()
        process.end()
    shutil.rmtree(state.folder, ignore_errors=True)
    _state_path().unlink(missing_ok=True)
    return found


@contextmanager
def alone() -> Iterator[None]:
    """Lock out other programs. BadInput if another is at work."""
    path = _state_path().with_suffix(".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise BadInput(
            f"cannot be written ({error.strerror})",
            str(path),
            "set OFFSTAGE_CACHE to another folder",
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadInput("another command is using it", str(path), "wait for it") from None
        yield


def checked(done: Done, guest: Guest, what: str) -> Done:
    """RunFailed, with the last line of its output, if a command in a guest failed."""
    if done.code != 0:
        said = last_line(done.err if done.err.strip() else done.out)
        raise RunFailed(f"{what} ended with {done.code}: {said}", guest.name)
    return done


def _install(pair: Pair, wheels: list[Path], progress: Progress) -> None:
    begun = time.monotonic()
    for guest, path in zip((pair.node, pair.dpu), wheels, strict=True):
        progress.note(f"{guest.name} starts")
        guest.agent.connect(BOOT_TIMEOUT_S)
        unpack = ["/usr/bin/python3", "-m", "zipfile", "-e", f"/share/{path.name}", "/opt/offstage"]
        checked(guest.agent.run(unpack, INSTALL_TIMEOUT_S), guest, "unpacking Offstage")
        progress.advance(1)
    progress.note(f"both answer after {time.monotonic() - begun:.0f} s")


def _link(folder: Path, name: str) -> list[str]:
    """The network device, and this end of the link."""
    own, other = ("node", "dpu") if name == "node" else ("dpu", "node")
    return [
        "-netdev",
        f"dgram,id=link,local.type=unix,local.path={folder / own}.link,"
        f"remote.type=unix,remote.path={folder / other}.link",
        "-device",
        f"virtio-net-pci,netdev=link,host_mtu=9000,romfile=,mac={MAC[own]}",
    ]


def _drive(out: Path, fdp: bool) -> list[str]:
    """A fresh NVMe drive with discard; with flexible data placement if this QEMU supports it."""
    image = out / "nvme.img"
    with image.open("wb") as file:
        file.truncate(NVME_BYTES)
    back = [
        "-drive",
        f"file={image.resolve()},if=none,id=flash,format=raw,cache=none,aio=threads,discard=unmap",
    ]
    if not fdp:
        return [*back, "-device", "nvme,id=nvme0,serial=offstage,drive=flash"]
    return [
        *back,
        "-device",
        "nvme-subsys,id=subsystem,fdp=on,fdp.runs=16M,fdp.nrg=1,fdp.nruh=8",
        "-device",
        "nvme,id=nvme0,serial=offstage,subsys=subsystem",
        "-device",
        "nvme-ns,drive=flash,bus=nvme0,nsid=1,fdp.ruhs=0-3",
    ]


def _has_fdp(arch: Arch) -> bool:
    done = subprocess.run(
        [arch.emulator, "-device", "nvme-subsys,help"],
        check=False,
        capture_output=True,
        errors="replace",
        timeout=30,
    )
    return "fdp=" in done.stdout


def _share(out: Path) -> Path:
    share = out.resolve() / "share"
    claim(share)
    return share


def _state_path() -> Path:
    return cache_folder() / "qemu" / "pair.json"


def _write_state(pair: Pair) -> None:
    def number(guest: Guest) -> tuple[int, int]:
        return guest.process.pid, guest.process.started

    state = _State(
        str(pair.node.folder), str(pair.share), pair.fdp, number(pair.node), number(pair.dpu)
    )
    _state_path().write_bytes(msgspec.json.encode(state))


def _read_state() -> _State | None:
    try:
        raw = _state_path().read_bytes()
    except OSError:
        return None
    return decode_json(raw, str(_state_path()), "delete it: `testbed up` did not write it", _State)
