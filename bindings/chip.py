"""A network of hardware units in virtual time: the engine of the ASIC model, for Python.

A `Network` (bindings/network.py) defines the units and the routes through them; a `Chip` runs
requests along the routes, event by event, in C. Requests are an array of `REQUEST`, a whole trace
in one call or batch after batch, so that a trace of any length passes through bounded memory. The
units, the blocking between them and the order of events are defined in `asic_model/engine/chip.h`
and docs/reference/asic-engine.md. Times are integer picoseconds; results are `modelled`.

What can fail: `BadInput` for an inconsistent network or a trace whose time decreases; `Deadlock`
when requests are inside and nothing is scheduled. It names the units.
"""

import errno
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings import firmware
from offstage.bindings.chip_stats import Deadlock, Histogram, RouteStats, UnitStats, counts_of
from offstage.bindings.errors import BadInput, Incompatible
from offstage.bindings.layouts import layout, names
from offstage.bindings.network import END, Limits, Load, Network, Stage, Unit, index_of, whole
from offstage.bindings.timing import KINDS as TIMING_KINDS
from offstage.bindings.timing import Timing

try:
    from offstage.bindings._chip import ffi, lib
except ImportError as error:
    raise Incompatible(
        f"the chip extension does not load ({error})",
        "offstage.bindings",
        "in a checkout run `make dev`, elsewhere reinstall offstage",
    ) from None

__all__ = [
    "DONE",
    "END",
    "ITEMS",
    "KINDS",
    "NO_NUMBER",
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

if lib.ofs_chip_version() != firmware.ABI_VERSION:
    raise Incompatible(
        f"the chip extension has ABI {lib.ofs_chip_version()}, "
        f"this release needs {firmware.ABI_VERSION}",
        "offstage.bindings",
        "in a checkout run `make dev`, elsewhere reinstall offstage",
    )

KINDS = names("enum ofs_chip_kind", "OFS_CHIP_KIND_", ffi)
"""The kinds of units: server, link, pipe, banks, tags, delay, drive."""
QUEUES = names("enum ofs_chip_queue", "OFS_CHIP_QUEUE_", ffi)
"""Who of those that wait is served next."""
ITEMS = names("enum ofs_chip_items", "OFS_CHIP_ITEMS_", ffi)
"""What a stage counts as items: `none`, `blocks` (the request's `count`), `scores`, or `missed`,
the keys that its last visit to tags did not find."""
PRIORITIES = int(lib.OFS_CHIP_PRIORITIES)
"""Priorities of a request are below this; 0 is the most urgent."""
NO_NUMBER = 0xFFFFFFFF
"""In a column of units: none. A visit to it is what the request waited outside."""

REQUEST = layout("struct ofs_chip_request", ffi)
DONE = layout("struct ofs_chip_done", ffi)
VISIT = layout("struct ofs_chip_visit", ffi)

Array = npt.NDArray[np.void]

_NEVER = int(lib.OFS_CHIP_NEVER)
_END = int(lib.OFS_CHIP_END)
_POLL = 1 << 16
_NAME_BYTES = 24


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
        config = _Config(network, seed, limits)
        out: Any = ffi.new("struct ofs_chip **")
        why: Any = ffi.new("char[]", lib.OFS_CHIP_WHY)
        rc = int(lib.ofs_chip_open(out, config.struct, why))
        if rc == -errno.EINVAL:
            text: Any = ffi.string(why)
            what, _, fix = str(text.decode()).partition("; ")
            raise BadInput(what, "chip", fix)
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
        """Visits of sampled requests since the last call, `VISIT` `[n]`, in order of leaving."""
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
        """The event log so far: time, unit, request, event."""
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
            latency = Histogram.of(struct.latency)
            found[name] = RouteStats(int(struct.ended), int(struct.dropped), latency)
        return found

    def tenant_stats(self, unit: str) -> list[dict[str, int]]:
        """`struct ofs_qos_stats` of every tenant in the qos queue of a unit."""
        number = [one.name for one in self.network.units].index(unit)
        struct: Any = ffi.new("struct ofs_qos_stats *")
        found = []
        for tenant in range(len(self.network.units[number].tenants)):
            rc = lib.ofs_chip_tenant_stats(self._chip, number, tenant, struct)
            firmware.check_rc(
                int(rc), "reading tenants", f"unit {unit}", "give a unit with a qos queue"
            )
            found.append(_fields(struct))
        return found

    def session_stats(self, unit: str) -> list[dict[str, int | None]]:
        """`struct ofs_qos_session_stats` of every session that put anything into the qos queue of
        a unit, with its number as `session`; None: those of a tenant without an entry of their
        own, all of them together."""
        number = [one.name for one in self.network.units].index(unit)
        qos = self.network.units[number].qos
        if qos is None:
            raise BadInput("has no qos queue", f"unit {unit}", "give a unit with a qos queue")
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
                self._wrong_request(kept),
                "requests",
                "give requests in order of time, each within its range",
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
            wait=Histogram.of(struct.wait),
            time=Histogram.of(struct.time),
            area_bins=counts_of(struct.area_bins),
            busy_bins=counts_of(struct.busy_bins),
        )


