"""One point: all requests of a trace over hosts and a pod, in virtual time, from a seed.

A host takes a request (`host.schedule`), reads what the pod has of its prefix beyond what stands in
its own HBM pool, computes the rest one request after another, and decodes at a fixed pace beside
others. A turn of a session begins no earlier than the answer before it. What a request finds in
HBM counts from when the one before it was taken, since a host computes in order; what it finds in
the pod, from when that was put. Answers are put as part of the next turn's prompt.

Events at one time: faults, ends, arrivals. Integers throughout, so that a point gives the same on
every machine.
"""

import heapq
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.caches import Caches
from offstage.host.schedule import Rule, begin_next
from offstage.testbeds.lab.pod.requests import Requests, requests_of
from offstage.testbeds.lab.pod.spec import PodSpec, Point
from offstage.testbeds.lab.pod.tier import Tier
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS

__all__ = ["ROW", "Ran", "run_point", "simulate"]

ROW = np.dtype([
    ("arrival_ns", np.int64), ("begun_ns", np.int64), ("first_ns", np.int64), ("host", np.int32),
    ("input_tokens", np.int64), ("pool_tokens", np.int64), ("tier_tokens", np.int64),
    ("passed", np.int64), ("refused", np.bool_),
])  # fmt: skip
"""A request: `first_ns` is when its first token is there; tokens of its prefix were in the host's
`pool` and, beyond that, in the `tier`."""
FAULT, COMPUTED, ENDED, ARRIVED = range(4)
CONSIDERED = 64
"""Of those that wait, how many the schedule chooses from."""


@dataclass(frozen=True, eq=False)
class Ran:
    """What a point did: `ROW` `[requests]`, and by daemon."""

    rows: NDArray[np.void]
    fault_ns: int
    read: NDArray[np.int64]
    put: NDArray[np.int64]
    filled: NDArray[np.int64]
    segments: NDArray[np.int64]
    """Homed at each daemon at the beginning."""
    copied: NDArray[np.int64]
    held: list[int]
    deadlines: int
    """How often a host waited for a daemon that did not answer."""
    span_ns: int
    copies: int
    """Of segments beside their home, at the end."""


