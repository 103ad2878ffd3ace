"""Do the integers that a daemon decides by follow the plan's formulas, also when prices change?"""

import io
from typing import Any

import pytest
from msgspec.structs import replace

from offstage.bindings.errors import BadInput
from offstage.bindings.figures import StorageStats
from offstage.bindings.units import format_price, parse_price
from offstage.dpu.config.derive import core_policy
from offstage.dpu.config.options import MINUTE_NS, PolicyOptions
from offstage.dpu.config.values import load
from offstage.dpu.economics.spending import Spending
from offstage.dpu.economics.thresholds import NONE_RETURN, Thresholds
from offstage.dpu.economics.wear import HOUR_S, LEVEL_MAX, RECORDS_MIN, ByWear
from offstage.dpu.log import Log
from offstage.dpu.protocol.status import (
    ArchiveStatus,
    DeviceReport,
    Pace,
    ThresholdFigures,
    WearFigures,
)

TB = 10**12
PRICES = {"policy.prefill_price": "0.222USD", "policy.drive_price": "10950USD"}


def llama(**more: str) -> Any:
    """Llama-3-70B: 80 layers of 64 tokens, 4 KiB a token and layer; a drive of 30.72 TB."""
    chosen = {
        "arena.layers": "80",
        "arena.payload": "256KiB",
        "arena.size": "64GiB",
        "storage.size": "30720GB",
        "storage.backend": "emulated",
    }
    return load(
        None, chosen | {name.replace("__", "."): text for name, text in more.items()}, environ={}
    )


def test_keep_is_the_rent_that_prefilling_costs() -> None:
    """$0.222 a million tokens against 30.72 TB for $10,950 over three years: 49.5 hours without the
    trailers (F2 of the notes), less the wear of writing. It is rounded to minutes, longer for a
    drive with a longer service time, and unlimited if it exceeds the field or a price is
    missing."""
    config = llama(**PRICES)
    keep = Thresholds(config, 30_720 * 10**9)
    policy = config.policy
    hours = keep.keep_ns(policy) / 3600e9
    assert hours == pytest.approx(50.0 * 64 / 65, rel=0.01)
    assert keep.keep_ns(policy) % MINUTE_NS == 0
    worn = Thresholds(llama(storage__endurance="56064TB"), 30_720 * 10**9).keep_ns(policy) / 3600e9
    assert worn == pytest.approx(hours * (1 - 0.065 / 0.222), rel=0.01)
    six = llama(**PRICES, policy__drive_years="6", storage__endurance="1000000TB")
    assert Thresholds(six, 30_720 * 10**9).keep_ns(six.policy) > 1.9 * keep.keep_ns(policy)
    dear = llama(**PRICES | {"policy.prefill_price": "50USD"})
    assert Thresholds(dear, 30_720 * 10**9).keep_ns(dear.policy) == 0
    assert keep.keep_ns(PolicyOptions(prefill_price_microusd=10**6)) == 0
    assert keep.keep_ns(PolicyOptions(keep_ns=90 * 10**9)) == 90 * 10**9
    assert core_policy(PolicyOptions(keep_ns=90 * 10**9), 64).keep_minutes == 2
    useless = llama(**PRICES, storage__endurance="1TB")
    assert Thresholds(useless, 30_720 * 10**9).keep_ns(policy) == MINUTE_NS


def test_a_hit_is_worth_so_many_bytes() -> None:
    """The wear of a write is 29 % of the cost of prefilling (section 6 of the notes): 3.4 records a
    hit."""
    config = llama(**PRICES, storage__endurance="56064TB")
    found = Thresholds(config, 30_720 * 10**9).written_per_hit_max(config.policy)
    assert found / (256 << 10) == pytest.approx(1 / 0.288, rel=0.02)
    assert Thresholds(llama(**PRICES), TB).written_per_hit_max(config.policy) == 0
    assert Thresholds(config, TB).written_per_hit_max(PolicyOptions()) == 0


