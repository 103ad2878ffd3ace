"""Where a shard lives: weighted rendezvous hashing, computed from the map alone.

For a shard, every member draws an exponential time with its weight as rate, from a hash of both
names; the smallest is the shard's home. So a member's share equals its share of the weight, a
death moves only the dead member's shards, and a join moves only what the new member gets: at most
1/(N+1) of all shards with equal weights (Thaler and Ravishankar 1998; weights as -ln(h)/w:
Schindelhauer and Schomaker 2005). All in integers, so that every machine and library agrees.

Shards are placed, not blocks: of a prefix of 256 blocks placed one by one over 16 members,
hardly one survives a death, and a prefix ends at its first hole; docs/decisions/pod.md.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from offstage.bindings.errors import RunFailed
from offstage.bindings.placement import times
from offstage.dpu.pod.map import Member, PodMap

__all__ = ["former_homes", "homes", "moved_share", "ranked", "shard_key"]

SAMPLE = 4096


def shard_key(chunks: Sequence[int], parent: bytes = b"") -> bytes:
    """The 16-byte name of a shard: of its chunks' identities and of all before it."""
    # The old word for a shard: another one would give every shard another home.
    state = hashlib.blake2b(parent, digest_size=16, person=b"offstage-segment")
    for chunk in chunks:
        state.update(chunk.to_bytes(16, "little"))
    return state.digest()


def ranked(members: Sequence[Member], keys: Sequence[bytes], count: int) -> NDArray[np.int32]:
    """The `count` best members of each shard, indices `[shards, count]`: the home, then where
    copies go. RunFailed where there are fewer members."""
    if len(members) < count:
        raise RunFailed(
            f"{len(members)} of the pod's daemons are up, and {count} are needed",
            "pod map",
            "start the others, or end a drain: offstage pod status",
        )
    drawn = times(keys, [one.name for one in members], [one.weight for one in members])
    order: NDArray[np.intp] = np.argsort(drawn, axis=1, kind="stable")  # a tie: by the name
    return order[:, :count].astype(np.int32)


def homes(pod: PodMap, keys: Sequence[bytes]) -> list[Member]:
    """The home of each shard."""
    members = pod.homes
    return [members[index] for index in ranked(members, keys, 1)[:, 0]]


def former_homes(pod: PodMap, keys: Sequence[bytes], now_s: int) -> list[list[str]]:
    """Who may still have each shard from before a change of the map, the latest home first: its
    homes under the maps of before, as long as these count, of members that can be asked."""
    readable = {one.name: one for one in pod.readable}
    found: list[list[str]] = [[] for _ in keys]
    now_home = [one.name for one in homes(pod, keys)]
    for former in pod.former:
        members = [
            replace(readable[name], weight=weight)
            for name, weight in sorted(former.weights.items())
            if name in readable
        ]
        if now_s - former.until_s >= pod.fill_s or not members:
            continue
        for each, home, index in zip(found, now_home, ranked(members, keys, 1)[:, 0], strict=True):
            name = members[index].name
            if name != home and name not in each:
                each.append(name)
    return found


def moved_share(before: PodMap, after: PodMap) -> tuple[float, float]:
    """Which share of all shards has another home after a change of the map, of a sample, and the
    least that any placement moves: what the weights' shares lose in all."""
    keys = [shard_key([number]) for number in range(SAMPLE)]
    pairs = zip(homes(before, keys), homes(after, keys), strict=True)
    moved = sum(old.name != new.name for old, new in pairs) / SAMPLE
    shares = [
        {one.name: one.weight / sum(o.weight for o in pod.homes) for one in pod.homes}
        for pod in (before, after)
    ]
    least = sum(max(0.0, share - shares[1].get(name, 0.0)) for name, share in shares[0].items())
    return moved, least
