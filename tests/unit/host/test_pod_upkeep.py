"""Are blocks moved to their homes and nowhere else, whatever fails meanwhile?"""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pod_memory import CHUNKS, LAYERS, NUMBERS, PAYLOAD, S, World

from offstage.bindings.fabric import FetchRequest
from offstage.dpu import protocol as p
from offstage.dpu.pod.placement import homes
from offstage.dpu.protocol.pod_calls import ShardReport, Tally
from offstage.host.pod import between_members as moves
from offstage.host.pod import upkeep
from offstage.host.pod.between_members import Move
from offstage.host.pod.upkeep import in_messages


def test_a_joining_member_receives_only_requested_shards() -> None:
    """Shards are read at the former home at once, without a miss, and at the new one once all of a
    shard is there. Only requested shards whose home changed are moved."""
    world = World(3)
    names = world.write(*NUMBERS)
    world.write(*range(100, 140))
    before = sum(len(one.stored) for one in world.daemons.values())
    world.join(3)
    session, found = world.opened(*NUMBERS)
    assert set(found.stored_layers) == {LAYERS} and world.read(session, *NUMBERS) == 40
    new = [home.name for home in homes(world.map, names)]
    count = new.count("dpu3")
    assert count and world.upkeep.total().stale_lookups == count and "dpu3" not in world.at(session)
    world.pass_time()
    assert world.at(session) == new and world.read(session, *NUMBERS) == 40
    total = world.upkeep.total()
    assert len(world.daemons["dpu3"].stored) == total.refilled_blocks == count * CHUNKS * LAYERS
    assert total.filled_bytes == total.refilled_blocks * PAYLOAD
    assert sum(len(one.stored) for one in world.daemons.values()) == before + total.refilled_blocks
    assert total.asked_moved_share == count / len(names)
    again, _ = world.opened(*NUMBERS)
    assert world.at(again) == new and world.upkeep.total().stale_lookups == count


def test_sessions_that_part_in_a_shard_come_home_each_with_its_own() -> None:
    """Two shards with one name differ in their tails: the common part is moved once, and neither is
    read at home before its own tail is there."""
    world = World(2)
    tails = [(1, 2, 3, 4), (1, 2, 5, 6)], [(7, 8, 9, 10), (7, 8, 11, 12)]
    tails += ([(21, 22, 23, 24), (21, 22, 25, 26)], [(31, 32, 33, 34), (31, 32, 35, 36)])
    names = [{world.write(*one)[0] for one in pair} for pair in tails]
    assert all(len(pair) == 1 for pair in names)
    world.join(2)
    sessions = [(world.opened(*one)[0], one) for pair in tails for one in pair]
    for _ in range(40):
        world.pass_time(1)
        assert all(world.read(session, *one) == 4 for session, one in sessions)
    count = [home.name for home in homes(world.map, [min(pair) for pair in names])].count("dpu2")
    assert [world.at(session)[0] for session, _ in sessions].count("dpu2") == 2 * count > 0
    assert world.upkeep.total().refilled_blocks == count * LAYERS * 6


def test_what_was_asked_by_a_session_that_is_gone_is_brought_too() -> None:
    world = World(2)
    names = world.write(*NUMBERS)
    world.join(2)
    session, _ = world.opened(*NUMBERS)
    world.sessions.session_close(session)
    world.pass_time()
    count = [home.name for home in homes(world.map, names)].count("dpu2")
    assert len(world.daemons["dpu2"].stored) == count * CHUNKS * LAYERS > 0


