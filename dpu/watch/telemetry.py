"""Prometheus: the ledger and the status as `offstage_<noun>_<unit>_total` with labels.

The daemon's loop stores a snapshot twice a second. A scrape reads the snapshot on the exporter's
thread and never queries the reactor. The token decides what a scrape sees: the operator's token
shows everything, a tenant's token shows that tenant's ledger, and no token shows only the daemon's
health.
"""

import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from offstage.bindings.errors import printable
from offstage.bindings.figures import EventWork
from offstage.bindings.layouts import CAUSES, ENDS, FATES
from offstage.bindings.ledger import Ledger
from offstage.bindings.stages import Stages
from offstage.dpu.archive.metrics import archive_metrics
from offstage.dpu.protocol import OPERATOR
from offstage.dpu.protocol.status import DeviceReport, TenantFigures, ThresholdFigures, WearFigures
from offstage.dpu.tenants.quotas import used
from offstage.dpu.watch.scrapes import Scrapes

__all__ = ["Snapshot", "Telemetry", "View"]

STAGE_POWERS = range(7, 34)  # buckets of /metrics: 128 ns to 8.6 s

# Ledger field -> metric (without `offstage_` and `_total`) and help.
LEDGER = {
    "selected": ("selected_blocks", "blocks selected by layers, including those in the HBM pool"),
    "steps": ("layer_steps", "layers of steps served"),
    "demand_bytes_read": ("demand_read_bytes", "read from the store for demands"),
    "prefetch_bytes_read": ("prefetch_read_bytes", "read from the store ahead of need"),
    "demand_bytes_wanted": (
        "demand_wanted_bytes",
        "of those, bytes that demands named: read / wanted is the read amplification",
    ),
    "demand_bytes_spared": ("demand_spared_bytes", "bytes not read of blocks read in part"),
    "hint_bytes": ("hint_bytes", "bytes of scores and guesses that hosts sent"),
    "pollution": ("polluted_demands", "misses whose block a prefetch had evicted"),
    "evictions": ("evicted_blocks", "blocks evicted from the arena"),
    "evictions_generating": ("evicted_generating_blocks", "of them, of a generating session"),
    "appended_chunks": ("appended_chunks", "chunks appended to sessions"),
    "shared_chunks": ("shared_chunks", "appended chunks that were already known"),
    "leases_expired": ("expired_leases", "pins that expired"),
    "busy": ("busy_demands", "demands answered busy: retry"),
    "records_lost": ("lost_records", "ledger records lost because the ring was full"),
    "log_bytes_lost": ("lost_log_bytes", "bytes of decision log lost because the ring was full"),
}
STATUS_COUNTERS = {
    "commands": ("commands", "commands of hosts"),
    "commands_bad": ("bad_commands", "refused commands of hosts"),
    "puts": ("put_blocks", "blocks written by hosts"),
    "puts_failed": ("failed_put_blocks", "blocks whose write failed"),
    "puts_conflicting": (
        "conflicting_put_blocks",
        "blocks refused: their key is known with other bytes",
    ),
    "check_failures": ("check_failed_blocks", "blocks that failed their check: served as misses"),
    "reads_timed_out": ("timed_out_reads", "reads that passed their deadline"),
    "store_full": ("store_full_puts", "puts refused because the store was full"),
    "target_restarts": ("storage_target_restarts", "restarts of the daemon's own target"),
    "puts_unadmitted": (
        "unadmitted_put_blocks",
        "blocks refused: by policy not worth a write",
    ),
    "chunks_idle": (
        "idle_dropped_chunks",
        "kept chunks dropped: unnamed for longer than they are kept",
    ),
    "publish_overflow": (
        "unpublished_blocks",
        "blocks not published because the directory was full",
    ),
}
STATUS_GAUGES = {
    "ports": ("ports", "hosts attached"),
    "sessions": ("sessions", "sessions open"),
    "dirty_blocks": ("dirty_blocks", "blocks staged and not yet on the store"),
    "reads_in_flight": ("reads_in_flight", "block reads in flight"),
    "slots_quarantined": ("quarantined_slots", "slots a hung read may still write to"),
    "draining": ("draining", "1 while the daemon drains"),
}
# Of each tenant: field of `struct ofs_tenant_status` -> metric and help.
SHARE_COUNTERS = {
    "issued": ("tenant_ios", "reads and writes submitted to the drive"),
    "issued_bytes": ("tenant_io_bytes", "bytes of reads and writes submitted to the drive"),
    "floor_bytes": ("tenant_floor_bytes", "bytes of them submitted first: its floor was owed them"),
    "purged": ("tenant_purged_chunks", "kept chunks evicted for lack of room"),
    "held_back": ("tenant_held_back_turns", "reactor turns that delayed its commands"),
    "quota_refused": ("tenant_quota_refused", "appends and blocks refused: at its quota"),
}
SHARE_SECONDS = {
    "wait_ns_sum": ("tenant_io_wait_seconds", "time that reads and writes queued for the drive"),
    "throttled_ns": ("tenant_throttled_seconds", "time that I/O waited for the bandwidth cap"),
}
SHARE_GAUGES = {
    "waiting": ("tenant_ios_waiting", "reads and writes queued for the drive"),
    "in_flight": ("tenant_ios_in_flight", "reads and writes in flight on the drive"),
    "in_flight_max": ("tenant_ios_in_flight_max", "their bound"),
    "weight": ("tenant_weight", "share of the drive"),
    "floor_bytes_per_s": ("tenant_floor_bytes_per_second", "its floor of the drive; 0: none"),
    "sessions": ("tenant_sessions", "sessions open"),
    "sessions_max": ("tenant_sessions_max", "their bound"),
    "ports": ("tenant_ports", "hosts attached"),
    "ports_max": ("tenant_ports_max", "their bound"),
    "logins": ("tenant_logins", "hosts logged in"),
    "logins_max": ("tenant_logins_max", "their bound"),
    "chunks": ("tenant_chunks", "chunks known"),
    "chunks_max": ("tenant_chunks_max", "limit on known chunks; 0: none"),
    "kept_chunks": ("tenant_kept_chunks", "known chunks that no session names"),
    "stored_blocks": ("tenant_stored_blocks", "blocks in the store"),
    "stored_bytes": ("tenant_stored_bytes", "bytes of the store in use, trailers included"),
    "stored_bytes_max": ("tenant_stored_bytes_max", "limit on stored bytes; 0: none"),
    "dirty_blocks": ("tenant_dirty_blocks", "blocks staged and not yet on the store"),
    "dirty_blocks_max": ("tenant_dirty_blocks_max", "limit on dirty blocks; 0: write through"),
    "arena_bytes": ("tenant_arena_bytes", "its part of the arena"),
    "arena_bytes_max": ("tenant_arena_bytes_max", "limit on arena bytes; 0: none"),
}
# Of each tenant with hosts in a pod: `Exceptions.counts` -> metric and help.
POD_COUNTERS = {
    "stale": (
        "pod_stale_lookups",
        "shards absent here, at their home, and at their previous home",
    ),
    "rehomed": ("pod_rehomed_shards", "shards placed here because their home did not answer"),
    "filled_bytes": ("pod_filled_bytes", "bytes copied here from the previous home after a change"),
    "copied_bytes": ("pod_copied_bytes", "bytes of hot shards copied here for load"),
}
POD_GAUGES = {
    "shards": ("pod_shards", "known shards whose home is here"),
    "copies": ("pod_copies", "copies of them at other members"),
    "pinned": ("pod_pinned_shards", "of them, shards that a generating session reads"),
    "demands_per_s": (
        "pod_demands_per_second",
        "rate of blocks demanded here, decayed with a half-life of 5 s",
    ),
}
WEAR_GAUGES = {
    "bytes_per_hit": (
        "written_bytes_per_hit",
        "bytes written to the drive for each demand that ended on time",
    ),
    "amplification": (
        "store_write_amplification",
        "bytes written to the drive per byte of records that hosts wrote",
    ),
    "drive_writes_per_day": (
        "drive_writes_per_day",
        "full writes of the store per day (DWPD)",
    ),
    "budget_bytes": ("write_budget_bytes", "limit on bytes written to the drive in a day; 0: none"),
    "budget_used_bytes": (
        "write_budget_used_bytes",
        "bytes written to the drive in the last 24 hours",
    ),
    "life_years": ("drive_life_years", "years until storage.endurance is used up at this rate"),
}
THRESHOLD_GAUGES = {
    "admit_named_min": (
        "admit_sessions_min",
        "sessions that must come before a new chunk is written; 255: never written",
    ),
    "written_per_hit_max": (
        "written_bytes_per_hit_max",
        "limit above which admission is stricter; 0: none",
    ),
    "return_tokens_min": (
        "archive_return_tokens_min",
        "fewest missing tokens that are restored from the archive",
    ),
}
DAEMON_COUNTERS = {
    "messages": "control messages taken",
    "messages_bad": "refused control messages",
    "requests_failed": "requests that failed by a bug in the daemon; see its log",
    "logins_refused": "logins with a wrong proof",
    "hosts_dead": "hosts that fell silent or vanished; sessions and leases reclaimed",
    "connections": "connections admitted",
    "connections_displaced": "of them, closed to admit another at the limit",
    "connections_stalled": "of them, closed because a message did not complete",
}

