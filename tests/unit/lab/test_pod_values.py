"""Do values, hints and holes in a pod in virtual time cost and save what a plain count says?"""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.pod.drives import Drives, Ends, Fates
from offstage.testbeds.lab.pod.requests import Requests
from offstage.testbeds.lab.pod.run import Ran, simulate
from offstage.testbeds.lab.pod.spec import PodSpec, Point, load_spec
from offstage.testbeds.workloads.requests.served import column

S = 10**9
BLOCK = 160 << 20
"""Bytes of 512 tokens of Llama-3-70B."""
VALUES = 16
ONE: dict[str, Any] = {
    "daemons": [1],
    "faults": ["none"],
    "pool": "0B",
    "value": "10MiB",
    "retrieve": "scheduled",
}


def spec_of(**changes: Any) -> PodSpec:
    return load_spec(None, ONE | changes)


class Room:
    """An arena of some blocks: the block that landed longest ago leaves."""

    def __init__(self, most: int) -> None:
        self.held: list[int] = []
        self._most = most

    def holds(self, block: int) -> bool:
        return block in self.held

    def stage(self, block: int) -> None:
        self.held = [*(one for one in self.held if one != block), block][-self._most :]


class Bed:
    """The drives of one daemon over an arena of its own."""

    def __init__(self, most: int = 100) -> None:
        self.spec = spec_of()
        self.ends, self.fates, self.room = Ends(), Fates(), Room(most)
        self.drives = Drives(self.spec, self.room, self.ends, self.fates)
        self.block_ns = BLOCK * S // self.spec.drive_bytes_per_s
        self.latency_ns = self.spec.read_latency_ns

    def retrieve(self, blocks: list[int], now_ns: int) -> int:
        self.drives.give_way(now_ns)
        end_ns = self.drives.retrieve(blocks, [self.room.holds(one) for one in blocks], now_ns)
        for one in blocks:
            self.room.stage(one)
        return end_ns


def test_what_a_hint_staged_is_on_time_and_costs_nothing() -> None:
    bed = Bed()
    bed.drives.hint([1, 2], S, 0)
    assert bed.retrieve([1, 2], S) == S
    assert bed.ends == Ends(on_time=2 * VALUES) and bed.fates == Fates(used=2 * VALUES)


def test_a_demand_takes_over_what_a_hint_has_read_so_far() -> None:
    """Half way through a block, its values are on time, the one in flight is late, and the rest is
    read on demand behind it."""
    bed = Bed()
    bed.drives.hint([1], S, 0)
    now_ns = bed.block_ns // 2 + 1  # in the ninth value
    end_ns = bed.retrieve([1], now_ns)
    assert bed.ends == Ends(on_time=8, late=1, missing=7)
    assert bed.fates == Fates(used=8, late=1, dropped=7)
    assert end_ns == pytest.approx(bed.block_ns + bed.latency_ns, abs=VALUES)


