"""Moving the blocks to another storage: which moves are allowed, and where a moved store went.

The firmware does the move. Here a request is checked against this machine and the present storage,
the tenants' generated secrets are copied next to the new store, and the move is started on a
separate thread, since growing a file and creating a store on it may take long. A start that finds a
store that was left calls `follow`, which opens the store named by the record in it, and no other.
"""

import contextlib
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from offstage.bindings import settings, sides
from offstage.bindings.errors import BadInput, DeviceTimeout
from offstage.dpu.config import options
from offstage.dpu.config.derive import derive
from offstage.dpu.config.idle import unused
from offstage.dpu.config.values import Config
from offstage.dpu.log import Log
from offstage.dpu.storage.device import Device
from offstage.dpu.storage.preflight import check_store_file
from offstage.dpu.storage.store_places import file_of, opened
from offstage.dpu.storage.storefile import StoreFile
from offstage.dpu.tenants.hosts import TenantState
from offstage.dpu.tenants.tenancy import carry_secret, check_carried, secrets_beside

__all__ = ["Moves", "follow", "target"]

HOPS_MAX = 16
ANYWHERE = bytes(16)


def follow(config: Config) -> tuple[Config, bytes]:
    """The configuration with the storage that the blocks are on now, and the uuid of the store
    there; all zero where nothing moved. BadInput where one move leads back to another."""
    uuid = ANYWHERE
    for _ in range(HOPS_MAX):
        forward = _forward(config)
        if forward is None:
            return config, uuid
        uuid = forward.next
        storage = msgspec.structs.replace(
            config.storage,
            path=forward.path,
            backend=forward.backend,
            inner=forward.inner,
            size_bytes=forward.size_bytes,
            target="",
            target_file="",
        )
        config = msgspec.structs.replace(config, storage=storage)
    raise BadInput(
        f"the store moved {HOPS_MAX} times and more",
        config.storage.path,
        "set storage.path to where its blocks are",
    )


def _forward(config: Config) -> Any:
    storage = config.storage
    if in_memory(storage):
        return None
    try:
        where = storage.path or storage.target_file
        with StoreFile(where, opened(storage, config.memory.huge != "off")) as file:
            return file.forward()
    except (BadInput, OSError):
        return None  # no store, or none that can be read: the firmware says which


def in_memory(storage: options.Storage) -> bool:
    """Whether its contents end with the daemon."""
    if storage.backend == "spdk":
        return False
    return not storage.path or (storage.backend == "emulated" and not storage.inner)


def target(config: Config, changes: Mapping[str, str]) -> Config:
    """`config` with the storage that the request names. BadInput gives the reason for a refusal;
    the firmware makes the checks that only it can make."""
    where = "storage move"
    changes = {key.removeprefix("storage."): text for key, text in changes.items()}
    for key in ("lba", "io_timeout"):
        if key in changes:
            raise BadInput(
                f"{key} cannot change while blocks are stored", where, f"leave {key} out"
            )
    if not changes.get("path"):
        raise BadInput(
            "no path", where, "write path=FILE, a file or block device, or a transport id"
        )
    if changes.get("target") or changes.get("target_file"):
        raise BadInput(
            "a target that ends with the daemon cannot be moved to",
            where,
            "start one of your own and give its transport id as path",
        )
    chosen = settings.read_table(config.storage, changes, where)
    chosen = msgspec.structs.replace(chosen, target="", target_file="")
    moved = msgspec.structs.replace(config, storage=chosen)
    if in_memory(config.storage):
        raise BadInput(
            "the present storage is memory, which cannot record a move",
            where,
            "start the daemon on the storage instead",
        )
    if in_memory(moved.storage):
        raise BadInput(
            "memory keeps nothing over a restart", where, "write inner=io_uring or inner=posix"
        )
    derive(moved)
    for note in unused(
        msgspec.structs.replace(
            moved, tenants=(), sources=dict.fromkeys((f"storage.{key}" for key in changes), where)
        )
    ):
        raise BadInput(note.what, where, "leave it out")
    # A target of vfio-user takes one connection: a query would block.
    if moved.storage.backend == config.storage.backend == "spdk" and (
        moved.storage.path == config.storage.path
    ):
        raise BadInput("is the present storage", moved.storage.path, "give another drive")
    present, path = Path(file_of(config.storage)), Path(file_of(moved.storage))
    if _same(path, present):
        raise BadInput("is the present storage", str(path), "give another path")
    sides.ensure(moved.storage.backend)
    check_store_file(moved)
    return moved


