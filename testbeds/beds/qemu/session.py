"""`offstage testbed run qemu`: its runs on two guests and their results.

1. The workload of the demo, small: the daemon in the `dpu` guest on its NVMe drive under io_uring,
   the host agent in the `node` guest, blocks over the chosen fabric. Every block that lands is
   compared with what prefill wrote.
2. A second, shorter run with host and daemon both in `node`, so that each machine has recorded a
   decision log. Both logs are replayed on both machines.
3. One seeded run in virtual time on each machine: the logs must have the same bytes.

RunFailed if a block was corrupt, no block was checked, or a decision or a byte differed.
"""

import contextlib
import hashlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq.auth

from offstage.bindings.errors import DeviceTimeout, RunFailed
from offstage.bindings.outside import BYTES_MAX, last_line, said_json
from offstage.host.model.models import geometry
from offstage.testbeds.beds.daemon import Ready, write_config
from offstage.testbeds.beds.qemu.guest import Guest
from offstage.testbeds.beds.qemu.images import AARCH64
from offstage.testbeds.beds.qemu.pair import DPU_ADDRESS, NVME, NVME_BYTES, Pair, checked
from offstage.testbeds.progress import Progress

__all__ = ["Decoded", "Findings", "Replayed", "Runs", "Sizes", "Virtual", "run"]

TENANT = "lab"
READY_TIMEOUT_S = 600.0
RUN_TIMEOUT_S = 1800.0
REPLAY_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 120.0
ANSWER_TIMEOUT = "120s"
"""The daemon's answer timeout: an emulated processor on a busy machine may not run for seconds."""
PHASES = 4
OFFSTAGE = "/usr/local/bin/offstage"
SLOTS_PER_SELECTED = 4
SELECTED = 32
"""Blocks that a session selects per layer and step, as in the demo."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The workload, and how blocks travel."""

    sessions: int = 2
    context_tokens: int = 4_096
    steps: int = 8
    fabric: str = "zmq"


