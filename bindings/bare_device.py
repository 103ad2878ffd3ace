"""A small device without a daemon: for tests and benches of everything between host and store.

Live, its reactor runs on a separate thread; simulated, clock and storage are virtual, and a caller
that waits on a driver runs the reactor. One tenant, one host to begin with, no control plane.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.attachment import Attachment
from offstage.bindings.driver import Driver
from offstage.bindings.drives import preset
from offstage.bindings.errors import OffstageError
from offstage.bindings.figures import TenantStatus, read_struct
from offstage.bindings.firmware import check_rc, ffi, lib, text_of
from offstage.bindings.keys import block_keys
from offstage.bindings.ledger import Ledger
from offstage.bindings.moments import MOMENT
from offstage.bindings.stages import StageTimes, device_stages, switch_device

__all__ = ["BareConfig", "BareDevice", "BareSession"]

SECRET = bytes(range(16))
ERROR_SIZE = 1024
MIB = 1 << 20


@dataclass(frozen=True)
class BareConfig:
    """Sizes of a BareDevice. Storage: "sim", or a back end with `path` ("" for emulated memory)."""

    payload_size_bytes: int = 4096
    slot_count: int = 64
    layer_count: int = 2
    block_max: int = 1024
    session_max: int = 8
    backend: str = "sim"
    path: str = ""
    direct: bool = False
    """Past the page cache, in blocks of 4 KiB."""
    queue_depth: int = 128
    store_size_bytes: int = 64 * MIB
    segment_size_bytes: int = 0
    """0: eight blocks, or 1 MiB."""
    nvme: str = "gen5-tlc"
    prefetchers: int = 0
    hints: tuple[int, int, int] = (0, 1, 16)
    """What of its scores the policy takes in, as `Driver.limit_scores` has it."""
    write_back_blocks: int = 0
    demand_max: int = 64
    entry_count: int = 16
    put_slot_count: int = 8
    spin_ns: int = 50_000
    stage_timers: bool = True
    moments: int = 0
    value_max: int = 0
    seed: int = 1
    granule_count: int = 0
    """Parts of a block that a fetch may name; 0: whole blocks."""
    corrupt_per_million: int = 0
    """Reads of the storage "sim" that come back with a flipped byte."""
    io_error_per_million: int = 0
    """Reads and writes of the storage "sim" that end with EIO."""
    fabric: str = "shm"
    """Side of its ports: "shm", "memory", "sim" or an added one; the faults below are "sim"'s."""
    port_delay_ns_max: int = 0
    port_late_per_million: int = 0
    port_nonsense_per_million: int = 0


@dataclass(frozen=True)
class BareSession:
    """A session with its chunks: `keys` uint64 [layers, chunks, 2] names its blocks."""

    number: int
    keys: NDArray[np.uint64]


