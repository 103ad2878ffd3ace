"""What a run reads from its daemon: counters, stages, wear."""

from collections.abc import Mapping

import msgspec

from offstage.bindings.errors import OffstageError
from offstage.bindings.stages import StageTimes
from offstage.dpu.protocol.status import DeviceReport, WearFigures
from offstage.host.endpoint import Endpoint
from offstage.host.fabrics import Fabric

__all__ = ["counters_since", "device_counters", "device_status", "stages", "wear"]

REACTOR_COUNTERS = ("busy_ns", "idle_ns", "sleep_ns", "paced", "paced_late")
STORAGE_COUNTERS = ("reads", "writes", "emulation_late", "emulation_late_ns_sum")


def device_status(endpoint: Endpoint) -> DeviceReport:
    """The device as a daemon reports it to its operator alone. BadInput if the operator's secret
    is not readable: it is on the daemon's machine, for the daemon's user."""
    with endpoint.operator.control(heartbeat=False) as control:
        return msgspec.convert(control.status()["device"], DeviceReport)


def wear(endpoint: Endpoint) -> WearFigures | None:
    """The drive's wear; None if this user is not the daemon's operator."""
    try:
        return device_status(endpoint).wear
    except OffstageError:
        return None


def device_counters(endpoint: Endpoint) -> dict[str, int] | None:
    """The counters by name; None if this user is not the daemon's operator. A run takes the
    difference with `counters_since`."""
    try:
        status = device_status(endpoint)
    except OffstageError:
        return None
    counters = {name: getattr(status, name) for name in REACTOR_COUNTERS}
    return counters | {name: getattr(status.storage, name) for name in STORAGE_COUNTERS}


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
