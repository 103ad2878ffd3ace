"""A network of hardware units in virtual time: the engine of the ASIC model as Python sees it.

A `Network` (bindings/network.py) says which units there are and which routes lead through them;
a `Chip` runs requests
along the routes, event by event, in C. Requests are an array of `REQUEST`, a whole trace in one
call or batch after batch, so that a trace of any length passes through bounded memory. What a unit
is, what blocks whom, and in which order things happen, stands in `asic_model/engine/chip.h` and
docs/reference/asic-engine.md. Times are integer picoseconds; results are `modelled`.

What can fail: `BadInput` for a network that contradicts itself or a trace whose time goes back;
`Deadlock` when requests are inside and nothing is scheduled. It names the units.
"""

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings import firmware
from offstage.bindings.chip_config import ITEMS, KINDS, QUEUES, ChipConfig, ffi, lib
from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.layouts import layout
from offstage.bindings.network import END, Limits, Load, Network, Stage, Unit
from offstage.bindings.timing import KINDS as TIMING_KINDS
from offstage.bindings.timing import Timing

__all__ = [
    "DONE",
    "END",
    "ITEMS",
    "KINDS",
    "NOBODY",
    "PRIORITIES",
    "QUEUES",
    "REQUEST",
    "VISIT",
    "Chip",
    "Deadlock",
    "Histogram",
    "Limits",
    "Load",
    "Network",
    "RouteStats",
    "Stage",
    "Unit",
    "UnitStats",
    "make_requests",
]

PRIORITIES = int(lib.OFS_CHIP_PRIORITIES)
"""Priorities of a request are below this; 0 is the most urgent."""
NOBODY = 0xFFFFFFFF
"""In a column of units: none. A visit to it is what the request waited outside."""

REQUEST = layout("struct ofs_chip_request", ffi)
DONE = layout("struct ofs_chip_done", ffi)
VISIT = layout("struct ofs_chip_visit", ffi)

Array = npt.NDArray[np.void]

_NEVER = int(lib.OFS_CHIP_NEVER)
_POLL = 1 << 16


class Deadlock(RunFailed):
    """Requests are inside and nothing is scheduled. `units`: each waits for the next and the last
    for the first; or, where `cycle` is false, those in which requests wait for nothing."""

    def __init__(self, units: tuple[str, ...], cycle: bool, now_ps: int) -> None:
        self.units, self.cycle = units, cycle
        what = (
            f"deadlock: {' -> '.join((*units, units[0]))}"
            if cycle
            else f"nothing drains {', '.join(units)}"
        )
        super().__init__(what, f"at {now_ps} ps", "break the cycle, or give a queue more room")


@dataclass(frozen=True, eq=False)
class Histogram:
    """Times in ps, log-linear: a quantile is at most an eighth too large."""

    count: int
    sum_ps: int
    max_ps: int
    overflow: int
    counts: npt.NDArray[np.uint64]

    @property
    def mean_ps(self) -> float:
        """Exact; 0 of nothing."""
        return self.sum_ps / self.count if self.count else 0.0

    def quantile_ps(self, permille: int) -> int:
        """500 is the median."""
        struct: Any = ffi.new("struct ofs_histogram *")
        struct.count, struct.sum, struct.max = self.count, self.sum_ps, self.max_ps
        struct.overflow = self.overflow
        struct.buckets = self.counts.tolist()
        return int(lib.ofs_histogram_quantile(struct, permille))

    def buckets(self) -> list[tuple[int, int]]:
        """Those that are not empty: largest value in ps, count."""
        return [
            (int(lib.ofs_histogram_bucket_max(index)), int(count))
            for index, count in enumerate(self.counts)
            if count
        ]


