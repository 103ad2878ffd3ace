"""What the members of a pod served since they started, each by its own count, and in total."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from offstage.bindings.ledger import Ledger
from offstage.dpu.pod.map import PodMap

__all__ = ["Kept", "MemberReport", "PodReport", "load_cv", "member_report", "pod_report"]


class Kept(msgspec.Struct, kw_only=True):
    """Counts of kept shards, summed over tenants or daemons."""

    shards: int = 0
    copies: int = 0
    pinned: int = 0
    stale: int = 0
    rehomed: int = 0
    filled_bytes: int = 0
    copied_bytes: int = 0
    load_per_s: float = 0.0


class PodReport(Kept, kw_only=True):
    """The counts of all daemons that answered; `load_cv` is over those that take new shards."""

    demands: int
    prefetched_blocks: int
    shared_chunks: int
    bytes_read: int
    load_cv: float
    hit_rate: float
    prefetch_accuracy: float


@dataclass(frozen=True)
class MemberReport:
    """The counts of one daemon, over its tenants."""

    kept: Kept
    ledger: Ledger


def member_report(status: Mapping[str, Any], ledger: Ledger) -> MemberReport:
    """The report of one daemon; `status` as its operator sees it."""
    pods = [one["pod"] for one in status["tenants"]]
    kept = [msgspec.convert(one | {"load_per_s": one["demands_per_s"]}, Kept) for one in pods]
    return MemberReport(_total(kept), Ledger.of(ledger))


def pod_report(found: PodMap, seen: Mapping[str, MemberReport]) -> PodReport:
    """The report of all members that answered."""
    total = Ledger.total(one.ledger for one in seen.values())
    loads = {one.name: seen[one.name].kept.load_per_s for one in found.homes if one.name in seen}
    return PodReport(
        **msgspec.structs.asdict(_total([one.kept for one in seen.values()])),
        demands=total.demands,
        prefetched_blocks=total.prefetched_blocks,
        shared_chunks=total.shared_chunks,
        bytes_read=total.bytes_read,
        load_cv=load_cv(found, loads),
        hit_rate=total.ended.hit_rate,
        prefetch_accuracy=total.accuracy,
    )


def _total(each: Sequence[Kept]) -> Kept:
    """Every count added up."""
    return Kept(
        **{name: sum(getattr(one, name) for one in each) for name in Kept.__struct_fields__}
    )


def load_cv(found: PodMap, loads: Mapping[str, float]) -> float:
    """Coefficient of variation of load over weight, of the members in `loads`."""
    each = [loads[one.name] / one.weight for one in found.member if one.name in loads]
    return float(np.std(each) / np.mean(each)) if np.any(each) else 0.0
