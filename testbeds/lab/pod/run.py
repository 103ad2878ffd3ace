"""Run one point: all requests of a trace over hosts and a pod, in virtual time, from a seed.

A host takes a request (`host.decode.schedule`), retrieves what the pod has of it and the host's HBM
pool has not, at once or when it has computed the requests before (`retrieve`), computes the rest
one request after another, and decodes requests concurrently at a fixed pace. A request's blocks are
in HBM for later requests from the time that it is taken (`router`), and in the pod from the time
that they are put. Answers are put as part of the next turn's prompt.

Order of events at one time: faults, ends, hints, arrivals. Integers throughout, so that a point
gives the same result on every machine.
"""

import heapq
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offstage.host.decode.schedule import Rule
from offstage.host.request_record import Found, RequestRecord, Used
from offstage.testbeds.lab.pod.drives import Ends, Fates
from offstage.testbeds.lab.pod.requests import Requests, requests_of
from offstage.testbeds.lab.pod.router import Router, Taken
from offstage.testbeds.lab.pod.spec import PodSpec, Point
from offstage.testbeds.lab.pod.tier import Looked, Tier
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS

__all__ = ["Ran", "run_point", "simulate"]

FAULT, COMPUTED, ENDED, HINTED, ARRIVED = range(5)
ROUTER = 0
"""Whose view of the pod a router takes: that of the first host, as hints are without faults."""


@dataclass(frozen=True, eq=False)
class Ran:
    """The result of a point: the record of each request, and bytes `[daemons]`."""

    records: list[RequestRecord]
    fault_ns: int
    read: NDArray[np.int64]
    put: NDArray[np.int64]
    filled: NDArray[np.int64]
    shards: NDArray[np.int64]
    """Shards homed at each daemon at the start."""
    copied: NDArray[np.int64]
    held: list[int]
    deadlines: int
    """Times that a host waited for a daemon that did not answer."""
    span_ns: int
    copies: int
    """Copies of shards at the end, homes not counted."""
    ends: Ends
    fates: Fates
    drive_bytes: int
    used: Used


