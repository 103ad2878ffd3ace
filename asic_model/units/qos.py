"""QoS: which tenant and session reads the medium next.

What it does: keeps a queue per tenant, serves tenants by weight (deficit round robin with a
`quantum`), limits each to its rate (a token bucket). Within a tenant, sessions have rounds of
`session_rounds` quanta each, which bounds how long a busy session can delay the others; within a
round the most urgent read is first. A session has at most `session_share` of its tenant's queue, so
it cannot crowd out the others. Software reads the counters by tenant and session.

Pipeline: a grant, then the request's transfer (`latency`).
Initiation interval: `interval`. In `rtl/qos_arbiter.v` an operation begins every so many cycles,
and a request needs two, to enter and to be served; the second one's answer is out within it.
State: a queue, a deficit and a bucket for each tenant; for each of `sessions` its round, the bytes
left in it, and its counters.
When full: reads wait before the arbiter, outside the chip; writes hold their DMA engines. Sessions
without an entry in the table share one per tenant, as if they were one session; `shared` counts how
often.

The unit's queue is the firmware's own scheduler, `qos.h`, which the daemon can also use to order
its reads. The drives take at most `nvme.queue` commands, and the rest wait here: an arbiter that
forwards everything immediately arbitrates nothing. An entry is indexed by the core's number of the
session, which every read names; writes are batches of a log and name none.
"""

from collections.abc import Sequence

from offstage.asic_model.blocks import Qos
from offstage.bindings.network import Unit
from offstage.bindings.qos import QosConfig, TenantShare

__all__ = ["arbiter"]


def arbiter(qos: Qos, weights: Sequence[int]) -> tuple[Unit, ...]:
    """The arbiter of reads and writes, for tenants with these weights."""
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
