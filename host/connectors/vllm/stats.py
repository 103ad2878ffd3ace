"""Counters of the connector, reported through vLLM's hooks: its log line, and Prometheus.

Both sides of a connector count the outcomes of their objects; the scheduler also counts its lookups
and decisions. Each step passes the increments to vLLM. The classes are created on demand, since
they derive from vLLM's.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

__all__ = ["COUNTERS", "new_since", "prom_class", "stats_class"]

COUNTERS = {
    "requests": "requests whose prompt was looked up",
    "asked_tokens": "tokens of prompts that vLLM's own cache did not have",
    "matched_tokens": "of those, tokens that the tier had",
    "fetched_tokens": "of those, tokens that were fetched",
    "adapter_unknown": "requests left to vLLM since its adapter's files changed, or are not there",
    "recomputed_tokens": "tokens that the tier had, and that were computed since that is faster",
    "regret_seconds": "by how much decisions to fetch or to compute were wrong",
    "paused": "requests whose KV was asked back for a time",
    "objects_on_time": "objects read that the tier's memory had",
    "objects_late": "objects read that were on their way there",
    "objects_missing": "objects read that only the store had",
    "get_bytes": "bytes read",
    "get_absent": "objects that were looked up before and not there any more",
    "get_unreadable": "objects that failed their check, or were of another size",
    "get_away": "objects not read since the daemon was lost",
    "get_late": "objects not read in time",
    "look_late": "objects not looked up in time",
    "load_failed_blocks": "blocks that vLLM had to compute after all",
    "lookup_late": "requests whose lookup was not answered in time",
    "load_late_blocks": "blocks of loads that took longer than computing them takes",
    "load_wait_seconds": "time that steps waited for loads",
    "put_done": "objects stored",
    "put_bytes": "bytes stored",
    "put_refused": "objects that the tier did not take",
    "put_away": "objects not stored since the daemon was lost",
    "put_skipped": "blocks not stored since too many were on their way, or one had not loaded",
}
"""By name, what each counts; in Prometheus `vllm:offstage_<name>`."""


def new_since(before: dict[str, float], now: Mapping[str, float]) -> dict[str, float]:
    """What was added to counters of COUNTERS, which become those of `before`."""
    found = {}
    for name, value in now.items():  # every step asks, and few have changed
        if value != before.get(name, 0) and name in COUNTERS:
            found[name] = value - before.get(name, 0)
            before[name] = value
    return found


@lru_cache(maxsize=1)
def stats_class() -> type:
    """`KVConnectorStats` of this connector: counters, which add up. vLLM's workers send them to its
    scheduler by pickle, so they have a name of this module: `OffstageStats`."""
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

    class OffstageStats(KVConnectorStats):  # type: ignore[misc]
        def reset(self) -> None:
            self.data: dict[str, float] = {}

        def aggregate(self, other: Any) -> Any:
            for name, value in other.data.items():
                self.data[name] = self.data.get(name, 0) + value
            return self

        def reduce(self) -> dict[str, float]:
            return {name: round(value, 3) for name, value in self.data.items()}

        def is_empty(self) -> bool:
            return not self.data

    OffstageStats.__qualname__ = "OffstageStats"
    return OffstageStats


@lru_cache(maxsize=1)
def prom_class() -> type:
    """`KVConnectorPromMetrics` of this connector: a counter for each name."""
    from prometheus_client import Counter
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
    from vllm.v1.metrics.utils import create_metric_per_engine

    class OffstageProm(KVConnectorPromMetrics):  # type: ignore[misc]
        def __init__(self, config: Any, kinds: Any, labels: list[str], engines: Any) -> None:
            super().__init__(config, kinds, labels, engines)
            self._made = {
                name: create_metric_per_engine(
                    kinds[Counter](
                        name=f"vllm:offstage_{name}", documentation=text, labelnames=labels
                    ),
                    engines,
                )
                for name, text in COUNTERS.items()
            }

        def observe(self, transfer_stats_data: dict[str, float], engine_idx: int = 0) -> None:
            for name, value in transfer_stats_data.items():
                if name in self._made:
                    self._made[name][engine_idx].inc(value)

    return OffstageProm


def __getattr__(name: str) -> Any:
    if name == "OffstageStats":
        return stats_class()
    raise AttributeError(name)
