"""Do a daemon's wear figures follow from its counters, also across resets of them?"""

from typing import Any

import pytest

from offstage.bindings.errors import BadInput
from offstage.bindings.figures import DeviceStatus, StorageStats, StoreStats
from offstage.bindings.layouts import ENDS, HIT_ENDS
from offstage.bindings.ledger import Ledger
from offstage.dpu.config.derive import derive
from offstage.dpu.config.options import PolicyOptions
from offstage.dpu.config.values import load
from offstage.dpu.economics.budget import NOTHING, Budget
from offstage.dpu.economics.wear import Wear

DAY_NS = 86_400 * 10**9
RECORD = (4 << 10) + (4 << 10)  # payload and trailer


def config(**more: str) -> Any:
    chosen = {"arena.payload": "4KiB", "store.segment": "1MiB"}
    return load(None, chosen | {f"storage.{key}": value for key, value in more.items()}, environ={})


def status(puts: int, written: int, *, days: float = 1.0, segments: int = 1000) -> DeviceStatus:
    return DeviceStatus(
        store=StoreStats(puts=puts, segments_total=segments),
        storage=StorageStats(bytes_written=written),
        busy_ns=int(days * DAY_NS),
    )


def ledger(hits: int, late: int = 0) -> Ledger:
    ends = [0] * len(ENDS)
    ends[0], ends[HIT_ENDS] = hits, late
    return Ledger(ends=ends)


def test_the_figures_of_a_day() -> None:
    """1,000 puts, 1.25 times as much on the drive, 500 hits: bytes a hit, amplification, DWPD and
    years, computed by hand. Late is not a hit."""
    wear = Wear(config(endurance="1TiB"))
    wear.look(status(0, 0, days=0), [ledger(0)])
    seen = wear.look(status(1000, 1250 * RECORD), [ledger(300, late=99), ledger(200)])
    assert seen.host_bytes == 1000 * RECORD and seen.hits == 500
    assert seen.bytes_per_hit == 2.5 * RECORD and seen.amplification == 1.25
    assert seen.drive_writes_per_day == pytest.approx(1250 * RECORD / (1000 << 20))
    assert seen.life_years == pytest.approx((1 << 40) / (1250 * RECORD) / 365)


def test_counters_that_begin_anew_go_on() -> None:
    """A reset zeroes the hits, a move the drive's counters; the sums are those of both periods."""
    wear = Wear(config())
    wear.look(status(10, 10 * RECORD), [ledger(7)])  # made first: a new store is not wear by hosts
    wear.look(status(30, 40 * RECORD), [ledger(9)])
    wear.look(status(30, 40 * RECORD), [ledger(1)])
    seen = wear.look(status(5, 6 * RECORD), [ledger(4)])
    assert (seen.host_bytes, seen.drive_bytes) == (25 * RECORD, 36 * RECORD)
    assert seen.hits == 2 + 1 + 3


def test_nothing_to_divide_by_is_no_figure() -> None:
    """The figures of a new daemon, or without a known endurance, are unknown rather than 0."""
    seen = Wear(config()).look(DeviceStatus(), [])
    for name in ("bytes_per_hit", "amplification", "drive_writes_per_day", "life_years"):
        assert getattr(seen, name) is None


def test_a_budget_admits_less_as_it_is_used_up() -> None:
    """Levels change at 50, 80 and 100 %, and back as hours leave the window."""
    now = [0.0]
    budget = Budget(config(), clock=lambda: now[0])
    policy = PolicyOptions(write_budget_bytes=1000)
    budget.spend(0)
    seen = []
    for used in (0, 499, 500, 799, 800, 999, 1000, 5000):
        budget.spend(used)
        seen.append(budget.level(policy))
    assert seen == [0, 0, 1, 1, 2, 2, NOTHING, NOTHING]
    assert budget.figures(policy) == {"budget_bytes": 1000, "budget_used_bytes": 5000}
    now[0] = 24 * 3600.0
    budget.spend(5000)
    assert budget.level(policy) == 0


def test_years_of_a_drive_are_a_budget() -> None:
    """A day's share is endurance divided by years, with earlier bytes counted. A service life
    without an endurance is refused with the fix."""
    budget = Budget(config(endurance="3650TB"))
    assert budget.bytes_of(PolicyOptions(drive_years=5)) == 2 * 10**12
    assert budget.bytes_of(PolicyOptions(drive_years=5, write_budget_bytes=7)) == 7
    assert budget.bytes_of(PolicyOptions()) == 0
    with pytest.raises(BadInput, match=r"drive_years.*set storage.endurance"):
        Budget(config()).bytes_of(PolicyOptions(drive_years=5))
    with pytest.raises(BadInput, match=r"drive_years.*set storage.endurance"):
        derive(load(None, {"policy.drive_years": "5", "storage.backend": "emulated"}, environ={}))
