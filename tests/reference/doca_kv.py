"""Our libdoca_kv, called as a program would call it: built from host/doca, by its own headers.

A `Client` is one progress engine and one context with one device. Its calls submit tasks and
advance the engine until they have ended; what a task ended with is the name of DOCA's error.
"""

import fcntl
import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cffi
import numpy as np

ROOT = Path(__file__).parents[2] / "host/doca"
HEADERS = "types error ctx pe kv_dev kv_io kv_nvme_kernel_dev kv_nvme_kernel_io kv_offstage".split()
WAIT_S = 60.0
SUCCESS = "DOCA_SUCCESS"
VOLUME = bytes(16)


class Refused(Exception):
    """A call that failed: the name of its error."""


def built(*, sanitized: bool = False) -> Path:
    """The folder of the library, which is built there. Workers of one test run wait for each
    other: two builds at once would link what the other one is writing."""
    folder = ROOT / "build" / ("asan" if sanitized else "")
    folder.mkdir(parents=True, exist_ok=True)
    words = ["make", "-s", "-C", str(ROOT), *(["SANITIZE=1"] if sanitized else [])]
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(words, check=True, env={**os.environ, "LD_PRELOAD": ""})
    return folder


def load() -> tuple[Any, Any]:
    """cffi's `ffi` and `lib`; the library is built first, under sanitizers where the process is."""
    library = built(sanitized="libasan" in os.environ.get("LD_PRELOAD", "")) / "libdoca_kv.so"
    text = "\n".join((ROOT / f"include/doca_{one}.h").read_text() for one in HEADERS)
    text = re.sub(r'#ifdef __cplusplus\n(extern "C" \{|\})\n#endif', "", text)
    text = re.sub(r"^#(?!define DOCA_KV_DEV_NGUID_LEN).*$", "", text, flags=re.M)
    text = re.sub(r"DOCA_(STABLE|EXPERIMENTAL) ", "", text)
    text = re.sub(r"(\d)U\b", r"\1", text)
    # libffi passes no union by value; on this machine a structure of eight bytes is passed alike.
    text = re.sub(
        r"union doca_data \{.*?\};", "struct doca_data { uint64_t u64; };", text, flags=re.S
    )
    ffi = cffi.FFI()
    ffi.cdef("struct iovec { void *iov_base; size_t iov_len; };")
    ffi.cdef(text.replace("union doca_data", "struct doca_data"))
    return ffi, ffi.dlopen(str(library))


