"""Where a fetch's time went beside neighbours: what is the daemon's, and what the machine's."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from offstage.bindings.units import format_time

__all__ = ["where_time_went"]

PHASES = {
    "alone": "alone",
    "compute": "busy",
    "demands": "demands",
    "all ways": "all ways",
    "alone again": "again",
}
PARTS = {
    "ring_ns": "in the ring",
    "turn_ns": "until its turn",
    "drive_ns": "at the drive",
    "answer_ns": "until answered",
}


def where_time_went(phases: Mapping[str, Mapping[str, Any]]) -> Table:
    """A column for each phase of `bench tenants`: means of all of the victim's steps and of the
    slowest percent, by part; then who had work and no core, as a part of the phase."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("where steps' time went", no_wrap=True)
    for heading in PHASES.values():
        table.add_column(heading, justify="right", no_wrap=True)
    shown = [phases[name] for name in PHASES]
    for title, which in (("mean", "mean"), ("slowest 1 %", "slowest_percent")):
        for part, text in PARTS.items():
            times = (one["steps"][which][part] for one in shown)
            table.add_row(f"{title}: {text}", *(format_time(one) for one in times))
    table.add_row(
        "mean: until the host saw that", *(format_time(one["taken_in_ns_mean"]) for one in shown)
    )
    for who in shown[0]["no_core"]:
        table.add_row(
            f"the {who} had work, no core", *(f"{100 * one['no_core'][who]:.1f} %" for one in shown)
        )
    return table
