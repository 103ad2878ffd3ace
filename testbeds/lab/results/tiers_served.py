"""Blocks served by each tier at one point: the HBM pool, the arena, and each tier below it.

Model: the figures of the HBM pool and the arena come from the ledger's rows, those of the tiers
below from the counters of the timing side; nothing is estimated. A selected block was in the pool,
or was demanded; a demand was staged in time, or waited. A block that was waited for was read from a
tier, on demand or by a late prefetch. So `served` of the tiers adds up to the reads of the run, and
the waits of all rows to those of the ledger. A tier costs the price of its capacity, independent
of use.
"""

from collections.abc import Sequence
from typing import NamedTuple

from offstage.testbeds.lab.results.ledger import RunTotals
from offstage.testbeds.lab.results.summary import Interval, PointInfo, TierSummary
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.lab.spec.tiers import Tier, numbers_of, tiers_of

__all__ = ["tiers_served"]

GB = 1e9
NS_PER_MS = 1e6


def tiers_served(spec: Spec, info: PointInfo, runs: Sequence[RunTotals]) -> list[TierSummary]:
    """One row per tier, from the GPU down. `runs`: the point's runs, one per seed."""
    size = info.block_bytes
    tokens = max(1, sum(int(run.columns["tokens"].sum()) for run in runs))
    stall_ns = sum(int(run.stall_ns.sum()) for run in runs)
    built = tiers_of(spec, size)
    of_all = [
        {
            name: (max if name == "read_ns_max" else sum)(run.tiers[at][name] for run in runs)
            for name in runs[0].tiers[at]
        }
        for at in range(len(built))
    ]
    waited = sum(one["stall_ns"] for one in of_all)
    rows = _above(spec, info, runs, (stall_ns - waited) / tokens / NS_PER_MS)
    for one, counted in zip(built, of_all, strict=True):
        rows.append(_below(one, counted, size, tokens, last=one is built[-1]))
    return rows


def _below(
    tier: Tier, counted: dict[str, int], size: int, tokens: int, *, last: bool
) -> TierSummary:
    reads = counted["reads"]
    written = counted["writes"] * size
    value, low, high = tier.usd
    return TierSummary(
        name=tier.name,
        level=tier.level,
        capacity_bytes=tier.capacity_bytes,
        served=reads,
        on_demand=counted["demand_reads"],
        read_bytes=(reads + counted["moves"]) * size,
        written_bytes=written,
        stall_ms_per_token=counted["stall_ns"] / tokens / NS_PER_MS,
        promote_within="" if last else tier.promote_within,
        read_us_mean=counted["read_ns"] / reads / 1e3 if reads else None,
        read_us_max=counted["read_ns_max"] / 1e3 if reads else None,
        placed=counted["placed"],
        promoted=counted["promoted"],
        demoted=counted["demoted"],
        gone=counted["gone"],
        resident=counted["resident"],
        devices=tier.devices,
        usd=Interval(value=value, low=low, high=high),
        life_hours=tier.life_hours,
        wear_usd=written * tier.wear_usd_per_byte,
    )


def _above(
    spec: Spec, info: PointInfo, runs: Sequence[RunTotals], stall_ms: float
) -> list[TierSummary]:
    """The HBM pool, if there is one, and the arena. `stall_ms`: waits per token that no read of a
    tier ended: no slot was free, or a block that decode writes was not written yet."""
    size = info.block_bytes
    hits, pool_hits, demands = (
        sum(int(run.columns[name].sum()) for run in runs)
        for name in ("hits", "pool_hits", "demands")
    )
    blocks = round(info.slot_count / info.buffer_over_k * info.hbm_pool_over_k)
    pool = _Memory("HBM pool", "G1", "hbm", blocks, pool_hits, demands, 0.0)
    brought = sum(run.reads for run in runs)
    arena = _Memory("arena", "", "ddr5", info.slot_count, hits, brought, stall_ms)
    return [one.row(spec, size) for one in (pool, arena) if one.blocks]


class _Memory(NamedTuple):
    """Memory above the tiers: capacity in `blocks`, blocks `served` and blocks `brought` in."""

    name: str
    level: str
    device: str
    blocks: int
    served: int
    brought: int
    stall_ms: float

    def row(self, spec: Spec, size: int) -> TierSummary:
        """The memory's summary, at the catalog's price."""
        numbers = numbers_of(spec)
        price = numbers.numbers(self.device)["price"]
        room = self.blocks * size
        value, low, high = (
            one * price.scale * room / GB for one in (price.value, price.low, price.high)
        )
        return TierSummary(
            name=self.name,
            level=self.level,
            capacity_bytes=room,
            served=self.served,
            on_demand=self.served,
            read_bytes=self.served * size,
            written_bytes=self.brought * size,
            stall_ms_per_token=self.stall_ms,
            usd=Interval(value=value, low=low, high=high),
            life_hours=numbers.numbers("serving")["life"].base,
        )
