"""What a daemon has written to its drive, and the resulting decisions: wear, thresholds.

Model: prices and measurements determine integers: how long a kept chunk is kept, which new
chunks are written, which are restored from the archive (thresholds.py, wear.py, budget.py). They
reach the device like any change of policy, so they are in the decision log, and a replay reads
them from there. One thread owns this, the daemon's loop, which updates it twice a second.
"""

import msgspec

from offstage.dpu.config.options import PolicyOptions
from offstage.dpu.config.values import Config
from offstage.dpu.economics.budget import Budget
from offstage.dpu.economics.thresholds import Thresholds
from offstage.dpu.economics.wear import ByWear, Wear
from offstage.dpu.log import Log
from offstage.dpu.protocol.status import DeviceReport, Pace, ThresholdFigures
from offstage.dpu.storage.device import Device

__all__ = ["Spending"]


class Spending:
    """The spending of one daemon, whose device was opened with the policy of `config`."""

    def __init__(self, config: Config, device: Device, log: Log) -> None:
        """Give the device the thresholds too."""
        self._wear, self._device, self._log = Wear(config), device, log
        self._budget = Budget(config)
        self._by_wear = ByWear(config.arena.payload_bytes + config.storage.lba_bytes)
        segments = device.status().store.segments_total
        capacity_bytes = segments * config.store.segment_bytes or config.storage.size_bytes
        self._thresholds = Thresholds(config, capacity_bytes)
        self._pace = Pace()
        self._tenants = range(len(config.tenants))
        self._given, self._level, self._refused = config.policy, 0, False
        self.set_policy(config.policy)

    def set_policy(self, policy: PolicyOptions) -> None:
        """Give the device this policy, with the integers derived from it. BadInput, and nothing
        changes, for a lifetime in years of a drive whose endurance is unknown."""
        level = self._budget.level(policy)
        wanted = msgspec.structs.replace(
            self._thresholds.applied(policy, self._pace),
            admit_named_min=max(policy.admit_named_min, level, self._by_wear.level),
        )
        if wanted != self._given:
            self._device.set_policy(wanted)
            self._log.info("thresholds", **msgspec.structs.asdict(self._figures(policy, wanted)))
        if level != self._level:
            self._log.warning(
                "write_budget",
                admit_named_min=wanted.admit_named_min,
                **self._budget.figures(policy),
            )
        self._given, self._level = wanted, level

    def look(self, status: DeviceReport, policy: PolicyOptions) -> DeviceReport:
        """With `wear` and `thresholds` as of now; changed thresholds are passed to the device."""
        ledgers = [self._device.ledger(tenant) for tenant in self._tenants]
        wear = self._wear.look(status, ledgers)
        self._budget.spend(wear.drive_bytes)
        self._by_wear.look(wear, self._thresholds.written_per_hit_max(policy))
        self._pace = status.archive.pace if status.archive else Pace()
        self._note_refusal(bool(status.store.refuses_writes))
        self.set_policy(policy)
        self._device.drop_idle()
        return msgspec.structs.replace(
            status,
            wear=msgspec.structs.replace(wear, **self._budget.figures(policy)),
            thresholds=self._figures(policy, self._given),
        )

    def _note_refusal(self, refuses: bool) -> None:
        """The drive refuses writes, or takes them again: logged at each change."""
        if refuses and not self._refused:
            self._log.error("drive_refuses_writes", fix="look at dmesg and the drive's SMART log")
        elif self._refused and not refuses:
            self._log.info("drive_takes_writes")
        self._refused = refuses

    def _figures(self, policy: PolicyOptions, given: PolicyOptions) -> ThresholdFigures:
        return ThresholdFigures(
            admit_named_min=given.admit_named_min,
            keep_ns=given.keep_ns,
            return_tokens_min=given.return_tokens_min,
            written_per_hit_max=self._thresholds.written_per_hit_max(policy),
        )
