"""What the tier costs its drive: bytes written per useful hit, amplification, DWPD, years of life.

Counters of device and ledger begin anew, with a reset, or with another storage after a move; here
they go on. A *useful hit* is a demand that ended on time (glossary: hit), so a block that is
written and never read makes every hit dearer. *Amplification* is what went to the drive over the
records that hosts wrote: the cleaner's copies, headers, wipes, what the archive brought back. What
the drive itself writes more than it is told is not seen here. One thread owns this, the daemon's
loop; the formulas are `bindings.tradeoffs`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from offstage.bindings.ledger import Demands
from offstage.bindings.tradeoffs import drive_writes_per_day, life_years
from offstage.dpu.config import Config

__all__ = ["Wear"]


class Wear:
    """Of one daemon since its start."""

    def __init__(self, config: Config) -> None:
        """`storage.endurance` says what the drive may be written."""
        self._record_bytes = config.arena.payload_bytes + config.storage.lba_bytes
        self._segment_bytes = config.store.segment_bytes
        self._endurance_bytes = config.storage.endurance_bytes
        self._sums: dict[str, int] = {}
        self._last: dict[str, int] = {}

    def look(
        self, status: Mapping[str, Any], ledgers: Iterable[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The figures now, from the device's status and the ledgers of all tenants. None where
        there is nothing to divide by: no put, no hit, no endurance that is known."""
        store, storage = status.get("store", {}), status.get("storage", {})
        puts = store.get("puts", 0) * self._record_bytes - store.get("put_bytes_spared", 0)
        hits = sum(Demands.of(one["ends"]).hits for one in ledgers)
        written = self._sum("drive_bytes", storage.get("bytes_written", 0))
        host = self._sum("host_bytes", puts)
        useful = self._sum("hits", hits)
        nanoseconds = sum(status.get(one, 0) for one in ("busy_ns", "idle_ns", "sleep_ns"))
        rate = written / (nanoseconds / 1e9) if nanoseconds else 0.0
        capacity = store.get("segments_total", 0) * self._segment_bytes
        endurance = self._endurance_bytes
        return {
            "host_bytes": host,
            "drive_bytes": written,
            "hits": useful,
            "bytes_per_hit": written / useful if useful else None,
            "amplification": written / host if host else None,
            "drive_writes_per_day": drive_writes_per_day(rate, capacity) if capacity else None,
            "endurance_bytes": endurance,
            "life_years": life_years(endurance, rate) if endurance and rate else None,
        }

    def _sum(self, name: str, now: int) -> int:
        """All that was counted since the first look, over every begin from 0."""
        last = self._last.get(name)
        self._last[name] = now
        more = 0 if last is None else now - last if now >= last else now
        self._sums[name] = self._sums.get(name, 0) + more
        return self._sums[name]