@pytest.mark.parametrize("fault", ["full", "broken", "loses"])
def test_a_move_that_fails_costs_no_block(fault: str) -> None:
    """If the new home refuses a session, or the former home ends or loses blocks, all blocks read
    are right, none is read at a home that lacks part of a shard, and no session is left open."""
    world = World(3)
    world.write(*NUMBERS)
    world.join(3)
    session, _ = world.opened(*NUMBERS)
    daemon = world.daemons["dpu3" if fault == "full" else "dpu0"]
    setattr(daemon, fault, True)
    world.pass_time(200)
    for shard in world.sessions.shards(session):
        assert shard.at is not None
        if shard.at.member.name == "dpu3":
            stored = world.daemons["dpu3"].stored
            assert all((key, layer) in stored for key in shard.chunk_keys for layer in (0, 1))
    assert world.read(session, *NUMBERS) == 40 or fault != "full"
    world.sessions.session_close(session)
    if fault != "broken":
        assert not any(one.sessions for one in world.daemons.values())


TABLE = set(re.findall(r"    (\w+) +-> (\w+)  ", moves.__doc__ or ""))


@pytest.mark.parametrize("fault", ["", "full", "broken", "loses"])
def test_a_move_changes_its_state_as_the_table_says(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails, a move takes only transitions of the table. Without faults it takes all of
    them except that for a batch of which nothing arrived."""
    seen = set()

    class Watched(Move):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "state" and hasattr(self, "batches"):  # constructed, not under construction
                seen.add((self.state.name, value.name))
            super().__setattr__(name, value)

    monkeypatch.setattr(upkeep, "Move", Watched)
    world = World(3)
    world.write(*NUMBERS)
    world.join(3)
    world.opened(*NUMBERS)
    if fault:
        setattr(world.daemons["dpu3" if fault == "full" else "dpu0"], fault, True)
    world.pass_time(100)
    named = {(before, after) for before, after in TABLE if before != "any"}
    assert len(named) == 6 and seen <= named | {(one.name, "ENDED") for one in moves.State}
    if not fault:
        assert seen == named - {("READING", "BETWEEN")}


def test_one_that_stopped_is_asked_once_and_not_for_each_move() -> None:
    """A home that answers nothing delays the decode loop by one request, however many shards should
    move there. Sessions that it could not close are closed when it is back. A full one is not
    suspected."""
    world = World(3)
    world.write(*NUMBERS)
    world.join(3)
    session, _ = world.opened(*NUMBERS)
    new, joined = world.daemons["dpu3"], world.sessions.members[-1]
    new.full = True
    world.pass_time(8)
    assert new.asked > 1 and not joined.suspected
    new.full, new.silent, new.asked = False, True, 0
    world.pass_time(8)
    assert new.asked == 1 and joined.suspected == 1
    new.silent = False
    world.pass_time(60)
    assert world.read(session, *NUMBERS) == 40 and "dpu3" in world.at(session)
    world.sessions.session_close(session)
    assert not any(one.sessions for one in world.daemons.values())


NEWS = st.builds(
    ShardReport,
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**40),
    contents=st.integers(0, 5000).map(bytes),
)


@given(st.lists(NEWS, max_size=40), st.integers(4096, 1 << 15))
def test_reports_are_split_by_their_bytes(reports: list[ShardReport], bytes_max: int) -> None:
    """Every report is sent once and in order. No message is too long: only contents longer than one
    are left out. One message is sent even without reports."""
    messages = list(in_messages(reports, bytes_max))
    tally = Tally(*[2**62] * 4)
    for some in messages:
        said = p.Shards(id=2**32 - 1, served=2**40, reports=some, tally=tally)
        assert len(p.encode(said)) <= bytes_max
    told = [one for some in messages for one in some]
    assert len(told) == len(reports) and messages and (all(messages) or not reports)
    for one, was in zip(told, reports, strict=True):
        assert replace(one, contents=was.contents) == was
        assert one.contents == was.contents or len(was.contents) > bytes_max - 600


def test_many_contents_are_told_in_several_messages() -> None:
    """The home requests the contents of all shards of a host at once, which exceed one message."""
    world = World(1)
    home = world.daemons["dpu0"]
    home.limits.message_size_bytes_max = 4096
    sessions = [world.opened(*range(first, first + 40))[0] for first in range(1, 200, 40)]
    for session in sessions:
        world.sessions.set_generating(
            session, True
        )  # so that each is pinned and wanted by its home
    world.pass_time(20)
    told = home.told
    world.pass_time(20)
    assert home.told > told > 5, "it is told no more"
    known = home.kept.hot(world.clock.at_ns, 1.0)
    assert len(known) == 50 and all(len(one.contents) == 16 * CHUNKS for one in known)


def test_state_of_an_earlier_incarnation_is_forgotten() -> None:
    """A member that returns again and again leaves nothing behind except its counts."""
    world = World(2, copies_max=1)
    for _ in range(5):
        lost = world.sessions.members[0]
        world.upkeep._moved[lost] = {"filled_bytes": 1}
        world.upkeep._spread_ns[b"gone"] = 0
        world.pass_time(8)
        lost.suspect(world.clock.at_ns, "the daemon has a new incarnation", lost=True)
        world.fabric.admit(world._joined(int(lost.member.name[-1])))
    world.pass_time(8)
    upkeep = world.upkeep
    there = set(world.sessions.members)
    assert len(there) == 2 and not upkeep._spread_ns
    assert {*upkeep._told, *upkeep._moved} <= there


def test_no_copy_is_made_out_of_a_connection_that_ended() -> None:
    """If the member where the host last read a shard is lost, the home's request for a copy is
    ignored."""
    world = World(3, copies_max=2)
    (name,) = world.write(1, 2, 3, 4)
    shard = world.sessions.recent[name]
    home = shard.at
    assert home is not None
    home.suspect(world.clock.at_ns, "the daemon has a new incarnation", lost=True)
    others = [one for one in world.sessions.members if one is not home]
    world.upkeep._copy(shard, others[0], (), others)
    assert not len(world.upkeep.moves)


def test_a_hot_shard_is_read_at_copies_and_they_go_when_it_cools() -> None:
    """Six sessions share a shard: copies are made and read, with the right bytes. When demand ends,
    the copies are deleted at their members, while the home keeps its own."""
    world = World(4, copies_max=2)
    (name,) = world.write(1, 2, 3, 4)
    sessions = [world.opened(1, 2, 3, 4)[0] for _ in range(6)]
    for _ in range(60):
        for session in sessions:
            assert world.read(session, 1, 2, 3, 4) == 4
        world.pass_time(1)
    total = world.upkeep.total()
    assert total.copied_shards == 2 == total.copies_held
    assert total.copied_bytes == 2 * CHUNKS * LAYERS * PAYLOAD
    assert len({world.at(session)[0] for session in sessions}) > 1
    served = sorted(one.fetched for one in world.daemons.values())
    assert served[0] == 0 < served[1]
    for session in sessions:
        world.sessions.session_close(session)
    world.pass_time(60, S)
    assert world.upkeep.total().dropped_copies == 2 and not world.sessions.copies
    holders = [name for name, one in world.daemons.items() if one.stored]
    assert holders == [homes(world.map, [name])[0].name]


def test_a_session_changes_its_place_only_between_calls() -> None:
    """A fetch ends at the place where it began, even if the shard has meanwhile arrived at home."""
    world = World(2)
    world.write(*NUMBERS)
    world.join(2)
    session, _ = world.opened(*NUMBERS)
    shard = next(one for one in world.sessions.shards(session) if one.to_fill)
    at = shard.at
    ordinals = np.arange(shard.first, shard.first + CHUNKS, dtype=np.uint32)
    assert at is not None
    daemon = world.daemons[at.member.name]
    poll, daemon.poll = daemon.poll, lambda timeout_ns=0: []  # type: ignore[method-assign]
    keys = np.zeros((CHUNKS, 2), np.uint64)
    fetch = world.fabric.fetch_begin(FetchRequest(session, 1, 1, ordinals, keys, world.rows))
    world.upkeep._switches[session, shard.first] = shard, world.sessions.members[2]
    world.upkeep._switch_some()
    assert shard.at is at and world.upkeep._switches
    daemon.poll = poll  # type: ignore[method-assign]
    assert not world.fabric.fetch_end(fetch).rcs.any()
