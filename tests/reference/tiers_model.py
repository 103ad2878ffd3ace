"""Tiers below the arena as plain lists: which tier has a block, and what moves. Time is only a
count of ns. The implementation in C is compared with this model."""

from dataclasses import dataclass, field

NEVER = 2**64 - 1


@dataclass
class TiersModel:
    """`capacities` and `promote_ns` of each tier, the fastest first; the last holds all."""

    capacities: list[int]
    promote_ns: list[int]
    exclusive: bool = False
    place_last: bool = False
    held: list[list[int]] = field(default_factory=list)
    last_ns: dict[int, int] = field(default_factory=dict)
    served: list[int] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.held = [[] for _ in self.capacities]
        self.served = [0] * len(self.capacities)
        self.writes = [0] * len(self.capacities)

    @property
    def last(self) -> int:
        return len(self.capacities) - 1

    def where(self, block: int) -> int | None:
        """Return the first tier that has the block."""
        return next((at for at, blocks in enumerate(self.held) if block in blocks), None)

    def place(self, now_ns: int, block: int) -> None:
        """Write a new block."""
        first = self.last if self.place_last else 0
        for tier in range(first, first + 1 if self.exclusive else self.last + 1):
            self.held[tier].append(block)
            self.writes[tier] += 1
        self.last_ns[block] = now_ns
        self._settle()

    def read(self, now_ns: int, block: int) -> int:
        """Return the tier that serves the block, which then moves."""
        found = self.where(block)
        if found is None:
            found = self.last
            self.held[found].append(block)
        self.served[found] += 1
        interval = now_ns - self.last_ns[block] if block in self.last_ns else NEVER
        self.last_ns[block] = now_ns
        for blocks in self.held:
            if block in blocks:
                blocks.remove(block)
                blocks.append(block)
        to = next((at for at in range(found) if interval < self.promote_ns[at]), found)
        if to < found and self.exclusive:
            self.held[found].remove(block)
        for tier in range(to, min(to + 1, found) if self.exclusive else found):
            self.held[tier].append(block)
            self.writes[tier] += 1
        self._settle()
        return found

    def _settle(self) -> None:
        for tier in range(self.last):
            while len(self.held[tier]) > self.capacities[tier]:
                block = self.held[tier].pop(0)
                if self.exclusive:
                    self.held[tier + 1].append(block)
                    self.writes[tier + 1] += 1
                else:
                    for above in self.held[:tier]:
                        if block in above:
                            above.remove(block)