@dataclass(eq=False)
class _Config:
    """The C view of a network, with all that it points at."""

    network: Network
    seed: int
    limits: Limits
    struct: Any = field(init=False)

    def __post_init__(self) -> None:
        stages, routes = self._stages()
        self._kept: list[Any] = []
        units: Any = ffi.new("struct ofs_chip_unit[]", len(self.network.units))
        for struct, unit in zip(units, self.network.units, strict=True):
            self._fill(struct, unit)
        self._kept += [
            units,
            ffi.new("struct ofs_chip_stage[]", stages),
            ffi.new("uint32_t[]", routes),
        ]
        self.struct = ffi.new("struct ofs_chip_config *")
        self.struct.units, self.struct.stages, self.struct.routes = self._kept[-3:]
        self.struct.unit_count, self.struct.stage_count = len(self.network.units), len(stages)
        self.struct.route_count, self.struct.seed = len(routes), self.seed
        if rows := self.network.coded():
            self._kept.append(ffi.new("uint16_t[]", [one for row in rows for one in row]))
            self.struct.coded_permille = self._kept[-1]
            self.struct.coded_rows, self.struct.coded_parts = len(rows), len(rows[0])
        for name, value in vars(self.limits).items():
            setattr(self.struct, name, whole(value, name, "chip"))

    def _fill(self, struct: Any, unit: Unit) -> None:
        name = unit.name.encode()
        if not 0 < len(name) < _NAME_BYTES:
            raise BadInput("a name has 1 to 23 bytes", f"unit {unit.name!r}", "shorten it")
        rows = [vars(row) for row in unit.load_rows]
        if len(rows) > lib.OFS_CHIP_LOAD_ROWS:
            raise BadInput(
                f"{len(rows)} load rows",
                f"unit {unit.name}",
                f"give at most {lib.OFS_CHIP_LOAD_ROWS}",
            )
        numbers = (
            "servers",
            "queue_max",
            "in_flight_max",
            "set_count",
            "way_count",
            "fixed_ps",
            "item_ps",
            "mib_ps",
            "latency_ps",
            "pause_every_ps",
            "pause_ps",
            "load_span_ps",
            "draw_span_ps",
        )
        struct.name = name
        struct.kind = index_of(KINDS, unit.kind, f"unit {unit.name}", "kind")
        struct.queue = index_of(QUEUES, unit.queue, f"unit {unit.name}", "queue")
        struct.drops = int(unit.drops)
        struct.load_row_count, struct.load_rows = len(rows), rows
        for one in numbers:
            setattr(struct, one, whole(getattr(unit, one), one, f"unit {unit.name}"))
        if unit.drive is not None:
            lasting = {**unit.drive, "erase_limit": 0}  # a chip's write always ends
            drive: Any = firmware.ffi.new("struct ofs_nvme_params *", lasting)
            self._kept.append(drive)
            address = int(firmware.ffi.cast("uintptr_t", drive))
            struct.drive = ffi.cast("struct ofs_nvme_params *", address)
        if unit.qos is not None:
            shares = [vars(one) for one in unit.tenants]
            try:
                qos: Any = ffi.new("struct ofs_qos_config *", vars(unit.qos))
                tenants: Any = ffi.new("struct ofs_qos_tenant[]", shares)
            except OverflowError as error:
                raise BadInput(str(error), f"unit {unit.name}", "give numbers from 0") from None
            qos.tenant_count = len(shares)
            self._kept += [qos, tenants]
            struct.qos, struct.tenants = qos, tenants

    def _stages(self) -> tuple[list[dict[str, int]], list[int]]:
        """The stages of all routes, one route behind the other, and where each begins."""
        units = {unit.name: number for number, unit in enumerate(self.network.units)}
        found: list[dict[str, int]] = []
        starts = []
        for steps in self.network.steps().values():
            base = len(found)
            starts.append(base)
            for step in steps:
                stage, where = step.stage, step.where
                found.append(
                    {
                        "unit": units[stage.unit],
                        "next": _END if step.next is None else base + step.next,
                        "miss": _END if step.miss is None else base + step.miss,
                        "bytes_permille": whole(stage.bytes_permille, "bytes_permille", where),
                        "coded": int(stage.coded),
                        "items": index_of(ITEMS, stage.items, where, "items"),
                        "piece_bytes": whole(stage.piece_bytes, "piece_bytes", where),
                        "join": int(stage.join),
                        "write": int(stage.write),
                        "keys": whole(stage.keys, "keys", where),
                        "per_key": whole(stage.per_key, "per_key", where),
                        **{
                            one: whole(getattr(stage, one), one, where)
                            for one in ("fixed_ps", "item_ps", "mib_ps")
                        },
                    }
                )
        return found, starts


def _fields(struct: Any) -> dict[str, int]:
    """A struct of numbers as a dictionary."""
    kind: Any = ffi.typeof(struct[0])
    return {name: int(getattr(struct, name)) for name, _ in kind.fields}
