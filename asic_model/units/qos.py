"""QoS: who reads the medium next, of tenants and sessions.

What it does: keeps reads apart by tenant, serves tenants by weight (deficit round robin with a
`quantum`), holds each to its rate (a token bucket), and within a tenant takes the most urgent
first. A session has at most `session_share` of its tenant's queue, so that it cannot crowd out the
others. Counters by tenant and session are read by software.

Pipeline: a grant a cycle, then the request's way on (`latency`).
Initiation interval: `interval`.
State: a queue, a deficit and a bucket for each tenant, a count for each session.
When full: reads wait before the arbiter, outside the chip; writes hold their DMA engines.

The unit's queue is the firmware's own scheduler, `qos.h`, that the daemon can order its reads with,
too. The drives take so many commands at once (`nvme.queue`), and the rest waits here: an arbiter
that hands everything on at once arbitrates nothing. Sessions are kept apart where a request names
one; through the timing seam requests name their tenant only, and all of it is one session.
"""

from collections.abc import Sequence

from offstage.asic_model.parameters import Qos
from offstage.bindings.network import Unit
from offstage.bindings.qos import QosConfig, TenantShare

__all__ = ["arbiter"]


def arbiter(qos: Qos, weights: Sequence[int], sessions: int = 1) -> tuple[Unit, ...]:
    """The arbiter of reads and writes, for tenants by their weights."""
    queue = qos.queue.whole
    share = qos.session_share.base if sessions > 1 else 1.0
    config = QosConfig(
        quantum_bytes=qos.quantum.whole, session_count=sessions, queue_max=queue,
        session_max=max(1, round(queue * share)),
    )  # fmt: skip
    return (
        Unit("qos", queue="qos", queue_max=queue * len(weights), fixed_ps=qos.interval.whole,
             latency_ps=qos.latency.whole, in_flight_max=1, qos=config,
             tenants=tuple(TenantShare(weight) for weight in weights)),
    )  # fmt: skip
