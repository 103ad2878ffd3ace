"""The daemons of a pod in virtual time: the blocks that each one holds, and the times of reads.

Owns, for each daemon, a store and an arena (LRU, blocks of 512 tokens), the three queues of a read
(commands, drives and link), and each host's suspicion of the daemon. Placement is that of
`dpu.pod`. Commands and links are first-come-first-served queues, and so are the drives' demands
(`drives`); a put takes no time, as in the rest of the laboratory. No clock: the caller passes
times.

A prefix ends at its first absent block, unless the spec lets hosts compute holes. If a shard's home
lacks a block, it is looked up at the home before the map's last change; blocks found there are
copied to the new home (`fill`).
"""

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from offstage.bindings.caches import NO_CACHE, Caches
from offstage.dpu.pod.map import Member, PodMap, moved
from offstage.dpu.pod.placement import ranked, shard_key
from offstage.host.pod.suspicion import SUSPECT_NS
from offstage.testbeds.lab.pod.copies import Copies
from offstage.testbeds.lab.pod.drives import Drives, Ends, Fates
from offstage.testbeds.lab.pod.requests import Requests
from offstage.testbeds.lab.pod.spec import PodSpec, Point
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS

__all__ = ["Looked", "Tier"]

U32 = NDArray[np.uint32]
Mask = NDArray[np.bool_]
RANKS = 2
"""Ranked members of a shard in addition to those for copies: the first may be gone."""
CHUNK = 4096


@dataclass(eq=False)
class Looked:
    """The result of a lookup, by block: `found`: the host or the pod has it; `read`: it is to be
    read from its `source`, the home of those that nobody has."""

    source: U32
    home: U32
    found: Mask
    read: Mask
    ready_ns: int
    """Time of the answer; a daemon that does not answer adds the deadline."""
    staged: Mask
    """Blocks to be read that an arena has, not the drives; `fetch` says which."""


@dataclass(frozen=True)
class _Arena:
    """One daemon's arena, for its drives."""

    caches: Caches
    number: int

    def holds(self, block: int) -> bool:
        return bool(self.caches.find(*self._one(block))[0])

    def stage(self, block: int) -> None:
        self.caches.use(*self._one(block))

    def _one(self, block: int) -> tuple[U32, U32]:
        return np.array([self.number], np.uint32), np.array([block], np.uint32)


