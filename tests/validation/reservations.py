"""A drive that reserves all of its time when a command comes, as NVMeVirt does, in few words.

Model: a read waits for its die, which is busy until the data have left, then for channel and link,
which have lists of gaps that later commands fill; so an older command goes first everywhere. Pages
are read in one of two times in turn. The servers' rates are whole credits of 128 bytes in 4 us. A
write is taken when the buffer has room for all of it, and four logs, by address, gather programs.

It says why our model differs where it does (test_tables_nvmevirt.py), and is no part of it.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

CREDIT_BYTES, SLOT_NS, UNIT = 128, 4000, 4096


def credits(bytes_per_s: int) -> float:
    """Bytes in a ns of a server that gives whole credits in each slot."""
    return bytes_per_s * SLOT_NS // 10**9 // CREDIT_BYTES * CREDIT_BYTES / SLOT_NS


@dataclass
class Server:
    """Busy until `free`, but for the gaps."""

    rate: float
    free: float = 0.0
    gaps: list[tuple[float, float]] = field(default_factory=list)

    def take(self, now: float, ready: float, size_bytes: int) -> float:
        """The end of a transfer that can begin at `ready`; gaps before `now` are forgotten."""
        need, end, left = size_bytes / self.rate, ready, []
        for begin, stop in self.gaps:
            at = max(begin, ready)
            used = max(0.0, min(need, stop - at))
            need, end = need - used, at + used if used else end
            left += [(begin, at), (at + used, stop)] if used else [(begin, stop)]
        self.gaps = [gap for gap in left if gap[1] > max(gap[0], now)]
        if need <= 0:
            return end
        begin = max(self.free, ready)
        if begin > self.free:
            self.gaps.append((self.free, begin))
        self.free = begin + need
        return self.free


@dataclass
class Reserved:
    """`params` of our model, and by how much two kinds of pages differ from its tR, in ns."""

    params: dict[str, int]
    apart_ns: int = 0

    def __post_init__(self) -> None:
        one = self.params
        self.count = one["channel_count"] * one["dies_per_channel"]
        self.stripe = max(1, one["stripe_pages"])
        self.program = one["program_pages"] * one["page_size_bytes"]
        self.dies = [0.0] * self.count
        rate = credits(one["channel_bytes_per_s"])
        self.channels = [Server(rate) for _ in range(one["channel_count"])]
        self.link = Server(credits(one["link_bytes_per_s"]))
        self.left = one["write_buffer_bytes"]
        self.gathered, self.programs = [0] * self.stripe, [0] * self.stripe

    def parts(self, offset: int, size: int) -> Iterator[tuple[int, int]]:
        """Page and bytes of a read of whole 4 KiB."""
        page_units, found = self.params["page_size_bytes"] // UNIT, dict[int, int]()
        for unit in range(offset // UNIT, (offset + size) // UNIT):
            page = unit // (page_units * self.stripe) * self.stripe + unit % self.stripe
            found[page] = found.get(page, 0) + UNIT
        yield from found.items()

    def read(self, now: float, offset: int, size: int) -> float:
        """When it ends, in ns."""
        one, last = self.params, 0.0
        small = "small_" if size <= UNIT else ""
        start = now + one[f"{small}firmware_ps"] / 1000
        for page, left in self.parts(offset, size):
            die = page // one["program_pages"] % self.count
            kind = page // one["program_pages"] // self.count % 2
            read_ns = one["small_read_ps" if left == UNIT else "read_ps"] / 1000
            at = max(self.dies[die], start) + read_ns + (2 * kind - 1) * self.apart_ns
            while left:
                piece = min(left, one["piece_bytes"] or left)
                at = self.channels[die % len(self.channels)].take(now, at, piece)
                if one["piece_bytes"]:
                    last = max(last, self.link.take(now, at, piece))
                left -= piece
            self.dies[die], last = at, max(last, at)
        return last if one["piece_bytes"] else self.link.take(now, last, size)

    def write(self, now: float, offset: int, size: int) -> tuple[float, list[float]] | None:
        """Its end and those of the programs that it fills; None: the buffer has no room."""
        if size > self.left:
            return None
        self.left -= size
        one = self.params
        firmware_ps = one["write_firmware_ps"] + size // UNIT * one["write_each_ps"]
        end = self.link.take(now, now + firmware_ps / 1000, size)
        ends = []
        for unit in range(offset // UNIT, (offset + size) // UNIT):
            log = unit % self.stripe
            self.gathered[log] += UNIT
            if self.gathered[log] < self.program:
                continue
            self.gathered[log] = 0
            # a log has two channels of its own
            die = (self.programs[log] * self.stripe + log) % self.count
            self.programs[log] += 1
            begin = max(self.dies[die], end)
            at = self.channels[die % len(self.channels)].take(now, begin, self.program)
            self.dies[die] = at + one["program_ps"] / 1000
            ends.append(self.dies[die])
        return end, ends


def reserved_ns(
    drive: Reserved, offsets: list[int], size: int, depth: int, write: bool
) -> list[float]:
    """The latency of each in a closed loop, in ns."""
    took, begun, events = [0.0] * len(offsets), list[float](), list[tuple[float, int]]()
    now, taken, ended = 0.0, 0, 0
    while ended < len(offsets):
        while len(begun) < min(len(offsets), ended + depth):
            begun.append(now)
        while taken < len(begun):
            ends: list[float] = []
            if write:
                found = drive.write(now, offsets[taken], size)
                if found is None:
                    break
                end, ends = found
            else:
                end = drive.read(now, offsets[taken], size)
            for at in ends:
                heapq.heappush(events, (at, -1))
            heapq.heappush(events, (end, taken))
            taken += 1
        now, tag = heapq.heappop(events)
        if tag < 0:
            drive.left += drive.program
        else:
            took[tag], ended = now - begun[tag], ended + 1
    return took
