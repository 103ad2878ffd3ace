"""The scheduler of qos.h in plain Python, over lists that it searches.

It stores nothing that can be derived: a token bucket is the history of bytes taken, and covers an
item if no window of time that includes it has more than burst + rate * window bytes.
"""

from dataclasses import dataclass, replace

from offstage.bindings.qos import Item, QosConfig, Refusal, TenantShare

TOKENS = 1 << 32  # in a byte
PS_PER_S = 10**12


@dataclass(frozen=True)
class Waiter:
    """A waiting item; within a round, the least `order` comes first."""

    deadline_ps: int
    sequence: int
    item: Item

    @property
    def order(self) -> tuple[int, int]:
        return self.deadline_ps, self.sequence

    @property
    def who(self) -> tuple[int, int]:
        return self.item.tenant, self.item.session


class PlainQos:
    """Has the calls of `offstage.bindings.qos.Qos`, and gives the same answers."""

    def __init__(self, config: QosConfig, tenants: list[TenantShare]) -> None:
        self.config, self.tenants = config, list(tenants)
        self.waiters: list[list[Waiter]] = [[] for _ in tenants]
        self.taken: list[list[tuple[int, int]]] = [[] for _ in tenants]  # when, bytes
        self.deficits = [0] * len(tenants)
        self.turn = len(tenants) - 1
        self.rounds = [0] * len(tenants)
        self.sessions: dict[tuple[int, int], tuple[int, int]] = {}  # round, bytes used of it
        self.sequence = 0
        self.held: set[int] = set()
        self.owed = [0] * len(tenants)  # when a floor's next item is due

    def hold(self, now_ps: int, tenant: int, held: bool) -> None:
        self.held = self.held | {tenant} if held else self.held - {tenant}

    def weigh(self, now_ps: int, tenant: int, weight: int) -> None:
        self.owed[tenant] = now_ps
        self.tenants[tenant] = replace(self.tenants[tenant], weight=weight)

    def put(self, now_ps: int, item: Item) -> Refusal | None:
        waiters = self.waiters[item.tenant]
        if len(waiters) == self.config.queue_max:
            return Refusal.QUEUE_FULL
        same = [one for each in self.waiters for one in each if one.item.session == item.session]
        if len(same) == self.config.session_max:
            return Refusal.SESSION_FULL
        deadline_ps = min(max(item.deadline_ps, now_ps), now_ps + self.config.ahead_ps_max)
        waiter = Waiter(deadline_ps, self.sequence, replace(item, put_ps=now_ps))
        if not waiters:
            self.owed[item.tenant] = max(self.owed[item.tenant], now_ps)
        if all(one.who != waiter.who for one in waiters):
            begun = self.rounds[item.tenant], 0
            at = self.sessions.get(waiter.who, begun)
            self.sessions[waiter.who] = begun if at[0] < begun[0] else at
        waiters.append(waiter)
        self.sequence += 1
        return None

    def first(self, tenant: int) -> Waiter:
        """Return the most urgent waiter of the lowest round."""
        return min(self.waiters[tenant], key=lambda one: (self.sessions[one.who][0], *one.order))

    def ready_ps(self, tenant: int) -> int | None:
        """When the bucket covers the first item; None: nothing waits, or the tenant is held."""
        return None if tenant in self.held else self.covered_ps(tenant)

    def covered_ps(self, tenant: int) -> int | None:
        if not self.waiters[tenant]:
            return None
        share = self.tenants[tenant]
        if share.rate_bytes_per_s == 0:
            return 0
        rate = share.rate_bytes_per_s * TOKENS // PS_PER_S  # tokens a ps
        window_bytes = self.first(tenant).item.cost_bytes
        ready_ps = 0
        for when_ps, cost_bytes in reversed(self.taken[tenant]):
            window_bytes += cost_bytes
            over = (window_bytes - share.burst_bytes) * TOKENS
            ready_ps = max(ready_ps, when_ps - (-over // rate))  # rounded up
        return ready_ps

    def is_ready(self, tenant: int, now_ps: int) -> bool:
        ready_ps = self.ready_ps(tenant)
        return ready_ps is not None and ready_ps <= now_ps

    def owed_ps(self, tenant: int) -> int | None:
        """When the tenant's floor is next owed something, held or not."""
        covered_ps = self.covered_ps(tenant)
        if covered_ps is None or not self.tenants[tenant].floor_bytes_per_s:
            return None
        return max(covered_ps, self.owed[tenant])

    def _first_owed(self, now_ps: int) -> int | None:
        found = [(self.owed_ps(one), one) for one in range(len(self.tenants))]
        due = [one for when, one in found if when is not None and when <= now_ps]
        return min(due, key=lambda one: (self.owed[one], one), default=None)

    def take(self, now_ps: int) -> Item | None:
        owed = self._first_owed(now_ps)
        if owed is not None:
            return self._serve(now_ps, owed)
        count = len(self.tenants)
        ready = [one for one in range(count) if self.is_ready(one, now_ps)]
        if not ready:
            return None
        if self.turn not in ready:
            self.deficits[self.turn] = 0
        if self.turn not in ready or self._cost(self.turn) > self.deficits[self.turn]:
            self.turn = min(ready, key=lambda one: (one - self.turn - 1) % count)
            quantum = self.config.quantum_bytes
            self.deficits[self.turn] += self.tenants[self.turn].weight * quantum
        self.deficits[self.turn] -= self._cost(self.turn)
        return self._serve(now_ps, self.turn)

    def _serve(self, now_ps: int, tenant: int) -> Item:
        first = self.first(tenant)
        self.waiters[tenant].remove(first)
        item = first.item
        self._serve_round(first)
        self.taken[tenant].append((now_ps, item.cost_bytes))
        floor = self.tenants[tenant].floor_bytes_per_s
        if floor:
            late_ps = min(max(now_ps - self.owed[tenant], 0), self.config.ahead_ps_max)
            self.owed[tenant] = now_ps - late_ps + item.cost_bytes * PS_PER_S // floor
        return item

    def next_ps(self, now_ps: int) -> int | None:
        times = [self.ready_ps(one) for one in range(len(self.tenants))]
        times += [self.owed_ps(one) for one in range(len(self.tenants))]
        return min((max(one, now_ps) for one in times if one is not None), default=None)

    def _cost(self, tenant: int) -> int:
        return self.first(tenant).item.cost_bytes

    def _serve_round(self, served: Waiter) -> None:
        number, used = self.sessions[served.who]
        self.rounds[served.item.tenant] = number
        if self.config.session_quantum_bytes:
            more, used = divmod(used + served.item.cost_bytes, self.config.session_quantum_bytes)
            number += more
        self.sessions[served.who] = number, used