class Tier:
    """The pod of one point. Counters: bytes `read`, `put`, `filled` and `copied` `[members]`;
    values by their `ends` and `fates`; `drive_bytes`: bytes read from drives; for how long all
    links and all drives were busy, `link_busy_ns` and `drive_busy_ns`."""

    def __init__(self, spec: PodSpec, point: Point, requests: Requests, hosts: int) -> None:
        self.spec = spec
        self._count = point.daemons
        members = tuple(
            Member(name=f"dpu{one:03}", endpoint=f"ipc://dpu{one:03}") for one in range(self._count)
        )
        self.pod = PodMap(
            epoch=1,
            shard_tokens=spec.shard_tokens,
            first_shard_tokens=spec.first_shard_tokens,
            member=members,
        )
        self.faulty = point.seed % self._count
        longest = int(np.diff(requests.offsets).max(initial=1))
        grid = self.pod.grid(TRACE_BLOCK_TOKENS)
        self._starts = grid.starts(longest)
        self._widths = np.diff(self._starts, append=longest + grid.most)
        self._shard, names = _shards(requests, self._starts, point.seed)
        self._ranks = _ranks(members, names, RANKS + spec.copies.copies_max)
        self.copies = Copies(spec.copies, [one.name for one in members], point.seed)
        self._chunk_demands = spec.chunk_demands
        room = spec.blocks(spec.store_bytes, self._count if spec.store_of == "pod" else 1)
        arena = min(room, spec.blocks(spec.arena_bytes))
        self._caches = Caches([room] * self._count + [arena] * self._count)
        self._home = np.ones(self._count, np.bool_)
        self._former = self._home.copy()
        self.alive = self._home.copy()
        self._suspect_ns = np.zeros((hosts, self._count), np.int64)
        self.ends, self.fates, self._demanded = Ends(), Fates(), 0
        self._drives = [
            Drives(spec, _Arena(self._caches, self._count + one), self.ends, self.fates)
            for one in range(self._count)
        ]
        self._command_ns, self._link_ns = [0] * self._count, [0] * self._count
        self._host_ns = [0] * hosts
        self.read = np.zeros(self._count, np.int64)
        self.put = np.zeros(self._count, np.int64)
        self.filled = np.zeros(self._count, np.int64)
        self.copied = np.zeros(self._count, np.int64)
        self.deadlines = self.link_busy_ns = 0

    # Changes of a daemon and of the map.

    def absent(self) -> None:
        """Start without the faulty daemon: it joins later."""
        self._home[self.faulty] = self._former[self.faulty] = False

    def mapped(self, state: str) -> None:
        """Change the map: the faulty member becomes `up`, `draining` or `gone`."""
        name = self.pod.member[self.faulty].name
        back = state == "up" and not self._home[self.faulty]
        if not back:
            self.pod = moved(self.pod, name, "draining" if state == "draining" else "gone")
        self.pod = replace(self.pod, epoch=self.pod.epoch + 1)
        self._former = self._home.copy()
        self._home[self.faulty] = back

    def die(self) -> None:
        """The faulty daemon stops answering, and its memory is lost."""
        self.alive[self.faulty] = False
        self._caches.clear(self._count + self.faulty)

    def rise(self) -> None:
        """The faulty daemon returns, with the contents of its drives."""
        self.alive[self.faulty] = True
        self._suspect_ns[:, self.faulty] = 0

    def slow_down(self) -> None:
        """Reduce the bandwidth of the faulty daemon's drives and link."""
        self._drives[self.faulty].slower = self.spec.slow

    def close(self, now_ns: int) -> None:
        """The run has ended: count what was staged and never retrieved."""
        for one in self._drives:
            one.close(now_ns)

    @property
    def drive_bytes(self) -> int:
        """Bytes that were read from drives, on demand and for hints."""
        values = self.spec.values_per_block
        return (self._demanded + self.fates.read) * self.spec.block_bytes // values

    @property
    def drive_busy_ns(self) -> int:
        """For how long all drives have read."""
        return sum(one.busy_ns for one in self._drives)

    # Calls of a host.

    def look(self, host: int, blocks: U32, first: int, now_ns: int) -> Looked:
        """Look up what of the request the pod has at this time, after the `first` blocks, which the
        host has. Free, unless the spec has hosts ask before they retrieve (`exist`)."""
        ranks = self._ranks_of(blocks)
        ready_ns = now_ns
        usable = self._suspect_ns[host] <= now_ns
        home = _best(ranks, self._home & usable)
        if not self.alive[home].all():
            self._suspect(host, now_ns)
            ready_ns += self.spec.deadline_ns
            usable = self._suspect_ns[host] <= now_ns
            home = _best(ranks, self._home & usable)
        former = home
        if (self._former != self._home).any():
            former = _best(ranks, self._former & usable & self.alive)
        at = self._spread(home, len(blocks))
        source, found = at, np.zeros(len(blocks), np.bool_)
        for places in self._places(host, blocks, home, former, now_ns):
            place = self._spread(places, len(blocks))
            there = ~found & self._caches.find(place, blocks)
            source = np.where(there, place, source).astype(np.uint32)
            found |= there
            if found.all():
                break
        found[:first] = True
        read = found if self.spec.holes else np.logical_and.accumulate(found)
        read = read & (np.arange(len(blocks)) >= first)
        if self.spec.exist:
            ready_ns = self._commands(at[first:], ready_ns)
        return Looked(source, at, found, read, ready_ns, np.zeros(len(blocks), np.bool_))

    def hint(self, host: int, blocks: U32, first: int, now_ns: int, deadline_ns: int) -> None:
        """Have the homes stage what they have of the blocks from `first` on, by the deadline."""
        home = _best(self._ranks_of(blocks), self._home & (self._suspect_ns[host] <= now_ns))
        at, named = self._spread(home, len(blocks))[first:], blocks[first:]
        self._commands(at, now_ns)
        for one in self._drives:
            one.go_on(now_ns)
        there = self._caches.find(at, named)
        staged = self._caches.find(_arenas(at, self._count), named)
        self._caches.use(_arenas(at[staged], self._count), named[staged])
        for member in np.unique(at[there & ~staged]).tolist():
            mine = named[there & ~staged & (at == member)].tolist()
            self._drives[member].hint(mine, deadline_ns, now_ns)

    def fetch(self, host: int, looked: Looked, blocks: U32, first: int) -> int:
        """Read what is to be read; returns the time at which all is at the host."""
        now_ns, values = looked.ready_ns, self.spec.values_per_block
        source, wanted = looked.source[looked.read], blocks[looked.read]
        self.ends.absent += values * int((~looked.found).sum())
        self.ends.behind += values * int((looked.found[first:] & ~looked.read[first:]).sum())
        asked = source if self.spec.exist else looked.source[first:]
        ends_ns = [self._commands(asked, now_ns) if len(asked) else now_ns]
        if len(wanted) == 0:
            return ends_ns[0]
        sent = np.bincount(source, minlength=self._count) * self.spec.block_bytes
        ends_ns.append(self._reserve_host(host, int(sent.sum()), now_ns))
        for member in np.flatnonzero(sent).tolist():
            self._drives[member].give_way(now_ns)
        staged = self._caches.find(_arenas(source, self._count), wanted)
        looked.staged[looked.read] = staged | (self.spec.hints == "perfect")
        for member in np.flatnonzero(sent).tolist():
            mine = source == member
            ends_ns.append(self._read(member, wanted[mine], staged[mine], now_ns))
            ends_ns.append(self._reserve_link(member, int(sent[member]), now_ns))
        self.read += sent
        self._caches.use(source, wanted)
        self._caches.use(source + np.uint32(self._count), wanted)
        self._fill(looked.home[looked.read], source, wanted)
        if self.spec.copies.copies_max:
            self._warm(host, looked, blocks, first)
        return max(ends_ns)

    def keep(self, host: int, blocks: U32, computed: Mask, now_ns: int) -> None:
        """Put the blocks that the host has computed at their homes."""
        if not computed.any():
            return
        home = _best(self._ranks_of(blocks), self._home & (self._suspect_ns[host] <= now_ns))
        if not self.alive[home].all():  # blocks sent there are lost
            self._suspect(host, now_ns)
        at, fresh_blocks = self._spread(home, len(blocks))[computed], blocks[computed]
        at = np.where(self.alive[at], at, NO_CACHE).astype(np.uint32)
        there = self._caches.find(at, fresh_blocks)
        self._caches.use(at, fresh_blocks)
        self._caches.use(_arenas(at, self._count), fresh_blocks)
        fresh = at[~there & (at != NO_CACHE)]
        self.put += np.bincount(fresh, minlength=self._count) * self.spec.block_bytes

    def held(self) -> list[int]:
        """Blocks in each daemon's store."""
        return [self._caches.held(one) for one in range(self._count)]

    def shard_counts(self) -> NDArray[np.int64]:
        """Number of the requests' shards homed at each daemon now."""
        return np.bincount(_best(self._ranks, self._home), minlength=self._count)

    def _places(
        self, host: int, blocks: U32, home: U32, former: U32, now_ns: int
    ) -> NDArray[np.uint32]:
        """Members to read each shard from, in order: `[turns, shards]`."""
        usable = (self._home & (self._suspect_ns[host] <= now_ns) & self.alive).tolist()
        shards = self._shard[blocks[self._begins(len(blocks))]].tolist()
        busy_ns = [max(0, ns - now_ns) for ns in self._link_ns]
        found = [
            self.copies.places(*each, usable, busy_ns)
            for each in zip(shards, home.tolist(), former.tolist(), strict=True)
        ]
        turns = max(map(len, found), default=0)
        padded = [row + row[:1] * (turns - len(row)) for row in found]
        return np.array(padded, np.uint32).reshape(-1, turns).T

    def _warm(self, host: int, looked: Looked, blocks: U32, first: int) -> None:
        """Count the demands of a read, and make the copies that they trigger."""
        now_ns = looked.ready_ns
        for member, count in zip(
            *np.unique(looked.source[looked.read], return_counts=True), strict=True
        ):
            self.copies.demanded(int(member), int(count) * self._chunk_demands, now_ns)
        usable = (self._home & self.alive).tolist()
        begins = self._begins(len(blocks))
        counts = np.add.reduceat(looked.read, begins, dtype=np.int64)
        for number in np.flatnonzero(counts).tolist():
            begin = int(begins[number])
            has = looked.read[begin : begin + self._widths[number]].copy()
            has[: max(0, first - begin)] = True
            inside = begin + np.flatnonzero(has)
            shard = int(self._shard[blocks[begin]])
            to = self.copies.warm(
                shard,
                int(counts[number]) * self._chunk_demands,
                int(looked.home[begin]),
                self._ranks[shard].tolist(),
                usable,
                now_ns,
            )
            if to is not None:
                at = np.full(len(inside), to, np.uint32)
                self._caches.use(at, blocks[inside])
                self._caches.use(at + np.uint32(self._count), blocks[inside])
                self.copied[to] += len(at) * self.spec.block_bytes

    def _fill(self, home: U32, source: U32, wanted: U32) -> None:
        if not self.spec.fill or not (self._former != self._home).any():
            return
        moved_over = (home != source) & ~self._caches.find(home, wanted)
        if moved_over.any():
            self._caches.use(home[moved_over], wanted[moved_over])
            copied = np.bincount(home[moved_over], minlength=self._count)
            self.filled += copied * self.spec.block_bytes

    def _read(self, member: int, wanted: U32, staged: Mask, now_ns: int) -> int:
        """Have the blocks in the member's arena; the time at which they are."""
        drives, values = self._drives[member], self.spec.values_per_block
        before = self.ends.missing
        if self.spec.hinted:
            end_ns = drives.retrieve(wanted.tolist(), staged.tolist(), now_ns)
            self._demanded += self.ends.missing - before
            return end_ns
        missing = values * int((~staged).sum())
        self._demanded += missing
        if self.spec.hints == "perfect":
            self.ends.on_time += values * len(wanted)
            return now_ns
        self.ends.on_time += values * len(wanted) - missing
        self.ends.missing += missing
        return drives.read(missing, now_ns) if missing else now_ns

    def _reserve_link(self, member: int, sent: int, now_ns: int) -> int:
        begin_ns = max(now_ns, self._link_ns[member])
        slower = self._drives[member].slower
        end_ns = begin_ns + sent * slower * 10**9 // self.spec.link_bytes_per_s
        self._link_ns[member] = end_ns
        self.link_busy_ns += end_ns - begin_ns
        return end_ns

    def _commands(self, at: U32, now_ns: int) -> int:
        """A command for each value of blocks at these members; the time of the last answer."""
        if not self.spec.commands_per_s:
            return now_ns + self.spec.round_trip_ns
        counts, end_ns = np.bincount(at, minlength=self._count), now_ns
        for member in np.flatnonzero(counts).tolist():
            commands = int(counts[member]) * self.spec.values_per_block
            begin_ns = max(now_ns, self._command_ns[member])
            spent_ns = commands * 10**9 // self.spec.commands_per_s
            self._command_ns[member] = begin_ns + spent_ns
            end_ns = max(end_ns, begin_ns + spent_ns)
        return end_ns + self.spec.round_trip_ns

    def _reserve_host(self, host: int, sent: int, now_ns: int) -> int:
        end_ns = max(now_ns, self._host_ns[host]) + sent * 10**9 // self.spec.link_bytes_per_s
        self._host_ns[host] = end_ns
        return end_ns

    def _suspect(self, host: int, now_ns: int) -> None:
        self._suspect_ns[host, ~self.alive] = now_ns + self.spec.deadline_ns + SUSPECT_NS
        self.deadlines += 1

    def _ranks_of(self, blocks: U32) -> U32:
        found: U32 = self._ranks[self._shard[blocks[self._begins(len(blocks))]]]
        return found

    def _begins(self, count: int) -> NDArray[np.int64]:
        """First blocks of the shards of a request of `count` blocks."""
        begins: NDArray[np.int64] = self._starts[: np.searchsorted(self._starts, count)]
        return begins

    def _spread(self, members: U32, count: int) -> U32:
        """Expand members by shard to members by block, `[count]`."""
        return np.ascontiguousarray(np.repeat(members, self._widths[: len(members)])[:count])


