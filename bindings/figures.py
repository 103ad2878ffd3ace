"""The firmware's figures: structs that mirror those of C, field by field and in their order.

Their JSON is what a daemon's status and `record.json` have. A field that its source does not know
is 0. `read_struct` makes any of them from the C struct.
"""

from typing import Any, TypeVar

import msgspec

from offstage.bindings.firmware import ffi, text_of

__all__ = [
    "DeviceStatus",
    "DmaTotals",
    "EventWork",
    "MoveStatus",
    "StorageStats",
    "StoreStats",
    "TenantStatus",
    "absent",
    "plain",
    "read_struct",
]

T = TypeVar("T")


def absent() -> Any:
    """A field that its JSON may lack; it is UNSET then."""
    return msgspec.field(default=msgspec.UNSET)


class EventWork(msgspec.Struct, kw_only=True, frozen=True):
    """`struct ofs_work`: what the events of one kind cost the core. `table_bytes`: by table."""

    events: int = 0
    probes: int = 0
    heap_moves: int = 0
    values: int = 0
    ranked: int = 0
    rescored: int = 0
    victims: int = 0
    order_moves: int = 0
    table_bytes: dict[str, int] = {}


class StoreStats(msgspec.Struct, kw_only=True, frozen=True):
    """`struct ofs_store_stats`."""

    blocks: int = 0
    puts: int = 0
    gets: int = 0
    deletes: int = 0
    expired: int = 0
    bytes_live: int = 0
    segments_free: int = 0
    segments_total: int = 0
    segments_reclaimed: int = 0
    segments_discarded: int = 0
    blocks_lacking: int = 0
    blocks_moved: int = 0
    checks_failed: int = 0
    recovered: int = 0
    recovery_torn: int = 0
    io_errors: int = 0
    wiped: int = 0
    puts_coded: int = 0
    put_bytes_spared: int = 0
    gets_in_part: int = 0
    refuses_writes: int = 0


class StorageStats(msgspec.Struct, kw_only=True, frozen=True):
    """`struct ofs_storage_stats`."""

    reads: int = 0
    writes: int = 0
    syncs: int = 0
    discards: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    bytes_discarded: int = 0
    errors: int = 0
    busy: int = 0
    in_flight: int = 0
    handles: int = 0
    emulation_late: int = 0
    emulation_late_ns_max: int = 0
    emulation_late_ns_sum: int = 0


class DeviceStatus(msgspec.Struct, kw_only=True, frozen=True):
    """`struct ofs_device_status`, and the core's work by kind of event, of those there were."""

    now_ns: int = 0
    boot_id: int = 0
    loops: int = 0
    busy_loops: int = 0
    sleeps: int = 0
    busy_ns: int = 0
    idle_ns: int = 0
    commands: int = 0
    commands_bad: int = 0
    puts: int = 0
    puts_failed: int = 0
    puts_conflicting: int = 0
    puts_unadmitted: int = 0
    chunks_idle: int = 0
    dirty_blocks: int = 0
    reads_in_flight: int = 0
    reads_timed_out: int = 0
    slots_quarantined: int = 0
    publish_overflow: int = 0
    check_failures: int = 0
    store_full: int = 0
    ports: int = 0
    sessions: int = 0
    draining: int = 0
    drained: int = 0
    emulation_late: int = 0
    sleep_ns: int = 0
    flush_retries: int = 0
    flushes_waiting: int = 0
    paced: int = 0
    paced_late: int = 0
    fenced: int = 0
    store: StoreStats = StoreStats()
    storage: StorageStats = StorageStats()
    work: dict[str, EventWork] = {}


class TenantStatus(msgspec.Struct, kw_only=True, frozen=True):
    """`struct ofs_tenant_status`."""

    weight: int = 0
    bandwidth_bytes_per_s: int = 0
    in_flight: int = 0
    in_flight_max: int = 0
    waiting: int = 0
    issued: int = 0
    issued_bytes: int = 0
    wait_ns_sum: int = 0
    wait_ns_max: int = 0
    throttled_ns: int = 0
    floor_bytes_per_s: int = 0
    floor_bytes: int = 0
    chunks: int = 0
    kept_chunks: int = 0
    chunks_max: int = 0
    stored_blocks: int = 0
    stored_bytes: int = 0
    stored_bytes_max: int = 0
    dirty_blocks: int = 0
    dirty_blocks_max: int = 0
    purged: int = 0
    quota_refused: int = 0
    held_back: int = 0
    sessions: int = 0
    sessions_max: int = 0


class MoveStatus(msgspec.Struct, kw_only=True, frozen=True):
    """`struct ofs_move_status`; `state`: none, running, done or failed."""

    state: str = "none"
    rc: int = 0
    switched: int = 0
    unrecorded: int = 0
    blocks_total: int = 0
    blocks_copied: int = 0
    blocks_lost: int = 0
    passes: int = 0
    held_ns: int = 0
    path: str = ""
    error: str = ""


class DmaTotals(msgspec.Struct, kw_only=True, frozen=True):
    """`struct ofs_dma_totals`, and `warning`: one line, or empty."""

    bytes: int = 0
    reserved_bytes: int = 0
    transparent_bytes: int = 0
    locked_bytes: int = 0
    unbound_bytes: int = 0
    warning: str = ""


def read_struct(struct: Any, kind: type[T], **instead: Any) -> T:
    """The struct that a pointer points at; `instead`: the fields whose values are others."""
    return msgspec.convert(plain(struct[0]) | instead, kind)


def plain(value: Any) -> Any:
    """A C struct, array, text or number as dict, list, str or int."""
    if isinstance(value, int):
        return value
    kind = ffi.typeof(value)
    if kind.kind == "struct":
        return {name: plain(getattr(value, name)) for name, _ in kind.fields or []}
    return text_of(value) if kind.item.cname == "char" else [plain(one) for one in value]
