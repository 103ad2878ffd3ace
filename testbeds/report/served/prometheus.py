"""Records of requests as Prometheus metrics, in text.

Names are vLLM's with our prefix; the limits of buckets are those that OpenTelemetry's semantic
conventions for generative AI ask of the metric of the same meaning. A figure that is absent has no
series.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from offstage.host.request_file import Recorded
from offstage.testbeds.workloads.requests.served import column, spans_ms

__all__ = ["exposition"]

FIRST_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
    *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
PER_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
WHOLE_S = tuple(0.01 * 2**at for at in range(14))
HISTOGRAMS = {
    "ttft_ms": ("time_to_first_token_seconds", "arrival to first token", FIRST_S),
    "itl_ms": ("inter_token_latency_seconds", "from each token to the next", PER_TOKEN_S),
    "tpot_ms": (
        "request_time_per_output_token_seconds",
        "first token to end, over the tokens after the first",
        PER_TOKEN_S,
    ),
    "e2e_ms": ("e2e_request_latency_seconds", "arrival to end", WHOLE_S),
    "queue_ms": ("request_queue_time_seconds", "arrival until a host took it", WHOLE_S),
}
BLOCKS = ("absent", "unreadable", "late", "wasted")


def exposition(runs: Sequence[Recorded]) -> str:
    """The metrics of every run, told apart by the label `run`."""
    registry = CollectorRegistry()
    registry.register(_Served(runs))
    return generate_latest(registry).decode()


class _Served(Collector):
    def __init__(self, runs: Sequence[Recorded]) -> None:
        self._runs = [(run, [one for one in records if not one.refused]) for run, records in runs]

    def collect(self) -> Iterator[Metric]:
        """Every family, with a series for each run that has it."""
        yield from self._histograms()
        asked = CounterMetricFamily(
            "offstage_prefix_cache_queries", "prompt tokens looked up", labels=["run"]
        )
        hits = CounterMetricFamily(
            "offstage_prefix_cache_hits", "of them, found, by tier", labels=["run", "tier"]
        )
        blocks = CounterMetricFamily(
            "offstage_prefix_blocks", "blocks that were no use, by fate", labels=["run", "fate"]
        )
        usage = GaugeMetricFamily(
            "offstage_kv_cache_usage_perc", "share of the HBM pool in use", labels=["run"]
        )
        for run, there in self._runs:
            told = [one for one in there if one.found is not None]
            if told:
                asked.add_metric([run.label], sum(one.input_tokens for one in told))
            for tier in dict.fromkeys(at.tier for one in told for at in one.found or ()):
                tokens = sum(one.found_tokens([tier]) for one in told)
                hits.add_metric([run.label, tier], tokens)
            for fate in BLOCKS:
                counts = column(there, f"{fate}_blocks")
                if (counts >= 0).any():
                    blocks.add_metric([run.label, fate], int(counts[counts >= 0].sum()))
            if run.used.hbm_pool is not None:
                usage.add_metric([run.label], run.used.hbm_pool)
        yield from (asked, hits, blocks, usage)

    def _histograms(self) -> Iterator[Metric]:
        for key, (name, text, limits) in HISTOGRAMS.items():
            family = HistogramMetricFamily(f"offstage_{name}", text, labels=["run"])
            for run, there in self._runs:
                times_ms, counts = spans_ms(there)[key]
                if counts.sum():
                    at = np.searchsorted(limits, times_ms / 1e3)
                    up_to = np.cumsum(np.bincount(at, counts, len(limits) + 1)).tolist()
                    names = [*map(str, limits), "+Inf"]
                    total_s = float((times_ms * counts).sum() / 1e3)
                    family.add_metric([run.label], list(zip(names, up_to, strict=True)), total_s)
            yield family
