"""What a run reads from its daemon: counters, stages, wear."""

from collections.abc import Mapping
from typing import Any

import msgspec

from offstage.bindings.errors import OffstageError
from offstage.bindings.stages import StageTimes
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics import Fabric

__all__ = ["counters_since", "device_counters", "device_status", "stages", "wear"]


def device_status(endpoint: Endpoint) -> dict[str, Any]:
    """The device's counters, which a daemon shows only to its operator. BadInput if the
    operator's secret is not readable: it is on the daemon's machine, for the daemon's user."""
    with endpoint.operator.control(heartbeat=False) as control:
        return dict(control.status()["device"])


def wear(endpoint: Endpoint) -> dict[str, Any] | None:
    """What was written to the daemon's drive since its start (dpu/economics/wear.py); None if
    this user is not its operator."""
    try:
        return dict(device_status(endpoint)["wear"])
    except OffstageError:
        return None


REACTOR_COUNTERS = ("busy_ns", "idle_ns", "sleep_ns", "paced", "paced_late")
STORAGE_COUNTERS = ("reads", "writes", "emulation_late", "emulation_late_ns_sum")


def device_counters(endpoint: Endpoint) -> dict[str, int] | None:
    """The device's counters that a run needs, by name; None if this user is not its operator.
    Counts run from the daemon's start: a run takes the difference with `counters_since`."""
    try:
        status = device_status(endpoint)
    except OffstageError:
        return None
    counters = {name: int(status[name]) for name in REACTOR_COUNTERS}
    return counters | {name: int(status["storage"][name]) for name in STORAGE_COUNTERS}


def stages(endpoint: Endpoint, fabric: Fabric) -> dict[str, StageTimes]:
    """Stage times: the reactor's since its last reset, if this user is the daemon's operator,
    and those that only this host's driver times, which have buckets too."""
    own = fabric.stages()
    try:
        with endpoint.operator.control(heartbeat=False) as control:
            return msgspec.convert(control.status()["stages"], dict[str, StageTimes]) | own
    except OffstageError:
        return own


def counters_since(
    before: Mapping[str, int] | None, after: Mapping[str, int] | None
) -> dict[str, int] | None:
    """`after` - `before`; None if either is unknown."""
    if before is None or after is None:
        return None
    return {name: after[name] - before[name] for name in before}
