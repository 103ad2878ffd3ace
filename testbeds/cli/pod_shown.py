"""A pod as its commands print it."""

import msgspec
from msgspec import UNSET, UnsetType

from offstage.dpu.pod.map import PodMap
from offstage.testbeds.live.pod_drain import NotPushed, Pushed
from offstage.testbeds.live.pod_status import PodReport

__all__ = ["ShownPod", "shown_pod"]


class ShownMember(msgspec.Struct, kw_only=True):
    """A member as the commands of a pod print it; the last three where it was asked."""

    endpoint: str
    state: str
    incarnation: int
    weight: int
    zone: str
    share: float
    answers: str | UnsetType = UNSET
    demands_per_s: float | UnsetType = UNSET
    copies: int | UnsetType = UNSET


class ShownPod(msgspec.Struct, kw_only=True):
    """A pod as its commands print it: `status` up to `pod`, a change of the map what it moved."""

    epoch: int
    shard_tokens: int
    first_shard_tokens: int
    members: dict[str, ShownMember]
    frozen: str | UnsetType = UNSET
    doubt: str | UnsetType = UNSET
    pod: PodReport | UnsetType = UNSET
    shards_moved: float | UnsetType = UNSET
    shards_moved_least: float | UnsetType = UNSET
    pushed: dict[str, Pushed | NotPushed] | UnsetType = UNSET
    """By tenant."""


def shown_pod(found: PodMap) -> ShownPod:
    """The map, with each member's share of new shards."""
    weights = sum(one.weight for one in found.homes)
    members = {
        one.name: ShownMember(
            endpoint=one.endpoint,
            state=one.state,
            incarnation=one.incarnation,
            weight=one.weight,
            zone=one.zone,
            share=one.weight / weights if one.state == "up" else 0.0,
        )
        for one in found.member
    }
    return ShownPod(
        epoch=found.epoch,
        shard_tokens=found.shard_tokens,
        first_shard_tokens=found.first_shard_tokens,
        members=members,
    )
