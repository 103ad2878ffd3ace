"""The plain model's eviction orders: one object for each set of each tenant, lists and `min`.

State that a policy keeps for the whole tenant, mainly its ghosts, is in `Memory`.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import ClassVar

from core_model_parts import Slot

Block = tuple[int, int]


class Memory:
    """A tenant's eviction state besides the order of its slots, until the tenant is forgotten."""

    KINDS = ("once", "often", "returns")

    def __init__(self, slot_count: int) -> None:
        self.slot_count = slot_count
        self.orders: list[Order] = []
        self.time = 0
        self.forget()

    def forget(self) -> None:
        self.ghosts: dict[str, OrderedDict[Block, None]] = {k: OrderedDict() for k in self.KINDS}
        self.target, self.often, self.filled = 0.0, False, False

    def count(self, kind: str) -> int:
        return len(self.ghosts[kind])

    def drop(self, *kinds: str) -> bool:
        """Forget the oldest entry of the first list that is not empty."""
        for kind in kinds:
            if self.ghosts[kind]:
                self.ghosts[kind].popitem(last=False)
                return True
        return False

    def push(self, block: Block, kind: str) -> None:
        if sum(map(len, self.ghosts.values())) == 2 * self.slot_count:
            self.drop("returns", "often", "once")
        self.ghosts[kind][block] = None

    def expect(self, block: Block) -> str | None:
        for kind in ("once", "often"):
            if block in self.ghosts[kind]:
                del self.ghosts[kind][block]
                self.ghosts["returns"][block] = None
                return kind
        return None

    def remove(self, block: Block) -> bool:
        return any([self.ghosts[kind].pop(block, 0) is None for kind in self.KINDS])

    def now(self) -> int:
        self.time += 1
        return self.time


def first_free(slots: list[Slot]) -> Slot | None:
    return next((slot for slot in slots if not slot.held), None)


class Order:
    """Eviction order of one set of one tenant: LRU; other policies override where they differ."""

    def __init__(self, memory: Memory, draw: Callable[[int], int]) -> None:
        self.slots: list[Slot] = []
        self.memory, self.draw = memory, draw

    def expect(self, block: Block, demanded: bool) -> None:
        """A slot is about to be taken for the block."""

    def add(self, slot: Slot) -> None:
        self.slots.append(slot)

    def remove(self, slot: Slot, evicted: bool) -> None:
        self.slots.remove(slot)

    def use(self, slot: Slot) -> None:
        self.slots.remove(slot)
        self.slots.append(slot)

    def rescore(self, slot: Slot, score: int) -> None:
        slot.score = score

    def victim(self) -> Slot | None:
        return first_free(self.slots)


class Fifo(Order):
    def use(self, slot: Slot) -> None:
        """A use changes nothing."""


class Random(Order):
    def remove(self, slot: Slot, evicted: bool) -> None:
        last = self.slots.pop()
        if last is not slot:
            self.slots[self.slots.index(slot)] = last

    def use(self, slot: Slot) -> None:
        """A use changes nothing."""

    def victim(self) -> Slot | None:
        if not self.slots:
            return None
        first = self.draw(len(self.slots))
        return first_free(self.slots[first:] + self.slots[:first])


class Queues(Order):
    """Several queues: each slot names its own; `slots` is in order of entry into a queue."""

    def queue(self, name: str) -> list[Slot]:
        return [slot for slot in self.slots if slot.queue == name]

    def enter(self, slot: Slot, name: str) -> None:
        if slot in self.slots:
            self.slots.remove(slot)
        slot.queue = name
        self.slots.append(slot)


