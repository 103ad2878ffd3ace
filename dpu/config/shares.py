"""What contradicts itself in the tenants' shares of the drive.

Model: a floor is a rate that a tenant gets first, so it can be no more than its cap, and all floors
together no more than the drive reads. What a drive of this machine reads nobody knows before it is
measured; of an emulated one the model says it.

Pure. `BadInput` names the tenant.
"""

from collections.abc import Sequence

from offstage.bindings.errors import BadInput
from offstage.bindings.storage import nvme_cost, preset
from offstage.bindings.units import format_rate
from offstage.dpu.config.options import Storage, Tenant

__all__ = ["check_floors", "check_share"]

NS_PER_S = 10**9
RATE_MIN = 256
"""The least cap or floor of the arbiter (qos.h)."""


def check_share(tenant: Tenant, which: str) -> None:
    """BadInput for a floor above the tenant's cap, and for less than the arbiter can keep."""
    floor, cap = tenant.floor_bytes_per_s, tenant.bandwidth_bytes_per_s
    for key, rate in (("floor", floor), ("bandwidth", cap)):
        if 0 < rate < RATE_MIN:
            raise BadInput(f"{key} is {rate} bytes a second", which, f"give {RATE_MIN}B/s or more")
    if 0 < cap < floor:
        raise BadInput(
            f"bandwidth is {format_rate(cap)}, below the floor of {format_rate(floor)}",
            which,
            "raise bandwidth, or lower floor",
        )


def check_floors(storage: Storage, tenants: Sequence[Tenant], record: int, where: str) -> None:
    """BadInput for floors that the emulated drive cannot serve, in reads of `record` bytes."""
    floors = sum(tenant.floor_bytes_per_s for tenant in tenants)
    if not floors or storage.backend != "emulated":
        return
    most = record / nvme_cost(preset(storage.nvme).params, [(0, record)]).ns * NS_PER_S
    if floors > most:
        raise BadInput(
            f"the tenants' floors are {format_rate(floors)}, and {storage.nvme} reads "
            f"{format_rate(most)}",
            where,
            "lower floor of a [[tenant]]",
        )