def _best(ranks: U32, mask: Mask) -> U32:
    """The best member of each shard within `mask`, uint32 `[shards]`."""
    chosen = mask[ranks].argmax(axis=1)
    best: U32 = ranks[np.arange(len(ranks)), chosen]
    return best


def _arenas(at: U32, count: int) -> U32:
    return np.where(at == NO_CACHE, NO_CACHE, at + np.uint32(count)).astype(np.uint32)


def _shards(
    requests: Requests, starts: NDArray[np.int64], seed: int
) -> tuple[NDArray[np.int32], list[bytes]]:
    """The shard's number for each first block, -1 for other blocks; and the shards' names."""
    inside = np.arange(len(requests.blocks)) - np.repeat(
        requests.offsets[:-1], np.diff(requests.offsets)
    )
    firsts = np.unique(requests.blocks[np.isin(inside, starts)])
    number = np.full(requests.block_count, -1, np.int32)
    number[firsts] = np.arange(len(firsts))
    pod = seed.to_bytes(8, "little")
    return number, [shard_key([one], pod) for one in firsts.tolist()]


def _ranks(members: tuple[Member, ...], names: list[bytes], most: int) -> U32:
    """The best members of each shard, uint32 `[shards, most or fewer]`."""
    count = min(most, len(members))
    found = [ranked(members, names[at : at + CHUNK], count) for at in range(0, len(names), CHUNK)]
    return np.concatenate(found).astype(np.uint32)
