"""Prefill: one daemon, every session's context written once; all runs then read the same store."""

from collections.abc import Mapping
from typing import Any

from offstage.host.session import Context
from offstage.testbeds.demo.options import ARMS, DemoOptions
from offstage.testbeds.demo.place import Place
from offstage.testbeds.demo.tier import serve
from offstage.testbeds.drive.connect import attached
from offstage.testbeds.drive.prefill import prefill
from offstage.testbeds.drive.progress import Progress
from offstage.testbeds.drive.workload import Workload

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