DAEMON_GAUGES = {
    "pod_in_doubt": "1: the pod's map was rolled back or replaced, and nothing is served",
}


@dataclass(frozen=True)
class Snapshot:
    """`tenants`: name -> ledger; `shares`: name -> its figures at the drive; `status` and
    `stages`: the device's, whose status is unknown at first; `daemon`: its counters."""

    tenants: Mapping[str, Ledger] = field(default_factory=dict)
    shares: Mapping[str, TenantFigures] = field(default_factory=dict)
    status: DeviceReport | None = None
    stages: Stages = field(default_factory=dict)
    daemon: Mapping[str, int] = field(default_factory=dict)


class View(Collector):
    """One snapshot, filtered for the owner of a token; "" is no token."""

    def __init__(self, snapshot: Snapshot, who: str) -> None:
        self._snapshot, self._who = snapshot, who

    def collect(self) -> Iterable[Metric]:
        """Called by a scrape, on the exporter's thread."""
        snapshot, who = self._snapshot, self._who
        daemon = {name: (name, text) for name, text in DAEMON_COUNTERS.items()}
        yield from _plain(snapshot.daemon, daemon, CounterMetricFamily)
        state = {name: (name, text) for name, text in DAEMON_GAUGES.items()}
        yield from _plain(snapshot.daemon, state, GaugeMetricFamily)
        if snapshot.status is not None:
            yield from _reactor_metrics(snapshot.status)
        # The exposition format escapes label ends, but not terminal control sequences.
        tenants = {printable(name): one for name, one in snapshot.tenants.items()}
        shares = {printable(name): one for name, one in snapshot.shares.items()}
        if who != OPERATOR:
            who = printable(who)
            yield from _ledger_metrics({name: tenants[name] for name in [who] if name in tenants})
            mine = {name: shares[name] for name in [who] if name in shares}
            yield from _share_metrics(mine)
            yield from archive_metrics(mine, msgspec.UNSET)
            return
        yield from _ledger_metrics(tenants)
        yield from _share_metrics(shares)
        status = snapshot.status
        yield from archive_metrics(shares, status.archive if status else msgspec.UNSET)
        if status is not None:
            yield from _known_gauges(status.wear, WEAR_GAUGES)
            yield from _threshold_metrics(status.thresholds)
            known = msgspec.structs.asdict(status)
            yield from _plain(known, STATUS_COUNTERS, CounterMetricFamily)
            yield from _plain(known, STATUS_GAUGES, GaugeMetricFamily)
            yield from _storage_metrics(status)
        yield _stage_metrics(snapshot.stages)
        yield from _work_metrics(status.work if status else {})


