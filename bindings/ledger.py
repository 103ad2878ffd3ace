"""The tier's ledger, and the rates that every report computes from it.

`Ledger` mirrors `struct ofs_ledger` field by field, whatever its source: the daemon, a core in
virtual time or a baseline without a DPU. `Demands` counts how demands ended; late is not a hit. A
rate with divisor 0 is 0.0. The laboratory's figures have intervals and are None there
(`testbeds/lab/results/measure.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.bindings.errors import RunFailed
from offstage.bindings.layouts import CAUSES, ENDS, FATES, HIT_ENDS

__all__ = ["PREFETCH_CAUSES", "Demands", "Ledger", "hits_of", "quantile", "share"]

PREFETCH_CAUSES = CAUSES[CAUSES.index("window") :]
GAUGES = ("degree_now", "resident_slots")
"""Fields that say how things are now and are not counted up."""
LOG2_BINS = 64


def share(part: float, whole: float) -> float:
    """`part / whole`; 0.0 where there is no whole."""
    return part / whole if whole else 0.0


def quantile(values: npt.ArrayLike, at: float) -> float:
    """The quantile `at` of `values`, linearly interpolated; 0.0 where there are none."""
    found = np.asarray(values, np.float64)
    return float(np.quantile(found, at)) if found.size else 0.0


def hits_of(ends: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """On-time hits of counts by end, `[..., len(ENDS)]`."""
    found: npt.NDArray[np.int64] = ends[..., :HIT_ENDS].sum(axis=-1, dtype=np.int64)
    return found


@dataclass(frozen=True)
class Demands:
    """Demands by how they ended, in the order of `ENDS`. `unanswered` demands got no answer."""

    ends: tuple[int, ...]
    unanswered: int = 0

    @classmethod
    def of(cls, ends: Iterable[int], unanswered: int = 0) -> "Demands":
        """Make one from counts of any integer type."""
        return cls(tuple(int(count) for count in ends), unanswered)

    @property
    def total(self) -> int:
        """All demands."""
        return sum(self.ends) + self.unanswered

    @property
    def hits(self) -> int:
        """Demands that ended on time."""
        return sum(self.ends[:HIT_ENDS])

    @property
    def late(self) -> int:
        """Demands of blocks that were still being read."""
        return self.ends[HIT_ENDS]

    @property
    def misses(self) -> int:
        """Cold, capacity and policy misses; late demands are counted apart."""
        return sum(self.ends[HIT_ENDS + 1 :])

    @property
    def hit_rate(self) -> float:
        """Of all demands."""
        return share(self.hits, self.total)

    @property
    def warm_hit_rate(self) -> float:
        """The share of the demands that were not a block's first."""
        return share(self.hits, self.total - self.ends[ENDS.index("cold")])

    @property
    def late_rate(self) -> float:
        """The share of all demands that were late."""
        return share(self.late, self.total)

    @property
    def miss_rate(self) -> float:
        """The share of all demands that were missed."""
        return share(self.misses, self.total)

    def by_end(self) -> dict[str, int]:
        """Counts by the names of `ENDS`."""
        return dict(zip(ENDS, self.ends, strict=True))


def _counts(size: int) -> Any:
    return msgspec.field(default_factory=lambda: [0] * size)


