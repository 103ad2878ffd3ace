"""The storage seam for tests and benches; the daemon drives it from C.

A `Storage` is one queue pair and belongs to the thread of its first submission. Offsets and sizes
are in bytes and multiples of `lba_size_bytes`; memory is a `Buffer`. A device error is reported in
the completion's `result` (bytes moved, or -errno), never as an exception; bad configuration raises
`BadInput` with the firmware's error line.
"""

import errno
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from offstage.bindings import sides, spdk
from offstage.bindings.drives import Preset, preset, presets
from offstage.bindings.errors import BadInput, OffstageError, StoreFull
from offstage.bindings.firmware import check_rc, ffi, lib, text_of
from offstage.bindings.layouts import constant, layout
from offstage.bindings.nvme import LATER, NvmeCost, NvmeModel, nvme_cost, struct_fields

__all__ = [
    "LATER",
    "Buffer",
    "Clock",
    "Done",
    "Faults",
    "Io",
    "NvmeCost",
    "NvmeModel",
    "Preset",
    "Storage",
    "StorageConfig",
    "nvme_cost",
    "preset",
    "presets",
]

READ, WRITE, SYNC, DISCARD = (
    constant(f"OFS_STORAGE_{name}") for name in ("READ", "WRITE", "SYNC", "DISCARD")
)
_IO = layout("struct ofs_io")
POLL_MAX = 256
SPIN_ALWAYS_NS = 2**64 - 1
ERROR_SIZE_BYTES = 512


class Clock:
    """The OS clock, or a simulated one that moves only by `advance_to`."""

    def __init__(self, simulated: bool = False, now_ns: int = 0) -> None:
        out = ffi.new("struct ofs_clock **")
        check_rc(lib.ofs_clock_open(out, int(simulated), now_ns), "opening a clock")
        self.simulated = simulated
        self.handle = ffi.gc(out[0], lib.ofs_clock_close)

    def now_ns(self) -> int:
        return int(lib.ofs_clock_read_ns(self.handle))

    def advance_to(self, now_ns: int) -> None:
        """Simulated clocks only; never back."""
        assert self.simulated and now_ns >= self.now_ns()
        lib.ofs_clock_advance_to(self.handle, now_ns)


class Buffer:
    """`size_bytes` of DMA memory (dma.h), in huge pages where there are; `view` is its bytes.

    With a `name` it is shared: another process can map the file `path` while the buffer lives.
    """

    def __init__(self, size_bytes: int, huge: bool = True, name: str = "") -> None:
        config: Any = ffi.new("struct ofs_dma_config *")
        config.huge = lib.OFS_DMA_HUGE_AUTO if huge else lib.OFS_DMA_HUGE_OFF
        dma: Any = ffi.new("struct ofs_dma *")
        shared = ffi.new("char[]", name.encode()) if name else ffi.NULL
        check_rc(lib.ofs_dma_alloc(dma, config, size_bytes, shared), "allocating a buffer")
        self._dma = ffi.gc(dma, lib.ofs_dma_free)
        self.size_bytes = size_bytes
        self.address = dma.base
        self.view = memoryview(ffi.buffer(self.address, size_bytes))
        self.path = f"/proc/{os.getpid()}/fd/{dma.fd}" if name else ""

    @property
    def huge(self) -> bool:
        """Whether all of it lies in huge pages."""
        return bool(self._dma.huge_bytes == self._dma.size_bytes)

    @property
    def reserved(self) -> bool:
        """Whether it lies in reserved huge pages (hugetlb)."""
        return bool(self._dma.kind == lib.OFS_DMA_RESERVED)

    @property
    def pages(self) -> str:
        """What it lies in: base pages, transparent or reserved huge pages."""
        return text_of(lib.ofs_dma_kind_name(self._dma.kind))

    def at(self, offset: int) -> Any:
        """The C address of byte `offset`."""
        assert 0 <= offset <= self.size_bytes
        return ffi.cast("uint8_t *", self.address) + offset


@dataclass(frozen=True)
class Faults:
    """Seeded faults of the simulated side, each per million I/Os."""

    eio: int = 0
    short: int = 0
    corrupt: int = 0
    hang: int = 0
    torn: int = 0


