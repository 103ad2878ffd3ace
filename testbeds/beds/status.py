"""What a run reads from the daemon that serves it: counters, stages, wear."""

from collections.abc import Mapping
from typing import Any

import msgspec

from offstage.bindings.errors import OffstageError
from offstage.bindings.stages import StageTimes
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics import Fabric

__all__ = ["counters_since", "device_counters", "device_status", "stages", "wear"]


def device_status(endpoint: Endpoint) -> dict[str, Any]:
    """The device's own counters, which a daemon shows to its operator. BadInput where the
    operator's secret cannot be read: it is on the daemon's machine, for the daemon's user."""
    with endpoint.operator.control(heartbeat=False) as control:
        return dict(control.status()["device"])


def wear(endpoint: Endpoint) -> dict[str, Any] | None:
    """What the daemon's drive was written since its start (dpu/economics/wear.py); None where this
    user is not its operator."""
    try:
        return dict(device_status(endpoint)["wear"])
    except OffstageError:
        return None


REACTOR_COUNTERS = ("busy_ns", "idle_ns", "sleep_ns", "paced", "paced_late")
STORAGE_COUNTERS = ("reads", "writes", "emulation_late", "emulation_late_ns_sum")


def device_counters(endpoint: Endpoint) -> dict[str, int] | None:
    """What the device counts that a run needs, by name; None where this user is not its operator.
    Counts run from the daemon's start: a run takes the difference with `counters_since`."""
    try:
        status = device_status(endpoint)
    except OffstageError:
        return None
    counters = {name: int(status[name]) for name in REACTOR_COUNTERS}
    return counters | {name: int(status["storage"][name]) for name in STORAGE_COUNTERS}


def stages(endpoint: Endpoint, fabric: Fabric) -> dict[str, StageTimes]:
    """How long the stages took: the reactor's since its last reset, where this user is the
    daemon's operator, and those that this host's own driver timed, which have their buckets too:
    nobody else keeps them."""
    own = fabric.stages()
    try:
        with endpoint.operator.control(heartbeat=False) as control:
            return msgspec.convert(control.status()["stages"], dict[str, StageTimes]) | own
    except OffstageError:
        return own


def counters_since(
    before: Mapping[str, int] | None, after: Mapping[str, int] | None
) -> dict[str, int] | None:
    """`after` - `before`; None where either is not known."""
    if before is None or after is None:
        return None
    return {name: after[name] - before[name] for name in before}
