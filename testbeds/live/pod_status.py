"""What the members of a pod served since they began, each by its own count, and all together."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from offstage.bindings.layouts import CAUSES, FATES, HIT_ENDS
from offstage.dpu.pod.map import PodMap
from offstage.testbeds.live.figures import accuracy, prefetched_blocks

__all__ = ["fates_by_cause", "load_cv", "member_report", "pod_report"]

SUMMED = ("segments", "copies", "pinned", "stale", "rehomed", "filled_bytes", "copied_bytes")


def member_report(status: Mapping[str, Any], ledger: Mapping[str, Any]) -> dict[str, Any]:
    """Of one daemon, over its tenants; `status` as its operator sees it."""
    pods = [one["pod"] for one in status["tenants"]]
    return {
        **{name: sum(one[name] for one in pods) for name in SUMMED},
        "load_per_s": sum(one["demands_per_s"] for one in pods),
        "demands": int(ledger["demands"]),
        "hits": int(sum(ledger["ends"][:HIT_ENDS])),
        "prefetched_blocks": prefetched_blocks(ledger),
        "shared_chunks": int(ledger["shared_chunks"]),
        "bytes_read": int(ledger["demand_bytes_read"]) + int(ledger["prefetch_bytes_read"]),
        "fates": np.array(ledger["fates"], np.int64),
    }


def pod_report(found: PodMap, seen: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Of all that answered; `load_cv` is over those that take new segments."""
    total = {
        name: sum(one[name] for one in seen.values())
        for name in (
            *SUMMED,
            "load_per_s",
            "demands",
            "prefetched_blocks",
            "shared_chunks",
            "bytes_read",
        )
    }
    hits = sum(one["hits"] for one in seen.values())
    loads = {one.name: seen[one.name]["load_per_s"] for one in found.homes if one.name in seen}
    fates = sum((one["fates"] for one in seen.values()), np.zeros((len(CAUSES), len(FATES)), int))
    return {
        **total,
        "load_cv": load_cv(found, loads),
        "hit_rate": hits / total["demands"] if total["demands"] else 0.0,
        "prefetch_accuracy": accuracy(fates_by_cause(fates)),
    }


def load_cv(found: PodMap, loads: Mapping[str, float]) -> float:
    """Coefficient of variation of load over weight, of the members in `loads`."""
    each = [loads[one.name] / one.weight for one in found.member if one.name in loads]
    return float(np.std(each) / np.mean(each)) if np.any(each) else 0.0


def fates_by_cause(fates: Any) -> dict[str, dict[str, int]]:
    """A ledger's fates, `[causes, fates]`, by name."""
    return {
        cause: dict(zip(FATES, row.tolist(), strict=True))
        for cause, row in zip(CAUSES, fates, strict=True)
    }
