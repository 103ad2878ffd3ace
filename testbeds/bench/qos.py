"""`offstage bench qos`: how the tenants' scheduler divides bandwidth, against one queue for all.

A device that moves LINE_BYTES_PER_S serves four tenants in virtual time, each with more to do
than its share, the last with three times as much as the others; a fifth sends a single block now
and then (the victim). The reference is the same device with one queue in order of arrival, as
long as the queues of the scheduler together. Jain's index of bytes by weight is 1 if each gets
the share of its weight (Jain, Chiu, Hawe 1984, DEC-TR-301). All figures are `modelled`: integer
picoseconds, no clock is read, and a seed gives the same figures everywhere.
"""

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from offstage.bindings.qos import Item, Qos, QosConfig, TenantShare
from offstage.bindings.units import format_rate, format_size
from offstage.testbeds.bench.rows import BenchResult, Row, aimed

__all__ = ["QosResult", "Served", "bench_qos", "jain_index", "rows_of"]

BLOCK_BYTES = 64 * 1024
LINE_BYTES_PER_S = 10 * 10**9
PS_PER_S = 10**12
SERVICE_PS = BLOCK_BYTES * PS_PER_S // LINE_BYTES_PER_S
WEIGHTS = (1, 2, 4, 8)
OFFERED = (1.0, 1.0, 1.0, 3.0)  # of the line, by each heavy tenant
VICTIM_OFFERED = 0.02
QUEUE_MAX = 256
SERVICES = 20_000
JAIN_AIM = 0.999

Say = Callable[[str], None]


class Served(msgspec.Struct, frozen=True):
    """One discipline's result: bytes and shares of the heavy tenants, and the victim's waits."""

    bytes: list[int]
    shares: list[float]
    jain: float
    victim_served: int
    victim_wait_ps_p50: int
    victim_wait_ps_p99: int


class QosResult(BenchResult, kw_only=True):
    """Both disciplines, on the same arrivals."""

    services: int
    block_bytes: int = BLOCK_BYTES
    line_bytes_per_s: int = LINE_BYTES_PER_S
    weights: tuple[int, ...] = WEIGHTS
    offered: tuple[float, ...] = OFFERED
    disciplines: dict[str, Served]

    def about(self) -> list[str]:
        return [
            f"modelled: {self.services:,} services of {format_size(self.block_bytes)} at "
            f"{format_rate(self.line_bytes_per_s)}, seed {self.seed}; the reference is one "
            "queue in order of arrival, as long as the queues of the scheduler together",
        ]


class Discipline(Protocol):
    """Who is served next: the part of `Qos` that a device needs."""

    def put(self, now_ps: int, item: Item) -> object: ...

    def take(self, now_ps: int) -> Item | None: ...


class Fifo:
    """One queue in order of arrival; a request that finds it full is refused."""

    def __init__(self, queue_max: int) -> None:
        self._items: deque[Item] = deque()
        self._queue_max = queue_max

    def put(self, now_ps: int, item: Item) -> bool:
        """Whether the request was queued."""
        if len(self._items) == self._queue_max:
            return False
        self._items.append(item)
        return True

    def take(self, now_ps: int) -> Item | None:
        return self._items.popleft() if self._items else None


def bench_qos(*, seed: int = 1, services: int = SERVICES, say: Say = lambda _: None) -> QosResult:
    """Shares, Jain's index and the victim's waits under both disciplines, on the same arrivals."""
    victim = len(WEIGHTS)
    tenants = [TenantShare(weight) for weight in (*WEIGHTS, max(WEIGHTS))]
    scheduler = Qos(QosConfig(BLOCK_BYTES, len(tenants), QUEUE_MAX, QUEUE_MAX), tenants)
    found = {}
    for name, one in (("qos", scheduler), ("fifo", Fifo(QUEUE_MAX * len(tenants)))):
        say(f"{services} services by {name}")
        found[name] = _serve(one, list(_arrivals(seed, services)), services, victim)
    return QosResult(
        provenance="modelled",
        seed=seed,
        services=services,
        disciplines=found,
        rows=rows_of(found["qos"], found["fifo"]),
    )


def rows_of(ours: Served, fifo: Served) -> list[Row]:
    """Shares of the line and the victim's waits under the scheduler, against one queue for all."""
    shares = zip(WEIGHTS, OFFERED, ours.shares, fifo.shares, strict=True)
    return [
        *(
            Row(
                f"share at weight {weight} of {sum(WEIGHTS)}, offers {offered:g}x",
                "part",
                one,
                other,
            )
            for weight, offered, one, other in shares
        ),
        Row(
            "Jain's index of bytes by weight",
            "index",
            ours.jain,
            fifo.jain,
            ours.jain / fifo.jain,
            aimed(ours.jain, ">=", JAIN_AIM),
        ),
        *(
            Row(f"wait of a light tenant, {name}", "ns", one / 1000, other / 1000, one / other)
            for name, one, other in (
                ("p50", ours.victim_wait_ps_p50, fifo.victim_wait_ps_p50),
                ("p99", ours.victim_wait_ps_p99, fifo.victim_wait_ps_p99),
            )
        ),
        Row("blocks of it that were served", "count", ours.victim_served, fifo.victim_served),
    ]


def jain_index(shares: Sequence[float]) -> float:
    """1 if all are equal, 1 / n if one has everything."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def _arrivals(seed: int, services: int) -> Iterator[tuple[int, Item]]:
    """Poisson arrivals of all tenants, the victim last, in order of time."""
    draw = random.Random(seed)
    end_ps = services * SERVICE_PS
    found = []
    for tenant, share in enumerate((*OFFERED, VICTIM_OFFERED)):
        at_ps = 0.0
        while (at_ps := at_ps + draw.expovariate(share / SERVICE_PS)) < end_ps:
            found.append((int(at_ps), Item(0, BLOCK_BYTES, tenant, tenant, int(at_ps))))
    return iter(sorted(found, key=lambda one: (one[0], one[1].tenant)))


def _serve(
    discipline: Discipline, arrivals: list[tuple[int, Item]], services: int, victim: int
) -> Served:
    """One server, never idle while anything waits; counted after the first tenth."""
    moved, waits = [0] * len(WEIGHTS), []
    waiting = deque(arrivals)
    for service in range(services):
        now_ps = service * SERVICE_PS
        while waiting and waiting[0][0] <= now_ps:
            _, item = waiting.popleft()
            discipline.put(now_ps, item)
        item_now = discipline.take(now_ps)
        if item_now is None or service < services // 10:
            continue
        if item_now.tenant == victim:
            waits.append(now_ps - item_now.deadline_ps)
        else:
            moved[item_now.tenant] += item_now.cost_bytes
    waits.sort()
    return Served(
        bytes=moved,
        shares=[each / sum(moved) for each in moved],
        jain=jain_index([each / weight for each, weight in zip(moved, WEIGHTS, strict=True)]),
        victim_served=len(waits),
        victim_wait_ps_p50=waits[len(waits) // 2],
        victim_wait_ps_p99=waits[len(waits) * 99 // 100],
    )
