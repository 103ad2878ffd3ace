"""A target of SPDK that runs for one process: started, configured over JSON-RPC, and stopped here.

`Target` starts an `nvmf_tgt` without huge pages on a dedicated core and exports drives (a file,
memory) as NVMe-oF namespaces over TCP, RDMA or vfio-user. It returns the transport id that a
storage takes as its path. The daemon starts one where `storage.target` names the program; tests and
benches do the same. The client package `spdk` (extra `spdk`) talks to it.

The program polls, so it keeps its core busy. It dies with the thread that started it. Every wait
has a deadline; the program's output is in `log` in its folder. A killed process leaves its folder
behind: the next target removes folders whose lock is free.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any, Self

from offstage.bindings.errors import BadInput, Missing, RunFailed
from offstage.dpu.storage.drives import HEAD_BYTES
from offstage.dpu.storage.preflight import check_taken

__all__ = ["Target"]

MEMORY_MIB = 512  # less does not start
BLOCK_BYTES = 4096
START_TIMEOUT_S = 100.0
CALL_TIMEOUT_S = 100.0
STOP_TIMEOUT_S = 5.0
FOLDER = "offstage-target-"
YOUNG_S = 60.0  # a folder may not have its lock yet
TRACES = Path("/dev/shm")  # where a target that is killed leaves its trace buffer
ANSWER = re.compile(r'"message": "([^"]*)"')
NQN = "nqn.2026-01.io.offstage"
NAMES = uuid.UUID("5b1f3c52-6a7c-4a8e-9a53-0f8f6d1f5d3e")


class Target:
    """A running target; a context manager. `core`: the one it polls on; `memory_mib`: all it has,
    drives in memory among it."""

    def __init__(self, program: str, core: int | None = None, memory_mib: int = MEMORY_MIB) -> None:
        if shutil.which(program) is None:
            raise BadInput(
                "no such program", program or "storage.target", "give the path of SPDK's nvmf_tgt"
            )
        try:
            from spdk.rpc.client import JSONRPCClient, JSONRPCException
        except ImportError:
            raise Missing("spdk", "the JSON-RPC client of SPDK is not installed") from None
        self._client_of, self._refusal = JSONRPCClient, JSONRPCException
        _sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=FOLDER))
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._program, self._memory_mib = program, memory_mib
        self._transports = set[str]()
        self._core = max(os.sched_getaffinity(0)) if core is None else core
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Any = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Of the program."""
        assert self._process is not None
        return self._process.pid

    def call(self, method: str, **params: Any) -> Any:
        """One JSON-RPC call. `RunFailed` says what the target said against it."""
        try:
            return self._client.call(method, params or None)
        except self._refusal as error:
            line = " ".join(str(error.message).split())
            said = ANSWER.findall(line)  # behind the request and the response in full
            raise RunFailed(
                f"the target refuses {method}: {said[-1] if said else line}",
                self._program,
                "check that what it was given exists and may be opened, and is in its build",
            ) from None

    def memory_drive(self, name: str, size_bytes: int, block_bytes: int = BLOCK_BYTES) -> str:
        """A drive in the target's memory; its name."""
        self.call(
            "bdev_malloc_create",
            name=name,
            num_blocks=size_bytes // block_bytes,
            block_size=block_bytes,
            uuid=str(uuid.uuid5(NAMES, name)),
        )
        return name

    def file_drive(
        self, name: str, path: Path | str, size_bytes: int, block_bytes: int = BLOCK_BYTES
    ) -> str:
        """A drive on a file, which is made or grown to `size_bytes`; its name."""
        try:
            with Path(path).open("a+b") as file:
                check_taken(Path(path), os.pread(file.fileno(), HEAD_BYTES, 0))
                if file.tell() < size_bytes:
                    os.posix_fallocate(file.fileno(), 0, size_bytes)
        except OSError as error:
            raise BadInput(
                error.strerror or "cannot be made", str(path), "give another file for the target"
            ) from None
        identity = str(uuid.uuid5(NAMES, str(Path(path).resolve())))
        self.call(
            "bdev_aio_create",
            name=name,
            filename=str(Path(path).resolve()),
            block_size=block_bytes,
            uuid=identity,
        )
        return name

    def serve(
        self, drive: str, transport: str = "TCP", port: int = 0, host: str = "127.0.0.1"
    ) -> str:
        """Offer `drive` over `transport`; the transport id. TCP and RDMA at the address `host`, at
        a free port where 0; VFIOUSER in a folder."""
        if transport not in self._transports:
            self.call("nvmf_create_transport", trtype=transport)
            self._transports.add(transport)
        nqn = f"{NQN}:{drive}.{transport.lower()}"
        if transport != "VFIOUSER":
            address = {
                "trtype": transport,
                "adrfam": "IPv4",
                "traddr": host,
                "trsvcid": str(port or _free_port()),
            }
        else:
            place = self.folder / drive
            place.mkdir(exist_ok=True)
            address = {"trtype": transport, "traddr": str(place)}
        self.call("nvmf_create_subsystem", nqn=nqn, allow_any_host=True, serial_number="OFFSTAGE")
        space = {"bdev_name": drive, "uuid": str(uuid.uuid5(NAMES, drive))}
        self.call("nvmf_subsystem_add_ns", nqn=nqn, namespace=space)
        self.call("nvmf_subsystem_add_listener", nqn=nqn, listen_address=address)
        return " ".join(f"{name}:{value}" for name, value in {**address, "subnqn": nqn}.items())

    def ended(self) -> bool:
        """Whether the program has."""
        return self._process is None or self._process.poll() is not None

    def signal(self, number: int) -> None:
        """SIGSTOP, SIGCONT or SIGKILL to the program."""
        os.kill(self.pid, number)

    def close(self) -> None:
        """End the program, by force where it does not go by itself."""
        if self._client is not None:
            self._client.close()
            self._client = None
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _remove_trace(process.pid)
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _start(self) -> None:
        rpc = self.folder / "rpc.sock"
        command = [
            self._program,
            "-m",
            f"[{self._core}]",
            "-s",
            str(self._memory_mib),
            "--no-huge",
            "--disable-cpumask-locks",
            "-r",
            str(rpc),
        ]
        if shutil.which("setpriv"):  # it ends when we do, whatever ends us
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder
            )
        os.pwrite(self._lock, str(self._process.pid).encode(), 0)
        deadline = time.monotonic() + START_TIMEOUT_S
        while self._client is None:
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                raise RunFailed(
                    f"the target did not start: {self._last_line()}",
                    self._program,
                    "run it by hand, with the options it was given",
                )
            try:
                self._client = self._client_of(str(rpc), timeout=CALL_TIMEOUT_S)
                self.call("framework_wait_init")
            except (OSError, self._refusal):
                self._client = None
                time.sleep(0.05)

    def _last_line(self) -> str:
        lines = (self.folder / "log").read_text(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it says nothing")


def _sweep() -> None:
    """Remove folders of targets whose parent was killed: their lock is free."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        try:
            with (folder / "lock").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                pid = lock.read()
        except FileNotFoundError:
            try:
                if time.time() - folder.stat().st_mtime < YOUNG_S:
                    continue
            except OSError:
                continue
            pid = b""
        except OSError:
            continue  # in use, or another user's
        if pid.isdigit():
            _remove_trace(int(pid))
        shutil.rmtree(folder, ignore_errors=True)


def _remove_trace(pid: int) -> None:
    if not Path(f"/proc/{pid}").exists():
        with contextlib.suppress(OSError):
            (TRACES / f"nvmf_trace.pid{pid}").unlink(missing_ok=True)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
