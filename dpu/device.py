"""The firmware's device as the daemon holds it: `ofs_device_*` with Python's types.

The reactor is the firmware's own thread. A call here is a message to it, waits for the answer with
the GIL released, and may be made from any thread. What the firmware refuses comes out as the error
tree of `offstage.bindings.errors`, with the firmware's own line where it gave one.
"""

import errno
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.attachment import Attachment
from offstage.bindings.core import work_by_event
from offstage.bindings.errors import BadInput, OffstageError, RunFailed, StoreFull
from offstage.bindings.firmware import MEANINGS, check_rc, ffi, lib
from offstage.bindings.stages import device_stages
from offstage.dpu.config import Config
from offstage.dpu.derive import Derived, policy_window_blocks
from offstage.dpu.options import Policy
from offstage.dpu.preflight import check_machine, check_store_file

__all__ = ["RECORD_DTYPE", "Chunk", "Device", "DeviceLike"]

ERROR_SIZE = 1024
RECORDS_MAX = 65_536  # taken from the ring in one call
LOG_BYTES_MAX = 262_144  # the firmware hands out no more at once

# struct ofs_ledger_record, byte for byte.
RECORD_DTYPE = np.dtype(
    [("now_ns", "<u8"), ("session", "<u4"), ("step", "<u4"), ("layer", "<u2"), ("end", "u1"),
     ("nontrivial", "u1"), ("ordinal", "<u4")]
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chunk:
    """What an append says about one chunk: 16-byte keys, and the layers the store has of it."""

    key: bytes
    store_key: bytes
    stored_layers: int
    references: int


class DeviceLike(Protocol):
    """What the daemon needs of a device; the tests have one without firmware."""

    epoch: int

    def tenant_add(self, secret: bytes, slot_count: int, weight: int) -> int: ...
    def attach(self, tenant: int, fabric: str) -> tuple[int, Attachment]: ...
    def detach(self, port: int) -> None: ...
    def session_open(
        self, port: int, sink_blocks: int, window_blocks: int, select_blocks: int, step_ns: int
    ) -> int: ...
    def session_append(self, session: int, contents: list[bytes]) -> list[Chunk]: ...
    def session_set_generating(self, session: int, generating: bool) -> None: ...
    def session_close(self, session: int, archive: bool) -> None: ...
    def set_policy(self, policy: Policy) -> None: ...
    def reset(self) -> None: ...
    def drain(self, timeout_ns: int) -> bool: ...
    def ledger(self, tenant: int | None = None) -> dict[str, Any]: ...
    def records(self) -> NDArray[np.void]: ...
    def log(self) -> bytes: ...
    def status(self) -> dict[str, Any]: ...
    def stages(self) -> dict[str, dict[str, Any]]: ...
    def storage_name(self) -> str: ...
    def warning(self) -> str: ...
    def memory(self) -> dict[str, Any]: ...
    def close(self, drain: bool) -> None: ...


class Device:
    """An open device with its reactor running. Contract of every method: the header device.h."""

    def __init__(self, config: Config, derived: Derived, *, recording: bool = False) -> None:
        """Open storage, recover the store, start the reactor.

        Without `recording` there are no ledger records and no decision log, only counters.
        Raises what the firmware refuses: a store that is in use, of another version or size.
        """
        check_machine(config)
        check_store_file(config)
        assert lib.OFS_CAUSE_COUNT == 8 and ffi.sizeof("struct ofs_ledger_record") == 24
        self._block_tokens = config.arena.block_tokens
        out: Any = ffi.new("struct ofs_device **")
        error: Any = ffi.new("char[]", ERROR_SIZE)
        filled = _fill_config(config, derived, recording)
        rc = lib.ofs_device_open(out, filled, error, ERROR_SIZE)
        if rc < 0:
            _refused(rc, _text(error), config.storage.path)
        self._device: Any = out[0]
        check_rc(lib.ofs_device_start(self._device), "starting the reactor's thread")
        self.epoch = int(self.status()["epoch"])
        self._records = np.zeros(RECORDS_MAX, RECORD_DTYPE)
        self._log = bytearray(LOG_BYTES_MAX)

    def tenant_add(self, secret: bytes, slot_count: int, weight: int) -> int:
        """Give a tenant its part of the arena and the blocks the store has of it."""
        assert len(secret) == 16
        config: Any = ffi.new("struct ofs_tenant_config *")
        ffi.buffer(ffi.addressof(config, "secret"))[:] = secret
        config.slot_count, config.weight = slot_count, weight
        tenant: Any = ffi.new("uint32_t *")
        rc = lib.ofs_device_tenant_add(self._device, config, tenant)
        check_rc(rc, "adding a tenant", "[[tenant]]")
        rc = lib.ofs_device_restore(self._device, tenant[0])
        check_rc(rc, "recovering a tenant's blocks", "[[tenant]]")
        return int(tenant[0])

    def attach(self, tenant: int, fabric: str) -> tuple[int, Attachment]:
        """A port of its own for one host; StoreFull where all ports are taken."""
        return Attachment.of_port(self._device, tenant, fabric)

    def detach(self, port: int) -> None:
        """The host is gone: sessions closed, pins and puts released."""
        check_rc(lib.ofs_device_detach(self._device, port), "detaching a host")

    def session_open(
        self, port: int, sink_blocks: int, window_blocks: int, select_blocks: int, step_ns: int
    ) -> int:
        """A new session of the host on `port`; counts in blocks."""
        config: Any = ffi.new("struct ofs_session_config *")
        config.sink_blocks, config.window_blocks = sink_blocks, window_blocks
        config.select_blocks, config.step_ns = select_blocks, step_ns
        session: Any = ffi.new("uint32_t *")
        rc = lib.ofs_device_session_open(self._device, port, config, session)
        check_rc(rc, "opening a session", "", "raise limits.sessions or close a session")
        return int(session[0])

    def session_append(self, session: int, contents: list[bytes]) -> list[Chunk]:
        """Append chunks by the 16-byte hash of their tokens."""
        count = len(contents)
        keys: Any = ffi.new("struct ofs_key[]", max(count, 1))
        ffi.buffer(keys)[: 16 * count] = b"".join(contents)
        infos: Any = ffi.new("struct ofs_chunk_info[]", max(count, 1))
        rc = lib.ofs_device_session_append(self._device, session, count, keys, infos)
        check_rc(rc, "appending chunks", "", "raise limits.context_tokens or limits.chunks")
        return [
            Chunk(_key(info.key), _key(info.store_key), info.stored_layers, info.references)
            for info in infos[0:count]
        ]

    def session_set_generating(self, session: int, generating: bool) -> None:
        """A generating session is the last victim."""
        rc = lib.ofs_device_session_set_generating(self._device, session, int(generating))
        check_rc(rc, "marking a session")

    def session_close(self, session: int, archive: bool) -> None:
        """Without `archive`, blocks that nobody else refers to are deleted from the store."""
        rc = lib.ofs_device_session_close(self._device, session, int(archive))
        check_rc(rc, "closing a session")

    def set_policy(self, policy: Policy) -> None:
        """Change the policy now, without a restart."""
        filled: Any = ffi.new("struct ofs_policy *")
        _fill_policy(filled, policy, self._block_tokens)
        check_rc(lib.ofs_device_set_policy(self._device, filled), "changing the policy", "[policy]")

    def reset(self) -> None:
        """Drop what is staged, clean and not pinned; zero the ledger."""
        check_rc(lib.ofs_device_reset(self._device), "resetting the arena")

    def drain(self, timeout_ns: int) -> bool:
        """Refuse new work and wait for write-back; False where the timeout came first."""
        rc = lib.ofs_device_drain(self._device, timeout_ns)
        if rc == -errno.ETIMEDOUT:
            return False
        check_rc(rc, "draining")
        return True

    def ledger(self, tenant: int | None = None) -> dict[str, Any]:
        """`struct ofs_ledger` by field name, arrays as lists; None: all tenants together."""
        ledger: Any = ffi.new("struct ofs_ledger *")
        index = lib.OFS_NONE if tenant is None else tenant
        check_rc(lib.ofs_device_ledger(self._device, index, ledger), "reading the ledger")
        return dict(_as_dict(ledger[0]))

    def records(self) -> NDArray[np.void]:
        """Take at most RECORDS_MAX ledger records; a copy of dtype RECORD_DTYPE."""
        target = ffi.cast("struct ofs_ledger_record *", self._records.ctypes.data)
        rc = lib.ofs_device_records(self._device, target, RECORDS_MAX)
        return self._records[: check_rc(rc, "taking ledger records")].copy()

    def log(self) -> bytes:
        """Take at most LOG_BYTES_MAX bytes of the decision log, whole records."""
        rc = lib.ofs_device_log(self._device, ffi.from_buffer(self._log), LOG_BYTES_MAX)
        return bytes(self._log[: check_rc(rc, "taking the decision log")])

    def status(self) -> dict[str, Any]:
        """`struct ofs_device_status` by field name; store and storage are nested.

        `work`: `struct ofs_work` by field name, of every kind of event there was.
        """
        status: Any = ffi.new("struct ofs_device_status *")
        check_rc(lib.ofs_device_status_get(self._device, status), "reading the status")
        work: Any = ffi.new("struct ofs_work[]", lib.OFS_EVENT_COUNT)
        check_rc(lib.ofs_device_work(self._device, work), "reading the core's work")
        return {**_as_dict(status[0]), "work": work_by_event(work)}

    def stages(self) -> dict[str, dict[str, Any]]:
        """How long each stage took since the last reset; see `bindings.stages`."""
        return device_stages(self._device)

    def storage_name(self) -> str:
        """The storage that was had: io_uring, posix, emulated."""
        return _text(lib.ofs_device_storage_name(self._device))

    def warning(self) -> str:
        """One line where the storage is not what was asked for; else empty."""
        return _text(lib.ofs_device_warning(self._device))

    def memory(self) -> dict[str, Any]:
        """`struct ofs_dma_totals` by field name, and `warning`: one line, or empty."""
        totals: Any = ffi.new("struct ofs_dma_totals *")
        lib.ofs_dma_totals_read(totals)
        text: Any = ffi.new("char[]", ERROR_SIZE)
        lib.ofs_dma_warning(text, ERROR_SIZE)
        return {**_as_dict(totals[0]), "warning": _text(text)}

    def close(self, drain: bool) -> None:
        """Stop the reactor and close everything. Closing twice does nothing."""
        if self._device is not None:
            lib.ofs_device_close(self._device, int(drain))
            self._device = None


def _fill_config(config: Config, derived: Derived, recording: bool) -> Any:
    """struct ofs_device_config; the firmware checks again what it depends on."""
    filled: Any = ffi.new("struct ofs_device_config *")
    limits, store = config.limits, config.store
    core = filled.core
    core.seed = config.storage.seed
    core.tenant_max = len(config.tenants)
    core.session_max, core.chunk_max = limits.sessions, limits.chunks
    core.session_chunk_max = derived.session_chunk_max
    core.layer_count, core.slot_count = config.arena.layers, derived.slot_count
    core.block_size_bytes = derived.record_size_bytes
    core.io_max, core.queue_max = limits.reads, limits.queue
    core.demand_max = derived.demand_max
    core.log_size_bytes = limits.log_bytes if recording else 0
    core.record_max = limits.records if recording else 0
    _fill_policy(filled.policy, config.policy, config.arena.block_tokens)
    _fill_storage(filled.storage, config)
    filled.memory.huge = getattr(lib, f"OFS_DMA_HUGE_{config.memory.huge.upper()}")
    filled.memory.numa_bind = config.memory.numa_node >= 0
    filled.memory.numa_node = max(config.memory.numa_node, 0)
    filled.store.payload_size_bytes = config.arena.payload_bytes
    filled.store.layer_count = config.arena.layers
    filled.store.tenant_max = len(config.tenants)
    filled.store.segment_size_bytes = store.segment_bytes
    filled.store.io_max, filled.store.durable = store.io_max, store.durable
    filled.store.ttl_s, filled.store.reserve_segments = derived.ttl_s, store.reserve_segments
    filled.store.format = 1
    filled.write_mode = lib.OFS_WRITE_BACK if store.write == "back" else lib.OFS_WRITE_THROUGH
    filled.dirty_blocks_max = store.dirty_max if store.write == "back" else 0
    filled.io_timeout_ns, filled.spin_ns = config.storage.io_timeout_ns, config.daemon.spin_ns
    filled.port_max, filled.port_entry_count = limits.ports, limits.port_entries
    filled.put_slot_count = limits.put_slots
    filled.score_max = derived.session_chunk_max
    filled.cpu, filled.stage_timers = config.daemon.cpu, config.daemon.stage_timers
    return filled


def _fill_storage(filled: Any, config: Config) -> None:
    storage = config.storage
    filled.backend, filled.inner = storage.backend.encode(), storage.inner.encode()
    filled.path = storage.path.encode()
    filled.size_bytes, filled.lba_size_bytes = storage.size_bytes, storage.lba_bytes
    filled.queue_depth_max, filled.thread_count = storage.queue_depth, storage.threads
    filled.direct, filled.busy_spin, filled.seed = storage.direct, storage.busy_spin, storage.seed
    if lib.ofs_nvme_preset(storage.nvme.encode(), ffi.addressof(filled, "nvme")) < 0:
        names, index = [], 0
        while (name := lib.ofs_nvme_preset_name(index)) != ffi.NULL:
            names.append(_text(name))
            index += 1
        raise BadInput(
            f"storage.nvme {storage.nvme!r} is no preset", config.file or "configuration",
            f"choose one of {', '.join(names)}",
        )  # fmt: skip


def _fill_policy(filled: Any, policy: Policy, block_tokens: int) -> None:
    bits = {name: getattr(lib, f"OFS_PREFETCH_{name.upper()}") for name in policy.prefetchers}
    filled.prefetchers = sum(bits.values())
    filled.eviction = getattr(lib, f"OFS_EVICT_{policy.eviction.upper()}")
    filled.window_blocks = policy_window_blocks(policy, block_tokens)
    filled.prefetch_bytes_per_s_max = policy.bandwidth_bytes_per_s
    for name in ("ema_shift", "residency_percent", "degree_max", "next_n",
                 "prefetch_in_flight_max", "accuracy_permille_min", "lateness_permille_max",
                 "probability_permille_min", "lease_ns"):  # fmt: skip
        setattr(filled, name, getattr(policy, name))


def _refused(rc: int, text: str, where: str) -> None:
    """The firmware's own line under the class of its errno; it names the mend itself."""
    if not text:
        check_rc(rc, "opening the device", where)
    kind = MEANINGS.get(-rc, (OffstageError, "", ""))[0]
    kind = RunFailed if kind in (OffstageError, StoreFull) else kind
    raise kind(text, "" if where in text else where, "", errno=-rc)


def _text(cdata: Any) -> str:
    if cdata == ffi.NULL:
        return ""
    text = ffi.string(cdata)
    return text.decode(errors="replace") if isinstance(text, bytes) else text


def _key(key: Any) -> bytes:
    return int(key.lo).to_bytes(8, "little") + int(key.hi).to_bytes(8, "little")


def _as_dict(value: Any) -> Any:
    """A C struct, array or number as dict, list or int."""
    kind = ffi.typeof(value)
    if kind.kind == "struct":
        return {name: _plain(getattr(value, name)) for name, _ in kind.fields or []}
    return [_plain(one) for one in value]


def _plain(value: Any) -> Any:
    return value if isinstance(value, int) else _as_dict(value)
