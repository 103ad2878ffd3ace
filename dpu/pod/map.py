"""The map of a pod: its members, the state of each, and the epoch of the map.

A map is immutable: a transition returns a new one, and the membership service (`pod.membership`)
assigns its epoch, which grows with every change. A member's *incarnation* grows with each start of
its daemon, so a message for an earlier incarnation is recognized as stale. A member that left stays
in the map as `gone`, so that its incarnation is not reused.

Counters order changes but do not identify them: a map restored from a backup repeats the same
numbers. A random id identifies a change, a deletion or an acceptance (`pod.history`).
"""

import secrets
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

import msgspec
from msgspec.structs import replace

from offstage.bindings.errors import BadInput
from offstage.bindings.settings import about, convert, within
from offstage.dpu.config.addresses import check_member
from offstage.dpu.pod.heat import CopyRule
from offstage.dpu.pod.shards import ShardGrid

__all__ = [
    "HISTORY_MAX",
    "PURGES_MAX",
    "WEIGHT_MAX",
    "Former",
    "Living",
    "Member",
    "MemberIncarnation",
    "PodMap",
    "State",
    "added",
    "checked",
    "deleted",
    "from_tables",
    "leased",
    "moved",
    "noted",
    "reconciled",
]

WEIGHT_MAX = 1 << 20
MEMBERS_MAX = 256
FORMER_MAX = 4
HISTORY_MAX, PURGES_MAX = 256, 8
"""Changes that a map names, and deletions of one tenant."""
State = Literal["up", "draining", "gone"]
MemberIncarnation = tuple[str, int]
"""A member's name and its incarnation."""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One daemon of the pod."""

    name: Annotated[str, about("of the daemon, as people call it")]
    endpoint: Annotated[str, about("its control socket; fabrics are asked of it there")]
    incarnation: Annotated[int, within(0, 2**62, "which incarnation; 0: any, without leases")] = 0
    weight: Annotated[int, within(1, WEIGHT_MAX, "its share against the others'")] = 1
    zone: Annotated[str, about("what fails together with it: a rack, a power feed")] = ""
    state: Annotated[State, about("up, draining or gone")] = "up"


class Former(msgspec.Struct, frozen=True, kw_only=True):
    """The members that took new shards before a change of the map, to find previous homes."""

    until_s: Annotated[int, within(0, 2**62, "until then; seconds since 1970")]
    weights: Annotated[dict[str, int], about("of those that took new shards, by name")]


class Living(Member, frozen=True, kw_only=True):
    """A daemon's report of itself, under its lease."""

    carried_out: Annotated[int, within(0, 2**62, "newest epoch whose deletions are done here")] = 0
    holder: Annotated[str, about("random id of the process that has the name")] = ""
    host: Annotated[str, about("its machine, by the name that it gives itself")] = ""
    pid: Annotated[int, within(0, 2**31, "its process there")] = 0


