"""Does every member, even one that was away, learn of sessions that ended and of blocks to
delete?"""

import pytest
from pod_memory import CHUNKS, LAYERS, NUMBERS, World


@pytest.mark.parametrize("keep", [True, False])
def test_a_close_during_an_outage_is_repeated_after_it(keep: bool) -> None:
    """A session that was closed while its member was away is closed there once, by a turn of
    upkeep, with its `keep` as given. A close that was carried out but whose answer was lost does
    not make the member suspect."""
    world = World(2)
    world.write(*NUMBERS)
    session, _ = world.opened(*NUMBERS)
    away, daemon = world.sessions.members[0], world.daemons["dpu0"]
    opened, done = len(daemon.sessions), len(daemon.closed)
    stored = dict(daemon.stored)
    daemon.silent = True
    away.suspect(world.clock.at_ns, "a fetch took longer than its deadline")
    if keep:
        world.sessions.session_close(session)
    else:
        world.upkeep.delete(session)
    world.pass_time(20)
    assert len(daemon.sessions) == opened > 1 and daemon.stored == stored
    daemon.silent = False
    daemon.session_close(min(daemon.sessions), keep=keep)
    world.pass_time(20)
    assert not daemon.sessions and away.suspected == 1 and not away.lost
    assert daemon.closed[done : done + opened] == [keep] * opened
    assert bool(daemon.stored) == keep


def _blocks(world: World) -> int:
    return sum(len(one.stored) for one in world.daemons.values())


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("turns", [4, 6, 8, 60])
def test_a_delete_reaches_every_member_with_the_data(turns: int, read: bool) -> None:
    """A session's data is deleted at its former home and where it was moved, even during the move.
    Data that another session reads stays until that session is deleted too."""
    world = World(3)
    world.write(*NUMBERS)
    world.write(*range(100, 120))
    others = 20 * LAYERS
    world.join(3)
    session, _ = world.opened(*NUMBERS)
    reader = world.opened(*NUMBERS)[0] if read else -1
    world.pass_time(turns)
    world.upkeep.delete(session)
    if read:
        assert world.read(reader, *NUMBERS) == 40
        world.upkeep.delete(reader)
    world.pass_time(60)
    assert _blocks(world) == others and not any(one.sessions for one in world.daemons.values())


def test_a_delete_reaches_the_copies() -> None:
    """The home also learns that the copies are gone."""
    world = World(4, copies_max=2)
    (name,) = world.write(1, 2, 3, 4)
    sessions = [world.opened(1, 2, 3, 4)[0] for _ in range(6)]
    for _ in range(60):
        for session in sessions:
            world.read(session, 1, 2, 3, 4)
        world.pass_time(1)
    assert len(world.sessions.copies[name]) == 2 and _blocks(world) == 3 * CHUNKS * LAYERS
    for session in sessions:
        world.upkeep.delete(session)
    world.pass_time(4)
    assert _blocks(world) == 0
    kept = [one.kept.counts(world.clock.at_ns)["copies"] for one in world.daemons.values()]
    assert sum(kept) == 0 and not world.sessions.copies


def test_a_delete_is_repeated_at_the_next_incarnation_of_a_member() -> None:
    """The member died with its store before it learned of a deletion; the next login repeats it."""
    world = World(2)
    world.write(*NUMBERS)
    session, _ = world.opened(*NUMBERS)
    died, before = world.sessions.members[0], world.daemons["dpu0"]
    before.silent = True
    died.suspect(world.clock.at_ns, "the daemon closed this port", lost=True)
    world.upkeep.delete(session)
    anew = world._joined(0)
    world.daemons["dpu0"].stored = before.stored
    assert before.stored
    world.fabric.admit(anew)
    world.pass_time(8)
    assert _blocks(world) == 0 and not world.daemons["dpu0"].sessions
