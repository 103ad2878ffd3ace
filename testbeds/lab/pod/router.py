"""Route a pod's requests to its hosts: the waiting queue, the choice of a host, and HBM contents.

A pod in virtual time and a live one (`offstage bench schedule`) share this code: it has neither a
clock nor a tier. A turn of a session arrives no earlier than the previous answer, and one without
an arrival of its own its delay after that; such a turn is returned to the caller, who lets it
arrive. A host keeps its most recently used blocks; a request's blocks count from its assignment to
the host, because a host computes in order. Belongs to one thread; the caller passes the time.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.caches import Caches
from offstage.host.decode.schedule import Rule, begin_next
from offstage.host.request_record import Found, RequestRecord
from offstage.testbeds.lab.pod.requests import Requests
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS

__all__ = ["HBM", "Later", "Router", "Taken"]

HBM = "hbm"
"""A host's own memory, where it finds the first part of a prefix."""
CONSIDERED = 64
"""Most waiting requests that the schedule chooses from."""


@dataclass(frozen=True)
class Taken:
    """A request that begins, its host, and the number of leading blocks that the host keeps."""

    request: int
    host: int
    kept: int


class Later(NamedTuple):
    """A turn that the caller must let arrive at a time."""

    at_ns: int
    request: int


class Router:
    """`records`: of each request, by its number; `active`: requests on each host."""

    def __init__(
        self,
        rule: Rule,
        requests: Requests,
        kept_blocks: NDArray[np.int64],
        active_max: int,
        waiting_max: int,
    ) -> None:
        """`kept_blocks` `[hosts]`: capacity of each host in blocks."""
        self._rule, self._requests = rule, requests
        self._active_max, self._waiting_max = active_max, waiting_max
        self._kept_blocks: list[int] = kept_blocks.tolist()
        self._pools = Caches(self._kept_blocks)
        self.active = np.zeros(len(kept_blocks), np.int64)
        columns = (requests.session, requests.arrival_ns, requests.input_tokens)
        self.records = [
            RequestRecord(
                request=at,
                session=session,
                arrival_ns=arrival_ns,
                input_tokens=tokens,
                passed_over=0,
            )
            for at, (session, arrival_ns, tokens) in enumerate(
                zip(*(one.tolist() for one in columns), strict=True)
            )
        ]
        self._waiting: list[int] = []
        self.fresh: list[int] = []
        """Requests that have joined the queue since the caller last cleared this."""
        self._begun = 0
        self._busy: set[int] = set()
        """Sessions with a request that waits or runs."""
        self._held_back: dict[int, list[int]] = defaultdict(list)
        self._follows = requests.follows
        self._released: set[int] = set()
        """Turns that were returned to the caller, and did not arrive yet."""
        for request in np.flatnonzero(self._follows).tolist():
            self._held_back[int(requests.session[request])].append(request)

    @property
    def come(self) -> list[int]:
        """The requests with an arrival of their own, in order: the caller lets them arrive."""
        found: list[int] = np.flatnonzero(~self._follows).tolist()
        return found

    @property
    def idle(self) -> bool:
        """No request waits or runs."""
        return not self._waiting and not self.active.any()

    def arrived(self, request: int) -> Later | None:
        """Queue the request, hold it until its session's previous turn ends, or refuse it; the turn
        that a refused one leaves for later."""
        session = int(self._requests.session[request])
        if session in self._busy and request not in self._released:
            self._held_back[session].append(request)
            return None
        self._released.discard(request)
        if len(self._waiting) >= self._waiting_max:
            self.records[request].refused = True
            self._busy.discard(session)
            return self._go_on(session, 0, self._arrival_ns(request))
        if session >= 0:
            self._busy.add(session)
        self._waiting.append(request)
        self.fresh.append(request)
        return None

    def begin(self, now_ns: int, ahead: NDArray[np.int64]) -> Taken | None:
        """Begin the next request, if any. `ahead` `[hosts]`: tokens that each host must compute."""
        if not self._waiting:
            return None
        asked = self._waiting[:CONSIDERED]
        passed = [self.records[one].passed_over or 0 for one in asked]
        next_one = begin_next(
            self._rule,
            self._matched(asked),
            self._requests.input_tokens[asked],
            np.array(passed, np.int64),
            ahead + self.active,
            self.active < self._active_max,
            self._begun,
        )
        if next_one is None:
            return None
        for one in asked[: next_one.waiting]:
            self.records[one].passed_over = (self.records[one].passed_over or 0) + 1
        request, host = self._waiting.pop(next_one.waiting), next_one.host
        blocks, record = self._requests.of(request), self.records[request]
        at = np.full(len(blocks), host, np.uint32)
        found = self._pools.find(at, blocks)
        kept = len(blocks) if found.all() else int(np.argmin(found))
        self._pools.use(at, blocks)
        record.found = [Found(HBM, min(record.input_tokens, kept * TRACE_BLOCK_TOKENS))]
        record.scheduled_ns, record.host = now_ns, host
        self.active[host] += 1
        self._begun += 1
        return Taken(request, host, kept)

    def ended(self, request: int, now_ns: int) -> Later | None:
        """The request has ended: free its place on the host, and admit its session's next turn, or
        return it if it comes later."""
        self.active[self.records[request].host] -= 1
        session = int(self._requests.session[request])
        if session < 0:
            return None
        self._busy.remove(session)
        return self._go_on(session, now_ns, now_ns)

    @property
    def waiting_tokens(self) -> int:
        """Tokens of the requests that wait for a host."""
        return int(self._requests.input_tokens[self._waiting].sum())

    def known(self, request: int) -> int:
        """Leading blocks of a request that the host with most of them keeps."""
        return int(self._pools.matched(self._requests.of(request)).max(initial=0))

    @property
    def held_share(self) -> float | None:
        """Blocks that the hosts keep, over all that they could; None: they keep nothing."""
        room = sum(self._kept_blocks)
        return sum(map(self._pools.held, range(len(self.active)))) / room if room else None

    def _arrival_ns(self, request: int) -> int:
        return self.records[request].arrival_ns or 0

    def _matched(self, asked: list[int]) -> NDArray[np.int64]:
        """Tokens of each request that each host keeps; 0 for schedules that do not read it."""
        found = np.zeros((len(asked), len(self.active)), np.int64)
        if self._rule.kind == "reuse":
            for row, request in enumerate(asked):
                found[row] = self._pools.matched(self._requests.of(request))
        return found * TRACE_BLOCK_TOKENS

    def _go_on(self, session: int, now_ns: int, before_ns: int) -> Later | None:
        """The next turn of a session that may go on; `before_ns`: when the turn before was over."""
        if session < 0 or session in self._busy or not self._held_back[session]:
            return None
        request = self._held_back[session].pop(0)
        if self._requests.think_ns is None or not self._follows[request]:
            self.records[request].arrival_ns = max(now_ns, self._arrival_ns(request))
            return self.arrived(request)
        later = Later(before_ns + int(self._requests.think_ns[request]), request)
        self.records[request].arrival_ns = later.at_ns
        self._busy.add(session)
        self._released.add(request)
        return later