class Telemetry:
    """The exporter. `set` stores a snapshot, `show` sets the tokens, `start` opens
    the endpoint."""

    def __init__(self) -> None:
        self._snapshot = Snapshot()
        self._tokens: Mapping[str, str] = {}
        self._scrapes: Scrapes | None = None
        self.port = 0

    def set(self, snapshot: Snapshot) -> None:
        """Replace what the next scrape reads."""
        self._snapshot = snapshot

    def show(self, tokens: Mapping[str, str]) -> None:
        """Set the owner of each token."""
        self._tokens = tokens

    def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one. BadInput where the port is taken."""
        self._scrapes = Scrapes(host, port, self._render)
        self.port = self._scrapes.port

    def stop(self) -> None:
        """Close the endpoint and wait for its thread."""
        if self._scrapes is not None:
            self._scrapes.close()
            self._scrapes = None

    def _render(self, token: str) -> tuple[str, bytes] | None:
        """None: the token is nobody's."""
        who = ""
        for known, name in self._tokens.items():  # no early exit: constant time
            who = name if hmac.compare_digest(known.encode(), token.encode()) else who
        if token and not who:
            return None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(View(self._snapshot, who))
        return CONTENT_TYPE_LATEST, generate_latest(registry)


def _ledger_metrics(tenants: Mapping[str, Ledger]) -> Iterable[Metric]:
    ends = CounterMetricFamily(
        "offstage_demands",
        "demands by outcome; late, cold, capacity and policy are no hits",
        labels=["tenant", "end", "trivial"],
    )
    fates = CounterMetricFamily(
        "offstage_prefetched_blocks",
        "prefetched blocks by cause and outcome",
        labels=["tenant", "cause", "fate"],
    )
    reads = CounterMetricFamily(
        "offstage_issued_reads", "block reads from the store by cause", labels=["tenant", "cause"]
    )
    resident = GaugeMetricFamily("offstage_resident_blocks", "staged now", labels=["tenant"])
    lead = HistogramMetricFamily(
        "offstage_prefetch_lead_seconds",
        "time from arrival to use of prefetched blocks; the sum uses mid-buckets",
        labels=["tenant"],
    )
    plain = {
        name: CounterMetricFamily(f"offstage_{metric}", text, labels=["tenant"])
        for name, (metric, text) in LEDGER.items()
    }
    for tenant, ledger in tenants.items():
        for index, end in enumerate(ENDS):
            nontrivial = ledger.nontrivial_ends[index]
            ends.add_metric([tenant, end, "no"], nontrivial)
            ends.add_metric([tenant, end, "yes"], ledger.ends[index] - nontrivial)
        for index, cause in enumerate(CAUSES):
            reads.add_metric([tenant, cause], ledger.issued[index])
            for number, fate in enumerate(FATES):
                fates.add_metric([tenant, cause, fate], ledger.fates[index][number])
        for name, family in plain.items():
            family.add_metric([tenant], getattr(ledger, name))
        resident.add_metric([tenant], ledger.resident_slots)
        buckets, total_s = _log2_buckets(ledger.lead_ns_log2)
        lead.add_metric([tenant], buckets, total_s)
    yield from (ends, fates, reads, *plain.values(), resident, lead)


