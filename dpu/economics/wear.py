"""What the tier costs its drive: bytes written per useful hit, amplification, DWPD, years of life.

The counters of device and ledger restart at zero after a reset or a move to another storage; the
sums here continue. A *useful hit* is a demand that ended on time (glossary: hit), so a block that
is written and never read makes every hit dearer. *Amplification* is the bytes written to the drive
divided by the records that hosts wrote: the excess is the cleaner's copies, headers, wipes, and
restores from the archive. Writes that the drive adds internally are not included. One thread owns
this, the daemon's loop; the formulas are `bindings.tradeoffs`.

Admission by wear: what is written must be read again often enough to be worth it.

Model: once an hour, the bytes written for each useful hit of that hour are compared with the most
that a hit is worth (`Thresholds.written_per_hit_max`). Above it, one more session must have come
before a chunk is written; below a quarter of it, one fewer. Requiring one more session saves
more than half of the writes and about half of the hits, so the two do not alternate. An hour with
almost no writes also lowers the number by one. One thread owns this, the daemon's loop; it starts
from zero at each start.
"""

import time
from collections.abc import Callable, Iterable

from offstage.bindings.figures import DeviceStatus
from offstage.bindings.ledger import Ledger
from offstage.bindings.tradeoffs import drive_writes_per_day, life_years
from offstage.dpu.config.values import Config
from offstage.dpu.protocol.status import WearFigures

__all__ = ["ByWear", "Wear"]


class Wear:
    """Of one daemon since its start."""

    def __init__(self, config: Config) -> None:
        """`storage.endurance` gives the bytes that the drive may be written."""
        self._record_bytes = config.arena.payload_bytes + config.storage.lba_bytes
        self._segment_bytes = config.store.segment_bytes
        self._endurance_bytes = config.storage.endurance_bytes
        self._sums: dict[str, int] = {}
        self._last: dict[str, int] = {}

    def look(self, status: DeviceStatus, ledgers: Iterable[Ledger]) -> WearFigures:
        """The figures now, from the device's status and the ledgers of all tenants."""
        store = status.store
        puts = store.puts * self._record_bytes - store.put_bytes_spared
        hits = sum(one.ended.hits for one in ledgers)
        written = self._sum("drive_bytes", status.storage.bytes_written)
        host = self._sum("host_bytes", puts)
        useful = self._sum("hits", hits)
        nanoseconds = status.busy_ns + status.idle_ns + status.sleep_ns
        rate = written / (nanoseconds / 1e9) if nanoseconds else 0.0
        capacity = store.segments_total * self._segment_bytes
        endurance = self._endurance_bytes
        return WearFigures(
            host_bytes=host,
            drive_bytes=written,
            hits=useful,
            bytes_per_hit=written / useful if useful else None,
            amplification=written / host if host else None,
            drive_writes_per_day=drive_writes_per_day(rate, capacity) if capacity else None,
            endurance_bytes=endurance,
            life_years=life_years(endurance, rate) if endurance and rate else None,
        )

    def _sum(self, name: str, now: int) -> int:
        """The sums since the first call, across every reset of the counters."""
        last = self._last.get(name)
        self._last[name] = now
        more = 0 if last is None else now - last if now >= last else now
        self._sums[name] = self._sums.get(name, 0) + more
        return self._sums[name]


HOUR_S = 3600.0
LEVEL_MAX = 2
RECORDS_MIN = 1024


class ByWear:
    """Of one daemon. `level`: how many sessions must have come before."""

    def __init__(self, record_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: in seconds."""
        self.level = 0
        self._least_bytes, self._clock = RECORDS_MIN * record_bytes, clock
        self._begun: tuple[float, int, int] | None = None

    def look(self, wear: WearFigures, written_per_hit_max: int) -> None:
        """`wear`: the sums of `Wear`; `written_per_hit_max` 0: the worth of a hit is unknown."""
        now = self._clock(), wear.drive_bytes, wear.hits
        if not written_per_hit_max:
            self.level, self._begun = 0, now
        elif self._begun is None:
            self._begun = now
        elif now[0] - self._begun[0] >= HOUR_S:
            written, hits = now[1] - self._begun[1], now[2] - self._begun[2]
            self._begun = now
            if written > max(written_per_hit_max * hits, self._least_bytes):
                self.level = min(self.level + 1, LEVEL_MAX)
            elif written <= max(written_per_hit_max * hits // 4, self._least_bytes):
                self.level = max(self.level - 1, 0)