class Client:
    """A context over one device, and its tasks."""

    def __init__(
        self, library: tuple[Any, Any], path: str, nguid: bytes = VOLUME, tasks: int = 256
    ) -> None:
        """`Refused` with the error of the call that failed."""
        self.ffi, self.lib = library
        self.ended: dict[int, str] = {}
        self.lengths: dict[int, int] = {}
        self._blocks: dict[int, tuple[int, int]] = {}
        self._kept: dict[int, Any] = {}
        self._next = 0
        ffi, lib = library
        attr = self._made("doca_kv_nvme_kernel_dev_create_attr", "create_attr_create")
        self._check(lib.doca_kv_nvme_kernel_dev_create_attr_set_path(attr, path.encode()))
        general = lib.doca_kv_nvme_kernel_dev_create_attr_as_kv_dev_create_attr(attr)
        self._check(lib.doca_kv_dev_create_attr_set_nguid(general, nguid))
        device: Any = ffi.new("struct doca_kv_nvme_kernel_dev **")
        made = lib.doca_kv_nvme_kernel_dev_create(attr, device)
        lib.doca_kv_nvme_kernel_dev_create_attr_destroy(attr)
        self._check(made)
        self._kernel_dev = device[0]
        self.dev = lib.doca_kv_nvme_kernel_dev_as_kv_dev(device[0])
        pe: Any = ffi.new("struct doca_pe **")
        self._check(lib.doca_pe_create(pe))
        self.pe = pe[0]
        context: Any = ffi.new("struct doca_kv_nvme_kernel_io **")
        self._check(lib.doca_kv_nvme_kernel_io_create(context))
        self._kernel_io = context[0]
        self.io = lib.doca_kv_nvme_kernel_io_as_kv_io(context[0])
        self.ctx = lib.doca_kv_io_as_ctx(self.io)
        self._check(lib.doca_kv_io_set_num_tasks(self.io, tasks))
        self._callbacks = [self._register(kind) for kind in ("store", "retrieve", "exist")]
        self._check(lib.doca_pe_connect_ctx(self.pe, self.ctx))
        self._check(lib.doca_ctx_start(self.ctx))
        self._check(lib.doca_kv_io_bind_dev(self.io, self.dev))

    def close(self) -> None:
        """Unbind, stop and destroy, in that order."""
        lib = self.lib
        self._check(lib.doca_kv_io_unbind_dev(self.io, self.dev))
        self._check(lib.doca_ctx_stop(self.ctx))
        self._check(lib.doca_kv_nvme_kernel_io_destroy(self._kernel_io))
        self._check(lib.doca_pe_destroy(self.pe))
        self._check(lib.doca_kv_nvme_kernel_dev_destroy(self._kernel_dev))

    def number(self, of: str, kind: str = "uint32_t") -> int:
        """A limit of the device."""
        out: Any = self.ffi.new(f"{kind} *")
        self._check(getattr(self.lib, f"doca_kv_dev_get_{of}")(self.dev, out))
        return int(out[0])

    def allocate(self, kind: str) -> Any:
        """A task that is to be freed by `free`, unless it is submitted by a call of this class."""
        task: Any = self.ffi.new(f"struct doca_kv_io_task_{kind} **")
        data: Any = self.ffi.new("struct doca_data *", [self._next])
        allocate = getattr(self.lib, f"doca_kv_io_task_{kind}_alloc_init")
        self._check(allocate(self.io, self.dev, data[0], task))
        self._next += 1
        return task[0]

    def store(
        self, key: bytes, parts: Sequence[bytes], keep: bool = False, over: bool = False
    ) -> int:
        """Submit a store of the parts, each in an iovec of its own; the task's number."""
        number, task = self._next, self.allocate("store")
        held = [self.ffi.from_buffer(one) for one in parts]
        self._configure("store", task, key, held, sum(map(len, parts)))
        self.lib.doca_kv_io_task_store_set_do_not_overwrite(task, keep)
        self.lib.doca_kv_io_task_store_set_must_exist(task, over)
        return self._submit("store", task, number)

    def retrieve(self, key: bytes, targets: Sequence[bytearray], size: int = 0) -> int:
        """Submit a retrieve into the targets, of `size` bytes if they have room for more."""
        number, task = self._next, self.allocate("retrieve")
        held = [self.ffi.from_buffer(one, require_writable=True) for one in targets]
        self._configure("retrieve", task, key, held, size or sum(map(len, targets)))
        return self._submit("retrieve", task, number)

    def exist(self, key: bytes) -> int:
        """Submit a look for the key."""
        number, task = self._next, self.allocate("exist")
        self.lib.doca_kv_io_task_exist_set_key_conf(task, key, len(key))
        return self._submit("exist", task, number)

    def prefetch(self, keys: Sequence[bytes], within_s: float = 0.1) -> list[str]:
        """Stage the values of these keys: of each, the name of its error."""
        held = [self.ffi.from_buffer(one) for one in keys]
        asks: Any = self.ffi.new("struct offstage_kv_ahead[]", len(keys))
        for ask, one in zip(asks, held, strict=True):
            ask.key, ask.key_len = one, len(one)
            ask.probability, ask.within_ns = 65535, int(within_s * 1e9)
        self._check(self.lib.offstage_kv_io_prefetch(self.io, asks, len(keys)))
        return [self._name(ask.result) for ask in asks]

    def listed(self, start: bytes = b"", room: int = 4096) -> list[bytes]:
        """The keys of the volume from `start` on, of those that fit in `room` bytes."""
        memory, count = bytearray(room), self.ffi.new("uint32_t *")
        data = self.ffi.from_buffer(memory, require_writable=True)
        self._check(self.lib.offstage_kv_io_list(self.io, start, len(start), data, room, count))
        keys, at = [], 4
        for _ in range(count[0]):
            size = int.from_bytes(memory[at : at + 2], "little")
            keys.append(bytes(memory[at + 2 : at + 2 + size]))
            at += (2 + size + 3) // 4 * 4
        return keys

    def blocks(self, number: int) -> tuple[int, int]:
        """Of a retrieve: the blocks that were staged, and those that it waited for."""
        return self._blocks[number]

    def wait(self, *numbers: int, flush: bool = True) -> list[str]:
        """Advance until these tasks have ended: the name of what each ended with."""
        if flush:
            self.lib.doca_ctx_flush_tasks(self.ctx)
        until_s = time.monotonic() + WAIT_S
        while not all(one in self.ended for one in numbers):
            self.lib.doca_pe_progress(self.pe)
            assert time.monotonic() < until_s, "a task hangs"
        return [self.ended[one] for one in numbers]

    def value(self, key: bytes, size: int) -> bytes | None:
        """What a retrieve of at most `size` bytes gets; None: nothing is there."""
        target = bytearray(size)
        number = self.retrieve(key, [target])
        said = self.wait(number)[0]
        if said == "DOCA_ERROR_NOT_FOUND":
            return None
        if said != SUCCESS:
            raise Refused(said)
        return bytes(target[: self.lengths[number]])

    def _made(self, kind: str, call: str) -> Any:
        out: Any = self.ffi.new(f"struct {kind} **")
        self._check(getattr(self.lib, f"doca_kv_nvme_kernel_dev_{call}")(out))
        return out[0]

    def _configure(self, kind: str, task: Any, key: bytes, held: list[Any], size: int) -> None:
        iovecs: Any = self.ffi.new("struct iovec[]", [[one, len(one)] for one in held])
        self._kept[self._next - 1] = held, iovecs
        configure = getattr(self.lib, f"doca_kv_io_task_{kind}_set_key_value_conf")
        configure(task, key, len(key), iovecs, len(held), size)

    def _submit(self, kind: str, task: Any, number: int) -> int:
        general = getattr(self.lib, f"doca_kv_io_task_{kind}_as_task")(task)
        rc = self.lib.doca_task_submit_ex(general, 0)
        if rc:
            self.lib.doca_task_free(general)
        self._check(rc)
        return number

    def _register(self, kind: str) -> tuple[Any, Any]:
        as_task = getattr(self.lib, f"doca_kv_io_task_{kind}_as_task")
        shape = f"void(struct doca_kv_io_task_{kind} *, struct doca_data, struct doca_data)"

        @self.ffi.callback(shape)  # type: ignore[untyped-decorator]
        def ended(task: Any, data: Any, _: Any) -> None:
            general = as_task(task)
            self.ended[data.u64] = self._name(self.lib.doca_task_get_status(general))
            if kind == "retrieve":
                size = self.lib.doca_kv_io_task_retrieve_get_result_value_len(task)
                self.lengths[data.u64] = size
                counts: Any = self.ffi.new("uint32_t[2]")
                self.lib.offstage_kv_io_task_retrieve_get_blocks(task, counts, counts + 1)
                self._blocks[data.u64] = counts[0], counts[1]
            self._kept.pop(data.u64, None)
            self.lib.doca_task_free(general)

        for name in ("completion", "error"):
            register = getattr(self.lib, f"doca_kv_io_task_{kind}_register_{name}_cb")
            self._check(register(self.io, ended))
        return ended, as_task

    def _name(self, code: int) -> str:
        return str(self.ffi.string(self.lib.doca_error_get_name(code)).decode())

    def _check(self, code: int) -> None:
        if code:
            raise Refused(self._name(code))


def content(seed: int, size: int) -> bytes:
    """Bytes that follow from the seed."""
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8).tobytes()
