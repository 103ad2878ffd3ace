"""The daemon's decision thresholds, from the same functions that `offstage plan` uses.

Model: the values in `[policy]`, including prices and rates, and the measurements are the inputs of
functions in `bindings/tradeoffs.py`. Their results are rounded to integers, which the device gets
as part of its policy. They are computed at the start, at each `policy set`, and when a measurement
changes by a power of two. Where a price is unknown, its threshold is the default. A threshold that
`[policy]` sets explicitly is not overridden.

The formulas consider one token over all layers: the record of a token is what the drive writes.
Nothing fails.
"""

import math

import msgspec

from offstage.bindings.tradeoffs import (
    GB,
    HOURS_PER_MONTH,
    LIFE_HOURS,
    crossover_tokens,
    hold_limit_s,
    least_reuse,
    write_usd,
)
from offstage.dpu.config.options import KEEP_MAX_NS, MINUTE_NS, PolicyOptions
from offstage.dpu.config.values import Config
from offstage.dpu.protocol.status import Pace

__all__ = ["NONE_RETURN", "Thresholds"]

NONE_RETURN = 65_535
MICRO = 1e-6


class Thresholds:
    """The thresholds of one daemon, whose drive has `capacity_bytes`."""

    def __init__(self, config: Config, capacity_bytes: int) -> None:
        arena = config.arena
        self._record_bytes = arena.payload_bytes + config.storage.lba_bytes
        self._token_bytes = arena.payload_bytes * arena.layers / arena.block_tokens
        self._token_records = arena.layers / arena.block_tokens
        self._capacity_bytes = capacity_bytes
        self._endurance_bytes = config.storage.endurance_bytes
        self._return_tokens = 0

    def keep_ns(self, policy: PolicyOptions) -> int:
        """Keep or drop: how long a kept chunk is kept while no session names it; whole
        minutes, 0: for ever. After that, its share of the drive has cost as much as a prefill."""
        if policy.keep_ns or not policy.prefill_price_microusd or not policy.drive_price_microusd:
            return policy.keep_ns
        life_hours = policy.drive_years * 12 * HOURS_PER_MONTH or LIFE_HOURS
        limit_s = hold_limit_s(
            self._record_bytes * self._token_records,
            policy.drive_price_microusd * MICRO / (self._capacity_bytes / GB),
            _prefill_usd(policy),
            self._write_usd(policy),
            life_hours,
        )
        minutes = max(1, round(limit_s / 60))
        return minutes * MINUTE_NS if minutes * MINUTE_NS <= KEEP_MAX_NS else 0

    def written_per_hit_max(self, policy: PolicyOptions) -> int:
        """Admission by wear: the most bytes that may go to the drive for a block that is read in
        time instead of prefilled; 0: unknown. `least_reuse` of one write, without rent, which for
        the minutes until most reuse is a small part of it."""
        write = self._write_usd(policy)
        if not policy.prefill_price_microusd or not write:
            return 0
        return int(self._record_bytes / least_reuse(write, 0.0, _prefill_usd(policy)))

    def return_tokens_min(self, policy: PolicyOptions, pace: Pace) -> int:
        """Recompute or fetch: how many missing tokens make a restore from the archive worth it. The
        crossover as a power of two, which stays while it is at most a quarter above it or more than
        a quarter of it, so that a pace that varies a little changes nothing."""
        rate = policy.prefill_tokens_per_s
        if policy.return_tokens_min or not rate or not pace.seconds:
            return policy.return_tokens_min
        tokens_per_s = pace.tokens * pace.at_once / pace.seconds
        found = crossover_tokens(
            self._token_bytes, tokens_per_s * self._token_bytes, pace.seconds, rate
        )
        if found > NONE_RETURN // 2:
            return NONE_RETURN
        if not self._return_tokens / 4 < found <= self._return_tokens * 1.25:
            self._return_tokens = int(2 ** math.ceil(math.log2(max(found, 1.0))))
        return self._return_tokens

    def applied(self, policy: PolicyOptions, pace: Pace) -> PolicyOptions:
        """The policy with its thresholds as integers."""
        return msgspec.structs.replace(
            policy,
            keep_ns=self.keep_ns(policy),
            return_tokens_min=self.return_tokens_min(policy, pace),
        )

    def _write_usd(self, policy: PolicyOptions) -> float:
        """Of drive, that writing one token wears; 0: unknown."""
        if not policy.drive_price_microusd or not self._endurance_bytes:
            return 0.0
        return write_usd(
            self._record_bytes * self._token_records,
            policy.drive_price_microusd * MICRO,
            self._endurance_bytes,
        )


def _prefill_usd(policy: PolicyOptions) -> float:
    """Of GPU time, for one token."""
    return policy.prefill_price_microusd * MICRO * MICRO