def test_few_tokens_are_sooner_computed_than_brought_back() -> None:
    """20,000 tokens a second against an archive: 4 at once of 256 tokens in 30 ms arrive sooner
    from about 1,440 on, rounded to a power of two; 100 ms each never do. An unknown pace gives no
    bound."""
    thresholds = Thresholds(llama(), TB)
    policy = PolicyOptions(prefill_tokens_per_s=20_000)
    assert thresholds.return_tokens_min(policy, Pace(0.03, 256, 4)) == 2048
    assert thresholds.return_tokens_min(policy, Pace(0.031, 256, 4)) == 2048
    assert thresholds.return_tokens_min(policy, Pace(0.036, 256, 4)) == 2048, "a little above"
    assert thresholds.return_tokens_min(policy, Pace(0.04, 256, 4)) == 4096
    assert thresholds.return_tokens_min(policy, Pace(0.1, 256, 4)) == NONE_RETURN
    assert thresholds.return_tokens_min(policy, Pace()) == 0
    assert thresholds.return_tokens_min(PolicyOptions(), Pace(0.03, 256, 4)) == 0
    own = PolicyOptions(prefill_tokens_per_s=20_000, return_tokens_min=7)
    assert thresholds.return_tokens_min(own, Pace(0.1, 256, 4)) == 7


def test_admission_follows_what_a_hit_cost_to_write() -> None:
    """It moves one level an hour: stricter above the limit, unchanged from a quarter of it up to
    it, looser below or if nothing was written. Without a limit it does not move."""
    now = [0.0]
    by_wear = ByWear(1000, clock=lambda: now[0])
    sums = WearFigures(host_bytes=0, drive_bytes=0, hits=0)

    def hour(written: int, hits: int, bound: int = 3000) -> int:
        nonlocal sums
        now[0] += HOUR_S
        sums = replace(sums, drive_bytes=sums.drive_bytes + written, hits=sums.hits + hits)
        by_wear.look(sums, bound)
        return by_wear.level

    many = 10 * RECORDS_MIN * 1000
    by_wear.look(sums, 3000)
    assert hour(many, many // 3000 + 1) == 0
    assert hour(many, many // 4000) == 1
    now[0] -= HOUR_S / 2
    assert hour(many, 0) == 1  # less than an hour has passed
    now[0] += HOUR_S / 2
    assert hour(0, 0) == 2
    assert hour(many, 0) == LEVEL_MAX == 2
    assert hour(many, many // 2000) == 2
    assert hour(many, many // 500) == 1
    assert hour(RECORDS_MIN * 1000, 0) == 0
    assert hour(many, 0) == 1
    assert hour(many, 0, bound=0) == 0


def test_the_device_has_them_from_the_start_and_at_each_change(device: Any) -> None:
    """The device gets them once each: at the start, when a price changes, when the pace is known
    and when the budget is used up, with the lowest admission of all. Otherwise it gets nothing."""
    log = Log("error", io.StringIO(), text=False)
    config = llama(**PRICES, storage__endurance="56064TB")
    spending = Spending(config, device, log)
    assert [one.keep_ns > 0 for one in device.policies] == [True]
    archive = ArchiveStatus(away=0, uploads_waiting=0, deletes_waiting=0, pace=Pace(0.03, 256.0, 4))
    pace = DeviceReport(archive=archive)
    spending.look(pace, config.policy)
    assert len(device.policies) == 1
    rate = PolicyOptions(prefill_tokens_per_s=20_000, admit_named_min=2)
    spending.set_policy(rate)
    told = spending.look(pace, rate).thresholds
    assert told == ThresholdFigures(
        admit_named_min=2, keep_ns=0, return_tokens_min=2048, written_per_hit_max=0
    )
    spending.look(replace(pace, storage=StorageStats(bytes_written=10**9)), rate)
    assert len(device.policies) == 2
    with pytest.raises(BadInput, match="endurance"):
        Spending(llama(), device, log).set_policy(PolicyOptions(drive_years=5))


@pytest.mark.parametrize("text", ["10950", "-1USD", "USD", "$", "1EUR", "0.0000001USD", "1e3USD"])
def test_a_price_without_its_unit_is_refused(text: str) -> None:
    """A price that is negative, unitless, or finer than what is stored is refused in one line that
    shows how."""
    with pytest.raises(BadInput, match=r"is not a price.*0\.22USD"):
        parse_price(text, "policy.drive_price")


def test_prices_as_people_write_them() -> None:
    """Both spellings are read, and the shown price is read again."""
    assert parse_price("$0.22") == parse_price("0.22 USD") == 220_000
    assert parse_price("0") == parse_price(0) == 0
    for micro in (0, 1, 220_000, 10_950 * 10**6):
        assert parse_price(format_price(micro)) == micro
