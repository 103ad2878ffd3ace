"""Does a home have hot shards copied, by one host at a time, and delete the copies later?"""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.dpu.pod.exceptions import CONTENTS_SUM_MAX, HOT_BYTES_MAX, TURN_NS, Exceptions
from offstage.dpu.protocol.pod_calls import CONTENTS_MAX, Answer, ShardReport, Tally

S = 1_000_000_000
NAME, OTHER = b"n" * 16, b"o" * 16


def report(demands: int = 0, made: str = "", contents: bytes = b"") -> ShardReport:
    return ShardReport(
        NAME, demands, hot_per_s=100, copies_max=2, cool_ns=5 * S, made=made, contents=contents
    )


def test_one_host_at_a_time_makes_a_copy() -> None:
    """The next host to report is not asked until the copy exists or the turn has expired."""
    home = Exceptions()
    assert home.told(report(5000), S) == Answer((), make=True, unknown=True)
    assert home.told(report(100, contents=NAME), 2 * S) == Answer()
    assert home.told(report(5000), S + TURN_NS).make, "the first did not do it"
    there = home.told(report(5000, made="dpu1", contents=NAME), S + TURN_NS)
    assert there == Answer(("dpu1",), make=True)
    assert home.told(report(5000, made="dpu2"), 2 * S + TURN_NS) == Answer(("dpu1", "dpu2"))
    assert home.counts(12 * S)["copies"] == 2


def test_a_copy_goes_when_it_was_long_one_too_many() -> None:
    """Copies go one at a time, the last first, and stay if the shard is warm now and then."""
    home = Exceptions()
    for member in ("dpu1", "dpu2"):
        home.told(report(50_000, made=member), S)
    at_s, copies, dropped = 1, 2, []
    while copies:
        at_s += 1
        answer = home.told(report(), at_s * S)
        if answer.drop:
            copies -= 1
            dropped.append((answer.drop, at_s))
        assert len(answer.copies) == copies
    (first, at_first), (second, at_second) = dropped
    assert (first, second) == ("dpu2", "dpu1") and at_second >= at_first + 5
    home.told(report(2000, made="dpu1"), 200 * S)
    for tick in range(30):
        assert not home.told(report(2000 * (tick % 4 == 0)), (201 + tick) * S).drop


def test_a_copy_that_was_lost_is_told_of_no_more() -> None:
    home = Exceptions()
    home.told(report(5000, made="dpu1", contents=NAME), S)
    assert home.told(ShardReport(NAME, gone="dpu1"), 2 * S).copies == ()


def test_what_a_drain_pushes() -> None:
    """It pushes hot and pinned shards, hottest first; a pin ends when no host reports it."""
    home = Exceptions()
    home.told(report(5000), S)
    home.told(ShardReport(OTHER, 1, pinned=True), S)
    home.told(ShardReport(b"c" * 16, 1), S)
    assert [one.name for one in home.hot(2 * S, 100)] == [NAME, OTHER]
    assert [one.name for one in home.hot(12 * S, 100)] == [NAME]


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60))
def test_the_table_is_bounded_and_keeps_copies(told: list[tuple[int, bool]]) -> None:
    home = Exceptions(shards_max=4)
    copied: set[bytes] = set()
    for number, copy in told:
        name = bytes([number]) * 16
        if copy and len(copied | {name}) <= 3:
            copied.add(name)
            home.told(ShardReport(name, made="dpu1"), S)
        else:
            home.told(ShardReport(name), S)
        assert home.counts(S)["shards"] <= 4
    assert home.counts(S)["copies"] == len(copied)


def test_load_and_tally_are_of_all_hosts() -> None:
    home = Exceptions()
    home.served(1000, Tally(stale=1, filled_bytes=10), S)
    assert home.served(1000, Tally(stale=2), S) == pytest.approx(2000 * np.log(2) / 5)
    counts = home.counts(S)
    assert (counts["stale"], counts["filled_bytes"], counts["rehomed"]) == (3, 10, 0)


def test_what_a_host_says_stays_bounded() -> None:
    """A host may send anything that its message allows: sums stay within what a reply can carry,
    and contents are kept only if requested, up to the tenant's limit."""
    home = Exceptions()
    for _ in range(4):
        home.served(2**32 - 1, Tally(stale=2**63 - 1, filled_bytes=2**63 - 1), S)
    assert msgspec.msgpack.encode(home.counts(S))
    assert home.told(ShardReport(OTHER, contents=b"x" * 32), S) == Answer()
    assert [one.contents for one in home.hot(S, 0.0)] == [b""], "nobody asked"
    kept = 0
    for number in range(CONTENTS_SUM_MAX // CONTENTS_MAX + 50):
        name = number.to_bytes(16, "little")
        if home.told(ShardReport(name, pinned=True), S).unknown:
            home.told(ShardReport(name, pinned=True, contents=b"c" * CONTENTS_MAX), S)
            kept += 1
    assert kept == CONTENTS_SUM_MAX // CONTENTS_MAX
    answer = home.hot(S, 1.0)
    assert answer and len(msgspec.msgpack.encode(answer)) <= HOT_BYTES_MAX
    assert home.told(ShardReport(NAME, 5, hot_per_s=5e-324, copies_max=2), S).make, (
        "no rate is too small"
    )


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0])
def test_no_rate_that_is_none(rate: float) -> None:
    """A message whose rate is not a valid number is refused."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert([NAME, 0, False, rate], ShardReport)
