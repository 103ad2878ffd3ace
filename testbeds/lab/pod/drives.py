"""A daemon's drives in virtual time: reads on demand, and hinted reads in the gaps between these.

Owns the queue of one daemon's drives. Demands are served first come, first served, before all
hinted reads. Of these the earliest deadline is next; one whose deadline has passed is dropped, as
in the decision core. A hinted read gives way to a demand after the value that is being read. The
caller owns the arena, and passes times that do not go back.

Ends and fates count values, and mean what they mean of blocks (docs/reference/figures.md): *on
time* is staged when it was retrieved, *late* was in flight, *missing* only the store had.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from offstage.testbeds.lab.pod.spec import PodSpec

__all__ = ["Arena", "Drives", "Ends", "Fates"]


@dataclass
class Ends:
    """What became of the values of prompts that the host's own pool had not."""

    on_time: int = 0
    late: int = 0
    missing: int = 0
    absent: int = 0
    """No daemon had them."""
    behind: int = 0
    """A daemon had them, behind a hole, and the host computed them all the same."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.on_time + self.late + self.missing + self.absent + self.behind


@dataclass
class Fates:
    """What became of the values that hints named and the arena had not."""

    used: int = 0
    late: int = 0
    unused: int = 0
    dropped: int = 0

    @property
    def read(self) -> int:
        """Values that were read for a hint."""
        return self.used + self.late + self.unused


class Arena(Protocol):
    """The memory of one daemon, as its drives see it."""

    def holds(self, block: int) -> bool:
        """Whether it holds the block."""

    def stage(self, block: int) -> None:
        """The block has landed; others may have to leave."""


@dataclass
class _Hinted:
    """A block that a hint named: `done` values are read, the last lands at `landed_ns`."""

    deadline_ns: int
    since_ns: int
    done: int = 0
    landed_ns: int = 0


class Drives:
    """The drives of one daemon. `slower` divides their rate; `busy_ns`: for how long they read."""

    def __init__(self, spec: PodSpec, arena: Arena, ends: Ends, fates: Fates) -> None:
        self.slower, self.busy_ns = 1, 0
        self._spec, self._arena, self._ends, self._fates = spec, arena, ends, fates
        self._values = spec.values_per_block
        self._free_ns = 0
        self._waiting: dict[int, _Hinted] = {}
        self._order: list[tuple[int, int, int]] = []
        """A heap of (deadline, since, block); one that `_waiting` contradicts is void."""
        self._running: tuple[int, _Hinted, int] | None = None
        """Block, its hint, and when the read of its remaining values began."""
        self._fresh: dict[int, int] = {}
        """Blocks staged by a hint and not retrieved since, and when each landed."""

    def hint(self, blocks: Iterable[int], deadline_ns: int, now_ns: int) -> None:
        """Read blocks that the arena does not hold, until the deadline."""
        self.go_on(now_ns)
        for block in blocks:
            if self._fresh.pop(block, None) is not None:  # evicted since
                self._fates.unused += self._values
            if self._running is not None and self._running[0] == block:
                continue
            one = self._waiting.setdefault(block, _Hinted(deadline_ns, now_ns))
            one.deadline_ns = min(one.deadline_ns, deadline_ns)
            heapq.heappush(self._order, (one.deadline_ns, one.since_ns, block))
        self.go_on(now_ns)

    def go_on(self, now_ns: int) -> None:
        """Serve hinted reads until this time."""
        while True:
            if self._running is not None:
                block, one, begun_ns = self._running
                end_ns = begun_ns + self._read_ns(self._values - one.done)
                if end_ns > now_ns:
                    return
                self._running, self._free_ns = None, end_ns
                self.busy_ns += end_ns - begun_ns
                self._stage(block, end_ns + self._spec.read_latency_ns)
            elif not self._begin(now_ns):
                return

    def give_way(self, now_ns: int) -> None:
        """Serve hinted reads until this time, and end the running one after its current value."""
        self.go_on(now_ns)
        if self._running is None:
            return
        block, one, begun_ns = self._running
        self._running, left = None, self._values - one.done
        whole_ns = max(1, self._read_ns(left))
        begun = min(left, -(-(now_ns - begun_ns) * left // whole_ns))
        self._free_ns = begun_ns + self._read_ns(begun)
        self.busy_ns += self._free_ns - begun_ns
        one.done += begun
        if begun:
            one.landed_ns = self._free_ns + self._spec.read_latency_ns
        if one.done == self._values:
            self._stage(block, one.landed_ns)
        else:
            self._waiting[block] = one
            heapq.heappush(self._order, (one.deadline_ns, one.since_ns, block))

    def retrieve(self, blocks: Iterable[int], staged: Iterable[bool], now_ns: int) -> int:
        """Read what is not staged; the time at which all is in the arena. `give_way` first, then
        look which blocks are staged."""
        end_ns, missing = now_ns, 0
        for block, there in zip(blocks, staged, strict=True):
            landed_ns, done = self._fresh.pop(block, None), self._values if there else 0
            one = None if there else self._waiting.pop(block, None)
            if landed_ns is not None and not there:
                self._fates.unused += self._values
                landed_ns = None
            if one is not None:
                done, landed_ns = one.done, one.landed_ns if one.done else None
                self._fates.dropped += self._values - done
            late = int(landed_ns is not None and landed_ns > now_ns)
            if landed_ns is not None:
                self._fates.late += late
                self._fates.used += done - late
                end_ns = max(end_ns, landed_ns)
            self._ends.late += late
            self._ends.on_time += done - late
            missing += self._values - done
        self._ends.missing += missing
        return max(end_ns, self.read(missing, now_ns)) if missing else end_ns

    def read(self, values: int, now_ns: int) -> int:
        """Read on demand; the time at which the last of them lands."""
        read_ns = self._read_ns(values)
        self._free_ns = max(now_ns, self._free_ns) + read_ns
        self.busy_ns += read_ns
        return self._free_ns + self._spec.read_latency_ns

    def close(self, now_ns: int) -> None:
        """The run has ended: what was staged and not retrieved is unused."""
        self.give_way(now_ns)
        self._fates.unused += self._values * len(self._fresh)
        for one in self._waiting.values():
            self._fates.unused += one.done
            self._fates.dropped += self._values - one.done

    def _begin(self, now_ns: int) -> bool:
        """Begin the hinted read with the earliest deadline, if one can begin by now."""
        while self._order:
            deadline_ns, since_ns, block = self._order[0]
            one = self._waiting.get(block)
            begin_ns = max(self._free_ns, since_ns)
            if one is not None and one.deadline_ns == deadline_ns and begin_ns > now_ns:
                return False
            heapq.heappop(self._order)
            if one is None or one.deadline_ns != deadline_ns:
                continue
            if deadline_ns < begin_ns or self._arena.holds(block):
                del self._waiting[block]
                self._fates.unused += one.done
                self._fates.dropped += self._values - one.done
                continue
            self._running = block, self._waiting.pop(block), begin_ns
            return True
        return False

    def _stage(self, block: int, landed_ns: int) -> None:
        self._arena.stage(block)
        self._fresh[block] = landed_ns

    def _read_ns(self, values: int) -> int:
        size = values * self._spec.block_bytes // self._values
        return size * self.slower * 10**9 // self._spec.drive_bytes_per_s
