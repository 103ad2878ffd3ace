"""What was run, for the head and the foot of a report."""

from typing import Any

from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.workload import Workload

__all__ = ["describe"]

SCALED = ("demo", "tiny")
"""Geometries of no model: small ones that stand in for one."""


def describe(options: DriveOptions, workload: Workload) -> dict[str, Any]:
    """The plan, the geometry and the host's sizes, JSON-ready."""
    geometry = options.geometry
    size = f"{geometry.layer_count} layers, {geometry.bytes_per_token():,} bytes per token"
    scaled = geometry.name in SCALED
    return {
        **workload.plan.to_dict(),
        "context_tokens": max(one.context_tokens for one in workload.plan.sessions),
        "decode_steps": max(one.decode_steps for one in workload.plan.sessions),
        "geometry": geometry.name,
        "geometry_note": f"scaled down to fit a small machine: {size}" if scaled else size,
        "layer_count": geometry.layer_count,
        "block_bytes": geometry.block_bytes(0),
        "bytes_per_token": geometry.bytes_per_token(),
        "selector": options.selector,
        "kernel": options.kernel,
        "select_blocks": options.select_blocks,
        "sink_blocks": options.sink_blocks,
        "window_blocks": options.window_blocks,
        "pool_ratio": options.pool_ratio,
        "pool_blocks": options.pool_blocks,
        "time_per_token_ms": options.time_per_token_s * 1e3,
        "processes": workload.processes,
    }
