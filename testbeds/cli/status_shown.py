"""The ten lines of `dpu status`: what an operator of a daemon asks first.

They are made of two readings. Counts and rates are of the time between them; without an earlier
reading they are since the daemon's start, and those of the ledger since the last `dpu reset`. A
figure that `dpu status --all` has too bears the same name there.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from offstage.bindings.errors import printable
from offstage.bindings.layouts import FATES
from offstage.bindings.ledger import Demands, Ledger, share
from offstage.bindings.units import format_count, format_rate, format_share, format_size
from offstage.dpu import protocol as p
from offstage.dpu.protocol.status import DaemonStatus
from offstage.host.link.control import Control

__all__ = ["FAULTS", "LOST", "Reading", "Span", "lines"]

HOSTS_NAMED = 4
FAULTS = {
    "device": (
        "check_failures",
        "reads_timed_out",
        "slots_quarantined",
        "store_full",
        "puts_failed",
        "commands_bad",
        "publish_overflow",
        "flush_retries",
        "emulation_late",
        "paced_late",
    ),
    "device.storage": ("errors",),
    "device.store": ("io_errors", "checks_failed", "refuses_writes"),
    "daemon": (
        "messages_bad",
        "requests_failed",
        "logins_refused",
        "hosts_dead",
        "connections_displaced",
        "connections_stalled",
        "pod_in_doubt",
    ),
}
"""Counts of what went wrong, by the table of the status that has them."""
LOST = ("io_errors", "records_lost", "log_bytes_lost")
"""Those of the ledger."""


@dataclass(frozen=True)
class Reading:
    """A daemon at one time of this process's clock, `at_s`."""

    status: DaemonStatus
    ledger: Ledger
    policy: Mapping[str, Any]
    at_s: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, control: Control) -> "Reading":
        """Read it; three calls."""
        return cls(control.call(p.Status()).status, Ledger.of(control.ledger()), control.policy())


@dataclass(frozen=True)
class Span:
    """The time between two readings; `before` None: since the start."""

    now: Reading
    before: Reading | None

    @property
    def seconds(self) -> float:
        """How long it is, above 0."""
        if self.before is None:
            return max(self.now.status.uptime_s, 1e-3)
        return max(self.now.at_s - self.before.at_s, 1e-3)

    def device(self, name: str) -> int:
        """By how much a count of the device grew; one that began again counts from there."""
        return self._grown(lambda one: _at(one.status, f"device.{name}"))

    def per_s(self, name: str) -> float:
        """The same for each second."""
        return self.device(name) / self.seconds

    def ended(self) -> Demands:
        """Demands by their end; after a reset of the ledger those since."""
        now = self.now.ledger.ends
        before = self.before.ledger.ends if self.before else [0] * len(now)
        return Demands.of(max(0, one - other) for one, other in zip(now, before, strict=True))

    def prefetched(self) -> Mapping[str, int]:
        """Prefetched blocks by fate."""
        return {fate: self._grown(partial(_with_fate, fate)) for fate in FATES}

    @property
    def busy(self) -> float:
        """The reactor's share of its time."""
        times = [self.device(name) for name in ("busy_ns", "idle_ns", "sleep_ns")]
        return share(times[0], sum(times))

    @property
    def read_amplification(self) -> float | None:
        """Bytes read for demands over those of the granules that they named; None: nothing was
        read for them, or the daemon has no granules."""
        read = self._grown(lambda one: one.ledger.demand_bytes_read)
        wanted = self._grown(lambda one: one.ledger.demand_bytes_wanted)
        return read / wanted if wanted else None

    def _grown(self, count: Callable[["Reading"], int]) -> int:
        before = count(self.before) if self.before else 0
        return int(max(0, count(self.now) - before))


def lines(now: Reading, before: Reading | None = None) -> dict[str, str]:
    """The ten lines by name."""
    span, status, ledger = Span(now, before), now.status, now.ledger
    told = {
        "up": _up(span),
        "store": _store(status),
        "arena": _arena(status, ledger),
        "demands": _demands(span),
        "reads": _reads(span),
        "prefetch": _prefetch(span),
        "hosts": _hosts(status),
        "errors": ", ".join(_errors(status, ledger)) or "none",
        "policy": _policy(now.policy),
        "pod": _pod(status),
    }
    return {name: printable(text) for name, text in told.items()}  # hosts choose their names


def _up(span: Span) -> str:
    status = span.now.status
    up = timedelta(seconds=int(status.uptime_s))
    since = datetime.now().astimezone() - timedelta(seconds=status.uptime_s)
    busy = f"reactor {format_share(span.busy)} busy"
    state = "draining" if status.draining else "accepts new work"
    return f"{up}, since {since:%Y-%m-%d %H:%M:%S}; {busy}; {state}"


