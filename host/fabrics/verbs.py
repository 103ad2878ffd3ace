"""The verbs fabric: the daemon's memory by one-sided RDMA, from any machine of its network.

The attach brings the daemon's end as a blob; the driver opens this end over it, and what it answers
goes back over the control connection. From then on blocks and commands flow without the daemon's
processor on a hit. What ends a connection (link, daemon, a refused key) is a RunFailed that says
so; the host attaches again.
"""

from offstage.bindings.attachment import Attachment
from offstage.bindings.driver import Driver
from offstage.bindings.verbs import Rdma, check_memlock, prepare
from offstage.host.control import Control

__all__ = ["connect"]


def connect(control: Control, rdma: Rdma | None = None) -> Driver:
    """Attach over the adapter that `rdma` names. BadInput where it, a GID, an MTU or a way to the
    daemon is not there; RunFailed, Incompatible: what the daemon answers."""
    prepare(rdma or Rdma())
    limits, geometry = control.limits, control.geometry
    check_memlock(limits.put_slot_count * geometry.payload_size_bytes)
    attached = control.attach("verbs")
    driver = Driver(Attachment(attached.blob))
    try:
        answer = driver.answer()
        assert answer is not None
        control.connect(answer)
    except BaseException:
        driver.close()
        raise
    return driver