class PodMap(msgspec.Struct, frozen=True, kw_only=True):
    """The members of the pod, ordered by name, each name once."""

    epoch: Annotated[int, within(0, 2**62, "the revision of this map")] = 0
    identity: Annotated[str, about("of the pod, where the map is in a file; made with it")] = ""
    lease_ns: Annotated[int, within(0, 2**62, "of each member; 0: they have none")] = 0
    shard_tokens: Annotated[int, within(256, 65_536, "tokens of a shard")] = 4096
    first_shard_tokens: Annotated[
        int, within(0, 65_536, "of the first, from which they double; 0: all are equal")
    ] = 512
    member: tuple[Member, ...] = ()
    deleted: dict[str, int] = {}
    """By tenant, the epoch of its last deletion: blocks of earlier ones are deleted."""
    purges: dict[str, tuple[str, ...]] = {}
    """By tenant, random ids of its last deletions, the newest first."""
    history: tuple[str, ...] = ()
    """Random ids of the last changes, the newest first, which is this map's own."""
    accepted: tuple[str, ...] = ()
    """Random ids of the last times that an operator accepted the map, the newest first."""
    doubt: dict[str, int] = {}
    """Members that have seen an epoch from which this map does not descend."""
    epoch_base: Annotated[int, within(0, 2**62, "in etcd: the epoch, less the revision")] = 0
    cluster: Annotated[str, about("the etcd cluster in which the map was begun or accepted")] = ""
    kept_by: Annotated[str, about("the etcd cluster that has it now")] = ""
    copies: CopyRule = CopyRule()
    fill_s: Annotated[
        int, within(0, 2**31, "who was home before a change is asked so long; 0: never")
    ] = 3600
    former: tuple[Former, ...] = ()
    """Before the last changes of who is home, the newest first."""

    @property
    def homes(self) -> list[Member]:
        """The members that take new shards."""
        return [one for one in self.member if one.state == "up"]

    @property
    def readable(self) -> list[Member]:
        """The members that may still be read: a draining member keeps what it has."""
        return [one for one in self.member if one.state != "gone"]

    @property
    def is_long(self) -> bool:
        """Whether there were more changes than it names."""
        return len(self.history) == HISTORY_MAX

    def grid(self, block_tokens: int) -> ShardGrid:
        """Where shards begin, in chunks of one block."""
        first = -(-self.first_shard_tokens // block_tokens)
        return ShardGrid(self.shard_tokens // block_tokens, first)

    def find(self, name: str) -> Member | None:
        """The member of that name."""
        return next((one for one in self.member if one.name == name), None)


def from_tables(tables: Mapping[str, object], where: str) -> PodMap:
    """A map from TOML or JSON. BadInput: an unknown key, a number out of bounds, or as `checked`
    says."""
    return checked(convert(tables, PodMap, where), where)


def checked(pod: PodMap, where: str) -> PodMap:
    """The map with its members in order, by one rule for what is read and what is written.
    BadInput: too many, a name or an endpoint twice, a member that cannot be reached, or whose name
    cannot be that of its folder."""
    if len(pod.member) > MEMBERS_MAX:
        raise BadInput(f"{len(pod.member)} members", where, f"a pod has at most {MEMBERS_MAX}")
    for noun, values in (
        ("name", [one.name for one in pod.member]),
        ("endpoint", [one.endpoint for one in pod.readable]),
    ):
        twice = next((one for one in values if values.count(one) > 1), None)
        if twice is not None:
            raise BadInput(f"two members have the {noun} {twice!r}", where, "give each its own")
        if "" in values:
            raise BadInput(f"a member without {noun}", where, f"give each a {noun}")
    for one in pod.member:
        check_member(one.name, one.endpoint, where)
    return replace(pod, member=tuple(sorted(pod.member, key=lambda one: one.name)))


# Transitions. Each is retried on the newest map if another change came first.


def added(pod: PodMap, member: Member) -> PodMap:
    """The member joins, or rejoins as a new incarnation. BadInput for an old one."""
    before = pod.find(member.name)
    if before is not None and before.incarnation and member.incarnation <= before.incarnation:
        raise BadInput(
            f"{member.name} was already seen with incarnation {before.incarnation}",
            "pod map",
            "start that daemon again, or give the new one another name",
        )
    if before is not None and not before.incarnation and before.state != "gone":
        raise BadInput(f"{member.name} is a member already", "pod map", "give it another name")
    others = [one for one in pod.member if one.name != member.name]
    return checked(replace(pod, member=(*others, member)), "pod map")


def leased(pod: PodMap, name: str, lease_ns: int) -> PodMap:
    """Set the lease, the same for all members: each measures its promises by its own lease.
    BadInput if another member that is not gone has a different one."""
    others = [one.name for one in pod.readable if one.incarnation and one.name != name]
    if others and pod.lease_ns and pod.lease_ns != lease_ns:
        raise BadInput(
            f"a lease of {lease_ns / 1e9:g} s, and {', '.join(others)} have "
            f"{pod.lease_ns / 1e9:g} s",
            "pod map",
            f"set pod.lease = {pod.lease_ns / 1e9:g}s",
        )
    return replace(pod, lease_ns=lease_ns)


def moved(pod: PodMap, name: str, state: State) -> PodMap:
    """The member changes its state; one that is gone only returns by `added`."""
    member = pod.find(name)
    if member is None or member.state == "gone":
        known = ", ".join(one.name for one in pod.readable) or "none"
        raise BadInput(f"no member is called {name!r}", "pod map", f"choose one of {known}")
    others = [one for one in pod.member if one.name != name]
    return checked(replace(pod, member=(*others, replace(member, state=state))), "pod map")


def reconciled(pod: PodMap, alive: Iterable[Member]) -> PodMap:
    """The map after a check of the leases: exactly the members without a lease for their
    incarnation are gone. A member without incarnations (in a static map) is never removed."""
    present = {(one.name, one.incarnation) for one in alive}
    members = tuple(
        replace(one, state="gone")
        if one.incarnation and (one.name, one.incarnation) not in present
        else one
        for one in pod.member
    )
    return replace(pod, member=members)


def deleted(pod: PodMap, tenant: str) -> PodMap:
    """All blocks of the tenant written up to this epoch are deleted."""
    ids = (secrets.token_hex(8), *pod.purges.get(tenant, ()))[:PURGES_MAX]
    return replace(
        pod, deleted={**pod.deleted, tenant: pod.epoch + 1}, purges={**pod.purges, tenant: ids}
    )


def noted(before: PodMap, after: PodMap, now_s: int) -> PodMap:
    """The map after a change, which gets an id: it records the previous homes and drops those older
    than `fill_s`. The map service does this with every change, by its clock."""
    kept = [one for one in after.former if now_s - one.until_s < after.fill_s]
    weights = {one.name: one.weight for one in before.homes}
    if weights and weights != {one.name: one.weight for one in after.homes} and after.fill_s:
        kept = [Former(until_s=now_s, weights=weights), *kept]
    history = (secrets.token_hex(8), *before.history)[:HISTORY_MAX]
    return replace(after, former=tuple(kept[:FORMER_MAX]), history=history)