@dataclass(frozen=True)
class StorageConfig:
    """What a storage is opened with; the fields are those of `struct ofs_storage_config`."""

    backend: str = "auto"
    path: str = ""
    inner: str = ""
    size_bytes: int = 0
    queue_depth_max: int = 64
    lba_size_bytes: int = 0
    thread_count: int = 0
    direct: bool = False
    busy_spin: bool = False
    huge: bool = True
    timeout_ns: int = 0
    discard: bool = False
    handles_min: int = 0
    nvme: dict[str, int] = field(default_factory=dict)
    zones_offset_bytes: int = 0
    seed: int = 0
    faults: Faults = Faults()

    def struct(self) -> Any:
        """The C struct; `BadInput` for a text that does not fit."""
        for name, size in (("backend", 16), ("path", 512), ("inner", 16)):
            if len(getattr(self, name).encode()) >= size or "\0" in getattr(self, name):
                raise BadInput(f"{name} is longer than {size - 1} bytes", "storage", "shorten it")
        config: Any = ffi.new("struct ofs_storage_config *")
        config.backend, config.path = self.backend.encode(), self.path.encode()
        config.inner = self.inner.encode()
        counts = "queue_depth_max lba_size_bytes thread_count seed timeout_ns handles_min"
        for name in ("size_bytes", "zones_offset_bytes", *counts.split()):
            setattr(config, name, getattr(self, name))
        config.huge = lib.OFS_DMA_HUGE_AUTO if self.huge else lib.OFS_DMA_HUGE_OFF
        config.direct, config.busy_spin = int(self.direct), int(self.busy_spin)
        config.discard = int(self.discard)
        for name, value in self.nvme.items():
            setattr(config.nvme, name, value)
        for name in ("eio", "short", "corrupt", "hang", "torn"):
            setattr(config, f"fault_{name}_per_million", getattr(self.faults, name))
        return config


@dataclass(frozen=True)
class Io:
    """One I/O on `buffer` from byte `at` on; `user` comes back with its completion."""

    op: int
    user: int = 0
    offset: int = 0
    size_bytes: int = 0
    buffer: "Buffer | spdk.Memory | None" = None
    at: int = 0
    durable: bool = False
    lifetime: int = 0


@dataclass(frozen=True)
class Done:
    """The end of one I/O: bytes moved, or -errno."""

    user: int
    result: int


