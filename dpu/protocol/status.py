"""What a daemon reports of itself, its device, its tenants and its hosts.

A field that the asker may not see, or that this daemon has no use for, is left out of the message,
and is UNSET in the struct.
"""

import msgspec

from offstage.bindings.figures import DeviceStatus, DmaTotals, MoveStatus, TenantStatus, absent
from offstage.bindings.ledger import Ledger
from offstage.bindings.stages import StageTimes, StepTimes


class Pace(msgspec.Struct, frozen=True):
    """Measured restores from the archive: seconds until an object has arrived, its tokens, how many
    are in flight together. No seconds: unknown."""

    seconds: float = 0.0
    tokens: float = 0.0
    at_once: int = 1


class ArchiveStatus(msgspec.Struct, kw_only=True, frozen=True):
    """The archive now; `away`: 1 while calls to its server are paused."""

    away: int
    uploads_waiting: int
    deletes_waiting: int
    pace: Pace


class WearFigures(msgspec.Struct, kw_only=True, frozen=True):
    """What was written to the drive since the daemon's start, and its budget. None where the
    divisor is 0 or unknown: no put, no hit, no known endurance."""

    host_bytes: int
    drive_bytes: int
    hits: int
    bytes_per_hit: float | None = None
    amplification: float | None = None
    drive_writes_per_day: float | None = None
    endurance_bytes: int = 0
    life_years: float | None = None
    budget_bytes: int = 0
    budget_used_bytes: int = 0


class ThresholdFigures(msgspec.Struct, kw_only=True, frozen=True):
    """The thresholds in force."""

    admit_named_min: int
    keep_ns: int
    return_tokens_min: int
    written_per_hit_max: int


class DeviceReport(DeviceStatus, kw_only=True, frozen=True):
    """The device with its own target, its archive, and its decisions about wear."""

    target_restarts: int = absent()
    target_down: str = absent()
    archive: ArchiveStatus = absent()
    wear: WearFigures = absent()
    thresholds: ThresholdFigures = absent()


class ArchivedLedger(Ledger, kw_only=True):
    """The ledger with the archive's transfers, where there is an archive."""

    archive_bytes_up: int = absent()
    archive_bytes_down: int = absent()
    archive_chunks_up: int = absent()
    archive_chunks_down: int = absent()
    archive_chunks_left: int = absent()
    archive_objects_deleted: int = absent()
    archive_errors: int = absent()
    archive_damaged: int = absent()
    archive_dropped: int = absent()


class ArchivedTenant(TenantStatus, kw_only=True, frozen=True):
    """A tenant's figures with the archive's, where there is an archive."""

    archive_bytes_up: int = absent()
    archive_bytes_down: int = absent()
    archive_chunks_up: int = absent()
    archive_chunks_down: int = absent()
    archive_chunks_left: int = absent()
    archive_objects_deleted: int = absent()
    archive_errors: int = absent()
    archive_damaged: int = absent()
    archive_dropped: int = absent()
    archive_chunks: int = absent()


class TenantFigures(ArchivedTenant, kw_only=True, frozen=True):
    """A tenant's current use of what is shared, and its bounds."""

    arena_bytes: int
    arena_bytes_max: int
    ports: int
    ports_max: int
    logins: int
    logins_max: int
    pod: dict[str, int | float]
    steps: StepTimes = absent()


class TenantReport(TenantFigures, frozen=True):
    """The figures, after what the tenant is called and has."""

    name: str
    slots: int
    sharing: str


class HostReport(msgspec.Struct, kw_only=True, frozen=True):
    """A host that is logged in; `fabric` empty: it is not attached."""

    name: str
    tenant: str
    fabric: str
    pid: int
    sessions: int


class FabricReport(msgspec.Struct, kw_only=True, frozen=True):
    """A fabric: whether hosts may attach, how many are attached, and where it listens."""

    open: bool
    hosts: int
    endpoint: str


class MachineReport(msgspec.Struct, kw_only=True, frozen=True):
    """The daemon's machine, and the path of its store."""

    architecture: str
    kernel: str
    cores: int | None
    store: str


class MemberStatus(msgspec.Struct, kw_only=True, frozen=True):
    """The daemon as a member of its pod."""

    phase: str
    serves: bool
    incarnation: int
    doubt: str
    epoch: int
    carried_out: int
    lease_s: float
    serves_s: float


class QuotaUse(msgspec.Struct, kw_only=True, frozen=True):
    """Current use of a quota, and its bound."""

    has: int
    most: int


class DaemonStatus(msgspec.Struct, kw_only=True, frozen=True):
    """The status of a daemon: `tenant` to `store_payload_bytes` are for a tenant's host, `move` and
    what follows for an operator."""

    storage: str
    warning: str
    model: str
    dilation: int
    draining: bool
    uptime_s: float
    boot_id: int
    tenant: str = absent()
    sessions: int = absent()
    quotas: dict[str, QuotaUse] = absent()
    tenant_hosts: int = absent()
    store_payload_bytes: int = absent()
    move: MoveStatus = absent()
    fabrics: dict[str, FabricReport] = absent()
    device: DeviceReport = absent()
    stages: dict[str, StageTimes] = absent()
    hosts: list[HostReport] = absent()
    tenants: list[TenantReport] = absent()
    memory: DmaTotals = absent()
    machine: MachineReport = absent()
    daemon: dict[str, int] = absent()
    pod: MemberStatus = absent()
