"""Measurements of the host agent, per token and per step, not averaged.

Owned by the agent's thread. Times are of the host's clock. `ends` counts demands by how the device
says that they ended, as each fetch returns it; they can be compared with the device's ledger.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.fabric import FetchResult
from offstage.bindings.layouts import ENDS, HIT_ENDS
from offstage.bindings.ledger import Demands
from offstage.host.decode.timeline import Timeline
from offstage.host.request_record import RequestRecord

__all__ = ["AgentRecord", "Token"]

UNKNOWN_END = 255
"""How a demand ended that failed: the device does not say."""


@dataclass(slots=True)
class Token:
    """One token of one session, over all layers."""

    session: int
    """Number of the session in the workload plan."""
    step: int
    selected: int = 0
    demands: int = 0
    stall_ns: int = 0
    """Time in which the batch waited for missing blocks of any of its sessions."""
    index_demands: int = 0
    """Of the demands, those of index keys; `index_stall_ns`: of the stall, what they took."""
    index_stall_ns: int = 0
    copy_ns: int = 0
    """One-sided reads of this session's blocks, with their checks."""
    put_ns: int = 0
    unreadable: int = 0
    """Demands that failed, or gave other bytes than prefill wrote."""
    begun_ns: int = 0
    ended_ns: int = 0
    ends: NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(ENDS), np.int64))


@dataclass(slots=True)
class AgentRecord:
    """One run of the agent."""

    tokens: list[Token] = field(default_factory=list)
    begun_ns: int = 0
    requests: dict[int, RequestRecord] = field(default_factory=dict)
    """By number in the workload plan; moments are from `begun_ns` on."""
    blocks_verified: int = 0
    blocks_corrupt: int = 0
    blocks_recomputed: int = 0
    untold: int = 0
    """Demands that failed: the device counted how they ended but did not return it."""
    attention_checked: int = 0
    attention_error_max: float = 0.0
    """Largest difference from dense attention, relative to the largest output of its layer."""
    torn_reads: int = 0
    retries: int = 0
    bytes_put: int = 0
    fetch_ns: "array[int]" = field(default_factory=lambda: array("q"))
    """Latency of each fetch, from submission until its completion was seen."""
    fabric_ns: "array[int]" = field(default_factory=lambda: array("q"))
    """What the fabric spent on each: copies, and the wait for what was not staged. Where it does
    not say, the latency."""
    kernel_bytes: int = 0
    """K and V of the tokens that the attention kernel read, in `kernel_ns`."""
    kernel_ns: int = 0
    roof_bytes_per_s: float = 0.0
    """Bytes per second of a copy within the HBM pool's memory, measured apart from the run."""
    wall_s: float = 0.0
    refused: int = 0
    """Sessions refused because the queue was full."""
    passed_over: int = 0
    """How often a session was passed over for a later one that shares more."""
    timeline: Timeline = field(default_factory=Timeline)

    def account(self, token: Token, result: FetchResult, selected: int, *, index: bool) -> None:
        """Count what a fetch of a token gave. `index`: of index keys, which are not selected."""
        demands = result.ends.size
        token.selected += 0 if index else selected
        token.demands += demands
        token.index_demands += demands if index else 0
        token.copy_ns += result.copy_ns
        known = result.ends[result.ends != UNKNOWN_END]
        token.ends += np.bincount(known, minlength=token.ends.size)
        self.untold += demands - known.size
        self.torn_reads += result.torn_count
        self.retries += result.retry_count

    def stall_ms(self) -> NDArray[np.float64]:
        """Stall per token in milliseconds, `[tokens]`."""
        return np.array([token.stall_ns for token in self.tokens], np.float64) / 1e6

    def token_ms(self) -> NDArray[np.float64]:
        """Time per token in milliseconds, pacing included, `[tokens]`."""
        return np.array([t.ended_ns - t.begun_ns for t in self.tokens], np.float64) / 1e6

    def ends(self) -> NDArray[np.int64]:
        """Sum over all tokens, `[len(ENDS)]`."""
        return sum((token.ends for token in self.tokens), np.zeros(len(ENDS), np.int64))

    def add(self, tokens: Sequence[Token]) -> None:
        """The tokens of a tick, which are also those of their requests."""
        self.tokens.extend(tokens)
        for one in tokens:
            request = self.requests[one.session]
            request.token_at(one.ended_ns - self.begun_ns)
            request.late_blocks = (request.late_blocks or 0) + int(one.ends[HIT_ENDS])
            request.unreadable_blocks = (request.unreadable_blocks or 0) + one.unreadable

    def computed_share(self) -> float | None:
        """Time of ticks in which the batch did not wait for blocks, over the run's; None: no time
        has passed."""
        ticks = {one.begun_ns: (one.ended_ns, one.stall_ns) for one in self.tokens}
        computed_ns = sum(ended - begun - stall for begun, (ended, stall) in ticks.items())
        return computed_ns / 1e9 / self.wall_s if self.wall_s else None

    def ended(self) -> Demands:
        """Demands of all tokens by end; those without an answer are `unanswered`."""
        ends = self.ends()
        return Demands.of(ends, sum(token.demands for token in self.tokens) - int(ends.sum()))

    def ends_by_step(self) -> NDArray[np.int64]:
        """Ends of all sessions in each of their steps, `[steps, len(ENDS)]`."""
        steps = 1 + max((token.step for token in self.tokens), default=-1)
        ends = np.zeros((steps, len(ENDS)), np.int64)
        for token in self.tokens:
            ends[token.step] += token.ends
        return ends