@dataclass(frozen=True, eq=False)
class UnitStats:
    """What one unit did so far. `busy_ps` is of all its servers together, of a delay or a drive
    while anyone was inside; `area_ps` the integral of `present` over time. `wait` is from enter to
    begin, `time` from enter to leave. `blocked` found the next unit full and held this one for
    `blocked_ps`. `area_bins` and `busy_bins` are both integrals bin by bin of `Chip.bin_ps`."""

    name: str
    kind: str
    servers: int
    arrivals: int
    departures: int
    dropped: int
    busy_ps: int
    blocked: int
    blocked_ps: int
    bytes: int
    items: int
    hits: int
    misses: int
    evictions: int
    present: int
    waiting: int
    waiting_max: int
    area_ps: int
    wait: Histogram
    time: Histogram
    area_bins: npt.NDArray[np.uint64]
    busy_bins: npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class RouteStats:
    """Requests of one route that ended; `latency` is that of those that were not dropped."""

    ended: int
    dropped: int
    latency: Histogram


def make_requests(length: int, /, **columns: Any) -> Array:
    """`length` requests in an array of `REQUEST`; what is not given is 0, the tag its number."""
    requests = np.zeros(length, REQUEST)
    requests["tag"] = np.arange(length)
    for name, values in columns.items():
        requests[name] = values
    return requests


DEFAULT_LIMITS = Limits()