class Storage:
    """One open storage; a context manager."""

    def __init__(self, config: StorageConfig, clock: Clock | None = None) -> None:
        self._handle: Any = None
        sides.ensure(config.backend)
        self.clock = clock or Clock()
        self._done = ffi.new(f"struct ofs_io_done[{POLL_MAX}]")
        self._buffers: list[Buffer] = []  # a registered buffer outlives the storage
        self._flying: list[Buffer | spdk.Memory] = []  # and one in flight its last I/O
        out = ffi.new("struct ofs_storage **")
        text = ffi.new(f"char[{ERROR_SIZE_BYTES}]")
        rc = lib.ofs_storage_open(out, config.struct(), self.clock.handle, text, ERROR_SIZE_BYTES)
        if rc < 0:
            raise _open_error(-rc, text_of(text))
        self._handle = out[0]

    def close(self) -> None:
        if self._handle is not None:
            if self.stats()["in_flight"] == 0:  # else the close ends what the device still has
                for buffer in list(self._buffers):
                    self.unregister(buffer)
            lib.ofs_storage_close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.close()  # before its buffers go

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def handle(self) -> Any:
        """The firmware's pointer."""
        return self._handle

    @property
    def name(self) -> str:
        """The back end in use: matters after "auto"."""
        return text_of(lib.ofs_storage_name(self._handle))

    @property
    def warning(self) -> str:
        return text_of(lib.ofs_storage_warning(self._handle))

    @property
    def size_bytes(self) -> int:
        return int(lib.ofs_storage_size_bytes(self._handle))

    @property
    def lba_size_bytes(self) -> int:
        return int(lib.ofs_storage_lba_size_bytes(self._handle))

    @property
    def queue_depth_max(self) -> int:
        return int(lib.ofs_storage_queue_depth_max(self._handle))

    @property
    def direct(self) -> bool:
        return bool(lib.ofs_storage_direct(self._handle))

    @property
    def due_ns(self) -> int:
        """When the next completion is due; 2^64 - 1 if unknown."""
        return int(lib.ofs_storage_due_ns(self._handle))

    @property
    def wait_fd(self) -> int:
        return int(lib.ofs_storage_wait_fd(self._handle))

    def stats(self) -> dict[str, int]:
        out = ffi.new("struct ofs_storage_stats *")
        lib.ofs_storage_stats_read(self._handle, out)
        return struct_fields(out)

    def register(self, buffer: Buffer) -> None:
        rc = lib.ofs_storage_register_memory(self._handle, buffer.address, buffer.size_bytes)
        check_rc(rc, "registering memory")
        self._buffers.append(buffer)

    def unregister(self, buffer: Buffer) -> None:
        rc = lib.ofs_storage_unregister_memory(self._handle, buffer.address, buffer.size_bytes)
        check_rc(rc, "unregistering memory")
        self._buffers.remove(buffer)

    def submit(self, ios: Sequence[Io]) -> int:
        """How many of `ios`, in order, were taken; -errno when the first was refused."""
        batch = ffi.new("struct ofs_io[]", len(ios))
        for entry, io in zip(batch, ios, strict=True):
            entry.user, entry.op, entry.offset = io.user, io.op, io.offset
            entry.size_bytes = io.size_bytes
            entry.buffer = ffi.NULL if io.buffer is None else io.buffer.at(io.at)
            entry.flags = lib.OFS_STORAGE_DURABLE if io.durable else 0
            entry.lifetime = io.lifetime
        self._flying += [io.buffer for io in ios if io.buffer is not None]
        return int(lib.ofs_storage_submit_batch(self._handle, batch, len(ios)))

    def submit_rows(
        self,
        op: int,
        rows: npt.NDArray[np.int64],
        offsets: npt.NDArray[np.int64],
        buffer: Buffer,
        size_bytes: int,
    ) -> int:
        """As `submit`, of one I/O of `size_bytes` for each row of `buffer`; `user` is the row."""
        assert len(rows) == 0 or int(rows.max() + 1) * size_bytes <= buffer.size_bytes
        batch = np.zeros(len(rows), _IO)
        batch["user"], batch["offset"], batch["op"] = rows, offsets, op
        batch["size_bytes"] = size_bytes
        batch["buffer"] = int(ffi.cast("uintptr_t", buffer.address)) + rows * size_bytes
        if buffer not in self._flying:
            self._flying.append(buffer)
        ios = ffi.cast("struct ofs_io *", batch.ctypes.data)
        return int(lib.ofs_storage_submit_batch(self._handle, ios, len(rows)))

    def poll(self, timeout_ns: int = 0) -> list[Done]:
        """What has completed; waits up to `timeout_ns` of wall time for the first."""
        if timeout_ns > 0:
            count = lib.ofs_storage_poll_wait(self._handle, self._done, POLL_MAX, timeout_ns)
        else:
            count = lib.ofs_storage_poll_batch(self._handle, self._done, POLL_MAX)
        if count > 0 and self.stats()["in_flight"] == 0:
            self._flying.clear()
        return [Done(done.user, done.result) for done in self._done[0:count]]

    def drain(self, timeout_ns: int = 10 * 10**9) -> list[Done]:
        """Completions until nothing is in flight; moves a simulated clock to each due time."""
        found: list[Done] = []
        while self.stats()["in_flight"] > 0:
            if self.clock.simulated and self.clock.now_ns() < self.due_ns < 2**64 - 1:
                self.clock.advance_to(self.due_ns)
            more = self.poll(0 if self.clock.simulated else timeout_ns)
            if not more and not self.clock.now_ns() < self.due_ns < 2**64 - 1:
                break  # else a drive with schedulers has done something, and ended nothing
            found += more
        return found

    def run(self, ios: Iterable[Io]) -> list[Done]:
        """Submits all of `ios`, each as soon as there is room, and waits for all of them.

        Raises what a refusal means; the results of the I/Os are in what is returned.
        """
        found: list[Done] = []
        for io in ios:
            while (rc := self.submit([io])) == -errno.EAGAIN:
                found += self.drain()
            check_rc(rc, "submitting an I/O", "storage")
        return found + self.drain()

    def wear(self) -> dict[str, int]:
        """Simulated side: as `NvmeModel.wear`."""
        wear = ffi.new("struct ofs_nvme_wear *")
        lib.ofs_storage_sim_wear(self._handle, wear)
        return struct_fields(wear)

    def hang(self) -> None:
        """Simulated side: nothing completes until `unhang`."""
        lib.ofs_storage_hang(self._handle)

    def unhang(self) -> None:
        """Simulated side: what hung completes with -ETIMEDOUT."""
        lib.ofs_storage_unhang(self._handle)

    def bench_read(
        self,
        buffer: "Buffer | spdk.Memory",
        block_size: int,
        queue_depth: int,
        count: int,
        seed: int,
        spin_ns: int = SPIN_ALWAYS_NS,
        other_size: int = 0,
    ) -> tuple[int, npt.NDArray[np.uint64]]:
        """Elapsed ns, and the latency of each random read in ns, shape `(count,)`; all in C.
        Every second read has `other_size` bytes, a smaller size, where that is not 0.

        After `spin_ns` without a completion the loop sleeps on the storage's descriptor.
        """
        if buffer.size_bytes < queue_depth * block_size:
            raise BadInput(
                "the buffer is smaller than queue depth times block", "bench", "make it larger"
            )
        latency_ns = np.zeros(count, dtype=np.uint64)
        pointer = ffi.cast("uint64_t *", latency_ns.ctypes.data)
        elapsed_ns = lib.ofs_storage_bench_read(
            self._handle,
            buffer.address,
            block_size,
            other_size,
            queue_depth,
            count,
            seed,
            spin_ns,
            pointer,
        )
        return check_rc(int(elapsed_ns), "reading for the bench", self.name), latency_ns


def _open_error(number: int, line: str) -> OffstageError:
    """The firmware's line, "what; fix", as an error of the class its errno calls for."""
    what, _, fix = line.partition("; ")
    kind = StoreFull if number == errno.ENOSPC else BadInput
    return kind(what or errno.errorcode.get(number, str(number)), "", fix, errno=number)
