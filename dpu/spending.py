"""What a daemon has written to its drive, and what it does about it: wear and write budget.

One thread owns this, the daemon's loop, which looks twice a second.
"""

from collections.abc import Mapping
from typing import Any

from offstage.dpu.budget import Budget
from offstage.dpu.config import Config
from offstage.dpu.device import DeviceLike
from offstage.dpu.log import Log
from offstage.dpu.options import PolicyOptions
from offstage.dpu.wear import Wear

__all__ = ["Spending"]


class Spending:
    """Of one daemon. `budget` says what of a policy the device is to have."""

    def __init__(self, config: Config, device: DeviceLike, log: Log) -> None:
        self.budget = Budget(config)
        self._wear, self._device, self._log = Wear(config), device, log
        self._tenants = range(len(config.tenants))

    def look(self, status: Mapping[str, Any], policy: PolicyOptions) -> dict[str, Any]:
        """The figures now; where the budget wants another admission, the device has it."""
        ledgers = [self._device.ledger(tenant) for tenant in self._tenants]
        wear = self._wear.look(status, ledgers)
        changed = self.budget.spend(policy, wear["drive_bytes"])
        figures = self.budget.figures(policy)
        if changed is not None:
            self._device.set_policy(changed)
            self._log.warning("write_budget", **figures)
        return wear | figures