class Ledger(msgspec.Struct, kw_only=True):
    """`struct ofs_ledger`; a field that its counter does not know is 0. `ends` and
    `nontrivial_ends` are by `ENDS`, `issued` by `CAUSES`, `fates` by cause and fate."""

    steps: int = 0
    selected: int = 0
    demands: int = 0
    nontrivial: int = 0
    ends: list[int] = _counts(len(ENDS))
    nontrivial_ends: list[int] = _counts(len(ENDS))
    fates: list[list[int]] = msgspec.field(
        default_factory=lambda: [[0] * len(FATES) for _ in CAUSES]
    )
    issued: list[int] = _counts(len(CAUSES))
    demand_bytes_read: int = 0
    prefetch_bytes_read: int = 0
    shadow_misses: int = 0
    shadow_nontrivial_misses: int = 0
    pollution: int = 0
    evictions: int = 0
    evictions_generating: int = 0
    shared_chunks: int = 0
    appended_chunks: int = 0
    io_errors: int = 0
    leases_expired: int = 0
    busy: int = 0
    records_lost: int = 0
    log_bytes_lost: int = 0
    lead_ns_log2: list[int] = _counts(LOG2_BINS)
    late_ns_log2: list[int] = _counts(LOG2_BINS)
    hint_bytes: int = 0
    demand_bytes_wanted: int = 0
    demand_bytes_spared: int = 0
    degree_now: int = 0
    resident_slots: int = 0

    @classmethod
    def of(cls, counts: "Ledger | Mapping[str, Any]") -> "Ledger":
        """Make one from counters by name; of a daemon's ledger what `struct ofs_ledger` has."""
        if isinstance(counts, Ledger):
            counts = {name: getattr(counts, name) for name in Ledger.__struct_fields__}
        return msgspec.convert(counts, Ledger)

    @classmethod
    def total(cls, ledgers: Iterable["Ledger"]) -> "Ledger":
        """Counters added up, element by element; gauges mean nothing then."""
        each = [cls(), *ledgers]
        return cls.of(
            {
                name: np.sum([getattr(one, name) for one in each], axis=0, dtype=np.int64).tolist()
                for name in cls.__struct_fields__
            }
        )

    def since(self, before: "Ledger") -> "Ledger":
        """What was counted since `before`; gauges as they are now.

        Raises RunFailed where a count went back: the ledger was reset in between."""
        counted = {}
        for name in Ledger.__struct_fields__:
            if name in GAUGES:
                continue
            more = np.subtract(getattr(self, name), getattr(before, name))
            if np.min(more) < 0:
                raise RunFailed(
                    f"{name} decreased during the run: the ledger was reset",
                    "ledger",
                    "run again, without a concurrent `offstage dpu reset`",
                )
            counted[name] = more.tolist()
        return Ledger(**counted, **{name: getattr(self, name) for name in GAUGES})

    def at_end(self) -> "Ledger":
        """That of a run that has ended: what was read ahead and is staged still, or on its way, is
        unused. Blocks from before the run that were used in it make these fewer."""
        fates = [list(row) for row in self.fates]
        for cause in PREFETCH_CAUSES:
            row = fates[CAUSES.index(cause)]
            known = sum(row) - row[FATES.index("dropped")]
            row[FATES.index("unused")] += max(0, self.issued[CAUSES.index(cause)] - known)
        return msgspec.structs.replace(self, fates=fates)

    @property
    def ended(self) -> Demands:
        """All demands."""
        return Demands.of(self.ends)

    @property
    def nontrivial_ended(self) -> Demands:
        """Demands outside sinks, window and just-written blocks."""
        return Demands.of(self.nontrivial_ends)

    @property
    def bytes_read(self) -> int:
        """Reads from the drive, on demand and ahead."""
        return self.demand_bytes_read + self.prefetch_bytes_read

    @property
    def read_amplification(self) -> float:
        """Bytes read on demand over those that the demands named."""
        return share(self.demand_bytes_read, self.demand_bytes_wanted)

    @property
    def prefetched_blocks(self) -> int:
        """Blocks whose read was begun before they were demanded."""
        return sum(self.issued[CAUSES.index(cause)] for cause in PREFETCH_CAUSES)

    def prefetched(self) -> dict[str, dict[str, int]]:
        """Prefetched blocks by cause and fate, without causes that never occurred."""
        named = {
            cause: dict(zip(FATES, row, strict=True))
            for cause, row in zip(CAUSES, self.fates, strict=True)
            if cause in PREFETCH_CAUSES
        }
        return {cause: row for cause, row in named.items() if any(row.values())}

    @property
    def used_of_prefetched(self) -> tuple[int, int]:
        """Prefetched blocks that were used on time, and all; what was dropped from the queue was
        never prefetched."""
        rows = self.prefetched().values()
        used = sum(row["used"] for row in rows)
        return used, sum(sum(row.values()) - row["dropped"] for row in rows)

    @property
    def accuracy(self) -> float:
        """Used / prefetched."""
        return share(*self.used_of_prefetched)
