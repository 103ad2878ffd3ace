"""Does the chip engine follow its header's timing: queueing, blocking, and completion times?

Every time below is computed by hand from the model in chip.h.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from offstage.bindings.chip import (
    DONE,
    NO_NUMBER,
    Chip,
    Deadlock,
    Limits,
    Network,
    Stage,
    Unit,
    make_requests,
)
from offstage.bindings.errors import BadInput
from offstage.bindings.qos import QosConfig, TenantShare

MIB = 1 << 20


def chip(units: list[Unit], *stages: Stage | str, **limits: int) -> Chip:
    """One route through the units; a string is a stage without options."""
    steps = [Stage(stage) if isinstance(stage, str) else stage for stage in stages]
    return Chip(Network(tuple(units), {"only": steps}), limits=Limits(**limits))


def ends(one: Chip, at_ps: list[int], **columns: object) -> list[int]:
    """Return when each request ends, by its number."""
    done = one.run(make_requests(len(at_ps), at_ps=at_ps, **columns))
    assert done.dtype == DONE and sorted(done["tag"]) == list(range(len(at_ps)))
    return [int(end) for end in done["end_ps"][np.argsort(done["tag"])]]


def test_a_visit_costs_its_bytes_and_items_rounded_to_nearest() -> None:
    unit = Unit("a", fixed_ps=10, item_ps=3, mib_ps=3, latency_ps=7)
    one = chip([unit], Stage("a", items="blocks", bytes_permille=500))
    assert ends(one, [0], size_bytes=MIB, count=4) == [10 + 12 + 2 + 7]  # 1.5 ps is 2
    one = chip([unit], Stage("a", items="scores", coded=True))
    assert ends(one, [0], size_bytes=MIB, coded_bytes=MIB // 3, score_count=2) == [10 + 6 + 1 + 7]


def test_servers_take_turns_and_a_pipe_begins_one_each_interval() -> None:
    assert ends(chip([Unit("a", servers=2, fixed_ps=10)], "a"), [0, 0, 0, 4]) == [10, 10, 20, 20]
    pipe = Unit("a", "pipe", fixed_ps=10, latency_ps=100)
    assert ends(chip([pipe], "a"), [0, 0, 0, 200]) == [110, 120, 130, 310]
    several = Unit("a", servers=2, fixed_ps=10, latency_ps=100)
    assert ends(chip([several], "a"), [0, 0, 0, 0]) == [110, 110, 120, 120]
    assert ends(chip([Unit("a", "delay", fixed_ps=10, latency_ps=5)], "a"), [0, 0, 0]) == [15] * 3


def test_a_server_stands_still_at_each_multiple_and_banks_in_turn() -> None:
    """With pauses from 0 to 10, 100 to 110 and so on, a visit waits for the end of a pause, and one
    across it takes longer."""
    refreshed = Unit("a", fixed_ps=20, pause_every_ps=100, pause_ps=10, latency_ps=1)
    assert ends(chip([refreshed], "a"), [0, 40, 95, 205]) == [31, 61, 126, 231]
    long = Unit("a", fixed_ps=200, pause_every_ps=100, pause_ps=10)
    assert ends(chip([long], "a"), [0]) == [10 + 90 + 10 + 90 + 10 + 20]
    banks = Unit("a", "banks", servers=2, fixed_ps=20, pause_every_ps=100, pause_ps=10)
    found = {ends(chip([banks], "a"), [45], key=[key])[0] for key in range(8)}
    assert found == {65, 45 + 5 + 10 + 15}  # the second pauses from 50 to 60


@pytest.mark.parametrize(("every", "pause"), [(0, 5), (5, 0), (5, 5)])
def test_a_pause_that_leaves_no_time_is_refused(every: int, pause: int) -> None:
    with pytest.raises(BadInput, match="pause_ps"):
        chip([Unit("a", pause_every_ps=every, pause_ps=pause)], "a")


def test_a_full_unit_blocks_the_one_before_which_keeps_its_server() -> None:
    """Blocking after service: `a` finishes at 1 and holds its server until `b` has room."""
    units = [Unit("a", fixed_ps=1), Unit("b", fixed_ps=10, queue_max=1)]
    one = chip(units, "a", "b")
    assert ends(one, [0, 0, 0, 0]) == [11, 21, 31, 41]
    stats = one.stats()
    # 0 in b at 1, 1 in its queue at 2, 2 done in a at 3 and blocked until 11, 3 from 12 to 21.
    assert (stats["a"].blocked, stats["a"].blocked_ps) == (2, 8 + 9)
    assert stats["a"].busy_ps == 4 and stats["b"].waiting_max == 1


def test_credits_of_a_link_come_back_after_its_latency() -> None:
    """Two credits, 1 ps to send, 10 there and 10 back: the third may start at 1 + 10 + 10."""
    link = Unit("a", "link", fixed_ps=1, latency_ps=10, in_flight_max=2)
    assert ends(chip([link], "a"), [0, 0, 0, 0]) == [11, 12, 32, 33]


def test_urgent_items_overtake_only_waiting_ones() -> None:
    one = chip([Unit("a", queue="priority", fixed_ps=10)], "a")
    assert ends(one, [0, 1, 2, 3, 4], priority=[3, 3, 1, 0, 1]) == [10, 50, 30, 20, 40]


def test_pieces_overlap_and_join() -> None:
    """Four pieces, through two units of 10 ps a piece, take 50 ps; the whole takes 80."""
    units = [Unit("a", mib_ps=40), Unit("b", mib_ps=40), Unit("c", fixed_ps=5)]
    whole = chip(units, "a", "b", "c")
    assert ends(whole, [0], size_bytes=MIB) == [85]
    cut = chip(units, Stage("a", piece_bytes=MIB // 4), "b", Stage("c", join=True))
    assert ends(cut, [0], size_bytes=MIB) == [55]
    assert cut.stats()["a"].arrivals == 4 and cut.stats()["c"].arrivals == 1
    assert cut.stats()["b"].bytes == MIB
    narrow = chip(units, Stage("a", piece_bytes=MIB // 4), "b", Stage("c", join=True), piece_max=1)
    assert ends(narrow, [0], size_bytes=MIB) == [85]  # a piece begins when the last has joined


def test_a_miss_goes_another_way_and_the_key_stays() -> None:
    units = [Unit("t", "tags", fixed_ps=1, set_count=1, way_count=2), Unit("m", fixed_ps=100)]
    one = chip(units, Stage("t", next="end", miss="m"), Stage("m", label="m"))
    at = [1000 * i for i in range(6)]
    found = ends(one, at, key=[1, 2, 1, 3, 1, 2])  # 3 evicts 2, then 2 evicts 3
    assert [end - begin for begin, end in zip(at, found, strict=True)] == [101, 101, 1, 101, 1, 101]
    stats = one.stats()["t"]
    assert (stats.hits, stats.misses, stats.evictions) == (2, 4, 2)


def test_each_item_has_keys_of_its_own_and_a_miss_pays_for_those_that_are_missing() -> None:
    """Of three blocks with two keys each, all six are fetched once; of a fourth, only its own."""
    tags = Unit("tags", "tags", set_count=64, way_count=8, fixed_ps=1, item_ps=10)
    units = [tags, Unit("spill", item_ps=100), Unit("out", fixed_ps=1000)]
    look = Stage("tags", items="blocks", keys=2, next="out", miss="spill")
    one = chip(units, look, Stage("spill", label="spill", items="missed"), Stage("out", "out"))
    at_ps = [0, 10**6, 2 * 10**6, 3 * 10**6]
    found = np.subtract(ends(one, at_ps, count=[3, 3, 4, 0]), at_ps).tolist()
    assert found == [1 + 60 + 600 + 1000, 1 + 60 + 1000, 1 + 80 + 200 + 1000, 1 + 1000]
    stats = one.stats()["tags"]
    assert (stats.hits, stats.misses) == (6 + 6, 6 + 2)
    with pytest.raises(BadInput, match="65 keys of an item; at most 64"):
        chip(units, replace(look, keys=65, next="", miss=""))


def test_a_block_is_coded_as_its_layer_and_its_parts_are() -> None:
    """A byte takes a picosecond. In layer 0 the front half of a block shrinks to 500 permille, the
    back to 250; layer 2 is as layer 0; a request with an explicit size keeps it."""
    units = tuple(Unit(name, servers=2, mib_ps=MIB) for name in "ab")
    route = {"only": (Stage("a", coded=True), Stage("b", coded=True, piece_bytes=1000))}
    one = Chip(Network(units, route, ((500, 250), (1000, 900))))
    at_ps = [0, 10**6, 2 * 10**6, 3 * 10**6]
    found = ends(one, at_ps, size_bytes=2000, layer=[0, 1, 2, 0], coded_bytes=[0, 0, 0, 100])
    assert np.subtract(found, at_ps).tolist() == [750 + 500, 1900 + 1000, 750 + 500, 100 + 50]
    assert one.stats()["b"].bytes == one.stats()["a"].bytes == 750 + 1900 + 750 + 100
    for rows, said in (
        (((500,), (1, 2)), "differ in length"),
        (((0,),), "not within 1 to 2000"),
        (((1,),) * 129, "129 rows"),
    ):
        with pytest.raises(BadInput, match=said):
            Chip(Network(units, route, rows))


def test_banks_serve_different_keys_at_once() -> None:
    one = chip([Unit("a", "banks", servers=8, fixed_ps=10)], "a")
    assert ends(one, [0] * 3, key=[5, 5, 5]) == [10, 20, 30]
    one.reset()
    assert sorted(ends(one, [0] * 40, key=np.arange(40)))[8] <= 20


def test_what_finds_no_room_is_dropped_where_the_unit_drops() -> None:
    one = chip([Unit("a", fixed_ps=10, queue_max=1, drops=True)], "a")
    done = one.run(make_requests(3, at_ps=[0, 1, 2]))
    assert done["dropped"].tolist() == [0, NO_NUMBER, NO_NUMBER] and done["end_ps"][0] == 2
    assert one.stats()["a"].dropped == 1 and one.route_stats()["only"].dropped == 1


def test_a_request_that_lost_a_piece_is_dropped_as_a_whole() -> None:
    """It ends once, when its last piece ends, and does not continue behind the join."""
    units = [Unit("a", "delay"), Unit("b", fixed_ps=10, queue_max=0, drops=True), Unit("c")]
    one = chip(units, Stage("a", piece_bytes=MIB), "b", Stage("c", join=True))
    done = one.run(make_requests(2, at_ps=[0, 100], size_bytes=[3 * MIB, MIB]))
    assert done["dropped"].tolist() == [1, NO_NUMBER] and done["end_ps"].tolist() == [10, 110]
    stats = one.stats()
    assert (stats["b"].dropped, stats["b"].arrivals, stats["c"].arrivals) == (2, 2, 1)


def test_a_cycle_is_named() -> None:
    units = (Unit("a", fixed_ps=1, queue_max=0), Unit("b", fixed_ps=1, queue_max=0), Unit("c"))
    routes = {"there": [Stage("a"), Stage("b")], "back": [Stage("b"), Stage("a")]}
    one = Chip(Network(units, routes))
    with pytest.raises(Deadlock, match="a -> b -> a") as caught:
        one.run(make_requests(2, route=[0, 1]))
    assert caught.value.cycle and caught.value.units == ("a", "b")


def test_a_cycle_is_named_without_the_units_that_only_wait_for_it() -> None:
    units = tuple(Unit(name, fixed_ps=1, queue_max=0) for name in "abc")
    there = [Stage("a"), Stage("b"), Stage("c")]
    one = Chip(Network(units, {"there": there, "back": [Stage("c"), Stage("b")]}))
    with pytest.raises(Deadlock) as caught:  # b and c hold each other up, and a waits
        one.run(make_requests(4, at_ps=[0, 1, 2, 2], route=[0, 0, 1, 0]))
    assert caught.value.cycle and set(caught.value.units) == {"b", "c"}


def test_pieces_share_the_coded_bytes_of_their_request() -> None:
    units = [Unit("a", mib_ps=40), Unit("b")]
    one = chip(units, Stage("a", piece_bytes=MIB, coded=True), Stage("b", join=True))
    assert ends(one, [0], size_bytes=4 * MIB, coded_bytes=2 * MIB) == [80]
    assert one.stats()["a"].bytes == 2 * MIB and one.stats()["b"].bytes == 4 * MIB


def test_a_reset_in_the_middle_of_a_run_is_a_new_chip() -> None:
    """Busy banks, used credits, pieces in flight: a reset clears all of it."""
    units = [Unit("a", "link", mib_ps=500, latency_ps=900, in_flight_max=3, queue_max=2)]
    units += [Unit("b", "banks", servers=4, mib_ps=4000, latency_ps=70, queue_max=2), Unit("c")]
    one = chip(units, Stage("a", piece_bytes=MIB // 4), "b", Stage("c", join=True), piece_max=9)
    trace = make_requests(200, at_ps=np.arange(200) * 300, size_bytes=MIB, key=np.arange(200))
    done = one.run(trace)
    for until_ps in (20_001, 31_234, 47_777):
        one.reset()
        one.run(trace, until_ps)
        assert one.figures["inside"] > 0
        one.reset()
        assert one.run(trace).tobytes() == done.tobytes()


def test_a_batch_at_a_time_is_the_whole_trace() -> None:
    """Neither batches nor a pool too small for the load change any result."""
    units = [Unit("a", fixed_ps=100, queue_max=2), Unit("b", servers=2, fixed_ps=150, queue_max=1)]
    random = np.random.default_rng(2)
    trace = make_requests(3000, at_ps=np.cumsum(random.integers(0, 200, 3000)))
    whole, parts = chip(units, "a", "b"), chip(units, "a", "b", end_max=16)
    done = whole.run(trace)
    streamed = np.concatenate(list(parts.stream(np.array_split(trace, 7))))
    assert done.tobytes() == streamed.tobytes() and whole.hash == parts.hash
    narrow = chip(units, "a", "b", in_flight_max=5)
    assert narrow.run(trace).tobytes() == done.tobytes()


def test_visits_of_a_sampled_request_add_up_to_its_latency() -> None:
    units = [Unit("a", fixed_ps=3, queue_max=1), Unit("b", fixed_ps=10, latency_ps=4, queue_max=1)]
    one = chip(units, "a", "b", sample_every=2)
    done = one.run(make_requests(9))
    visits = one.visits()
    for tag in range(0, 9, 2):
        mine = visits[visits["tag"] == tag]
        spent = int((mine["leave_ps"] - mine["enter_ps"]).sum())
        assert spent == int(done["end_ps"][done["tag"] == tag][0])
    assert set(visits["tag"]) == set(range(0, 9, 2)) and NO_NUMBER in visits["unit"]


@pytest.mark.parametrize(
    ("unit", "match"),
    [
        (Unit("a", servers=0), "0 servers"),
        (Unit("a", "tags", set_count=3, way_count=1), "3 sets of 1 ways"),
        (Unit("a", "banks", servers=65), "65 banks"),
        (Unit("a", "drive"), "drive parameters"),
        (Unit("a", "queue"), "no kind"),
        (Unit("a", fixed_ps=-1), "fixed_ps is -1"),
        (Unit("a", fixed_ps=1 << 60), "out of range"),
    ],
)
def test_a_unit_that_contradicts_itself_is_refused(unit: Unit, match: str) -> None:
    with pytest.raises(BadInput, match=match):
        chip([unit], "a")


def test_a_trace_whose_time_goes_back_and_a_route_to_nowhere_are_refused() -> None:
    one = chip([Unit("a")], "a")
    with pytest.raises(BadInput, match="request 2 is at 3 ps, after 5 ps"):
        one.run(make_requests(3, at_ps=[1, 5, 3]))
    with pytest.raises(BadInput, match="route 1, below 1"):
        one.run(make_requests(1, route=1))
    with pytest.raises(BadInput, match="no stage 'x'"):
        chip([Unit("a")], Stage("a", next="x"))
    with pytest.raises(BadInput, match="goes to 0"):
        chip([Unit("a")], Stage("a", label="a"), Stage("a", next="a"))
    with pytest.raises(BadInput, match="no unit 'b'"):
        chip([Unit("a")], "b")


TENANTS = (TenantShare(weight=3), TenantShare(weight=1))


def shared(tenants: tuple[TenantShare, ...], **unit: Any) -> Chip:
    """Return a source without delay, and a link of 1 ps a byte that tenants share."""
    qos = QosConfig(quantum_bytes=MIB, session_count=2, queue_max=4, session_max=4)
    link = Unit("link", "link", queue="qos", mib_ps=MIB, qos=qos, tenants=tenants, **unit)
    return chip([Unit("source", "delay"), link], "source", "link")


def test_tenants_share_by_weight_and_a_flood_blocks_no_other() -> None:
    """Tenant 0 floods the link before tenant 1 arrives: its excess waits outside, alone."""
    one = shared(TENANTS)
    trace = make_requests(120, at_ps=[0] * 100 + [5] * 20, size_bytes=MIB)
    trace["tenant"] = trace["session"] = [0] * 100 + [1] * 20
    done = one.run(trace)
    ours = np.nonzero(np.isin(done["tag"], np.arange(100, 120)))[0]
    assert np.diff(ours).tolist() == [4] * 19 and ours[0] < 5  # every fourth, from the start
    assert [row["taken"] for row in one.tenant_stats("link")] == [100, 20]
    assert one.stats()["source"].blocked_ps > 0


def test_a_token_bucket_holds_the_server_idle_and_wakes_it() -> None:
    """1 MiB goes at once, the rest at the bucket's rate: 2^20 bytes at 2^30 a second, 1/1024 s."""
    one = shared((TenantShare(rate_bytes_per_s=1 << 30, burst_bytes=MIB),))
    gaps = np.diff(ends(one, [0, 0, 0], size_bytes=MIB))
    np.testing.assert_allclose(gaps, 10**12 / 1024, rtol=1e-6)
    one.reset()
    assert np.diff(ends(one, [0, 0, 0], size_bytes=MIB)).tolist() == gaps.tolist()


def test_an_unknown_tenant_is_refused() -> None:
    with pytest.raises(BadInput, match="a tenant or session"):
        shared(TENANTS).run(make_requests(1, tenant=2))
    with pytest.raises(BadInput, match="that, has tenants"):
        chip([Unit("a", queue="qos")], "a")


def test_the_timing_seam_serves_waiting_requests_first() -> None:
    """A demand overtakes a guess, which overtakes a write; a hit moves all of its blocks."""
    units = (Unit("a", queue="priority", fixed_ps=10, mib_ps=1000),)
    routes = {name: (Stage("a"),) for name in ("read", "write", "hit", "command")}
    side = Chip(Network(units, routes)).timing()
    side.ask("command", 0, tag=0)
    side.ask("write", 1, tag=1)
    side.ask("read", 1, tag=2, deadline_ps=500)
    side.ask("read", 1, tag=3)
    side.ask("hit", 1, tag=4, size_bytes=MIB, count=3)
    assert side.poll(10**6) == [(0, 10), (3, 20), (4, 3030), (2, 3040), (1, 3050)]
