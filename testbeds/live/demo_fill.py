"""Prefill: one daemon, every session's context written once; all runs then read the same store."""

from collections.abc import Mapping
from typing import Any

from offstage.host.session import Context
from offstage.testbeds.beds.daemon_process import serve
from offstage.testbeds.beds.local import Place
from offstage.testbeds.live.connect import attached
from offstage.testbeds.live.demo_options import ARMS, DemoOptions
from offstage.testbeds.live.prefill import prefill
from offstage.testbeds.live.workload import Workload
from offstage.testbeds.progress import Progress

__all__ = ["fill"]


def fill(
    options: DemoOptions,
    workload: Workload,
    place: Place,
    storage: Mapping[str, Any],
    progress: Progress,
) -> dict[int, Context]:
    """Write every session's full chunks; returns what the host keeps of them, by session number."""
    plan = workload.plan
    config = place.config(
        options, "prefill", ARMS[0], storage, plan.stored_bytes, len(plan.sessions)
    )
    with (
        serve(config, place.work / "prefill.log") as tier,
        attached(place.link(tier.endpoint)) as (control, fabric),
    ):
        return prefill(options, workload, control, fabric, progress).contexts
