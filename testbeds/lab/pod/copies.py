"""Copies of hot shards in virtual time: the rule of `dpu.pod.heat`, for all hosts together.

Owns the heat of shards and daemons, and the places of copies. In a live pod a shard's home
learns of demands from the hosts with a delay; here it learns of them immediately, and a copy exists
as soon as it is decided. Demands count blocks of one layer, as a daemon does, so that the rule's
bound means the same as live.
"""

from dataclasses import dataclass, field

from offstage.dpu.pod.heat import (
    COLD,
    CopyRule,
    Heat,
    copies_wanted,
    hot_rate,
    is_quiet,
    is_spent,
    next_place,
    rate,
    read_places,
    warmed,
)

__all__ = ["Copies"]

LOOK_NS = 1_000_000_000
"""Time between two updates of the daemons' mean load."""
DRAWS = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


@dataclass
class _Kept:
    heat: Heat = COLD
    at: list[int] = field(default_factory=list)
    quiet_since_ns: int = 0


class Copies:
    """The copies of one pod. `made`: in total; `held`: now."""

    def __init__(self, rule: CopyRule, names: list[str], seed: int) -> None:
        self.rule, self._names = rule, names
        self._index = {name: at for at, name in enumerate(names)}
        self._kept: dict[int, _Kept] = {}
        self._loads = [COLD] * len(names)
        self._hot_per_s = float(rule.hot_blocks_per_s)
        self._looked_ns = 0
        self._draw = seed & MASK
        self.made = 0

    @property
    def held(self) -> int:
        """Copies that exist now, homes not counted."""
        return sum(len(one.at) for one in self._kept.values())

    def places(
        self, shard: int, home: int, before: int, usable: list[bool], busy_ns: list[int]
    ) -> list[int]:
        """Members to read the shard from, in order; `before`: its home before the last change."""
        kept = self._kept.get(shard)
        at: list[int] = []
        if kept is not None and kept.at:
            self._draw = (self._draw + DRAWS) & MASK
            at = [one for one in kept.at if usable[one]]
        loads = [busy_ns[one] for one in (home, *at)]
        former = [before] if before != home else []
        return list(read_places(home, at, former, loads, self._draw >> 20))

    def demanded(self, member: int, demands: int, now_ns: int) -> None:
        """Count the demands that a daemon served."""
        self._loads[member] = warmed(self._loads[member], demands, now_ns)
        if now_ns - self._looked_ns >= LOOK_NS:
            self._looked_ns = now_ns
            self._hot_per_s = hot_rate([rate(one, now_ns) for one in self._loads], self.rule)

    def warm(
        self,
        shard: int,
        demands: int,
        home: int,
        ranking: list[int],
        usable: list[bool],
        now_ns: int,
    ) -> int | None:
        """Count demands of a shard. Returns the member that gets a new copy, or None. Deletes a
        copy that was unneeded for `cool_s`."""
        kept = self._kept.setdefault(shard, _Kept())
        kept.heat = warmed(kept.heat, demands, now_ns)
        per_s, rule = rate(kept.heat, now_ns), self.rule
        if copies_wanted(per_s, self._hot_per_s, rule.copies_max) > len(kept.at):
            kept.quiet_since_ns = 0
            names = [self._names[one] for one in ranking if usable[one]]
            taken = [self._names[one] for one in (home, *kept.at)]
            name = next_place(names, taken)
            if name:
                self.made += 1
                kept.at.append(self._index[name])
                return kept.at[-1]
        elif kept.at and is_quiet(per_s, len(kept.at), self._hot_per_s, rule.copies_max):
            kept.quiet_since_ns = kept.quiet_since_ns or now_ns
            if is_spent(kept.quiet_since_ns, now_ns, rule.cool_s * 10**9):
                kept.at.pop()
                kept.quiet_since_ns = now_ns
        else:
            kept.quiet_since_ns = 0
        return None
