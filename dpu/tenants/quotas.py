"""A tenant's use of shared resources, its bounds, and the one warning when it nears one.

Ports and logins are counted here, the rest by the firmware. Each quota is a pair of
figures in the same unit: current use and bound; a bound of 0 means unlimited. The arena has no
quota: it fills with staged blocks and evicts. One thread owns this, the daemon's loop.
"""

from collections.abc import Iterator, Mapping

import msgspec

from offstage.dpu.config.options import Tenant
from offstage.dpu.log import Log
from offstage.dpu.protocol.status import TenantFigures
from offstage.dpu.storage.device import Device
from offstage.dpu.tenants.hosts import Hosts, Refused, TenantState
from offstage.dpu.tenants.shard_reports import Shards

__all__ = ["Quotas", "give", "used"]

NEAR_PERCENT = 80
QUOTAS = {
    "sessions": ("sessions", "sessions_max"),
    "ports": ("ports", "ports_max"),
    "logins": ("logins", "logins_max"),
    "chunks": ("chunks", "chunks_max"),
    "store": ("stored_bytes", "stored_bytes_max"),
    "dirty": ("dirty_blocks", "dirty_blocks_max"),
}
"""Name of a quota -> the names of its current use and its bound among the figures."""


def give(device: Device, state: TenantState, tenant: Tenant) -> None:
    """Apply the drive share and the bounds of a tenant's options."""
    device.tenant_share(
        state.index,
        tenant.weight,
        tenant.bandwidth_bytes_per_s,
        tenant.in_flight_bytes,
        tenant.floor_bytes_per_s,
    )
    device.tenant_quota(
        state.index,
        tenant.chunks_max,
        tenant.store_max_bytes,
        tenant.dirty_max or state.dirty_max,
        state.session_max,
    )


def used(figures: TenantFigures) -> Iterator[tuple[str, int, int]]:
    """For one tenant, each quota with a bound: current use and bound."""
    for quota, (has, most) in QUOTAS.items():
        if bound := getattr(figures, most):
            yield quota, getattr(figures, has), bound


class Quotas:
    """`tenants`: the present options of each."""

    def __init__(
        self,
        device: Device,
        hosts: Hosts,
        tenants: Mapping[str, Tenant],
        record_bytes: int,
        log: Log,
    ) -> None:
        """`record_bytes`: of a slot."""
        self._device, self._hosts, self._log = device, hosts, log
        self._record_bytes = record_bytes
        self.tenants = dict(tenants)
        self.shards = Shards()
        self._near: set[tuple[str, str]] = set()

    def change(self, tenant: Tenant) -> None:
        """Replace the options of a tenant."""
        give(self._device, self._hosts.tenants[tenant.name], tenant)
        self.tenants[tenant.name] = tenant

    def figures(self, tenant: TenantState) -> TenantFigures:
        """The tenant's current use and its bounds."""
        hosts = self._hosts.of(tenant)
        return TenantFigures(
            **msgspec.structs.asdict(self._device.tenant_status(tenant.index)),
            arena_bytes=tenant.slot_count * self._record_bytes,
            arena_bytes_max=self.tenants[tenant.name].arena_max_bytes,
            ports=sum(host.port is not None for host in hosts),
            ports_max=tenant.port_max,
            logins=len(hosts),
            logins_max=tenant.login_max,
            pod=self.shards.counts(tenant),
        )

    def look(self) -> dict[str, TenantFigures]:
        """The figures of all tenants. A tenant near a bound is logged, once."""
        found = {one.name: self.figures(one) for one in self._hosts.tenants.values()}
        for name, figures in found.items():
            for quota, has, most in used(figures):
                self._note(name, quota, has, most)
        return found

    def check(self, tenant: TenantState, quota: str) -> None:
        """Refused if one more of `sessions` or `ports` exceeds the tenant's bound."""
        has, most = self._device.tenant_status(tenant.index).sessions, tenant.session_max
        if quota == "ports":
            has = sum(host.port is not None for host in self._hosts.of(tenant))
            most = tenant.port_max
        if has >= most:
            raise Refused(
                "limit",
                f"the tenant has its {most} {quota}",
                tenant.name,
                f"end one, or raise {quota} of its [[tenant]]",
            )
        self._note(tenant.name, quota, has + 1, most)

    def _note(self, tenant: str, quota: str, has: int, most: int) -> None:
        """Logged once at 80 %, and again only after it was below."""
        near = has * 100 >= NEAR_PERCENT * most
        if near and (tenant, quota) not in self._near:
            self._log.warning("quota_near", tenant=tenant, what=quota, has=has, most=most)
        (self._near.add if near else self._near.discard)((tenant, quota))
