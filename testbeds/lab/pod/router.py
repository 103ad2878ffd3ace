"""Who waits, who begins where, and what each host keeps: the requests of a pod before its tier.

The same for a pod in virtual time and for a live one (`offstage bench schedule`): neither clock nor
tier is here. A turn of a session comes no earlier than the answer before it. A host keeps the
blocks that it used last, those of a request from the moment when it is given to the host, since a
host computes in order. Belongs to one thread; told the time.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.caches import Caches
from offstage.host.decode.schedule import Rule, begin_next
from offstage.testbeds.lab.pod.requests import Requests
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS

__all__ = ["ROW", "Router", "Taken"]

ROW = np.dtype(
    [
        ("arrival_ns", np.int64),
        ("begun_ns", np.int64),
        ("first_ns", np.int64),
        ("host", np.int32),
        ("input_tokens", np.int64),
        ("pool_tokens", np.int64),
        ("tier_tokens", np.int64),
        ("passed", np.int64),
        ("refused", np.bool_),
    ]
)
"""A request: `first_ns` is when its first token is there; tokens of its prefix were in the host's
`pool` and, beyond that, in the `tier`."""
CONSIDERED = 64
"""Of those that wait, how many the schedule chooses from."""


@dataclass(frozen=True)
class Taken:
    """The request that begins, its host, and how many of its blocks, from the front, that keeps."""

    request: int
    host: int
    kept: int


class Router:
    """`rows`: what became of each request, `ROW` `[requests]`; `active`: how many each host has."""

    def __init__(
        self,
        rule: Rule,
        requests: Requests,
        kept_blocks: NDArray[np.int64],
        active_max: int,
        waiting_max: int,
    ) -> None:
        """`kept_blocks` `[hosts]`: how many blocks each host has room for."""
        self._rule, self._requests = rule, requests
        self._active_max, self._waiting_max = active_max, waiting_max
        self._pools = Caches(kept_blocks.tolist())
        self.active = np.zeros(len(kept_blocks), np.int64)
        self.rows = np.zeros(len(requests), ROW)
        self.rows["arrival_ns"] = requests.arrival_ns
        self.rows["input_tokens"] = requests.input_tokens
        self.rows["host"] = -1
        self._waiting: list[int] = []
        self._begun = 0
        self._busy: set[int] = set()
        """Sessions of which a request is under way."""
        self._held_back: dict[int, list[int]] = defaultdict(list)

    @property
    def idle(self) -> bool:
        """No request waits or runs."""
        return not self._waiting and not self.active.any()

    def arrived(self, request: int) -> None:
        """It waits, or waits for its session's turn before it, or is refused."""
        session = int(self._requests.session[request])
        if session >= 0 and session in self._busy:
            self._held_back[session].append(request)
            return
        if len(self._waiting) >= self._waiting_max:
            self.rows["refused"][request] = True
            self._go_on(session)
            return
        if session >= 0:
            self._busy.add(session)
        self._waiting.append(request)

    def begin(self, now_ns: int, ahead: NDArray[np.int64]) -> Taken | None:
        """Who is next, given the tokens that each host has still to compute, `[hosts]`."""
        if not self._waiting:
            return None
        asked = self._waiting[:CONSIDERED]
        next_one = begin_next(
            self._rule,
            self._matched(asked),
            self._requests.input_tokens[asked],
            self.rows["passed"][asked],
            ahead + self.active,
            self.active < self._active_max,
            self._begun,
        )
        if next_one is None:
            return None
        self.rows["passed"][asked[: next_one.waiting]] += 1
        request, host = self._waiting.pop(next_one.waiting), next_one.host
        blocks, row = self._requests.of(request), self.rows[request]
        at = np.full(len(blocks), host, np.uint32)
        found = self._pools.find(at, blocks)
        kept = len(blocks) if found.all() else int(np.argmin(found))
        self._pools.use(at, blocks)
        row["pool_tokens"] = min(int(row["input_tokens"]), kept * TRACE_BLOCK_TOKENS)
        row["begun_ns"], row["host"] = now_ns, host
        self.active[host] += 1
        self._begun += 1
        return Taken(request, host, kept)

    def ended(self, request: int, now_ns: int) -> None:
        """Its host has room again, and its session's next turn may come."""
        self.active[self.rows["host"][request]] -= 1
        session = int(self._requests.session[request])
        if session >= 0:
            self._busy.remove(session)
            self._go_on(session, now_ns)

    def _matched(self, asked: list[int]) -> NDArray[np.int64]:
        """Tokens of each request that each host keeps; read by one schedule only."""
        found = np.zeros((len(asked), len(self.active)), np.int64)
        if self._rule.kind == "reuse":
            for row, request in enumerate(asked):
                found[row] = self._pools.matched(self._requests.of(request))
        return found * TRACE_BLOCK_TOKENS

    def _go_on(self, session: int, now_ns: int = 0) -> None:
        if session >= 0 and session not in self._busy and self._held_back[session]:
            request = self._held_back[session].pop(0)
            self.rows["arrival_ns"][request] = max(now_ns, self.rows["arrival_ns"][request])
            self.arrived(request)