def _store(status: DaemonStatus) -> str:
    store = status.device.store
    full = share(store.segments_total - store.segments_free, store.segments_total)
    parts = [
        f"{status.storage}, {format_size(store.bytes_live)} in {format_count(store.blocks)} blocks",
        f"{format_share(full)} of the segments in use",
    ]
    if status.device.storage.handles:
        parts.append(f"{status.device.storage.handles} placement handles")
    if status.device.dirty_blocks:
        parts.append(f"{format_count(status.device.dirty_blocks)} blocks only in memory")
    if status.move.state != "none":
        copied, total = status.move.blocks_copied, status.move.blocks_total
        parts.append(f"move {status.move.state}, {copied:,} of {total:,} blocks")
    return "; ".join(parts)


def _arena(status: DaemonStatus, ledger: Ledger) -> str:
    slots = sum(one.slots for one in status.tenants)
    size = sum(one.arena_bytes for one in status.tenants)
    held = ledger.resident_slots
    return (
        f"{format_size(size)}: {format_count(held)} of {format_count(slots)} slots hold a block "
        f"({format_share(share(held, slots))})"
    )


def _demands(span: Span) -> str:
    ended = span.ended()
    if not ended.total:
        return "none"
    rate = f" ({format_count(ended.total / span.seconds)}/s)" if span.before else ""
    rates = [
        f"hit rate {format_share(ended.hit_rate)}",
        f"late {format_share(ended.late_rate)}",
        *(
            f"{name} {format_share(share(count, ended.total))}"
            for name, count in ended.by_end().items()
            if name in ("cold", "capacity", "policy") and count
        ),
    ]
    return f"{format_count(ended.total)}{rate}: {', '.join(rates)}"


def _reads(span: Span) -> str:
    reads, read, written = (f"storage.{name}" for name in ("reads", "bytes_read", "bytes_written"))
    parts = [
        f"{format_count(span.device(reads))} ({format_count(span.per_s(reads))}/s), "
        f"{format_size(span.device(read))} ({format_rate(span.per_s(read))})",
        f"written {format_size(span.device(written))} ({format_rate(span.per_s(written))})",
    ]
    over = span.read_amplification
    return "; ".join(
        [*parts, *([] if over is None else [f"{over:.2f} bytes read per byte demanded"])]
    )


def _prefetch(span: Span) -> str:
    fates = span.prefetched()
    total = sum(fates.values()) - fates["dropped"]
    if not total:
        return "none"
    used, late = (format_share(share(fates[fate], total)) for fate in ("used", "late"))
    return f"{format_count(total)} blocks: accuracy {used}, late {late}"


def _hosts(status: DaemonStatus) -> str:
    named = [one for one in status.hosts if one.tenant != p.OPERATOR]
    names = [f"{one.name} ({one.tenant}, {one.fabric or 'not attached'})" for one in named]
    more = [f"{len(names) - HOSTS_NAMED} more"] if len(names) > HOSTS_NAMED else []
    head = f"{len(named)} with {status.device.sessions} sessions"
    return ": ".join([head, *filter(None, [", ".join([*names[:HOSTS_NAMED], *more])])])


def _errors(status: DaemonStatus, ledger: Ledger) -> Iterator[str]:
    """Every fault that there was, and the warnings."""
    for table, names in FAULTS.items():
        for name in names:
            if count := _at(status, f"{table}.{name}"):
                yield f"{table}.{name} {format_count(count)}"
    for name in LOST:
        if count := getattr(ledger, name):
            yield f"ledger.{name} {format_count(count)}"
    if _has(status.device.archive) and status.device.archive.away:
        yield "the archive does not answer"
    if _has(status.device.target_down):
        yield from filter(None, [status.device.target_down])
    yield from filter(None, (status.warning, status.memory.warning))


def _policy(policy: Mapping[str, Any]) -> str:
    prefetchers = policy["prefetchers"]
    joined = prefetchers if isinstance(prefetchers, str) else ",".join(prefetchers)
    return f"prefetchers {joined or 'none'}, eviction {policy['eviction']}"


def _pod(status: DaemonStatus) -> str:
    pod = status.pod
    if not _has(pod):
        return "none"
    doubt = f"; in doubt: {pod.doubt}" if pod.doubt else ""
    serves = "serves" if pod.serves else "does not serve"
    return f"{pod.phase}, {serves}; epoch {pod.epoch}, incarnation {pod.incarnation}{doubt}"


def _with_fate(fate: str, one: Reading) -> int:
    return sum(row[fate] for row in one.ledger.prefetched().values())


def _has(found: object) -> bool:
    """Whether the daemon's status has that field."""
    return found is not msgspec.UNSET


def _at(status: DaemonStatus, path: str) -> int:
    found: Any = status
    for name in path.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    return int(found)
