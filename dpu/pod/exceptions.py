"""What the home of a shard tracks beyond the map: heat, copies, pins. No clock, no socket.

The map says where a shard lives. Only its home knows whether it has copies elsewhere or is
pinned, and tells the hosts that query it. Hosts report their demands, wherever they read, so the
home sees the heat of all hosts together and decides alone which host makes the next copy, and which
copy is deleted. If a host dies before it has made a copy, its turn times out. Nothing here is
durable: a restarted daemon knows no exceptions, and learns of copies only when they are made again.
"""

from dataclasses import dataclass, field
from itertools import accumulate

import msgspec

from offstage.dpu.pod.heat import COLD, Heat, copies_wanted, is_quiet, is_spent, rate, warmed
from offstage.dpu.protocol.pod_calls import CONTENTS_MAX, Answer, Hot, ShardReport, Tally

__all__ = ["TURN_NS", "Exceptions"]

TURN_NS = 10_000_000_000
"""A host that was to make a copy has so long; then another may."""
PIN_NS = 10_000_000_000
"""A pin holds so long after a host said it last."""
SHARDS_MAX = 16_384
LOOKED_AT = 64
CONTENTS_SUM_MAX = 16 << 20
"""Bytes of the contents of all shards of a tenant; of the others none are asked for."""
HOT_BYTES_MAX = 4 << 20
"""Of one answer to who drains."""
HOT_OVERHEAD_BYTES = 256
SUM_MAX = 1 << 62
COPIES_MAX = 64


@dataclass
class _Kept:
    """One shard."""

    heat: Heat = COLD
    copies: list[str] = field(default_factory=list)
    turn_until_ns: int = 0
    quiet_since_ns: int = 0
    pinned_until_ns: int = 0
    contents: bytes = b""
    """So that who drains this member can name its blocks elsewhere."""
    asked: bool = False
    """Whether a host was asked for them."""


class Exceptions:
    """Of one tenant at one home."""

    def __init__(self, shards_max: int = SHARDS_MAX) -> None:
        self._shards: dict[bytes, _Kept] = {}
        self._shards_max = shards_max
        self._load, self._contents_bytes = COLD, 0
        self._tally = Tally()

    def served(self, demands: int, tally: Tally, now_ns: int) -> float:
        """A host says how much more it demanded here, of whatever shards, and what else it did;
        the load, demands per second of all hosts."""
        was, more = msgspec.structs.asdict(self._tally), msgspec.structs.asdict(tally)
        self._tally = Tally(**{name: min(was[name] + more[name], SUM_MAX) for name in was})
        self._load = warmed(self._load, demands, now_ns)
        return rate(self._load, now_ns)

    def told(self, report: ShardReport, now_ns: int) -> Answer:
        """Take in what a host says, and answer it."""
        kept = self._find(report.name)
        kept.heat = warmed(kept.heat, report.demands, now_ns)
        if kept.asked and report.contents and self._has_room():
            self._contents_bytes += len(report.contents) - len(kept.contents)
            kept.contents, kept.asked = report.contents, False
        if report.pinned:
            kept.pinned_until_ns = now_ns + PIN_NS
        if report.gone in kept.copies:
            kept.copies.remove(report.gone)
        if report.made:
            kept.turn_until_ns = 0
            if report.made not in kept.copies and len(kept.copies) < COPIES_MAX:
                kept.copies.append(report.made)
        make, drop = False, ""
        if report.hot_per_s > 0:
            make, drop = self._decide(kept, report, now_ns)
        hot = 0 < report.hot_per_s <= rate(kept.heat, now_ns)
        if not kept.contents:
            kept.asked = (bool(kept.copies) or hot or report.pinned) and self._has_room()
        return Answer(tuple(kept.copies), make, drop, kept.asked)

    def hot(self, now_ns: int, hot_per_s: float) -> list[Hot]:
        """The shards that are pinned, or have that rate, the hottest first, as far as they have
        room in an answer."""
        found = [
            Hot(
                name,
                one.contents,
                rate(one.heat, now_ns),
                one.pinned_until_ns > now_ns,
                tuple(one.copies),
            )
            for name, one in self._shards.items()
            if one.pinned_until_ns > now_ns or rate(one.heat, now_ns) >= hot_per_s
        ]
        found.sort(key=lambda one: -one.demands_per_s)
        sizes = accumulate(len(one.contents) + HOT_OVERHEAD_BYTES for one in found)
        return [one for one, size in zip(found, sizes, strict=True) if size <= HOT_BYTES_MAX]

    def counts(self, now_ns: int) -> dict[str, int | float]:
        """For status and metrics: `shards` known, `copies` of them elsewhere, `pinned`, and what
        hosts demand here per second, as `demands_per_s`; the sums of `Tally`."""
        kept = self._shards.values()
        return {
            **msgspec.structs.asdict(self._tally),
            "shards": len(kept),
            "copies": sum(len(one.copies) for one in kept),
            "pinned": sum(one.pinned_until_ns > now_ns for one in kept),
            "demands_per_s": rate(self._load, now_ns),
        }

    def _has_room(self) -> bool:
        return self._contents_bytes + CONTENTS_MAX <= CONTENTS_SUM_MAX

    @staticmethod
    def _decide(kept: _Kept, report: ShardReport, now_ns: int) -> tuple[bool, str]:
        held, demanded = len(kept.copies), rate(kept.heat, now_ns)
        if not is_quiet(demanded, held, report.hot_per_s, report.copies_max):
            kept.quiet_since_ns = 0
        elif not kept.quiet_since_ns:
            kept.quiet_since_ns = max(1, now_ns)
        if is_spent(kept.quiet_since_ns, now_ns, report.cool_ns):
            kept.quiet_since_ns = 0
            return False, kept.copies.pop()
        if (
            copies_wanted(demanded, report.hot_per_s, report.copies_max) > held
            and now_ns >= kept.turn_until_ns
        ):
            kept.turn_until_ns = now_ns + TURN_NS
            return True, ""
        return False, ""

    def _find(self, name: bytes) -> _Kept:
        """The shard, marked most recent; a new one evicts the oldest without copies."""
        kept = self._shards.pop(name, None)
        if kept is None:
            kept = _Kept()
            if len(self._shards) >= self._shards_max:
                oldest = list(zip(self._shards.items(), range(LOOKED_AT), strict=False))
                gone = self._shards.pop(
                    next((key for (key, one), _ in oldest if not one.copies), oldest[0][0][0])
                )
                self._contents_bytes -= len(gone.contents)
        self._shards[name] = kept
        return kept
