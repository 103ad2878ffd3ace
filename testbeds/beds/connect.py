"""A host at a daemon: control connection and fabric, opened together and closed together."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offstage.bindings.errors import OffstageError
from offstage.bindings.verbs import Rdma
from offstage.dpu.protocol import OPERATOR
from offstage.host.control import Control
from offstage.host.fabrics import Fabric, open_fabric

__all__ = ["Link", "attached", "counters_since", "device_counters", "stages", "wear"]


@dataclass(frozen=True)
class Link:
    """Which daemon, as whom, over which fabric. `secret`, `runtime_dir` and `curve_dir` as
    `Control` takes them; None: what the daemon left for this user, and no CURVE. `rdma`: the
    adapter of verbs; None: the first. `timeout_s`: for each answer of the daemon. `life`: which
    incarnation of a pod's member, by the map of which epoch."""

    endpoint: str
    tenant: str = "default"
    fabric: str = "shm"
    name: str = "host"
    secret: Path | None = None
    runtime_dir: Path | None = None
    curve_dir: Path | None = None
    rdma: Rdma | None = None
    timeout_s: float = 5.0
    life: tuple[int, int] = (0, 0)

    def control(self, *, heartbeat: bool = True) -> Control:
        """Log in. BadInput where no daemon answers or it refuses."""
        return Control(
            self.endpoint,
            name=self.name,
            tenant=self.tenant,
            secret=self.secret,
            runtime_dir=self.runtime_dir,
            curve_dir=self.curve_dir,
            heartbeat=heartbeat,
            timeout_s=self.timeout_s,
            life=self.life,
        )


def device_status(link: Link) -> dict[str, Any]:
    """The device's own counters, which a daemon shows to its operator. BadInput where the
    operator's secret cannot be read: it is on the daemon's machine, for the daemon's user."""
    operator = replace(link, tenant=OPERATOR, secret=None)
    with operator.control(heartbeat=False) as control:
        return dict(control.status()["device"])


def wear(link: Link) -> dict[str, Any] | None:
    """What the daemon's drive was written since its start (dpu/wear.py); None where this user is
    not its operator."""
    try:
        return dict(device_status(link)["wear"])
    except OffstageError:
        return None


REACTOR_COUNTERS = ("busy_ns", "idle_ns", "sleep_ns", "paced", "paced_late")
STORAGE_COUNTERS = ("reads", "writes", "emulation_late", "emulation_late_ns_sum")


def device_counters(link: Link) -> dict[str, int] | None:
    """What the device counts that a run needs, by name; None where this user is not its operator.
    Counts run from the daemon's start: a run takes the difference with `counters_since`."""
    try:
        status = device_status(link)
    except OffstageError:
        return None
    counters = {name: int(status[name]) for name in REACTOR_COUNTERS}
    return counters | {name: int(status["storage"][name]) for name in STORAGE_COUNTERS}


def stages(link: Link, fabric: Fabric) -> dict[str, dict[str, Any]]:
    """How long the stages took: the reactor's since its last reset, where this user is the
    daemon's operator, and those that this host's own driver timed, which have their buckets too:
    nobody else keeps them."""
    operator = replace(link, tenant=OPERATOR, secret=None)
    own = fabric.stages()
    try:
        with operator.control(heartbeat=False) as control:
            return dict(control.status()["stages"]) | own
    except OffstageError:
        return own


def counters_since(
    before: Mapping[str, int] | None, after: Mapping[str, int] | None
) -> dict[str, int] | None:
    """`after` - `before`; None where either is not known."""
    if before is None or after is None:
        return None
    return {name: after[name] - before[name] for name in before}


@contextlib.contextmanager
def attached(link: Link) -> Iterator[tuple[Control, Fabric]]:
    """Log in and attach. BadInput, RunFailed: see `Control` and the fabric."""
    with link.control() as control:
        fabric = open_fabric(control, link.fabric, link.rdma)
        try:
            yield control, fabric
        finally:
            fabric.close()