class Decoded(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the guests: how its daemon was reached, and the host's figures, which the host's
    summary has by the same names."""

    storage: str = ""
    endpoint: str = ""
    fabric: str = ""
    demands: int
    hit: float
    late: float
    miss: float
    blocks_verified: int
    blocks_corrupt: int

    def in_words(self) -> str:
        """The blocks for the progress line."""
        return f"{self.blocks_verified:,} blocks checked, {self.blocks_corrupt} corrupt"


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """From one guest to the other, and in one guest."""

    across: Decoded
    alone: Decoded


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """A log, and the decisions that each machine repeated."""

    recorded_on: str
    decisions_agreed_on: dict[str, int]
    sha256: str


class Virtual(msgspec.Struct, frozen=True, kw_only=True):
    """The log of one seed in virtual time, and its hash by machine."""

    bytes: int
    sha256: dict[str, str]


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `offstage testbed run qemu`."""

    runs: Runs
    replays: list[Replayed]
    virtual: Virtual
    nvme_fdp: bool
    qemu: str
    wall_s: float


def run(pair: Pair, sizes: Sizes, progress: Progress) -> Findings:
    """Run all of it and return the findings. The module header lists what fails."""
    begun = time.monotonic()
    work = pair.share / "run"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(mode=0o700)
    for guest in (pair.node, pair.dpu):  # left there by an interrupted run
        guest.agent.run(["/usr/bin/pkill", "-KILL", "-f", "offstage.testbeds"], 60)
    _make_keys(pair.share / "keys")
    progress.start(f"decode on x86_64 from aarch64 over {sizes.fabric}", 1, "")
    across = _across(pair, sizes, work)
    progress.note(across.in_words())
    progress.start("decode on x86_64 from itself over shm", 1, "")
    alone = _alone(pair, work)
    progress.note(alone.in_words())
    progress.start("replay each log on each machine", 4, "replays")
    logs = {"aarch64": work / "across/decisions.log", "x86_64": work / "alone/decisions.log"}
    replays = [_replayed(pair, recorded, log, progress) for recorded, log in logs.items()]
    progress.start("one seed in virtual time on each machine", 2, "runs")
    virtual = _virtual(pair, work, progress)
    return Findings(
        runs=Runs(across=across, alone=alone),
        replays=replays,
        virtual=virtual,
        nvme_fdp=pair.fdp,
        qemu=_qemu_version(),
        wall_s=round(time.monotonic() - begun, 1),
    )


def _across(pair: Pair, sizes: Sizes, work: Path) -> Decoded:
    config = _config(work / "dpu.toml", sizes, f"tcp://{DPU_ADDRESS}:7411", NVME, NVME_BYTES)
    with _serving(pair.dpu, config, work / "across") as ready:
        return _decoded(
            pair.node,
            ready,
            sizes,
            work / "across",
            [
                "--curve-dir",
                "/share/keys",
                "--secret",
                f"/share/run/across/{TENANT}.secret",
            ],
        )


def _alone(pair: Pair, work: Path) -> Decoded:
    sizes = Sizes(sessions=1, steps=4, fabric="shm")
    config = _config(
        work / "node.toml", sizes, "ipc:///run/offstage/control", "/tmp/store", 256 << 20
    )
    with _serving(pair.node, config, work / "alone") as ready:
        return _decoded(pair.node, ready, sizes, work / "alone", ["--runtime-dir", "/run/offstage"])


@contextmanager
def _serving(guest: Guest, config: Path, folder: Path) -> Iterator[Ready]:
    """A daemon in a guest, recorded into `folder`, from its ready line to the end of its drain."""
    inside = f"/share/run/{folder.name}"
    command = (
        f"mkdir -p /run/offstage && exec {OFFSTAGE} dpu serve --config /share/run/{config.name} "
        f"--record {inside} > {inside}.ready 2> {inside}.log"
    )
    pid = guest.agent.start(["/bin/sh", "-c", command])
    try:
        ready = _ready(guest, pid, folder)
        secret = f"cp /run/offstage/*{TENANT}* {inside}/{TENANT}.secret"
        checked(guest.agent.run(["/bin/sh", "-c", secret], 60), guest, "copying the secret")
        yield ready
    except BaseException:
        with contextlib.suppress(RunFailed, DeviceTimeout, OSError):
            guest.agent.start(["/bin/kill", "-KILL", str(pid)])
        raise
    guest.agent.start(["/bin/kill", "-TERM", str(pid)])
    done = guest.agent.wait(pid, STOP_TIMEOUT_S)
    if done.code != 0:
        raise RunFailed(
            f"the daemon ended with {done.code}: {_last(folder.with_suffix('.log'))}",
            str(folder.with_suffix(".log")),
            "read that log",
        )


def _ready(guest: Guest, pid: int, folder: Path) -> Ready:
    deadline = time.monotonic() + READY_TIMEOUT_S
    line, log = folder.with_suffix(".ready"), folder.with_suffix(".log")
    while not (line.exists() and line.read_bytes().endswith(b"\n")):
        ended = guest.agent.poll(pid)
        if ended is not None or time.monotonic() > deadline:
            raise RunFailed(f"the daemon did not start: {_last(log)}", str(log), "read that log")
        time.sleep(0.3)
    with line.open("rb") as file:
        return said_json(file.read(BYTES_MAX + 1), _last(log), str(line), "read that log", Ready)


class _Headlines(msgspec.Struct):
    runs: list[Decoded]


class _Replay(msgspec.Struct):
    """The field that is read of what `offstage dpu replay` says."""

    agreed: int


def _decoded(guest: Guest, ready: Ready, sizes: Sizes, folder: Path, link: list[str]) -> Decoded:
    """Drive the workload of a daemon from a guest. `link`: further words on how to reach it."""
    words = [
        OFFSTAGE,
        "host",
        "run",
        "--tenant",
        TENANT,
        "--endpoint",
        ready.endpoint,
        "--fabric",
        sizes.fabric,
        *link,
        "--sessions",
        str(sizes.sessions),
        "--context-tokens",
        str(sizes.context_tokens),
        "--steps",
        str(sizes.steps),
        "--time-per-token",
        "0ms",
        "--timeout",
        ANSWER_TIMEOUT,
        "--format",
        "json",
    ]
    log = folder.with_suffix(".host.log")
    command = f"exec {' '.join(words)} 2> /share/run/{log.name}"
    done = guest.agent.run(["/bin/sh", "-c", command], RUN_TIMEOUT_S)
    if done.code != 0:
        raise RunFailed(f"the host agent failed: {_last(log)}", str(log), "read that log")
    found = said_json(done.out, _last(log), str(log), "read that log", _Headlines)
    if not found.runs or not found.runs[0].blocks_verified:
        raise RunFailed("no block was checked", str(folder))
    return msgspec.structs.replace(
        found.runs[0], storage=ready.storage, endpoint=ready.endpoint, fabric=sizes.fabric
    )


def _replayed(pair: Pair, recorded: str, log: Path, progress: Progress) -> Replayed:
    """Replay a log on a fresh core on each machine; every decision must equal the log's."""
    inside = f"/share/{log.relative_to(pair.share)}"
    agreed = {}
    for name, guest in _machines(pair):
        done = guest.agent.run(
            [OFFSTAGE, "dpu", "replay", inside, "--format", "json"], REPLAY_TIMEOUT_S
        )
        checked(done, guest, f"the replay of {recorded}'s log")
        agreed[name] = said_json(done.out, done.err, guest.name, "read its log", _Replay).agreed
        progress.advance(1)
    if len(set(agreed.values())) != 1:
        raise RunFailed(f"the machines count decisions differently: {agreed}", str(log))
    progress.note(f"{agreed['aarch64']:,} decisions agree")
    return Replayed(recorded_on=recorded, decisions_agreed_on=agreed, sha256=_sha256(log))


def _virtual(pair: Pair, work: Path, progress: Progress) -> Virtual:
    hashes = {}
    for name, guest in _machines(pair):
        command = [
            "/usr/bin/python3",
            "-m",
            "offstage.testbeds.beds.qemu.virtual",
            f"/share/run/virtual-{name}.log",
        ]
        done = guest.agent.run(command, REPLAY_TIMEOUT_S, {"PYTHONPATH": "/opt/offstage"})
        checked(done, guest, "the run in virtual time")
        hashes[name] = _sha256(work / f"virtual-{name}.log")
        progress.advance(1)
    if len(set(hashes.values())) != 1:
        raise RunFailed("one seed gave two logs", str(work), "compare virtual-*.log")
    size = (work / "virtual-aarch64.log").stat().st_size
    progress.note(f"{size:,} bytes are equal")
    return Virtual(bytes=size, sha256=hashes)


def _config(path: Path, sizes: Sizes, endpoint: str, store: str, store_bytes: int) -> Path:
    """The daemon's configuration; deadlines fit emulated processors on a busy machine."""
    shape = geometry("demo")
    payload, layers = shape.block_bytes(0), shape.layer_count
    slots = sizes.sessions * layers * SELECTED * SLOTS_PER_SELECTED
    remote = endpoint.startswith("tcp:")
    write_config(
        path,
        {
            "daemon": {
                "endpoint": endpoint,
                "runtime_dir": "/run/offstage",
                "metrics_endpoint": "",
                "curve_dir": "/share/keys" if remote else "",
                "host_timeout": "300s",
            },
            "arena": {
                "size": slots * (payload + 4096),
                "payload": payload,
                "layers": layers,
                "block_tokens": shape.block_tokens,
            },
            "storage": {
                "backend": "io_uring",
                "path": store,
                "size": store_bytes,
                "direct": store == NVME,
                "io_timeout": "120s",
            },
            "store": {"write": "through"},
            "policy": {
                "prefetchers": ["window", "ema", "shared"],
                "eviction": "score",
                "window_tokens": 1024,
                "lease": "10s",
            },
            "rdma": {"enabled": sizes.fabric == "verbs"},
            "limits": {
                "sessions": 16,
                "context_tokens": sizes.context_tokens + 1024,
                "log": 64 << 20,
                "records": 1 << 16,
            },
            "tenant": [{"name": TENANT}],
        },
    )
    return path


def _make_keys(folder: Path) -> None:
    """CURVE keys of the daemon and of the one host that it accepts."""
    if (folder / "clients").is_dir():
        return
    folder.mkdir(mode=0o700, exist_ok=True)
    zmq.auth.create_certificates(folder, "server")
    zmq.auth.create_certificates(folder, "client")
    for secret in folder.glob("*.key_secret"):
        secret.chmod(0o600)
    (folder / "clients").mkdir()
    (folder / "client.key").rename(folder / "clients/client.key")


def _machines(pair: Pair) -> tuple[tuple[str, Guest], ...]:
    return (("x86_64", pair.node), ("aarch64", pair.dpu))


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _qemu_version() -> str:
    done = subprocess.run(
        [AARCH64.emulator, "--version"],
        check=False,
        capture_output=True,
        errors="replace",
        timeout=30,
    )
    return (done.stdout.splitlines() or ["unknown"])[0]


def _last(log: Path) -> str:
    return last_line(log.read_text(encoding="utf-8", errors="replace") if log.exists() else "")