def test_the_earliest_deadline_is_read_first_and_demands_before_all() -> None:
    bed = Bed()
    bed.drives.hint([1, 2], 3 * S, 0)  # block 1 is begun at once
    bed.drives.hint([3], S, 1)
    assert bed.retrieve([9], 2) <= bed.block_ns * (1 + 2 / VALUES) + bed.latency_ns
    bed.drives.go_on(2 * bed.block_ns + bed.block_ns // 2)
    assert bed.room.held == [9, 3]  # the demand, then the earlier deadline; block 1 gave way


def test_a_hint_whose_deadline_passed_is_dropped_and_one_that_nobody_retrieves_is_unused() -> None:
    bed = Bed()
    bed.drives.hint([1], S, 0)
    bed.drives.hint([2], bed.block_ns // 2, 0)  # in order of deadlines, block 1 has begun
    bed.drives.hint([3], bed.block_ns // 4, 0)
    bed.drives.close(S)
    assert bed.fates == Fates(unused=VALUES, dropped=2 * VALUES)


def test_what_was_evicted_before_its_use_is_unused_and_missing() -> None:
    bed = Bed(most=1)
    bed.drives.hint([1, 2], S, 0)
    bed.retrieve([1], S)
    assert bed.ends == Ends(missing=VALUES) and bed.fates == Fates(unused=VALUES)
    bed.drives.close(S)
    assert bed.fates == Fates(unused=2 * VALUES)  # the demand evicted block 2


@given(st.data())
def test_every_hinted_value_has_one_fate_and_every_retrieved_one_an_end(
    data: st.DataObject,
) -> None:
    bed, now_ns, hinted, retrieved = Bed(data.draw(st.integers(1, 4))), 0, 0, 0
    for _ in range(data.draw(st.integers(1, 30))):
        now_ns += data.draw(st.integers(0, 2 * bed.block_ns))
        blocks = sorted(data.draw(st.sets(st.integers(0, 6), min_size=1)))
        if data.draw(st.booleans()):
            bed.drives.go_on(now_ns)
            fresh = [one for one in blocks if not bed.room.holds(one)]
            bed.drives.hint(fresh, now_ns + data.draw(st.integers(0, 9 * bed.block_ns)), now_ns)
            hinted += len(fresh)
        else:
            end_ns = bed.retrieve(blocks, now_ns)
            retrieved += len(blocks)
            assert end_ns >= now_ns
    bed.drives.close(now_ns)
    assert bed.ends.total == VALUES * retrieved
    settled = bed.fates.read + bed.fates.dropped
    assert settled <= VALUES * hinted and settled % VALUES == 0 and bool(settled) == bool(hinted)
    assert bed.fates.used + bed.fates.late <= bed.ends.on_time + bed.ends.late


# Requests


def requests_of(prompts: list[list[int]], arrival_ns: list[int]) -> Requests:
    """Requests of whole blocks, without sessions, that answer with one token."""
    sizes = [len(one) for one in prompts]
    blocks = np.array([one for prompt in prompts for one in prompt], np.uint32)
    return Requests(
        np.array(arrival_ns),
        512 * np.array(sizes),
        np.ones(len(prompts), np.int64),
        np.full(len(prompts), -1),
        np.r_[0, np.cumsum(sizes)],
        blocks,
        int(blocks.max()) + 1,
    )


def ran(requests: Requests, **changes: Any) -> Ran:
    return simulate(spec_of(**changes), Point(1, "round-robin", "none", 1), requests, 1)


def first_ns(one: Ran) -> NDArray[np.int64]:
    return column(one.records, "first_token_ns")


def tier_tokens(one: Ran) -> list[int]:
    return [record.found_tokens(["arena", "drive"]) for record in one.records]


AGAIN = requests_of([list(range(8)), list(range(100, 102)), list(range(8))], [0, 10 * S, 20 * S])
"""A prompt, one that takes the place of its first two blocks in a store of eight, and it again."""


@pytest.mark.parametrize("exist", [False, True])
def test_behind_a_hole_all_is_reused_or_nothing(exist: bool) -> None:
    room = {"store": "1280MiB", "exist": exist}
    ends = {holes: ran(AGAIN, holes=holes, **room) for holes in (False, True)}
    assert [tier_tokens(one)[2] for one in ends.values()] == [0, 6 * 512]
    assert ends[False].ends == Ends(absent=12 * VALUES, behind=6 * VALUES)
    assert ends[True].ends == Ends(on_time=6 * VALUES, absent=12 * VALUES)
    saved = int(first_ns(ends[False])[2] - first_ns(ends[True])[2])
    link_ns = 6 * BLOCK * S // spec_of().link_bytes_per_s
    assert saved == 6 * 512 * S // 20_000 - link_ns
    assert ends[True].put.sum() == 12 * BLOCK  # only the hole is put again


def test_asking_first_costs_a_round_trip_and_a_command_for_each_value() -> None:
    costs = {"commands_per_s": 1_000_000, "round_trip": "1ms", "link": "10TB/s", "drives": 1024}
    asked, not_asked = (
        first_ns(ran(AGAIN, exist=one, holes=True, **costs)) for one in (True, False)
    )
    commands_ns = 8 * VALUES * S // 1_000_000
    # The first prompt is absent: who asks first sends nothing after it.
    assert (asked - not_asked).tolist() == [0, 0, 1_000_000 + commands_ns]
    smaller = first_ns(ran(AGAIN, exist=True, holes=True, **costs | {"value": "1MiB"}))
    assert (smaller - asked)[2] == 2 * (10 - 1) * commands_ns  # asked, then retrieved


def test_hints_move_the_drives_reads_into_the_wait_for_earlier_requests() -> None:
    """Behind a prompt that is computed, a hinted one is staged: its retrieve costs the link alone,
    as with perfect hints; without hints it waits for the drives."""
    own = list(range(8))
    prompts = [own, list(range(100, 130)), list(range(200, 220)), own]
    requests = requests_of(prompts, [0, 10 * S, 20 * S, 20 * S + 1])
    room = {"arena": "4800MiB", "drives": 1}  # 30 blocks: the second prompt takes all
    found = {hints: ran(requests, hints=hints, **room) for hints in ("none", "deadline", "perfect")}
    assert found["none"].ends.missing == found["deadline"].ends.on_time == 8 * VALUES
    assert found["none"].drive_bytes == found["deadline"].drive_bytes == 8 * BLOCK
    drives_ns = 8 * BLOCK * S // spec_of(drives=1).drive_bytes_per_s
    times = {hints: int(first_ns(one)[3]) for hints, one in found.items()}
    assert times["deadline"] == times["perfect"]
    link_ns = 8 * BLOCK * S // spec_of().link_bytes_per_s
    latency_ns = spec_of().read_latency_ns
    assert times["none"] - times["perfect"] == max(drives_ns + latency_ns - link_ns, 0) > 0


def test_a_host_that_retrieves_when_scheduled_has_one_request_at_a_time() -> None:
    """With nothing to retrieve, when it would be retrieved changes no first token."""
    requests = requests_of([[n, n + 50] for n in range(9)], [n * S // 100 for n in range(9)])
    scheduled, taken = (first_ns(ran(requests, retrieve=one)) for one in ("scheduled", "taken"))
    assert scheduled.tolist() == taken.tolist()
    assert len(set(np.diff(scheduled).tolist())) == 1


def test_without_a_store_hosts_ask_nobody() -> None:
    found = ran(AGAIN, store="0B", commands_per_s=1000, round_trip="1s")
    assert found.ends == Ends() and found.drive_bytes == 0 and not any(tier_tokens(found))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hints": "deadline", "retrieve": "taken"}, "hints has no effect where"),
        ({"hints": "deadline", "faults": ["none", "death"], "daemons": [2]}, "without faults"),
        ({"hints": "later"}, "hints"),
        ({"commands_per_s": -1}, "commands_per_s"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        spec_of(**changes)
