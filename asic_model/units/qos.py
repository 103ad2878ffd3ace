"""QoS: who reads the medium next, of tenants and sessions.

What it does: keeps reads apart by tenant, serves tenants by weight (deficit round robin with a
`quantum`), holds each to its rate (a token bucket). Within a tenant its sessions have rounds of
`session_rounds` quanta each, so that one that asks for much delays the others by no more than that;
in a round the most urgent is first. A session has at most `session_share` of its tenant's queue, so
that it cannot crowd out the others. Counters by tenant and session are read by software.

Pipeline: a grant a cycle, then the request's way on (`latency`).
Initiation interval: `interval`.
State: a queue, a deficit and a bucket for each tenant; for each of `sessions` its round, the bytes
that it has of it, and its counters.
When full: reads wait before the arbiter, outside the chip; writes hold their DMA engines. Sessions
that the table has no entry for share one for each tenant, as if they were one session; how often is
counted (`shared`).

The unit's queue is the firmware's own scheduler, `qos.h`, that the daemon can order its reads with,
too. The drives take so many commands at once (`nvme.queue`), and the rest waits here: an arbiter
that hands everything on at once arbitrates nothing. An entry is that of the core's number of the
session, which every read names; writes are batches of a log and name none.
"""

from collections.abc import Sequence

from offstage.asic_model.blocks import Qos
from offstage.bindings.network import Unit
from offstage.bindings.qos import QosConfig, TenantShare

__all__ = ["arbiter"]


def arbiter(qos: Qos, weights: Sequence[int]) -> tuple[Unit, ...]:
    """The arbiter of reads and writes, for tenants by their weights."""
    queue, quantum = qos.queue.whole, qos.quantum.whole
    config = QosConfig(
        quantum_bytes=quantum,
        session_count=qos.sessions.whole,
        queue_max=queue,
        session_max=max(1, round(queue * qos.session_share.base)),
        session_quantum_bytes=round(quantum * qos.session_rounds.base),
    )
    return (
        Unit(
            "qos",
            queue="qos",
            queue_max=queue * len(weights),
            fixed_ps=qos.interval.whole,
            latency_ps=qos.latency.whole,
            in_flight_max=1,
            qos=config,
            tenants=tuple(TenantShare(weight) for weight in weights),
        ),
    )