def run_point(spec: PodSpec, point: Point) -> Ran:
    """The point, over the requests that its spec says."""
    tenants = 1
    hosts = spec.hosts
    if spec.grow == "all":
        tenants = max(1, point.daemons // min(spec.daemons))
        hosts = spec.hosts * tenants
    return simulate(spec, point, requests_of(spec, tenants, point.seed), hosts)


def simulate(spec: PodSpec, point: Point, requests: Requests, hosts: int) -> Ran:
    """The point over given requests."""
    return _Run(spec, point, requests, hosts).run()


class _Run:
    def __init__(self, spec: PodSpec, point: Point, requests: Requests, hosts: int) -> None:
        self.spec, self.point, self.requests, self.hosts = spec, point, requests, hosts
        self.rule = Rule(kind=point.schedule, weight=spec.weight, patience=spec.patience)
        self.tier = Tier(spec, point, requests, hosts)
        self.pools = Caches([spec.blocks(spec.pool_bytes)] * hosts)
        self.rows = np.zeros(len(requests), ROW)
        self.rows["arrival_ns"] = requests.arrival_ns
        self.rows["input_tokens"] = requests.input_tokens
        self.rows["host"] = -1
        self.free_ns = np.zeros(hosts, np.int64)
        """When each host has computed all that it took."""
        self.active = np.zeros(hosts, np.int64)
        self.waiting: list[int] = []
        self.begun = 0
        self.events: list[tuple[int, int, int]] = []
        self.busy: dict[int, int] = {}
        """By session, the request that is under way."""
        self.held_back: dict[int, list[int]] = defaultdict(list)
        self.fault_ns = round(spec.fault_at * int(requests.arrival_ns[-1])) if len(requests) else 0

    def run(self) -> Ran:
        """From the first arrival to the last answer."""
        if self.point.fault == "join":
            self.tier.absent()
        segments = self.tier.segment_counts()
        self.events = [(ns, FAULT, step) for step, ns in enumerate(self._fault_times())]
        self.events += [(int(ns), ARRIVED, at) for at, ns in enumerate(self.requests.arrival_ns)]
        heapq.heapify(self.events)
        now_ns = 0
        while self.events:
            now_ns, kind, which = heapq.heappop(self.events)
            if kind == FAULT:
                self._fault(which)
            elif kind == COMPUTED:
                self._computed(which, now_ns)
            elif kind == ENDED:
                self._ended(which, now_ns)
            else:
                self._arrived(which)
            if kind != COMPUTED:
                self._begin(now_ns)
        tier = self.tier
        return Ran(self.rows, self.fault_ns, tier.read, tier.put, tier.filled, segments,
                   tier.copied, tier.held(), tier.deadlines, now_ns, tier.copies.held)  # fmt: skip

    def _fault_times(self) -> list[int]:
        """Of each step of the fault, in order."""
        at, spec = self.fault_ns, self.spec
        return {
            "none": [], "slow": [at], "drain": [at], "join": [at],
            "death": [at, at + spec.lease_ns],
            "return": [at, at + min(spec.lease_ns, spec.gone_ns), at + spec.gone_ns],
        }[self.point.fault]  # fmt: skip

    def _fault(self, step: int) -> None:
        kind, tier = self.point.fault, self.tier
        if kind == "slow":
            tier.slow_down()
        elif kind in ("drain", "join"):
            tier.mapped("draining" if kind == "drain" else "up")
        elif step == 0:
            tier.die()
        elif step == 1:
            tier.mapped("gone")
        else:
            tier.rise()
            tier.mapped("up")

    def _arrived(self, request: int) -> None:
        session = int(self.requests.session[request])
        if session >= 0 and session in self.busy:
            self.held_back[session].append(request)
            return
        if len(self.waiting) >= self.spec.waiting:
            self.rows["refused"][request] = True
            self._go_on(session)
            return
        if session >= 0:
            self.busy[session] = request
        self.waiting.append(request)

    def _begin(self, now_ns: int) -> None:
        """Give hosts what they have room for."""
        while self.waiting:
            asked = self.waiting[:CONSIDERED]
            ahead = np.maximum(0, self.free_ns - now_ns) * self.spec.prefill_tokens_per_s // 10**9
            next_one = begin_next(
                self.rule, self._matched(asked), self.requests.input_tokens[asked],
                self.rows["passed"][asked], ahead + self.active, self.active < self.spec.active,
                self.begun,
            )  # fmt: skip
            if next_one is None:
                return
            self.rows["passed"][asked[: next_one.waiting]] += 1
            self._take(self.waiting.pop(next_one.waiting), next_one.host, now_ns)

    def _matched(self, asked: list[int]) -> NDArray[np.int64]:
        """Tokens of each request that each host holds; nobody asks for them but one schedule."""
        found = np.zeros((len(asked), self.hosts), np.int64)
        if self.rule.kind == "reuse":
            for row, request in enumerate(asked):
                found[row] = self.pools.matched(self.requests.of(request))
        return found * TRACE_BLOCK_TOKENS

    def _take(self, request: int, host: int, now_ns: int) -> None:
        blocks, row = self.requests.of(request), self.rows[request]
        at = np.full(len(blocks), host, np.uint32)
        pooled = self.pools.find(at, blocks)
        first = len(blocks) if pooled.all() else int(np.argmin(pooled))
        tokens = int(row["input_tokens"])
        row["pool_tokens"] = min(tokens, first * TRACE_BLOCK_TOKENS)
        run, there_ns = first, now_ns
        if first < len(blocks):
            looked = self.tier.look(host, blocks, first, now_ns)
            there_ns = self.tier.fetch(host, looked, blocks, first)
            run = looked.run
        row["tier_tokens"] = min(tokens, run * TRACE_BLOCK_TOKENS) - row["pool_tokens"]
        self.pools.use(at, blocks)
        left = tokens - min(tokens, run * TRACE_BLOCK_TOKENS)
        begin_ns = max(there_ns, int(self.free_ns[host]))
        first_ns = begin_ns + left * 10**9 // self.spec.prefill_tokens_per_s
        self.free_ns[host] = first_ns
        row["begun_ns"], row["first_ns"], row["host"] = now_ns, first_ns, host
        self.active[host] += 1
        self.begun += 1
        steps = int(self.requests.output_tokens[request])
        heapq.heappush(self.events, (first_ns, COMPUTED, request))
        heapq.heappush(self.events, (first_ns + steps * self.spec.time_per_token_ns, ENDED,
                                     request))  # fmt: skip

    def _computed(self, request: int, now_ns: int) -> None:
        row = self.rows[request]
        run = -(-int(row["pool_tokens"] + row["tier_tokens"]) // TRACE_BLOCK_TOKENS)
        self.tier.keep(int(row["host"]), self.requests.of(request), run, now_ns)

    def _ended(self, request: int, now_ns: int) -> None:
        self.active[self.rows["host"][request]] -= 1
        session = int(self.requests.session[request])
        if session >= 0:
            del self.busy[session]
            self._go_on(session, now_ns)

    def _go_on(self, session: int, now_ns: int = 0) -> None:
        """The session's next turn may come."""
        if session >= 0 and session not in self.busy and self.held_back[session]:
            request = self.held_back[session].pop(0)
            self.rows["arrival_ns"][request] = max(now_ns, self.rows["arrival_ns"][request])
            self._arrived(request)