def _same(path: Path, present: Path) -> bool:
    """BadInput where the kernel takes no such path."""
    try:
        return path.is_file() and present.is_file() and path.samefile(present)
    except (OSError, ValueError) as error:
        raise BadInput(f"cannot be looked at ({error})", str(path), "give another path") from None


class Moves:
    """The daemon's moves: one at a time. One thread owns this, the daemon's loop."""

    def __init__(
        self,
        config: Config,
        device: Device,
        tenants: Sequence[TenantState],
        log: Log,
        runtime_dir: Path = Path(),
    ) -> None:
        """`runtime_dir`: where generated secrets are kept if the store has no file."""
        self._config, self._device, self._tenants, self._log = config, device, tenants, log
        self._runtime_dir = runtime_dir
        self._target: Config | None = None  # of a move that is beginning or running
        self._thread: threading.Thread | None = None
        self._refused: Exception | None = None
        self._made: list[Path] = []  # for the last move that was asked for

    @property
    def beginning(self) -> bool:
        """Whether a request waits for its answer."""
        return self._thread is not None

    def begin(self, changes: Mapping[str, str]) -> None:
        """Check the request and begin it on a thread; `begun` says how that ended."""
        self.tick()
        if self._target is not None:
            raise BadInput("a move is running", "storage move", "wait for its end: dpu status")
        moved = target(self._config, changes)
        beside = secrets_beside(moved.storage)
        pairs = list(zip(self._config.tenants, self._tenants, strict=True))
        for tenant, state in pairs:
            check_carried(tenant, beside, self._runtime_dir, state.secret)
        self._made = [] if os.path.lexists(moved.storage.path) else [Path(moved.storage.path)]
        try:
            for tenant, state in pairs:
                self._made += carry_secret(tenant, beside, self._runtime_dir, state.secret)
        except BadInput:
            self._unmake()
            raise
        self._target, self._refused = moved, None
        self._thread = threading.Thread(target=self._run, args=(moved,), name="ofs-move")
        self._thread.start()

    def begun(self) -> bool:
        """True once after the move has begun; raises where it was refused; False before."""
        if self._thread is None or self._thread.is_alive():
            return False
        self._thread = None
        if self._refused is not None:
            self._target = None
            raise self._refused
        assert self._target is not None
        self._log.info("storage_move", path=self._target.storage.path)
        return True

    def tick(self) -> None:
        """Notes the end of a move that was begun."""
        if self._target is None or self._thread is not None:
            return
        status = self._device.move_status()
        if status.state == "running":
            return
        said = {
            name: getattr(status, name)
            for name in ("path", "blocks_copied", "blocks_lost", "held_ns")
        }
        if status.switched:
            self._config = self._target
            self._log.info("storage_moved", **said, unrecorded=status.unrecorded)
        else:
            self._log.error("storage_move_failed", **said, error=status.error)
        self._target = None

    def close(self) -> None:
        """Wait for a move that is being started: it uses the device."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, moved: Config) -> None:
        try:
            self._device.move(moved)
        except Exception as error:  # reported to the requester; the daemon logs its own failures
            self._refused = error
            if not isinstance(error, DeviceTimeout):  # which may begin yet
                self._unmake()

    def _unmake(self) -> None:
        """Remove the files created for a move that was refused."""
        for path in self._made:
            with contextlib.suppress(OSError):
                path.unlink()