class S3Fifo(Queues):
    def expect(self, block: Block, demanded: bool) -> None:
        self.memory.expect(block)

    def small_is_full(self) -> bool:
        return len(self.queue("small")) >= max(self.memory.slot_count // 10, 1)

    def add(self, slot: Slot) -> None:
        returned = self.memory.remove(slot.block)
        overflow = not self.memory.filled and self.small_is_full()
        self.enter(slot, "main" if returned or overflow else slot.queue or "small")

    def remove(self, slot: Slot, evicted: bool) -> None:
        self.slots.remove(slot)
        if evicted and slot.queue == "small":
            self.memory.push(slot.block, "once")
            if self.memory.count("once") > self.memory.slot_count * 9 // 10:
                self.memory.drop("once")

    def use(self, slot: Slot) -> None:
        slot.frequency = min(slot.frequency + 1, 3)

    def victim(self) -> Slot | None:
        self.memory.filled = True
        scans = [self._from_small, self._from_main]
        for scan in scans if self.small_is_full() else scans[::-1]:
            slot = scan()
            if slot is not None:
                return slot
        return None

    def _from_small(self) -> Slot | None:
        for slot in self.queue("small"):
            if slot.held:
                continue
            if slot.frequency < 2:
                return slot
            slot.frequency = 0
            self.enter(slot, "main")
        return None

    def _from_main(self) -> Slot | None:
        for _ in range(4):
            for slot in self.queue("main"):
                if slot.held:
                    continue
                if slot.frequency == 0:
                    return slot
                slot.frequency -= 1
                self.enter(slot, "main")
        return None


class Score(Order):
    """Lowest score first; among equals, the order of use or of change."""

    def rescore(self, slot: Slot, score: int) -> None:
        if score != slot.score:
            self.slots.remove(slot)
            self.slots.append(slot)
        slot.score = score

    def victim(self) -> Slot | None:
        return first_free(sorted(self.slots, key=lambda slot: slot.score))


class Sieve(Order):
    hand: Slot | None = None

    def remove(self, slot: Slot, evicted: bool) -> None:
        if self.hand is slot:
            later = self.slots[self.slots.index(slot) + 1 :]
            self.hand = later[0] if later else None
        self.slots.remove(slot)

    def use(self, slot: Slot) -> None:
        slot.frequency = 1

    def victim(self) -> Slot | None:
        start = self.slots.index(self.hand) if self.hand else 0
        for slot in (self.slots[start:] + self.slots[:start]) * 2:
            if not slot.held and not slot.frequency:
                self.hand = slot
                return slot
            if not slot.held:
                slot.frequency = 0
        return None


class Uses(Queues):
    """Counts the uses of a slot up to two; a guess has none until a demand meets it."""

    NAMES: ClassVar[tuple[str, str, str]]  # of the queue, by the number of uses

    def add(self, slot: Slot) -> None:
        if slot.frequency == 0 and not slot.fresh:
            slot.frequency = 1
        slot.frequency += self.memory.remove(slot.block)
        self.enter(slot, self.NAMES[slot.frequency])

    def use(self, slot: Slot) -> None:
        slot.frequency = min(slot.frequency + 1, 2)
        self.enter(slot, self.NAMES[slot.frequency])


class LruK(Uses):
    NAMES = ("once", "once", "twice")

    def add(self, slot: Slot) -> None:
        super().add(slot)
        slot.times = [self.memory.now() for _ in range(slot.frequency)]

    def use(self, slot: Slot) -> None:
        super().use(slot)
        slot.times = [*slot.times, self.memory.now()][-2:]

    def victim(self) -> Slot | None:
        twice = sorted(self.queue("twice"), key=lambda slot: slot.times[0])
        return first_free(self.queue("once")) or first_free(twice)


class Arc(Uses):
    NAMES = ("T1", "T1", "T2")

    def expect(self, block: Block, demanded: bool) -> None:
        memory = self.memory
        once, often = memory.count("once"), memory.count("often")
        kind = memory.expect(block)
        memory.often = kind == "often"
        if demanded and kind == "once":
            memory.target = min(memory.target + max(often / once, 1.0), memory.slot_count)
        elif demanded and kind == "often":
            memory.target = max(memory.target - max(once / often, 1.0), 0.0)

    def size(self, name: str) -> int:
        return sum(len(order.queue(name)) for order in self.memory.orders)

    def add(self, slot: Slot) -> None:
        super().add(slot)
        memory = self.memory
        while self.size("T1") + memory.count("once") > memory.slot_count and memory.drop("once"):
            pass
        resident = self.size("T1") + self.size("T2")
        while resident + sum(map(len, memory.ghosts.values())) > 2 * memory.slot_count:
            memory.drop("often", "returns")

    def remove(self, slot: Slot, evicted: bool) -> None:
        self.slots.remove(slot)
        if evicted and slot.frequency:
            self.memory.push(slot.block, "once" if slot.queue == "T1" else "often")

    def victim(self) -> Slot | None:
        first, target = self.size("T1"), self.memory.target
        names = ["T2", "T1"]
        if first > target or (first and first == target and self.memory.often):
            names = ["T1", "T2"]
        elif self.size("T2") == 0:
            names = ["T1", "T2"]
        return first_free(self.queue(names[0])) or first_free(self.queue(names[1]))


ORDERS: dict[str, type[Order]] = {
    "lru": Order,
    "fifo": Fifo,
    "random": Random,
    "s3fifo": S3Fifo,
    "score": Score,
    "sieve": Sieve,
    "lru_k": LruK,
    "arc": Arc,
}