def _known_gauges(
    figures: WearFigures | ThresholdFigures, table: Mapping[str, tuple[str, str]]
) -> Iterable[Metric]:
    """A ratio with divisor 0 is left out."""
    for name, (metric, text) in table.items():
        value = getattr(figures, name, None)
        if value is not None:
            yield GaugeMetricFamily(f"offstage_{metric}", text, value=value)


def _threshold_metrics(thresholds: ThresholdFigures) -> Iterable[Metric]:
    yield from _known_gauges(thresholds, THRESHOLD_GAUGES)
    if thresholds:
        yield GaugeMetricFamily(
            "offstage_keep_seconds",
            "a kept chunk stays unnamed; 0: for ever",
            value=thresholds.keep_ns / 1e9,
        )


def _share_metrics(shares: Mapping[str, TenantFigures]) -> Iterable[Metric]:
    kinds: list[tuple[dict[str, tuple[str, str]], Callable[..., Metric], float]] = [
        (SHARE_COUNTERS, CounterMetricFamily, 1),
        (SHARE_SECONDS, CounterMetricFamily, 1e9),
        (SHARE_GAUGES, GaugeMetricFamily, 1),
    ]
    figures = {tenant: msgspec.structs.asdict(one) for tenant, one in shares.items()}
    for table, family, unit in kinds:
        yield from _of_tenants(figures, table, family, unit)
    pods = {tenant: one.pod for tenant, one in shares.items() if one.pod}
    yield from _of_tenants(pods, POD_COUNTERS, CounterMetricFamily, 1)
    yield from _of_tenants(pods, POD_GAUGES, GaugeMetricFamily, 1)
    near: Any = GaugeMetricFamily(
        "offstage_tenant_quota_used_ratio",
        "used fraction of each quota that has a limit",
        labels=["tenant", "quota"],
    )
    for tenant, one in shares.items():
        for quota, has, most in used(one):
            near.add_metric([tenant, quota], has / most)
    yield near