class BareDevice:
    """An open device with one tenant and one attached host. Contract: device.h."""

    def __init__(self, config: BareConfig, *, simulated: bool = False) -> None:
        """Open it; raises what the firmware refuses, in its own line."""
        self.config, self.simulated = config, simulated
        out: Any = ffi.new("struct ofs_device **")
        error: Any = ffi.new("char[]", ERROR_SIZE)
        rc = lib.ofs_device_open(out, _fill(config, simulated), error, ERROR_SIZE)
        if rc < 0:
            raise OffstageError(text_of(error) or "the device does not open", errno=-rc)
        self.handle: Any = out[0]
        if not simulated:
            check_rc(lib.ofs_device_start(self.handle), "starting the reactor")
        tenant: Any = ffi.new("struct ofs_tenant_config *")
        ffi.buffer(ffi.addressof(tenant, "secret"))[:] = SECRET
        tenant.slot_count, tenant.weight = config.slot_count, 1
        number: Any = ffi.new("uint32_t *")
        rc = lib.ofs_device_tenant_add(self.handle, tenant, number)
        check_rc(rc, "adding the tenant")
        check_rc(lib.ofs_device_restore(self.handle, number[0]), "recovering its blocks")
        self._tenant = int(number[0])
        self._taken: list[Attachment] = []
        self._port, self.attachment = self.attach()

    def attach(self) -> tuple[int, Attachment]:
        """One more host: its port, and its attachment, which this object closes."""
        port, attachment = Attachment.of_port(self.handle, self._tenant, self.config.fabric)
        self._taken.append(attachment)
        return port, attachment

    def reattach(self) -> None:
        """The host's connection is over; the next `driver` is another one to the same port."""
        self.attachment = Attachment.of_port_again(self.handle, self._port)

    def driver(self, **faults: int) -> Driver:
        """The host's driver: in real time, or in virtual time with seeded `faults`."""
        if not self.simulated:
            assert not faults
            driver = Driver(self.attachment)
            answer = driver.answer()
            if answer is not None:
                Attachment(answer).connect(self.handle, self._port)
            return driver
        options = {"seed": self.config.seed} | faults
        return Driver.in_virtual_time(self.handle, self.attachment, **options)

    def session(self, chunk_count: int, select_blocks: int = 32, first: int = 0) -> BareSession:
        """Open a session of `chunk_count` chunks, whose contents are numbered from `first`."""
        config: Any = ffi.new("struct ofs_session_config *")
        config.sink_blocks, config.window_blocks = 1, 1
        config.select_blocks, config.step_ns = select_blocks, 1_000_000
        session: Any = ffi.new("uint32_t *")
        rc = lib.ofs_device_session_open(self.handle, self._port, config, session)
        check_rc(rc, "opening a session")
        contents = np.zeros((chunk_count, 2), np.uint64)
        contents[:, 0] = np.arange(first, first + chunk_count)
        infos: Any = ffi.new("struct ofs_chunk_info[]", chunk_count)
        rc = lib.ofs_device_session_append(
            self.handle,
            session[0],
            chunk_count,
            ffi.cast("struct ofs_key *", contents.ctypes.data),
            infos,
        )
        check_rc(rc, "appending chunks")
        keys = [bytes(ffi.buffer(ffi.addressof(infos[i], "key"))) for i in range(chunk_count)]
        return BareSession(int(session[0]), block_keys(keys, self.config.layer_count))

    def moments(self, most: int) -> NDArray[np.void]:
        """Take up to `most` moments of reads, commands and turns, rows of MOMENT."""
        rows = np.zeros(most, MOMENT)
        target = ffi.cast("struct ofs_moment *", rows.ctypes.data)
        return rows[: check_rc(lib.ofs_device_moments_take(self.handle, target, most), "moments")]

    def time_stages(self, on: bool) -> None:
        """Stage timers and moments of the reactor on or off, from now on."""
        switch_device(self.handle, on)

    def stages(self) -> dict[str, StageTimes]:
        """How long the stages that the reactor sees took; see `bindings.stages`."""
        return device_stages(self.handle)

    def ledger(self) -> Ledger:
        """Of its tenant."""
        ledger: Any = ffi.new("struct ofs_ledger *")
        check_rc(lib.ofs_device_ledger(self.handle, self._tenant, ledger), "reading the ledger")
        return read_struct(ledger, Ledger)

    def tenant_status(self) -> TenantStatus:
        """The figures of its tenant."""
        status: Any = ffi.new("struct ofs_tenant_status *")
        rc = lib.ofs_device_tenant_status_get(self.handle, self._tenant, status)
        check_rc(rc, "reading the tenant's status")
        return read_struct(status, TenantStatus)

    def reset(self) -> None:
        """Drop what is staged and not pinned."""
        check_rc(lib.ofs_device_reset(self.handle), "resetting the arena")

    def detach(self) -> None:
        """What the daemon does when a host is gone: its port is closed."""
        check_rc(lib.ofs_device_detach(self.handle, self._port), "detaching the host")

    def close(self) -> None:
        """Stop the reactor and close everything. Closing twice does nothing."""
        if self.handle is not None:
            lib.ofs_device_close(self.handle, 0)
            self.handle = None
            for attachment in self._taken:
                attachment.close()

    def __enter__(self) -> "BareDevice":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _fill(config: BareConfig, simulated: bool) -> Any:
    lba = 4096 if config.direct else 512
    filled: Any = ffi.new("struct ofs_device_config *")
    core, storage, store = filled.core, filled.storage, filled.store
    core.seed, core.tenant_max, core.session_max = config.seed, 1, config.session_max
    core.chunk_max, core.session_chunk_max = 2 * config.block_max, config.block_max
    core.layer_count, core.slot_count = config.layer_count, config.slot_count
    core.block_size_bytes = config.payload_size_bytes + lba
    core.io_max, core.queue_max, core.demand_max = 64, 256, config.demand_max
    policy = filled.policy
    policy.prefetchers, policy.eviction = config.prefetchers, lib.OFS_EVICT_LRU
    policy.window_blocks, policy.ema_shift, policy.residency_percent = 16, 2, 200
    policy.degree_max, policy.next_n, policy.prefetch_in_flight_max = 16, 4, 32
    policy.lease_ns = 200_000_000
    policy.hint_scores_max, policy.hint_every_steps, policy.hint_score_bits = config.hints
    storage.backend, storage.path = config.backend.encode(), config.path.encode()
    storage.size_bytes, storage.lba_size_bytes = config.store_size_bytes, lba
    storage.queue_depth_max, storage.thread_count = config.queue_depth, 2
    storage.seed = config.seed
    storage.nvme, storage.direct = preset(config.nvme).params, config.direct
    store.payload_size_bytes, store.layer_count = config.payload_size_bytes, config.layer_count
    segment_size = config.segment_size_bytes or max(MIB, 8 * config.payload_size_bytes)
    store.tenant_max, store.segment_size_bytes = 1, segment_size
    store.io_max, store.reserve_segments, store.format = 64, 1, 1
    store.granule_count = config.granule_count
    storage.fault_corrupt_per_million = config.corrupt_per_million
    storage.fault_eio_per_million = config.io_error_per_million
    filled.value_max = config.value_max
    filled.write_mode = lib.OFS_WRITE_BACK if config.write_back_blocks else lib.OFS_WRITE_THROUGH
    filled.dirty_blocks_max = config.write_back_blocks
    filled.io_timeout_ns, filled.spin_ns = 1_000_000_000, config.spin_ns
    filled.port_max, filled.port_entry_count = 2, config.entry_count
    filled.put_slot_count, filled.score_max = config.put_slot_count, config.block_max
    filled.port_sim.seed, filled.port_sim.delay_ns_max = config.seed, config.port_delay_ns_max
    filled.port_sim.late_per_million = config.port_late_per_million
    filled.port_sim.nonsense_per_million = config.port_nonsense_per_million
    filled.sim_clock, filled.cpu, filled.stage_timers = simulated, -1, config.stage_timers
    filled.moment_max = config.moments
    return filled
