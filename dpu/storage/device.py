"""The daemon's device: opened from its configuration, with the policy in terms of its options."""

from typing import Any

import msgspec

from offstage.bindings import sides
from offstage.bindings.codec import DTYPES
from offstage.bindings.core import filled_policy
from offstage.bindings.device import FirmwareDevice, name_store, new_config
from offstage.bindings.figures import MoveStatus
from offstage.bindings.layouts import names
from offstage.bindings.storage import preset
from offstage.bindings.timing import Timing
from offstage.dpu.config.derive import Derived, core_policy
from offstage.dpu.config.options import PolicyOptions
from offstage.dpu.config.values import Config
from offstage.dpu.protocol.status import DeviceReport
from offstage.dpu.storage.preflight import check_machine, check_store_file
from offstage.dpu.storage.spdk_own import OwnTarget

__all__ = ["PLACES", "Device"]

MOMENTS = 65_536
"""Ring of moments: of the busiest run a second and more."""
PLACES = 4
"""Blocks that one worker of the archive reads or writes in parallel."""


class Device(FirmwareDevice):
    """An open device with its reactor running."""

    def __init__(
        self,
        config: Config,
        derived: Derived,
        *,
        recording: bool = False,
        timing: Timing | None = None,
        store_uuid: bytes = bytes(16),
    ) -> None:
        """Open storage, recover the store, start the reactor.

        Without `recording` there are no ledger records and no decision log, only counters.
        `timing`: of the modelled device that sets the pace, used by no other caller. `store_uuid`:
        if not zero, the store must have it.
        Raises what machine and store file do not allow, and what the firmware refuses.
        """
        check_machine(config)
        self._target: OwnTarget | None = None
        sides.ensure(config.storage.backend)
        if config.storage.backend == "spdk":
            config = self._with_target(config)
        try:
            self._open(config, derived, recording, timing, store_uuid)
        except BaseException:
            self._end_target()
            raise

    def close(self, drain: bool) -> None:
        """As the firmware's, then the target that was started for it."""
        super().close(drain)
        self._end_target()

    def status(self) -> DeviceReport:
        """As the firmware's, plus the restarts of the daemon's own target."""
        status = DeviceReport(**msgspec.structs.asdict(super().status()))
        target = self._target
        if target is None:
            return status
        return msgspec.structs.replace(
            status, target_restarts=target.restarts, target_down=target.given_up
        )

    def move_status(self) -> MoveStatus:
        """As the firmware's. A target that the blocks have left is stopped: it burns a core."""
        status = super().move_status()
        if status.switched and status.state == "done":
            self._end_target()
        return status

    def _with_target(self, config: Config) -> Config:
        """The configuration with the path of a target of ours, where one is asked for."""
        storage = config.storage
        if not storage.target:
            return config
        self._target = OwnTarget(storage)
        return msgspec.structs.replace(
            config, storage=msgspec.structs.replace(storage, path=self._target.path)
        )

    def _end_target(self) -> None:
        if self._target is not None:
            self._target.close()
            self._target = None

    def _open(
        self,
        config: Config,
        derived: Derived,
        recording: bool,
        timing: Timing | None,
        store_uuid: bytes,
    ) -> None:
        check_store_file(config)
        self._block_tokens = config.arena.block_tokens
        self._timing = timing  # its memory
        filled = _fill_config(config, derived, recording)
        name_store(filled, store_uuid)
        if timing is not None:
            filled.timing = timing.handle
        super().__init__(filled, config.storage.path)

    def set_policy(self, policy: PolicyOptions) -> None:
        """Change the policy now, without a restart."""
        self.set_core_policy(core_policy(policy, self._block_tokens))

    def move(self, config: Config) -> None:
        """Start to move all blocks to this configuration's storage; hosts continue meanwhile."""
        filled = new_config()
        _fill_storage(filled.storage, config)
        self.move_to(filled, config.storage.path)


def _fill_config(config: Config, derived: Derived, recording: bool) -> Any:
    """struct ofs_device_config; the firmware checks again what it depends on."""
    filled = new_config()
    limits, store = config.limits, config.store
    core = filled.core
    core.seed = config.storage.seed
    core.tenant_max = len(config.tenants)
    core.session_max, core.chunk_max = limits.sessions, limits.chunks
    core.session_chunk_max = derived.session_chunk_max
    core.layer_count, core.slot_count = config.arena.layers, derived.slot_count
    core.block_size_bytes = derived.record_size_bytes
    core.io_max, core.queue_max = derived.core_reads, limits.queue
    filled.reads_max = limits.reads
    filled.in_flight_bytes_max = limits.tenant_in_flight_bytes if len(config.tenants) > 1 else 0
    core.demand_max = derived.demand_max
    core.log_size_bytes = limits.log_bytes if recording else 0
    core.record_max = limits.records if recording else 0
    filled.value_max = limits.values
    filled.moment_max = MOMENTS if recording and config.daemon.stage_timers else 0
    policy = core_policy(config.policy, config.arena.block_tokens)
    filled.policy = filled_policy(policy)[0]
    _fill_storage(filled.storage, config)
    filled.memory.huge = names("enum ofs_dma_huge", "OFS_DMA_HUGE_").index(config.memory.huge)
    filled.memory.numa_bind = config.memory.numa_node >= 0
    filled.memory.numa_node = max(config.memory.numa_node, 0)
    filled.store.payload_size_bytes = config.arena.payload_bytes
    filled.store.granule_count = derived.granule_count
    filled.store.layer_count = config.arena.layers
    filled.store.tenant_max = len(config.tenants)
    filled.store.segment_size_bytes = store.segment_bytes
    filled.store.io_max, filled.store.durable = store.io_max, store.durable
    filled.store.ttl_s, filled.store.reserve_segments = derived.ttl_s, store.reserve_segments
    filled.store.room_percent = store.room_percent
    filled.store.format, filled.store.erase = 1, store.erase
    filled.store.codec = ("off", *DTYPES).index(store.codec)
    filled.write_mode = names("enum ofs_write_mode", "OFS_WRITE_").index(store.write)
    filled.dirty_blocks_max = store.dirty_max if store.write == "back" else 0
    filled.io_timeout_ns, filled.spin_ns = config.storage.io_timeout_ns, config.daemon.spin_ns
    filled.port_max, filled.port_entry_count = limits.ports, limits.port_entries
    filled.put_slot_count = limits.put_slots
    filled.score_max = derived.session_chunk_max
    filled.dilation = config.model.dilation
    if config.archive.bucket:
        filled.archive_places = config.archive.connections * PLACES
        filled.archive_wait_ns = config.archive.wait_ns
    filled.cpu, filled.stage_timers = config.daemon.cpu, config.daemon.stage_timers
    return filled


def _fill_storage(filled: Any, config: Config) -> None:
    storage = config.storage
    filled.backend, filled.inner = storage.backend.encode(), storage.inner.encode()
    filled.path = storage.path.encode()
    filled.size_bytes, filled.lba_size_bytes = storage.size_bytes, storage.lba_bytes
    filled.timeout_ns = storage.io_timeout_ns
    # A target of ours keeps the blocks in a file, whose room was reserved: it stays so.
    filled.discard = storage.discard and not storage.target
    filled.handles_min = storage.handles_min
    filled.huge = names("enum ofs_dma_huge", "OFS_DMA_HUGE_").index(config.memory.huge)
    filled.queue_depth_max, filled.thread_count = storage.queue_depth, storage.threads
    filled.direct, filled.busy_spin, filled.seed = storage.direct, storage.busy_spin, storage.seed
    filled.nvme = preset(storage.nvme).params
