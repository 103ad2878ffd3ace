"""Events for vLLM's subscribers: blocks that the tier has, and blocks that it lost.

A unit's event waits until all of its objects are stored. Owned by the scheduler's thread.
"""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from offstage.host.connectors.vllm.groups import Groups

__all__ = ["Events", "Gone", "Saved"]

TOLD_MAX = 1 << 16  # blocks of which vLLM's subscribers were told, and may be told that they went


@dataclass(frozen=True)
class Saved:
    """A block that the tier has now, by vLLM's own hashes."""

    block_hash: Any
    parent_hash: Any
    tokens: list[int]
    lora: Any


@dataclass(frozen=True)
class Gone:
    """A block that the tier had, and has no more."""

    block_hash: Any


class Events:
    """Nothing is kept unless `on`. `hash_tokens`: tokens of one of vLLM's hashes; 0: of a unit."""

    def __init__(self, groups: Groups, *, on: bool, hash_tokens: int = 0) -> None:
        self._groups, self._on = groups, on
        self._hashes = groups.unit // (hash_tokens or groups.unit)  # of a unit
        self._events: deque[Saved | Gone] = deque()
        self._told: dict[bytes, Saved] = {}
        self._parts: Counter[bytes] = Counter()  # of `_told`: how many objects of it are stored

    def saves(self, request: Any, keys: Sequence[bytes], first: int, last: int) -> None:
        """A step saves the units from `first` to `last` of a request, whose keys are `keys`."""
        hashes, tokens = getattr(request, "block_hashes", ()), self._groups.unit
        if not self._on or len(hashes) < last * self._hashes:
            return
        for place in range(first, last):
            at = place * self._hashes
            text = list(request.all_token_ids[place * tokens : (place + 1) * tokens])
            parent = hashes[at - 1] if place else None
            self._told[keys[place]] = Saved(
                hashes[at + self._hashes - 1], parent, text, request.lora_request
            )
            self._parts[keys[place]] = 0
        while len(self._told) > TOLD_MAX:
            oldest = next(iter(self._told))
            del self._told[oldest], self._parts[oldest]

    def stored(self, keys: Sequence[bytes]) -> None:
        """Workers have stored objects of these keys."""
        for one in keys if self._on else ():
            key = self._groups.unit_of(one)
            if key in self._told:
                self._parts[key] += 1
                if self._parts[key] == self._groups.objects_per_unit:
                    self._events.append(self._told[key])

    def gone(self, key: bytes) -> None:
        """A unit could not be loaded."""
        saved = self._told.pop(key, None)
        self._parts.pop(key, None)
        if saved is not None:
            self._events.append(Gone(saved.block_hash))

    def take(self) -> list[Saved | Gone]:
        """What was not yet reported."""
        return [self._events.popleft() for _ in range(len(self._events))]
