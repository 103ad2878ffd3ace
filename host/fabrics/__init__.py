"""Fabrics: how a host reads and writes blocks of the daemon it is logged in to.

`shm` maps region and port on the same machine, `verbs` accesses them by RDMA, `nixl` through that
library, `zmq` sends messages and works anywhere, `sim` runs a device in virtual time inside this
process. Each is a `Fabric`, and one contract suite tests them all. To add one: a module with
`connect`, and a line in FABRICS.
"""

from collections.abc import Callable
from typing import Any

from offstage.bindings.errors import BadInput
from offstage.bindings.fabric import Fabric
from offstage.bindings.verbs import Rdma
from offstage.host.fabrics import nixl, shm, sim, verbs, zmq
from offstage.host.link.control import Control

__all__ = ["FABRICS", "Fabric", "open_fabric"]

# By name. `connect` takes a Control; that of `sim` a BareDevice in virtual time.
FABRICS: dict[str, Callable[[Any], Fabric]] = {
    "shm": shm.connect,
    "verbs": verbs.connect,
    "nixl": nixl.connect,
    "zmq": zmq.connect,
    "sim": sim.connect,
}


def open_fabric(control: Control, name: str = "shm", rdma: Rdma | None = None) -> Fabric:
    """Attach over the fabric `name`; BadInput for an unknown name. `rdma`: the adapter of verbs;
    None: the machine's first."""
    if name not in FABRICS or name == "sim":
        known = ", ".join(sorted(set(FABRICS) - {"sim"}))
        raise BadInput(f"unknown fabric {name!r}", "fabric", f"choose one of {known}")
    if rdma is not None and name == "verbs":
        return verbs.connect(control, rdma)
    return FABRICS[name](control)
