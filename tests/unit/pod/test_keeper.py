"""Does a daemon keep its membership correctly: steady, out when removed, with equal leases?"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput
from offstage.dpu.log import Log
from offstage.dpu.pod.history import Seen
from offstage.dpu.pod.keeper import UNANSWERED_PER_LEASE, Keeper, boot_ns
from offstage.dpu.pod.map import Living, Member, PodMap, added, leased, moved
from offstage.dpu.pod.membership.static import StaticLease, StaticMembership

NAME = "a"
LEASE_NS = 5 * 10**9


class Counted(StaticMembership):
    """A membership that counts reads of its map."""

    reads = 0

    def map(self) -> PodMap:
        self.reads += 1
        return super().map()


@pytest.fixture
def membership(tmp_path: Path) -> Counted:
    one = Counted(tmp_path / "pod.toml")
    one.change(lambda pod: pod)
    return one


def keeper_of(membership: StaticMembership, clock: Callable[[], int] = boot_ns) -> Keeper:
    member = Member(name=NAME, endpoint=f"ipc:///{NAME}")
    return Keeper(
        membership,
        member,
        Seen(),
        "",
        lambda until_ns: None,
        lambda: None,
        Log("error"),
        lambda own, others: [],
        clock,
    )


def joined(membership: StaticMembership) -> Keeper:
    """Return a keeper that serves, without its thread."""
    keeper = keeper_of(membership)
    keeper.beat()
    keeper.carried_out(keeper.newest.epoch)
    assert keeper.serves()
    return keeper


def test_a_map_without_leases_is_read_now_and_then(membership: Counted) -> None:
    keeper = keeper_of(membership)
    keeper.start()
    begun_s, reads = time.monotonic(), membership.reads
    time.sleep(0.2)
    beats, passed_s = membership.reads - reads, time.monotonic() - begun_s
    keeper.close()
    assert beats <= 1 + 10 * passed_s


def test_removed_from_a_map_without_leases_it_stays_out(membership: Counted) -> None:
    keeper = joined(membership)
    membership.change(lambda pod: moved(pod, NAME, "gone"))
    keeper.beat()
    assert keeper.phase == "over" and not keeper.serves()
    keeper.left()
    keeper.beat()
    found = membership.map().find(NAME)
    assert found is not None and found.state == "gone"
    assert joined(membership).phase == "serving", "a daemon that is started anew is back"


class Leasing(StaticMembership):
    """A membership whose leases never expire."""

    def __init__(self, path: Path, lease_ns: int) -> None:
        super().__init__(path)
        self.lease = StaticLease()
        self.lease.ttl_ns = lease_ns

    def announce(self, member: Living, before: str = "") -> StaticLease:
        return self.lease


def test_all_members_have_one_lease(tmp_path: Path) -> None:
    """A promise lasts for a lease: with two lengths it would end earlier for one member."""
    place, other = tmp_path / "pod.toml", Member(name="b", endpoint="ipc:///b", incarnation=1)
    StaticMembership(place).change(lambda pod: added(leased(pod, "b", 5 * 10**9), other))
    longer = Leasing(place, 50 * 10**9)
    with pytest.raises(BadInput, match=r"a lease of 50 s, and b have 5 s.*pod\.lease = 5s"):
        keeper_of(longer).start()
    assert longer.map().find(NAME) is None
    keeper_of(Leasing(place, 5 * 10**9)).beat()
    assert longer.map().find(NAME) is not None
    longer.change(lambda pod: moved(moved(pod, "b", "gone"), NAME, "gone"))
    keeper_of(longer).beat()
    assert longer.map().lease_ns == 50 * 10**9, "alone it may have another"


class Slow(StaticLease):
    """A map service that does not answer: `meanwhile` runs while the daemon waits."""

    def __init__(self) -> None:
        self.ttl_ns, self.lost = LEASE_NS, False
        self.meanwhile: Callable[[], None] = lambda: None

    def keep(self) -> bool:
        self.meanwhile()
        return False


def test_a_member_promises_while_it_still_waits_for_etcd(tmp_path: Path) -> None:
    """Members query etcd at different times. When an etcd member died, the first daemon to notice
    was refused by those still waiting for an answer, and was fenced until an election had ended:
    hits were lost although etcd is not in a block's path."""
    place, lease = Leasing(tmp_path / "pod.toml", LEASE_NS), Slow()
    place.change(lambda pod: pod)
    place.lease = lease
    now, said = [0], list[bool]()
    keeper = keeper_of(place, lambda: now[0])
    keeper.beat()
    keeper.carried_out(keeper.newest.epoch)
    keeper._kick.clear()

    def meanwhile() -> None:
        said.append(keeper.promise(("b", 1)))
        now[0] += LEASE_NS // UNANSWERED_PER_LEASE
        said.append(keeper.promise(("b", 1)))

    assert not keeper.promise(("b", 1)), "it is heard"
    assert keeper._kick.is_set(), "and asks at once whether it is still"
    lease.meanwhile = meanwhile
    keeper.beat()
    assert said == [False, True]
    assert keeper.promised == {("b", 1): now[0]}
