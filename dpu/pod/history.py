"""Which history a map of a pod belongs to: pure functions of maps and of earlier observations.

The stored map may be rolled back: a snapshot of etcd is restored, a file is copied over. Its
counters then repeat earlier numbers and say nothing about what was done under them. So each change
of a map has a random id, and the map lists the ids of its last changes; each deletion has an id
too. A member that remembers the newest change it saw can tell whether a map descends from it. If
not, the deletions in between are unknown, and the map is *in doubt*. A member in doubt serves no
host. It records the doubt in the map, so that no other member serves either, together with the
deletions it knows of. The doubt lasts until an operator accepts the map (`offstage pod accept`).

An acceptance has a random id too. A member that does not know the newest one follows the map: the
operator has decided since. Reasons: docs/decisions/pod-membership.md.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from offstage.bindings.errors import BadInput
from offstage.dpu.pod.map import PURGES_MAX, PodMap

__all__ = ["Seen", "accepted", "brought", "comes_of", "doubt", "doubted", "keeps", "told"]

ACCEPTED_MAX = 16


@dataclass(frozen=True, slots=True)
class Seen:
    """What a member remembers of the newest map it saw; by default, of none."""

    change: str = ""
    epoch: int = 0
    accepted: tuple[str, ...] = ()
    purges: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @staticmethod
    def of(pod: PodMap) -> "Seen":
        """All of a map."""
        return Seen(pod.history[0] if pod.history else "", pod.epoch, pod.accepted, pod.purges)


def comes_of(pod: PodMap, seen: Seen) -> bool:
    """Whether it is the map seen, or one that descends from it."""
    if not seen.change:
        return pod.epoch >= seen.epoch
    return seen.change in pod.history


def told(pod: PodMap) -> str:
    """Why the map is in doubt for every reader; "": it is not."""
    if pod.cluster and pod.kept_by != pod.cluster:
        return f"it was made in etcd cluster {pod.cluster}, and cluster {pod.kept_by} has it now"
    if pod.doubt:
        who = ", ".join(f"{name} has seen epoch {epoch}" for name, epoch in pod.doubt.items())
        return f"{who}, from which the map of epoch {pod.epoch} does not descend"
    return ""


def doubt(pod: PodMap, seen: Seen) -> str:
    """Why a member that saw `seen` does not follow a map; "": it does. A member that missed more
    changes than a map names cannot tell; it follows and drops what it has (`PodMember`)."""
    if said := told(pod):
        return said
    if comes_of(pod, seen) or (pod.accepted and pod.accepted[0] not in seen.accepted):
        return ""
    if pod.is_long and pod.epoch > seen.epoch:
        return ""
    return (
        f"epoch {seen.epoch} was seen here, and the map of epoch {pod.epoch} does not descend "
        "from it: it was rolled back, or is another one"
    )


def keeps(pod: PodMap, tenant: str, purge: str) -> bool:
    """Whether a deletion entered in the map may be acknowledged by that map: it is still in it, and
    no member is in doubt. Until then the members' counters prove nothing."""
    return purge in pod.purges.get(tenant, ()) and not told(pod)


# Transitions.


def brought(pod: PodMap, seen: Seen) -> PodMap:
    """Add the deletions that were seen and that the map lacks, under a new epoch: members that have
    not carried them out will."""
    lacking = {
        tenant: [one for one in ids if one not in pod.purges.get(tenant, ())]
        for tenant, ids in seen.purges.items()
    }
    lacking = {tenant: ids for tenant, ids in lacking.items() if ids}
    purges = {tenant: (*ids, *pod.purges.get(tenant, ())) for tenant, ids in lacking.items()}
    return replace(
        pod,
        deleted={**pod.deleted, **dict.fromkeys(lacking, pod.epoch + 1)},
        purges={**pod.purges, **{name: ids[:PURGES_MAX] for name, ids in purges.items()}},
    )


def doubted(pod: PodMap, name: str, seen: Seen) -> PodMap:
    """Record that the member is in doubt of the map, and the deletions it knows of."""
    return replace(brought(pod, seen), doubt={**pod.doubt, name: seen.epoch})


def accepted(pod: PodMap) -> PodMap:
    """The operator accepts the map as it is. The epoch advances past all that members have seen, so
    that older maps are stale. BadInput: no member is in doubt."""
    if not told(pod):
        raise BadInput("no member is in doubt of it", "pod map", "see offstage pod status")
    past = max([pod.epoch, *pod.doubt.values()]) - pod.epoch
    return replace(
        pod,
        doubt={},
        cluster=pod.kept_by,
        epoch_base=pod.epoch_base + past,
        accepted=(secrets.token_hex(8), *pod.accepted)[:ACCEPTED_MAX],
    )
