"""Metrics of the archive: for each tenant that uses it, and in total."""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from offstage.dpu.protocol.status import ArchivedTenant, ArchiveStatus

__all__ = ["GAUGES", "TENANT", "archive_metrics"]

# Of each tenant, as `status` names them -> metric and help.
TENANT = {
    "archive_bytes_up": ("archive_up_bytes", "sent to the bucket"),
    "archive_bytes_down": ("archive_down_bytes", "that came back"),
    "archive_chunks_up": ("archive_up_chunks", "chunks sent to the bucket"),
    "archive_chunks_down": ("archive_down_chunks", "chunks that came back"),
    "archive_chunks_left": (
        "archive_left_chunks",
        "chunks named but not restored: fewer tokens than return_tokens_min",
    ),
    "archive_objects_deleted": ("archive_deleted_objects", "deleted from the bucket"),
    "archive_errors": ("archive_errors", "calls that failed"),
    "archive_damaged": ("archive_damaged_objects", "reads of objects that failed their check"),
    "archive_dropped": (
        "archive_dropped_chunks",
        "chunks not uploaded: the queue was full, or the server answered errors",
    ),
}
GAUGES = {
    "away": ("archive_away", "1 while calls to the server are paused"),
    "uploads_waiting": ("archive_uploads_waiting", "objects waiting to be uploaded"),
    "deletes_waiting": ("archive_deletes_waiting", "objects waiting to be deleted"),
}


def archive_metrics(
    shares: Mapping[str, ArchivedTenant], status: ArchiveStatus | msgspec.UnsetType
) -> Iterable[Metric]:
    """Of these tenants; `status`, where the reader may see it. None without an archive."""
    having = {name: one for name, one in shares.items() if isinstance(one.archive_chunks, int)}
    if having:
        for field, (metric, text) in TENANT.items():
            counter: Any = CounterMetricFamily(f"offstage_{metric}", text, labels=["tenant"])
            for name, figures in having.items():
                counter.add_metric([name], getattr(figures, field))
            yield counter
        gauge: Any = GaugeMetricFamily(
            "offstage_archive_chunks", "chunks in the bucket", labels=["tenant"]
        )
        for name, figures in having.items():
            gauge.add_metric([name], figures.archive_chunks)
        yield gauge
    if status:
        for field, (metric, text) in GAUGES.items():
            yield GaugeMetricFamily(f"offstage_{metric}", text, value=getattr(status, field))
