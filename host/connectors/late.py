"""Counters of late operations, in the metrics of the engine's process: a frozen daemon serves
none."""

from functools import lru_cache
from typing import Any

from offstage.host.connectors.moves import Kind

__all__ = ["counters"]


@lru_cache(maxsize=1)
def counters() -> dict[Kind, Any]:
    """Counters of LATE moves in this process's `prometheus_client` registry, which LMCache and
    SGLang serve; empty if that is not installed."""
    try:
        from prometheus_client import Counter
    except ImportError:
        return {}
    return {
        Kind.GET: Counter("offstage_get_late", "objects that were not read in time"),
        Kind.LOOK: Counter("offstage_look_late", "objects that were not looked up in time"),
    }
