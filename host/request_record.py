"""The record of one request, the same in a pod in virtual time, a lab run and a live host.

Moments are ns of the clock of the host that serves the request, from the start of the run. None: a
surface does not see that moment or count, which is not 0. Written by one thread. `check` refuses a
record that contradicts itself; figures are in `testbeds/workloads/requests/served.py`.
"""

from collections.abc import Collection
from itertools import pairwise

import msgspec

from offstage.bindings.errors import BadInput

__all__ = ["Found", "RequestRecord", "Run", "ServedRun", "Used"]

Run = tuple[int, int]
"""Equal gaps between tokens: their ns, and how many follow one another."""
ASKED = ("arrival_ns", "asked_ns", "first_block_ns", "last_block_ns")
"""Moments of the tier, in order; it may be asked before the request is scheduled."""
SERVED = ("arrival_ns", "scheduled_ns", "prefilled_ns", "first_token_ns", "end_ns")
"""Moments of the request, in order."""
CLOCKS = "take all moments of a request from one clock, or synchronise the machines"
CUT = "leave the request out, or record it to its end"


class Found(msgspec.Struct, frozen=True):
    """Tokens of a prompt that a tier had, behind those of the tiers named before it; the leading
    ones, unless the host computes holes.
    `group`: of the cache groups of a model with several, the one that the tokens are of."""

    tier: str
    tokens: int
    group: str = ""


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request. `host` -1: it began on none; `session` -1: it is of none."""

    request: int
    session: int = -1
    host: int = -1
    input_tokens: int = 0
    output_tokens: int | None = None
    arrival_ns: int | None = None
    """When it, or its session's turn, could begin."""
    scheduled_ns: int | None = None
    """A host took it."""
    asked_ns: int | None = None
    """The tier was asked for its prefix."""
    found: list[Found] | None = None
    first_block_ns: int | None = None
    last_block_ns: int | None = None
    """The first and the last block of the prefix were in the host's memory."""
    prefilled_ns: int | None = None
    """What no tier had was computed."""
    first_token_ns: int | None = None
    gaps_ns: list[Run] = []
    """From each token to the next, after the first."""
    end_ns: int | None = None
    """The last token was there."""
    absent_blocks: int | None = None
    """Asked for, and not in the prefix that was found."""
    unreadable_blocks: int | None = None
    """Found, and failed their check or their read."""
    late_blocks: int | None = None
    """Found, and not there when they were needed."""
    wasted_blocks: int | None = None
    """Brought, and not used."""
    passed_over: int | None = None
    """How often a later request was taken first."""
    refused: bool = False

    def found_tokens(self, tiers: Collection[str] = ()) -> int:
        """Tokens of the prefix that were found, in these tiers or in all; of several groups the
        fewest, since a token is spared only where every group has it."""
        groups: dict[str, int] = {}
        for one in self.found or ():
            here = one.tokens if not tiers or one.tier in tiers else 0
            groups[one.group] = groups.get(one.group, 0) + here
        return min(groups.values(), default=0)

    def token_at(self, at_ns: int) -> None:
        """The next token is there, which ends the request unless another follows."""
        if self.first_token_ns is None or self.end_ns is None:
            self.first_token_ns = at_ns
        else:
            gap, (before, count) = at_ns - self.end_ns, (self.gaps_ns or [(-1, 0)])[-1]
            if gap == before:
                self.gaps_ns[-1] = gap, count + 1
            else:
                self.gaps_ns.append((gap, 1))
        self.end_ns = at_ns

    def check(self, where: str) -> None:
        """BadInput if moments contradict each other, or the record was cut."""
        where = f"request {self.request} of {where}"
        for names in (ASKED, SERVED):
            known = [(name, at) for name in names if (at := getattr(self, name)) is not None]
            for (before, one), (after, other) in pairwise(known):
                if other < one:
                    early = f"{after} is {(one - other) / 1e6:,.3f} ms before {before}"
                    raise BadInput(f"{early}: clocks differ", where, CLOCKS)
        if any(gap < 0 or count < 1 for gap, count in self.gaps_ns):
            raise BadInput("tokens come before those before them: clocks differ", where, CLOCKS)
        if self.refused:
            return
        if self.end_ns is None and self.arrival_ns is not None:
            raise BadInput(f"is cut: it has no end, {self._last()}", where, CUT)
        told = sum(count for _, count in self.gaps_ns)
        if self.output_tokens and self.end_ns is not None and told != self.output_tokens - 1:
            cut = f"{told + 1:,} of {self.output_tokens:,} tokens have times"
            raise BadInput(f"is cut: {cut}", where, CUT)

    def _last(self) -> str:
        known = [name for name in SERVED if getattr(self, name) is not None]
        return f"{known[-1]} is its last moment"


class Used(msgspec.Struct, kw_only=True, frozen=True):
    """Busy shares of the run's span, each over all units of its kind; `hbm_pool`: share of its
    blocks that were held at the end. `absent`: why one is None."""

    gpu: float | None = None
    link: float | None = None
    dpu_cores: float | None = None
    drive: float | None = None
    hbm_pool: float | None = None
    absent: dict[str, str] = {}


class ServedRun(msgspec.Struct, kw_only=True, frozen=True):
    """What the records of one run are of. `absent`: why a latency or a count is not recorded."""

    label: str
    provenance: str
    used: Used = Used()
    absent: dict[str, str] = {}
