"""Groups of layers that vLLM keeps together, and which of their blocks a prefix needs.

Layers of one group need the same blocks: full attention all of a prefix, a sliding window the last
ones, which the next token sees. Groups may differ in the tokens of a block; a *unit* is as many
tokens as are whole blocks of every group. Keys are of units. An object is one group's part of one
block; a model with a single group has one object for each unit, under the unit's own key.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.host.connectors.vllm.keys import shards

__all__ = ["Group", "Groups", "Object", "groups_of"]

PART_BYTES = 2  # of a key, which name the group and the block of its unit
NO_BLOCK = 0  # vLLM's number where a window has passed
FULL = ("FullAttentionSpec", "MLAAttentionSpec")
WINDOWS = ("SlidingWindowSpec", "SlidingWindowMLASpec")


@dataclass(frozen=True)
class Group:
    """One group: the tokens of a block, the bytes of one of all its layers (one worker's), how many
    tokens the next one sees, itself included (0: all), whether it keeps latents (MLA), and and
    how many KV heads (one worker's) divide those of each layer."""

    block_tokens: int
    size: int
    window: int = 0
    names: tuple[str, ...] = ()
    latents: bool = False
    heads: int = 0

    def first(self, tokens: int) -> int:
        """The first block that is needed after `tokens`; vLLM keeps none before it."""
        seen = max(0, tokens - self.window + 1) if self.window else 0
        return seen // self.block_tokens


@dataclass(frozen=True)
class Object:
    """One object: a part of a group's block. `unit`: its place among those asked for."""

    key: bytes
    size: int
    group: int
    unit: int


class Groups:
    """All groups of a model, as `ranks` workers have them. `parts`: objects of a block, of all
    workers; 0: one for each worker."""

    def __init__(self, groups: Sequence[Group], ranks: int = 1, parts: int = 0) -> None:
        self._groups, self.ranks, self.parts = tuple(groups), ranks, parts or ranks
        self.unit = math.lcm(*(one.block_tokens for one in groups))
        self._each = [self.unit // one.block_tokens for one in groups]  # blocks of a unit
        self.whole = len(groups) > 1 or groups[0].window > 0
        """A prefix is loaded as a whole or not at all: vLLM cannot be told of single blocks that
        did not load, and it keeps none of a window from which a lost one could be computed."""
        self.objects_per_unit = self.parts * sum(self._each)
        full = [one for one in groups if not one.window] or groups
        self.token_bytes = ranks * sum(one.size / one.block_tokens for one in full)
        """Of the KV that a longer prefix adds to a load."""

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def size(self, group: int) -> int:
        """Bytes of an object of a group."""
        return self._groups[group].size * self.ranks // self.parts

    def keys(self, group: int, units: Sequence[bytes]) -> list[bytes]:
        """Of the group's blocks in these units, in order."""
        if not self.whole:
            return list(units)
        each = range(self._each[group])
        return [key + bytes([group, place]) for key in units for place in each]

    def unit_of(self, key: bytes) -> bytes:
        """The key of the unit of a group's block."""
        return key[:-PART_BYTES] if self.whole else key

    def objects(self, units: Sequence[bytes]) -> list[Object]:
        """All objects of these units."""
        found = []
        for number in range(len(self._groups)):
            names, size = shards(self.keys(number, units), self.parts), self.size(number)
            each = self._each[number] * self.parts
            found += [Object(name, size, number, at // each) for at, name in enumerate(names)]
        return found

    def objects_by_need(
        self, units: Sequence[bytes], first: int, last: int, *, all_soon: bool = False
    ) -> tuple[list[Object], list[Object]]:
        """The objects of these units, the first of which is unit `first` of a request: those that a
        hit of `last` units needs, and the rest, which shorter hits may need."""
        objects = self.objects(units)
        needed = self._needed(min(last, first + len(units)) * self.unit)
        if all_soon or not self.whole:
            return objects, []
        soon = [one for one in objects if first + one.unit >= needed[one.group]]
        return soon, [one for one in objects if first + one.unit < needed[one.group]]

    def _needed(self, tokens: int) -> list[int]:
        """Of each group the first unit of which a hit of `tokens` needs a block."""
        return [one.first(tokens) * one.block_tokens // self.unit for one in self._groups]

    def usable(self, there: Sequence[Sequence[bool]], most: int) -> int:
        """The units of the longest prefix, of those loaded as a whole of at most `most`, of which
        each group has what it needs. `there`: of each group, which units it has."""
        runs = []  # of each group: how many units in a row end at one
        for row in there:
            run, ends = 0, [0]
            for has in row:
                run = run + 1 if has else 0
                ends.append(run)
            runs.append(ends)
        longest = min(most, len(there[0])) if self.whole else len(there[0])
        for units in range(longest, 0, -1):
            needed = self._needed(units * self.unit)
            if all(ends[units] >= units - at for ends, at in zip(runs, needed, strict=True)):
                return units
        return 0

    def loads(
        self, group: int, keys: Sequence[bytes], blocks: Sequence[int], computed: int, tokens: int
    ) -> list[tuple[bytes, int]]:
        """Keys and vLLM's blocks of what the group loads for a prefix of `tokens`, of which vLLM
        has the first `computed`. `keys`: of all units of the request, `blocks`: all of its own."""
        one = self._groups[group]
        first = max(computed // one.block_tokens, one.first(tokens))
        last = tokens // one.block_tokens
        names = self.keys(group, keys[: tokens // self.unit])
        return list(zip(names[first:last], blocks[first:last], strict=True))

    def saves(
        self, group: int, keys: Sequence[bytes], blocks: Sequence[int], first: int, last: int
    ) -> tuple[list[bytes], list[int]]:
        """Keys of the group's blocks in the units from `first` to `last`, and all blocks of the
        request up to them. Of a window those that vLLM has forgotten are left out."""
        each = self._each[group]
        names, held = self.keys(group, keys[first:last]), list(blocks[: last * each])
        if not self._groups[group].window:
            return names, held
        pairs = zip(names, held[first * each :], strict=True)
        kept = [(name, block) for name, block in pairs if block != NO_BLOCK]
        return [name for name, _ in kept], [block for _, block in kept]


def groups_of(kv_cache_config: Any) -> list[Group]:
    """vLLM's groups. BadInput: none, or one of them keeps something else than KV."""
    found = []
    if not kv_cache_config.kv_cache_groups:
        raise _refused("no layers")
    for group in kv_cache_config.kv_cache_groups:
        spec, names = group.kv_cache_spec, tuple(group.layer_names)
        each = getattr(spec, "kv_cache_specs", None) or dict.fromkeys(names, spec)
        kinds = {type(one).__name__ for one in each.values()}
        windows = {_window_of(one) for one in each.values()}
        if not names or not kinds <= {*FULL, *WINDOWS} or len(windows) != 1:
            raise _refused(" and ".join(sorted(kinds)) or "no layers")
        size = sum(each[name].real_page_size_bytes for name in names)
        latents = any("MLA" in kind for kind in kinds)
        heads = [_heads_of(each[name]) for name in names]
        found.append(
            Group(
                spec.block_size,
                size,
                windows.pop(),
                names,
                latents,
                math.gcd(*heads) if all(heads) else 0,
            )
        )
    return found


def _refused(what: str) -> BadInput:
    return BadInput(
        f"this model keeps {what}, which is not the KV of full attention or of one window",
        "OffstageConnector",
        "leave this connector out",
    )


def _heads_of(spec: Any) -> int:
    """KV heads of a layer, where vLLM's memory has a place for each; else 0."""
    heads, slots = getattr(spec, "num_kv_heads", 0), getattr(spec, "num_head_slots", None)
    return int(heads) if slots in (None, heads) else 0


def _window_of(spec: Any) -> int:
    """Tokens that vLLM keeps of a window before the next one, and that one; 0: all."""
    if type(spec).__name__ not in WINDOWS:
        return 0
    return int(spec.sliding_window) + int(getattr(spec, "extra_retained_tokens", 0))