def _of_tenants(
    shares: Mapping[str, Any],
    table: Mapping[str, tuple[str, str]],
    family: Callable[..., Metric],
    unit: float,
) -> Iterable[Metric]:
    for name, (metric, text) in table.items():
        one: Any = family(f"offstage_{metric}", text, labels=["tenant"])
        for tenant, figures in shares.items():
            one.add_metric([tenant], figures[name] / unit)
        yield one


def _log2_buckets(counts: list[int]) -> tuple[list[tuple[str, float]], float]:
    """Cumulative buckets of a log2 histogram of ns, from 1 us up; the sum takes mid-buckets."""
    buckets: list[tuple[str, float]] = []
    total = 0
    sum_s = 0.0
    for power, count in enumerate(counts):
        total += count
        sum_s += count * 1.5 * 2.0**power / 1e9
        if 10 <= power <= 33:
            buckets.append((repr(2.0 ** (power + 1) / 1e9), float(total)))
    buckets.append(("+Inf", float(total)))
    return buckets, sum_s


def _stage_metrics(stages: Stages) -> Metric:
    """The buckets of a power of two together: finer than a scrape has use for."""
    family = HistogramMetricFamily(
        "offstage_stage_seconds", "time that a block spends in each stage", labels=["stage"]
    )
    for name, stage in stages.items():
        buckets = [
            (repr(2.0**power / 1e9), float(_count_below(stage.buckets or [], 1 << power)))
            for power in STAGE_POWERS
        ]
        buckets.append(("+Inf", float(stage.count)))
        family.add_metric([name], buckets, stage.ns_mean * stage.count / 1e9)
    return family


def _count_below(buckets: list[list[int]], limit_ns: int) -> int:
    """Values less than a power of two; no bucket straddles one."""
    return sum(count for largest_ns, count in buckets if largest_ns < limit_ns)


def _plain(
    values: Mapping[str, Any],
    table: Mapping[str, tuple[str, str]],
    family: Callable[..., Metric],
) -> Iterable[Metric]:
    for name, (metric, text) in table.items():
        if isinstance(values.get(name), int):
            yield family(f"offstage_{metric}", text, value=values[name])


def _work_metrics(work: Mapping[str, EventWork]) -> Iterable[Metric]:
    """What the events cost the decision core, by kind of event: docs/reference/work.md."""
    counts = CounterMetricFamily(
        "offstage_core_work", "work of the decision core by kind of event", labels=["event", "what"]
    )
    moved = CounterMetricFamily(
        "offstage_core_table_bytes",
        "bytes of the core's tables read or written",
        labels=["event", "table"],
    )
    for event, counters in work.items():
        for what, count in msgspec.structs.asdict(counters).items():
            if what != "table_bytes":
                counts.add_metric([event, what], count)
        for table, size_bytes in counters.table_bytes.items():
            moved.add_metric([event, table], size_bytes)
    if work:
        yield counts
        yield moved


def _reactor_metrics(status: DeviceReport) -> Iterable[Metric]:
    for name in ("busy", "idle"):
        seconds = getattr(status, f"{name}_ns") / 1e9
        yield CounterMetricFamily(
            f"offstage_reactor_{name}_seconds", "time of the reactor's thread", value=seconds
        )


def _storage_metrics(status: DeviceReport) -> Iterable[Metric]:
    storage = status.storage
    moved = CounterMetricFamily(
        "offstage_storage_bytes", "bytes read and written by the storage", labels=["direction"]
    )
    moved.add_metric(["read"], storage.bytes_read)
    moved.add_metric(["write"], storage.bytes_written)
    yield moved
    yield CounterMetricFamily("offstage_storage_errors", "I/Os that failed", value=storage.errors)
    yield CounterMetricFamily(
        "offstage_store_moved_blocks",
        "blocks that the cleaner moved",
        value=status.store.blocks_moved,
    )
    yield GaugeMetricFamily(
        "offstage_store_lacking_blocks",
        "blocks above what store.room_percent allows",
        value=status.store.blocks_lacking,
    )
    yield GaugeMetricFamily(
        "offstage_store_refuses_writes",
        "1 while the drive refuses writes",
        value=status.store.refuses_writes,
    )
    yield GaugeMetricFamily(
        "offstage_store_live_bytes", "bytes of live records", value=status.store.bytes_live
    )