def run_point(spec: PodSpec, point: Point) -> Ran:
    """Run the point over the requests of its spec."""
    tenants = 1
    hosts = spec.hosts
    if spec.grow == "all":
        tenants = max(1, point.daemons // min(spec.daemons))
        hosts = spec.hosts * tenants
    return simulate(spec, point, requests_of(spec, tenants, point.seed), hosts)


def simulate(spec: PodSpec, point: Point, requests: Requests, hosts: int) -> Ran:
    """Run the point over the given requests."""
    return _Run(spec, point, requests, hosts).run()


class _Run:
    def __init__(self, spec: PodSpec, point: Point, requests: Requests, hosts: int) -> None:
        self.spec, self.point, self.requests, self.hosts = spec, point, requests, hosts
        rule = Rule(kind=point.schedule, weight=spec.weight, patience=spec.patience)
        self.tier = Tier(spec, point, requests, hosts)
        kept = np.full(hosts, spec.blocks(spec.pool_bytes), np.int64)
        self.router = Router(rule, requests, kept, spec.active, spec.waiting)
        self.records = self.router.records
        self.free_ns = np.zeros(hosts, np.int64)
        """Time at which each host has computed the requests that it has retrieved."""
        self.queued: list[deque[Taken]] = [deque() for _ in range(hosts)]
        """Requests of each host that wait until the ones before are computed."""
        self.queued_tokens = np.zeros(hosts, np.int64)
        """Their tokens that the host's pool has not."""
        self.computing: dict[int, NDArray[np.bool_]] = {}
        """The blocks that each request's host computes."""
        self.comes_ns: dict[int, int] = {}
        """When the next turn comes, by the turn that has ended and is to be hinted."""
        self.busy_until_ns = [0] * hosts
        """Time at which each host has nothing to compute or to decode."""
        self.gpu_busy_ns = 0
        self.events: list[tuple[int, int, int]] = []
        self.fault_ns = round(spec.fault_at * int(requests.arrival_ns[-1])) if len(requests) else 0

    def run(self) -> Ran:
        """Run from the first arrival to the last answer."""
        if self.point.fault == "join":
            self.tier.absent()
        shards = self.tier.shard_counts()
        self.events = [(ns, FAULT, step) for step, ns in enumerate(self._fault_times())]
        arrival_ns = self.requests.arrival_ns
        self.events += [(int(arrival_ns[one]), ARRIVED, one) for one in self.router.come]
        heapq.heapify(self.events)
        now_ns = 0
        while self.events:
            now_ns, kind, which = heapq.heappop(self.events)
            if kind == FAULT:
                self._fault(which)
            elif kind == COMPUTED:
                self._computed(which, now_ns)
            elif kind == HINTED:
                self._hint_pause(which, now_ns)
            else:
                ended = kind == ENDED
                if ended and self.spec.hints in ("pause", "resume"):
                    self._pause(which, now_ns)
                later = self.router.ended(which, now_ns) if ended else self.router.arrived(which)
                if later is not None:
                    heapq.heappush(self.events, (later.at_ns, ARRIVED, later.request))
            if kind not in (COMPUTED, HINTED):
                self._begin(now_ns)
        tier = self.tier
        tier.close(now_ns)
        return Ran(
            self.records,
            self.fault_ns,
            tier.read,
            tier.put,
            tier.filled,
            shards,
            tier.copied,
            tier.held(),
            tier.deadlines,
            now_ns,
            tier.copies.held,
            tier.ends,
            tier.fates,
            tier.drive_bytes,
            self._used(),
        )

    def _used(self) -> Used:
        """Busy shares from the first arrival to the last token."""
        ends = [(one.arrival_ns or 0, one.end_ns) for one in self.records if one.end_ns is not None]
        absent = {"dpu_cores": "not modelled here: a chip model has them"}
        span_ns = max(end for _, end in ends) - min(begin for begin, _ in ends) if ends else 0
        if not span_ns:
            nothing = dict.fromkeys(("gpu", "link", "drive", "hbm_pool"), "nothing was served")
            return Used(absent=nothing | absent)
        held = self.router.held_share
        if held is None:
            absent["hbm_pool"] = "hosts keep nothing"
        return Used(
            gpu=self.gpu_busy_ns / (self.hosts * span_ns),
            link=self.tier.link_busy_ns / (self.point.daemons * span_ns),
            drive=self.tier.drive_busy_ns / (self.point.daemons * span_ns),
            hbm_pool=held,
            absent=absent,
        )

    def _fault_times(self) -> list[int]:
        """Times of the fault's steps, in order."""
        at, spec = self.fault_ns, self.spec
        return {
            "none": [],
            "slow": [at],
            "drain": [at],
            "join": [at],
            "death": [at, at + spec.lease_ns],
            "return": [at, at + min(spec.lease_ns, spec.gone_ns), at + spec.gone_ns],
        }[self.point.fault]

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

    def _begin(self, now_ns: int) -> None:
        """Assign waiting requests to hosts with a free place."""
        self._hint_arrived(now_ns)
        while True:
            taken = self.router.begin(now_ns, self._ahead(now_ns))
            if taken is None:
                return
            if self.spec.retrieve == "taken":
                self._retrieve(taken, now_ns)
            else:
                self._queue(taken, now_ns)

    def _ahead(self, now_ns: int) -> NDArray[np.int64]:
        """Tokens that each host must compute; of queued requests all that its pool has not."""
        rate = self.spec.prefill_tokens_per_s
        computing: NDArray[np.int64] = np.maximum(0, self.free_ns - now_ns) * rate // 10**9
        return computing + self.queued_tokens

    def _hint_arrived(self, now_ns: int) -> None:
        """Hint what has joined the queue. It is needed when the host that has fewest tokens ahead
        has computed these, and an equal part of all that wait, itself among them."""
        fresh, router = self.router.fresh, self.router
        if fresh and self.spec.hints in ("arrival", "router"):
            before = int(self._ahead(now_ns).min()) + router.waiting_tokens // self.hosts
            for request in fresh:
                first = router.known(request) if self.spec.hints == "router" else 0
                self._hint(self.requests.of(request), first, now_ns, now_ns + self._ns_of(before))
        fresh.clear()

    def _pause(self, request: int, now_ns: int) -> None:
        """A turn has ended: hint its prompt until the session's next turn comes, at once or when
        computing it would have to begin."""
        turn = int(self.requests.next_turn[request])
        if turn < 0:
            return
        think_ns = self.requests.think_ns
        if think_ns is not None and think_ns[turn] >= 0:
            comes_ns = now_ns + int(think_ns[turn])
        else:
            comes_ns = int(self.requests.arrival_ns[turn])
        if comes_ns > now_ns:
            self.comes_ns[request], at_ns = comes_ns, now_ns
            if self.spec.hints == "resume":
                cost_ns = self._ns_of(int(self.requests.input_tokens[request]))
                at_ns = max(now_ns, comes_ns - cost_ns)
            heapq.heappush(self.events, (at_ns, HINTED, request))

    def _hint_pause(self, request: int, now_ns: int) -> None:
        """Hint the prompt of a turn that has ended."""
        first = self.router.known(request) if self.spec.hints == "resume" else 0
        self._hint(self.requests.of(request), first, now_ns, self.comes_ns.pop(request))

    def _hint(self, blocks: NDArray[np.uint32], first: int, now_ns: int, need_ns: int) -> None:
        """Hint blocks that will be needed. A read is worth it until computing them from then on
        would have been faster, which is its deadline."""
        if first < len(blocks):
            cost_ns = self._ns_of(TRACE_BLOCK_TOKENS * (len(blocks) - first))
            self.tier.hint(ROUTER, blocks, first, now_ns, need_ns + cost_ns)

    def _ns_of(self, tokens: int) -> int:
        """Time of computing so many tokens on one host."""
        return tokens * 10**9 // self.spec.prefill_tokens_per_s

    def _queue(self, taken: Taken, now_ns: int) -> None:
        host, blocks = taken.host, self.requests.of(taken.request)
        if self.spec.hints == "deadline" and taken.kept < len(blocks):
            due_ns = now_ns + self._ns_of(int(self._ahead(now_ns)[host]))
            self.tier.hint(host, blocks, taken.kept, now_ns, due_ns)
        self.queued[host].append(taken)
        self.queued_tokens[host] += self._new_tokens(taken)
        self._go_on(host, now_ns)

    def _go_on(self, host: int, now_ns: int) -> None:
        """Retrieve for the host's next request, if the ones before are computed."""
        if self.queued[host] and self.free_ns[host] <= now_ns:
            taken = self.queued[host].popleft()
            self.queued_tokens[host] -= self._new_tokens(taken)
            self._retrieve(taken, now_ns)

    def _new_tokens(self, taken: Taken) -> int:
        record = self.records[taken.request]
        return record.input_tokens - record.found_tokens()

    def _retrieve(self, taken: Taken, now_ns: int) -> None:
        request, host, first = taken.request, taken.host, taken.kept
        blocks, record = self.requests.of(request), self.records[request]
        tokens, there_ns = record.input_tokens, now_ns
        computed = np.arange(len(blocks)) >= first
        if first < len(blocks) and self.spec.store_bytes:
            looked = self.tier.look(host, blocks, first, now_ns)
            there_ns = self.tier.fetch(host, looked, blocks, first)
            computed &= ~looked.read
            record.asked_ns, record.absent_blocks = now_ns, int(computed.sum())
            if looked.read.any():
                record.last_block_ns = there_ns
            record.found = [*(record.found or []), *_found(looked, tokens)]
        begin_ns = max(there_ns, int(self.free_ns[host]))
        left = tokens - record.found_tokens()
        first_ns = begin_ns + self._ns_of(left)
        self.free_ns[host] = record.prefilled_ns = record.first_token_ns = first_ns
        self.computing[request] = computed
        steps, pace_ns = int(self.requests.output_tokens[request]), self.spec.time_per_token_ns
        record.output_tokens, after = steps, max(0, steps - 1)
        record.gaps_ns = [(pace_ns, after)] if after else []
        record.end_ns = first_ns + after * pace_ns
        self.gpu_busy_ns += max(0, record.end_ns - max(begin_ns, self.busy_until_ns[host]))
        self.busy_until_ns[host] = max(self.busy_until_ns[host], record.end_ns)
        heapq.heappush(self.events, (first_ns, COMPUTED, request))
        heapq.heappush(self.events, (first_ns + steps * pace_ns, ENDED, request))

    def _computed(self, request: int, now_ns: int) -> None:
        host = self.records[request].host
        computed = self.computing.pop(request)
        self.tier.keep(host, self.requests.of(request), computed, now_ns)
        self._go_on(host, now_ns)


def _found(looked: Looked, tokens: int) -> list[Found]:
    """The tokens behind the host's own blocks that arenas had, and those that drives had."""
    ends = np.minimum(tokens, TRACE_BLOCK_TOKENS * np.arange(len(looked.read) + 1))
    sizes = np.diff(ends)
    arena, drive = looked.read & looked.staged, looked.read & ~looked.staged
    return [Found("arena", int(sizes[arena].sum())), Found("drive", int(sizes[drive].sum()))]