class Chip:
    """A network with its state. Deterministic: the same requests give the same `hash`."""

    def __init__(self, network: Network, *, seed: int = 0, limits: Limits = DEFAULT_LIMITS) -> None:
        self.network, self.limits = network, limits
        config = ChipConfig(network, seed, limits)
        out: Any = ffi.new("struct ofs_chip **")
        why: Any = ffi.new("char[]", lib.OFS_CHIP_WHY)
        rc = int(lib.ofs_chip_open(out, config.struct, why))
        if rc == -errno.EINVAL:
            text: Any = ffi.string(why)
            what, _, mend = str(text.decode()).partition("; ")
            raise BadInput(what, "chip", mend)
        firmware.check_rc(rc, "opening a chip", "chip", "fewer in flight, or fewer tags")
        self._chip: Any = ffi.gc(out[0], lib.ofs_chip_close)
        self._ends = np.zeros(min(max(limits.end_max, 1), _POLL), DONE)
        self._visits = np.zeros(min(max(limits.visit_max, 1), _POLL), VISIT)
        self._seen: list[Array] = []
        self._fed: Array | None = None

    def run(self, requests: Array | None = None, until_ps: int | None = None) -> Array:
        """Take the requests, in order of `at_ps`, and let pass what happens up to `until_ps`, or
        until everything has ended; the ends, in order of time, as `DONE` `[n]`.

        Requests that come after until_ps stay for the next run, which brings no others until they
        are taken. BadInput: their time goes back, or they were not all taken.
        """
        if requests is not None and len(requests):
            self._feed(requests)
        until = _NEVER if until_ps is None else until_ps
        found: list[Array] = []
        while True:
            rc = int(lib.ofs_chip_run(self._chip, until))
            found += self._poll()
            if rc == 0:
                break
            if rc < 0:
                raise self._deadlock()
        return np.concatenate(found) if found else np.zeros(0, DONE)

    def next_ends(self, until_ps: int | None = None) -> list[tuple[int, int]]:
        """Up to the first end and no further, or to until_ps: the tags and times of the ends of
        that moment; none where until_ps came first, or nothing is inside."""
        rc = int(lib.ofs_chip_run_to_end(self._chip, _NEVER if until_ps is None else until_ps))
        if rc < 0:
            raise self._deadlock()
        return [(int(one["tag"]), int(one["end_ps"])) for ends in self._poll() for one in ends]

    def stream(self, batches: Iterable[Array]) -> Iterable[Array]:
        """Batch after batch of one trace: the ends that each brought. Between two batches time
        stands at the last arrival; after the last everything ends."""
        for batch in batches:
            if len(batch):
                yield self.run(batch, int(batch["at_ps"][-1]))
        yield self.run()

    def visits(self) -> Array:
        """Of sampled requests, since the last call, as `VISIT` `[n]`, in order of leaving."""
        seen, self._seen = self._seen, []
        return np.concatenate(seen) if seen else np.zeros(0, VISIT)

    def reset(self) -> None:
        """As opened: empty, at time 0, with its draws from the beginning."""
        lib.ofs_chip_reset(self._chip)
        self._seen, self._fed = [], None

    def timing(self) -> Timing:
        """The chip as a side of the timing seam; its routes are `read`, `write`, `hit` and
        `command`. What it owes is polled there, not handed out of `run`."""
        wrong = [name for name in TIMING_KINDS if name not in self.network.routes]
        if wrong:
            raise BadInput(f"no route {wrong[0]!r}", "chip", "a timing side needs all four")
        out: Any = ffi.new("struct ofs_timing **")
        routes = [self.network.route(name) for name in TIMING_KINDS]
        rc = int(lib.ofs_chip_timing(out, self._chip, routes))
        firmware.check_rc(rc, "making a timing side", "chip", "end_max >= in_flight_max")
        return Timing(int(ffi.cast("uintptr_t", out[0])), self, self.stuck)

    def stuck(self) -> Deadlock | None:
        """Why nothing goes on, where requests are inside and nothing is scheduled."""
        rc = int(lib.ofs_chip_run(self._chip, self.now_ps))
        return self._deadlock() if rc == -errno.EDEADLK else None

    @property
    def figures(self) -> dict[str, int]:
        """`struct ofs_chip_figures`: now_ps, events, taken, ended, inside, bin_ps, visits_lost,
        memory_bytes, hash."""
        struct: Any = ffi.new("struct ofs_chip_figures *")
        lib.ofs_chip_figures(self._chip, struct)
        return _fields(struct)

    @property
    def hash(self) -> int:
        """Of the event log so far: when, which unit, which request, what."""
        return self.figures["hash"]

    @property
    def now_ps(self) -> int:
        """The time up to which everything has happened."""
        return self.figures["now_ps"]

    @property
    def bin_ps(self) -> int:
        """How long a bin is now."""
        return self.figures["bin_ps"]

    def stats(self) -> dict[str, UnitStats]:
        """Every unit's, by name."""
        return {unit.name: self._unit_stats(i, unit) for i, unit in enumerate(self.network.units)}

    def route_stats(self) -> dict[str, RouteStats]:
        """Every route's, by name."""
        struct: Any = ffi.new("struct ofs_chip_route_stats *")
        found = {}
        for number, name in enumerate(self.network.routes):
            lib.ofs_chip_route_stats(self._chip, number, struct)
            latency = _histogram(struct.latency)
            found[name] = RouteStats(int(struct.ended), int(struct.dropped), latency)
        return found

    def tenant_stats(self, unit: str) -> list[dict[str, int]]:
        """`struct ofs_qos_stats` of every tenant in the qos queue of a unit."""
        number = [one.name for one in self.network.units].index(unit)
        struct: Any = ffi.new("struct ofs_qos_stats *")
        found = []
        for tenant in range(len(self.network.units[number].tenants)):
            rc = lib.ofs_chip_tenant_stats(self._chip, number, tenant, struct)
            firmware.check_rc(int(rc), "reading tenants", f"unit {unit}", "one with a qos queue")
            found.append(_fields(struct))
        return found

    def session_stats(self, unit: str) -> list[dict[str, int | None]]:
        """`struct ofs_qos_session_stats` of every session that put anything into the qos queue of
        a unit, with its number as `session`; None: those of a tenant without an entry of their
        own, all of them together."""
        number = [one.name for one in self.network.units].index(unit)
        qos = self.network.units[number].qos
        if qos is None:
            raise BadInput("has no qos queue", f"unit {unit}", "one with a qos queue")
        struct: Any = ffi.new("struct ofs_qos_session_stats *")
        found = []
        for entry in range(qos.session_count + len(self.network.units[number].tenants)):
            lib.ofs_chip_session_stats(self._chip, number, entry, struct)
            if struct.put or struct.refused:
                own = entry if entry < qos.session_count else None
                found.append({"session": own, **_fields(struct)})
        return found

    def _feed(self, requests: Array) -> None:
        kept = np.ascontiguousarray(requests, REQUEST)
        address = ffi.cast("struct ofs_chip_request *", kept.ctypes.data)
        rc = int(lib.ofs_chip_feed(self._chip, address, len(kept)))
        if rc == -errno.EBUSY:
            left = int(lib.ofs_chip_fed(self._chip))
            raise BadInput(
                f"{left} requests of the last run are not taken yet",
                "chip",
                "run without requests first, or until later",
            )
        if rc:
            raise BadInput(
                self._wrong_request(kept), "requests", "in order of time, each within its range"
            )
        self._fed = kept

    def _wrong_request(self, requests: Array) -> str:
        """The first that the engine refused, in words."""
        times = requests["at_ps"].astype(np.int64)
        last = np.concatenate(([self.now_ps], times[:-1]))
        late = np.nonzero(times < last)[0]
        if len(late):
            return f"request {late[0]} is at {times[late[0]]} ps, after {last[late[0]]} ps"
        for name, limit in (("route", len(self.network.routes)), ("priority", PRIORITIES)):
            over = np.nonzero(requests[name] >= limit)[0]
            if len(over):
                return f"request {over[0]} has {name} {requests[name][over[0]]}, below {limit}"
        return (
            "a request is later than 2^61 ps, larger than 2^36 bytes, of more than 2^20 blocks "
            "to look up, or of a tenant or session that a qos queue does not know"
        )

    def _poll(self) -> list[Array]:
        ends, found = ffi.cast("struct ofs_chip_done *", self._ends.ctypes.data), []
        while count := int(lib.ofs_chip_poll(self._chip, ends, len(self._ends))):
            found.append(self._ends[:count].copy())
        visits = ffi.cast("struct ofs_chip_visit *", self._visits.ctypes.data)
        while count := int(lib.ofs_chip_poll_visits(self._chip, visits, len(self._visits))):
            self._seen.append(self._visits[:count].copy())
        return found

    def _deadlock(self) -> Deadlock:
        units: Any = ffi.new("uint32_t[]", lib.OFS_CHIP_UNITS_MAX)
        cycle: Any = ffi.new("int *")
        count = int(lib.ofs_chip_stuck(self._chip, units, cycle))
        found = tuple(self.network.units[units[i]].name for i in range(count))
        return Deadlock(found, bool(cycle[0]), self.now_ps)

    def _unit_stats(self, number: int, unit: Unit) -> UnitStats:
        struct: Any = ffi.new("struct ofs_chip_unit_stats *")
        lib.ofs_chip_unit_stats(self._chip, number, struct)
        plain = (
            "arrivals",
            "departures",
            "dropped",
            "busy_ps",
            "blocked",
            "blocked_ps",
            "bytes",
            "items",
            "hits",
            "misses",
            "evictions",
            "present",
            "waiting",
            "waiting_max",
        )
        return UnitStats(
            unit.name,
            unit.kind,
            unit.servers,
            **{name: int(getattr(struct, name)) for name in plain},
            area_ps=int(struct.area_hi) << 64 | int(struct.area_lo),
            wait=_histogram(struct.wait),
            time=_histogram(struct.time),
            area_bins=_array(struct.area_bins),
            busy_bins=_array(struct.busy_bins),
        )


def _fields(struct: Any) -> dict[str, int]:
    """A struct of numbers as a dictionary."""
    kind: Any = ffi.typeof(struct[0])
    return {name: int(getattr(struct, name)) for name, _ in kind.fields}


def _array(values: Any) -> npt.NDArray[np.uint64]:
    return np.array(list(values), np.uint64)


def _histogram(struct: Any) -> Histogram:
    return Histogram(
        int(struct.count),
        int(struct.sum),
        int(struct.max),
        int(struct.overflow),
        _array(struct.buckets),
    )
