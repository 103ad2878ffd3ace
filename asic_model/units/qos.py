"""QoS: who reads the medium next, of tenants and sessions.

What it does: keeps reads apart by tenant, serves tenants by weight (deficit round robin with a
`quantum`), holds each to its rate (a token bucket), and within a tenant takes the most urgent
first. A session has at most `session_share` of its tenant's queue, so that it cannot crowd out the
others. Counters by tenant and session are read by software.

Pipeline: a grant a cycle, then the request's way on (`latency`).
Initiation interval: `interval`.
State: a queue, a deficit and a bucket for each tenant, a count for each session.
When full: reads wait in the decision core's own list, demands before guesses.

In the network it is one priority queue, demands before guesses before writes. Weights and buckets
of several tenants are in the decision core, which issues reads by them, as in the daemon.
"""

from offstage.asic_model.parameters import Qos
from offstage.bindings.network import Unit

__all__ = ["arbiter"]


def arbiter(qos: Qos) -> tuple[Unit, ...]:
    """The arbiter of reads."""
    return (
        Unit("qos", queue="priority", queue_max=qos.queue.whole, fixed_ps=qos.interval.whole,
             latency_ps=qos.latency.whole),
    )  # fmt: skip
