"""Reports of a pod's hosts about shards, for each tenant separately: `dpu.pod.exceptions` with
the daemon's clock.
"""

import time

from offstage.dpu import protocol as p
from offstage.dpu.pod.exceptions import Exceptions
from offstage.dpu.tenants.hosts import Host, TenantState

__all__ = ["Shards"]


class Shards:
    """One table for each tenant with reports. The daemon's loop owns it."""

    def __init__(self) -> None:
        self._of: dict[int, Exceptions] = {}

    def answer(self, host: Host, request: p.Shards) -> p.ShardsReply:
        """Process the report of a tenant's host."""
        assert host.tenant is not None
        kept = self._of.setdefault(host.tenant.index, Exceptions())
        now_ns = time.monotonic_ns()
        load = kept.served(request.served, request.tally, now_ns)
        return p.ShardsReply(
            load=load,
            answers=[kept.told(one, now_ns) for one in request.reports],
            hot=kept.hot(now_ns, request.hot_per_s) if request.hot_per_s else [],
        )

    def counts(self, tenant: TenantState) -> dict[str, int | float]:
        """For status and metrics, see `Exceptions.counts`; zeros without reports."""
        return self._of.get(tenant.index, Exceptions()).counts(time.monotonic_ns())
