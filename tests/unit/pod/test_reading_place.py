"""Do a live host and the laboratory read a shard at the same member, after the same events?

Both call `dpu.pod.heat.read_places`; this test compares what each makes of its answer, over the
members in the map, the suspected ones, the holders of the shard, its copies, the loads, and the
number drawn. A member that was home before the map changed is not suspected here: the laboratory
would then ask the next best, and a live host would not.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from pod_memory import CHUNKS, LAYERS, PAYLOAD, Daemon, World

from offstage.dpu.pod.heat import read_places
from offstage.dpu.pod.map import moved, noted
from offstage.dpu.pod.placement import ranked
from offstage.host.pod import pod_sessions as live
from offstage.host.pod.pod_sessions import Shard
from offstage.testbeds.lab.pod import copies as lab
from offstage.testbeds.lab.pod.copies import DRAWS, MASK
from offstage.testbeds.lab.pod.requests import Requests
from offstage.testbeds.lab.pod.spec import Point, load_spec
from offstage.testbeds.lab.pod.tier import Tier

MEMBERS, NOW_NS = 6, 5 * 10**9
MEMBER = st.integers(0, MEMBERS - 1)
SOME = st.sets(MEMBER)
SPEC = load_spec(None, {"copies.copies_max": MEMBERS - 2, "first_shard_tokens": 0})
ONE = Requests(
    np.zeros(1, np.int64),
    np.full(1, 512 * CHUNKS),
    np.ones(1, np.int64),
    np.full(1, -1),
    np.array([0, CHUNKS]),
    np.arange(CHUNKS, dtype=np.uint32),
    CHUNKS,
)

EVENTS = st.fixed_dictionaries(
    {
        "text": st.integers(1, 60),
        "change": st.sampled_from(["none", "join", "drain"]),
        "who": MEMBER,
        "suspects": st.sets(MEMBER, max_size=2),
        "holders": SOME,
        "copies": SOME,
        "loads": st.lists(st.integers(0, 99), min_size=MEMBERS, max_size=MEMBERS),
        "draw": st.integers(0, 2**32 - 1),
    }
)


class Events:
    """One case on both sides: `world` is the live host's, `tier` the laboratory's."""

    def __init__(
        self,
        text: int,
        change: str,
        who: int,
        suspects: set[int],
        holders: set[int],
        copies: set[int],
        loads: list[int],
        draw: int,
    ) -> None:
        joins = change == "join"
        who = MEMBERS - 1 if joins else who  # a joining member is the last of the list
        self.world = world = World(MEMBERS - joins)
        self.tier = tier = Tier(SPEC, Point(MEMBERS, "least-loaded", "none", who), ONE, 1)
        self.contents = [bytes([text + number]) * 16 for number in range(CHUNKS)]
        self.name = self._name()
        if joins:
            tier.absent()
            world.join(who)
            tier.mapped("up")
        elif change == "drain":
            self._drain(who)
            tier.mapped("draining")
        members = world.sessions.members
        order_of = ranked([one.member for one in members], [self.name], MEMBERS)
        tier._ranks = order_of.astype(np.uint32)
        order = tier._ranks[0].tolist()
        before = next(one for one in order if tier._former[one])
        suspects = suspects - {before}
        home = next(one for one in order if tier._home[one] and one not in suspects)
        at = sorted(one for one in copies if one != home)
        for number, one in enumerate(members):
            one.load = float(loads[number])
            tier._link_ns[number] = NOW_NS + loads[number]
            if number in suspects:
                one.suspect(2**62, "it did not answer")
                tier._suspect_ns[0, number] = 2**62
            if number in holders:
                self._hold(world.daemons[one.member.name])
                tier._caches.use(np.full(CHUNKS, number, np.uint32), ONE.blocks)
        if at:
            world.sessions.copies[self.name] = tuple(members[one].member.name for one in at)
            tier.copies._kept[0] = lab._Kept(at=at)
        world.sessions._random = SimpleNamespace(  # type: ignore[assignment]
            getrandbits=lambda bits: draw
        )
        tier.copies._draw = ((draw << 20) - DRAWS) & MASK

    def _name(self) -> bytes:
        scratch = World(1)
        session = scratch.sessions.session_open(select_blocks=1)
        scratch.sessions.append(session, self.contents)
        return scratch.sessions.shards(session)[0].name

    def _drain(self, who: int) -> None:
        name = self.world.sessions.members[who].member.name
        self.world.map = noted(self.world.map, moved(self.world.map, name, "draining"), 1000)
        self.world.sessions.map = self.world.map
        for one in self.world.sessions.members:
            if one.member.name == name:
                one.member = replace(one.member, state="draining")

    def _hold(self, daemon: Daemon) -> None:
        """Give the daemon all layers of the shard."""
        session = daemon.session_open()
        for key in daemon.append(session, [self.name, *self.contents[1:]]).keys:
            for layer in range(LAYERS):
                daemon.stored[key, layer] = np.zeros(PAYLOAD, np.uint8)
        daemon.session_close(session)

    def live(self) -> int:
        """Return the index of the member where the host reads."""
        sessions = self.world.sessions
        session = sessions.session_open(select_blocks=1)
        sessions.append(session, self.contents)
        shard: Shard = sessions.shards(session)[0]
        assert shard.name == self.name and shard.at is not None
        return sessions.members.index(shard.at)

    def lab(self) -> int:
        """Return the index of the member where the laboratory reads, the home's if none has it."""
        looked = self.tier.look(0, ONE.blocks, 0, NOW_NS)
        found = int(looked.read.sum())
        assert found in (0, CHUNKS)
        return int((looked.source if found else looked.home)[0])


@given(EVENTS)
def test_a_live_host_and_the_laboratory_read_at_the_same_member(events: dict) -> None:
    case = Events(**events)
    assert case.live() == case.lab()


@pytest.mark.parametrize("side", [live, lab])
def test_a_side_that_decides_by_itself_is_noticed(
    side: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one side reads at the home first and at no copy, some case differs."""
    monkeypatch.setattr(
        side,
        "read_places",
        lambda home, copies, before, loads, draw: read_places(home, (), before, loads[:1], draw),
    )
    cases = [
        Events(1, "none", 0, set(), set(range(MEMBERS)), set(range(MEMBERS)), [9] * MEMBERS, draw)
        for draw in range(8)
    ]
    assert any(case.live() != case.lab() for case in cases)
