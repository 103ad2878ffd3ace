"""The write budget: as a day's budget of drive writes is used up, fewer new chunks are admitted.

Model: the bytes written to the drive in the last 24 hours, in hourly buckets, are compared with a
bound: `policy.write_budget`, or what `storage.endurance` allows if the drive is to last
`policy.drive_years`. The result is one integer: how many sessions must have tried to put a new
chunk before a put of it is written. The window is empty at a start. One thread owns this, the
daemon's loop.
"""

import time
from collections import deque
from collections.abc import Callable

from offstage.dpu.config.derive import daily_bytes
from offstage.dpu.config.options import PolicyOptions
from offstage.dpu.config.values import Config

__all__ = ["LEVELS", "NOTHING", "Budget"]

NOTHING = 255
LEVELS = ((50, 0), (80, 1), (100, 2))
"""(percent, level): below that percentage of the budget used, how many sessions must have come
before."""
HOUR_S, HOURS = 3600.0, 24


class Budget:
    """Of one daemon."""

    def __init__(self, config: Config, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: in seconds."""
        self._endurance_bytes, self._clock = config.storage.endurance_bytes, clock
        self._hours: deque[tuple[int, int]] = deque()  # hour, bytes by its beginning
        self._used = 0

    def bytes_of(self, policy: PolicyOptions) -> int:
        """Bytes allowed in a day; 0: no limit. BadInput: drive years without a known endurance."""
        return daily_bytes(self._endurance_bytes, policy)

    def level(self, policy: PolicyOptions) -> int:
        """The level of admission that the budget requires now."""
        bound = self.bytes_of(policy)
        return (
            0
            if not bound
            else next(
                (level for percent, level in LEVELS if 100 * self._used < percent * bound), NOTHING
            )
        )

    def spend(self, drive_bytes: int) -> None:
        """Record `drive_bytes`, the bytes written to the drive so far."""
        hour = int(self._clock() / HOUR_S)
        if not self._hours or self._hours[-1][0] != hour:
            self._hours.append((hour, drive_bytes))
        while self._hours[0][0] <= hour - HOURS:
            self._hours.popleft()
        self._used = drive_bytes - self._hours[0][1]

    def figures(self, policy: PolicyOptions) -> dict[str, int]:
        """Bytes of the budget, and the bytes used."""
        return {"budget_bytes": self.bytes_of(policy), "budget_used_bytes": self._used}
