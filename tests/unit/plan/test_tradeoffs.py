"""Do the rules decide as their formulas say, on figures worked out by hand?

Prices are those of early 2026 unless a test uses older ones: DRAM $15.6 a GB, a TLC drive of 30.72
TB $10,950 at 14 GB/s and 56,064 TB of endurance. A 70B model has 327,680 B a token, prefilled at
20,000 tokens/s by 8 GPUs, or 2,500 by one at $2 an hour.
"""

import math

import pytest

from offstage.bindings import tradeoffs as at

B = 327_680.0
DRIVE = (10_950.0, 14e9, 3.3e6)
C_PREFILL = at.prefill_usd(1, 2.0, 2_500)


def near(value: float, rel: float = 0.02) -> object:
    return pytest.approx(value, rel=rel)


def test_a_prefilled_million_tokens() -> None:
    assert at.prefill_usd(1e6, 2.0, 2_500) == near(0.222)


@pytest.mark.parametrize(
    ("usd_per_gb", "hours"), [(12, 1.5), (3, 5.9), (15.6, 1.14), (0.36, 49.5), (0.4, 44.6)]
)
def test_what_comes_back_sooner_is_kept(usd_per_gb: float, hours: float) -> None:
    """Rent against GPU time: any tier pays for reuse within minutes; 8 bits double the time."""
    assert at.hold_limit_s(B, usd_per_gb, C_PREFILL) / 3_600 == near(hours)
    assert at.hold_limit_s(B / 2, usd_per_gb, C_PREFILL) / 3_600 == near(2 * hours)


def test_what_costs_more_to_move_than_to_compute_is_dropped() -> None:
    assert at.hold_limit_s(B, 3, C_PREFILL, 2 * C_PREFILL) == 0


@pytest.mark.parametrize(
    ("block", "usd_per_gb", "seconds"),
    [(256 << 10, 15.6, 50), (256 << 10, 3.0, 261), (4_096, 15.6, 52), (512, 15.6, 415)],
)
def test_the_five_minute_rule_between_dram_and_flash(
    block: int, usd_per_gb: float, seconds: float
) -> None:
    """Large blocks are bound by the drive's rate, small ones by its reads a second."""
    assert at.break_even_s(block, *DRIVE, usd_per_gb) == near(seconds)


def test_hosts_that_share_a_copy_in_cxl_bear_its_price_together() -> None:
    one = at.cxl_break_even_s(256 << 10, *DRIVE, 18.2)
    assert one == at.break_even_s(256 << 10, *DRIVE, 18.2)
    assert at.cxl_break_even_s(256 << 10, *DRIVE, 18.2, hosts=8) == pytest.approx(8 * one)


def test_the_rate_above_which_fetching_beats_prefilling() -> None:
    assert at.rate_to_fetch(B, 20_000) == near(6.55e9)
    assert at.rate_to_fetch(70_272, 20_000) == near(1.41e9)
    assert at.rate_to_fetch(B, 20_000, gpu_queued=1.0) == near(6.55e9 / 2)


@pytest.mark.parametrize(("latency", "tokens"), [(0.1e-3, 3.76), (1e-3, 37.6), (10e-3, 376)])
def test_the_prefix_from_which_fetching_wins(latency: float, tokens: float) -> None:
    """At that length both take equally long; ten readers on one drive never win."""
    found = at.crossover_tokens(B, 14e9, latency, 20_000)
    assert found == near(tokens)
    assert at.fetch_s(found, B, 14e9, latency) == near(at.prefill_s(found, 20_000), rel=1e-9)
    assert at.crossover_tokens(B, 14e9, latency, 20_000, queued=10) == math.inf


def test_a_drive_slower_than_prefill_never_wins() -> None:
    assert at.crossover_tokens(B, 6e9, 1e-3, 20_000) == math.inf
    assert at.fetch_s(1e5, B, 6e9) > at.prefill_s(1e5, 20_000)


@pytest.mark.parametrize(
    ("capacity", "seconds"),
    [(2e12, 5.1 * 60), (8 * 30.72e12, 10.4 * 3_600), (128e12, 5.4 * 3_600)],
)
def test_how_long_a_block_stays(capacity: float, seconds: float) -> None:
    """A node writes all that it prefills, 6.55 GB/s."""
    assert at.retention_s(capacity, 6.55e9) == near(seconds)


def test_writing_a_million_tokens_wears_a_drive() -> None:
    """It costs $0.064, which is 29 % of the cost of prefilling them."""
    cost = at.write_usd(1e6 * B, 10_950, 56_064e12)
    assert cost == near(0.064)
    assert at.least_reuse(cost, 0.0, 1e6 * C_PREFILL) == near(0.29)
    assert at.least_reuse(cost, 0.0, 1e6 * C_PREFILL, 2e6 * C_PREFILL) == math.inf


def test_drive_writes_a_day_and_years() -> None:
    """A node writes through to 8 drives rated for one write a day: 2.30 DWPD, 2.2 years."""
    assert at.drive_writes_per_day(6.55e9, 8 * 30.72e12) == near(2.30)
    assert at.drive_writes_per_day(6.55e9, 8 * 30.72e12, 2.0, 0.5) == near(2.30)
    assert at.life_years(8 * 56_064e12, 6.55e9) == near(2.2)
    assert at.life_years(8 * 56_064e12, 6.55e9, amplification=2.0) == near(1.1, rel=0.03)
    assert at.life_years(1.0, 0.0) == math.inf


def test_what_is_seen_of_a_transfer_that_goes_layer_by_layer() -> None:
    """128K tokens of a 70B model: one layer of 80 is visible, at 50 GB/s and at 10 GB/s."""
    compute_s = at.prefill_s(131_072, 20_000)
    fast, slow = (at.transfer_s(131_072 * B, rate) for rate in (50e9, 10e9))
    assert compute_s == near(6.55)
    assert at.visible_s(fast, compute_s, 80) == near(10.7e-3)
    assert at.visible_s(slow, compute_s, 80) == near(54e-3)
    assert at.visible_s(10.0, 1.0, 80) == near(10 - 79 / 80)


def test_a_shared_prefix_is_stored_once() -> None:
    assert at.capacity_bytes(10, 100, 2.0, 0.5) == 10 * 100 + 100
    assert at.capacity_bytes(1, 100, 2.0, 0.5) == 200
    assert at.capacity_bytes(0, 100, 2.0, 0.5) == 0
