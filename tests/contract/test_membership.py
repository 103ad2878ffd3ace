"""Do a file and a real etcd keep a pod's map alike: epochs, races, and outages?"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from etcd import Etcd
from msgspec.structs import replace

from offstage.bindings.errors import BadInput, OffstageError, RunFailed
from offstage.dpu.pod.history import Seen, accepted, doubt, told
from offstage.dpu.pod.map import Living, Member, PodMap, added, moved, reconciled
from offstage.dpu.pod.membership import Membership, open_membership
from offstage.dpu.pod.membership.etcd import EtcdMembership

TTL_S = 2


@dataclass
class Side:
    """A place for the map: `open` connects once more; `gone` and `back` stop and restore the
    service."""

    name: str
    open: Callable[[], Membership]
    gone: Callable[[], None]
    back: Callable[[], None]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    one = Etcd(tmp_path_factory.mktemp("etcd"))
    yield one
    one.kill()


@pytest.fixture(params=["static", "etcd"])
def side(request: pytest.FixtureRequest, tmp_path: Path) -> Side:
    if request.param == "static":
        path, kept = tmp_path / "pod.toml", tmp_path / "away.toml"
        return Side(
            "static",
            lambda: open_membership(str(path)),
            lambda: _move(path, kept),
            lambda: _move(kept, path),
        )
    one: Etcd = request.getfixturevalue("etcd")
    first = EtcdMembership([one.address], TTL_S)
    first.call("kv/deleterange", {"key": "AA==", "range_end": "AA=="})
    return Side("etcd", lambda: EtcdMembership([one.address], TTL_S), one.pause, one.resume)


def _move(old: Path, new: Path) -> None:
    old.rename(new)


def member(name: str, incarnation: int = 0, weight: int = 1) -> Member:
    return Member(name=name, endpoint=f"ipc:///{name}", incarnation=incarnation, weight=weight)


def test_what_is_changed_is_read_by_another(side: Side) -> None:
    """Members are read back field by field, in order, and every change has a later epoch."""
    one, other = side.open(), side.open()
    first = one.change(lambda pod: added(pod, member("b", weight=3)))
    strange = Member(name="a", endpoint="tcp://[::1]:1", zone='"é"')
    second = other.change(lambda pod: added(pod, strange))
    third = one.change(lambda pod: moved(pod, "b", "draining"))
    assert 0 < first.epoch < second.epoch < third.epoch
    assert one.map() == other.map() == third and other.fresh
    assert [(one.name, one.weight, one.zone, one.state) for one in third.member] == [
        ("a", 1, '"é"', "up"),
        ("b", 3, "", "draining"),
    ]


def test_no_change_is_lost_where_two_change_at_once(side: Side) -> None:
    """Two writers at a time add ten members each, and all twenty are there."""

    def join(letter: str) -> None:
        membership = side.open()
        for number in range(10):
            name = f"{letter}{number}"
            membership.change(lambda pod, name=name: added(pod, member(name)))  # type: ignore[misc]

    threads = [threading.Thread(target=join, args=(letter,)) for letter in "ab"]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(side.open().map().member) == 20


def test_a_refused_change_changes_nothing(side: Side) -> None:
    """What nobody could read back is not written either."""
    membership = side.open()
    before = membership.change(lambda pod: added(pod, member("a")))
    with pytest.raises(BadInput, match="no member is called 'c'"):
        membership.change(lambda pod: moved(pod, "c", "draining"))
    with pytest.raises(BadInput, match=r"'\.\./b' is not a name for a member"):
        membership.change(lambda pod: added(pod, member("../b")))
    assert membership.map() == before == side.open().map()


def test_the_map_is_frozen_while_its_service_is_down(side: Side) -> None:
    """The last map is returned and reported as old, it cannot be changed, and everything works
    again when the service is back."""
    membership, late = side.open(), side.open()
    before = membership.change(lambda pod: added(pod, member("a")))
    side.gone()
    try:
        assert membership.map() == before and not membership.fresh
        with pytest.raises(OffstageError) as error:
            late.map()
        assert "\n" not in str(error.value)
        if side.name == "etcd":
            with pytest.raises(RunFailed, match="etcd does not answer"):
                membership.change(lambda pod: moved(pod, "a", "draining"))
    finally:
        side.back()
    assert membership.map() == before and membership.fresh
    assert membership.change(lambda pod: moved(pod, "a", "draining")).epoch > before.epoch


def test_an_announced_member_is_alive(side: Side) -> None:
    membership = side.open()
    membership.change(lambda pod: added(pod, member("a", 5)))
    lease = membership.announce(member("a", 5))
    assert lease.keep()
    assert [(one.name, one.incarnation) for one in side.open().alive()] == [("a", 5)]
    pod = side.open().change(lambda pod: reconciled(pod, membership.alive()))
    assert [one.state for one in pod.member] == ["up"]


def test_a_lease_that_is_not_kept_ends(etcd: Etcd) -> None:
    """A lease outlasts its time while it is confirmed; without, its member is gone for all."""
    membership = EtcdMembership([etcd.address], TTL_S)
    membership.call("kv/deleterange", {"key": "AA==", "range_end": "AA=="})
    kept, silent = (membership.announce(member(name, 9)) for name in "ab")
    for name in "ab":
        membership.change(lambda pod, name=name: added(pod, member(name, 9)))  # type: ignore[misc]
    until = time.monotonic() + 30
    while len(membership.alive()) == 2:
        assert kept.keep() and time.monotonic() < until
        time.sleep(0.2)
    assert not silent.keep() and kept.keep()
    alive = membership.alive()
    pod = membership.change(lambda pod: reconciled(pod, alive))
    assert [(one.name, one.state) for one in pod.member] == [("a", "up"), ("b", "gone")]
    kept.end()
    assert membership.alive() == []


def test_killed_and_started_again_it_has_what_it_acknowledged(etcd: Etcd) -> None:
    """An unused address in the list of endpoints makes no difference."""
    membership = EtcdMembership(["127.0.0.1:1", etcd.address], TTL_S)
    pod = membership.change(lambda pod: added(pod, member("x", 77)))
    etcd.kill()
    assert membership.map() == pod and not membership.fresh
    etcd.start()
    assert membership.map() == pod and membership.fresh


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("etcd:nowhere", "write HOST:PORT"),
        ("redis:x", "not a pod map"),
        ("", "not a pod map"),
        ("file:", "not a pod map"),
    ],
)
def test_a_place_that_is_none(place: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        open_membership(place)


def test_what_is_no_map_of_ours_is_one_line(etcd: Etcd) -> None:
    membership = EtcdMembership([etcd.address])
    membership.call("kv/put", {"key": "b2Zmc3RhZ2UvcG9kL21hcA==", "value": "bm9uZQ=="})
    with pytest.raises(BadInput, match="not JSON"):
        membership.map()


def test_an_empty_map_is_none(tmp_path: Path) -> None:
    (tmp_path / "pod.toml").write_text("")
    assert open_membership(str(tmp_path / "pod.toml")).map() == PodMap(epoch=1)


def test_a_change_whose_answer_was_lost_is_made_once(etcd: Etcd) -> None:
    """If etcd made a change but its answer was lost, the change is recognised, and a member that
    joined is not refused as already present."""
    membership = EtcdMembership([etcd.address, etcd.address])
    membership.call("kv/deleterange", {"key": "AA==", "range_end": "AA=="})
    request, lost = membership._http.request, []

    def once(method: str, url: str, **more: object) -> object:
        answer = request(method, url, **more)  # type: ignore[arg-type]
        if url.endswith("txn") and not lost:
            lost.append(answer)
            raise OSError("the answer was lost")
        return answer

    membership._http.request = once  # type: ignore[method-assign, assignment]
    pod = membership.change(lambda pod: added(pod, member("a", 5)))
    assert lost and [one.name for one in pod.member] == ["a"] and pod.epoch > 0


def living(name: str, holder: str) -> Living:
    return Living(
        name=name, endpoint=f"ipc:///{holder}", incarnation=1, holder=holder, host="here", pid=77
    )


def test_a_name_is_of_one_daemon_while_its_lease_lives(etcd: Etcd) -> None:
    """A second daemon of the name is refused with the holder's address, while the first keeps it
    through every heartbeat. A process that presents the previous holder's id gets the name at once,
    and the displaced one cannot take it back."""
    membership = EtcdMembership([etcd.address], TTL_S)
    membership.call("kv/deleterange", {"key": "AA==", "range_end": "AA=="})
    first = membership.announce(living("a", "one"))
    for _ in range(3):
        with pytest.raises(BadInput, match="process 77 on 'here' at 'ipc:///one'"):
            membership.announce(living("a", "two"), "of another incarnation")
        first.say(living("a", "one"))
    membership.announce(living("a", "three"), "one")
    with pytest.raises(RunFailed, match="another process's"):
        first.say(living("a", "one"))
    assert first.lost and [one.holder for one in membership.alive()] == ["three"]
    with pytest.raises(BadInput):
        membership.announce(living("a", "four"), "one")


def test_another_cluster_has_the_map_and_it_is_in_doubt(etcd: Etcd, tmp_path: Path) -> None:
    """If a snapshot is restored into a new cluster, every reader sees that the map is in doubt,
    even one that saw no map before, until it is accepted."""
    membership = EtcdMembership([etcd.address], TTL_S)
    membership.call("kv/deleterange", {"key": "AA==", "range_end": "AA=="})
    pod = membership.change(lambda pod: added(pod, member("a", 5)))
    assert pod.cluster and not told(pod)
    other = Etcd(tmp_path)
    try:
        moved_to = EtcdMembership([other.address], TTL_S)
        moved_to.change(lambda _: replace(pod, epoch_base=pod.epoch))
        assert "etcd cluster" in told(moved_to.map())
        assert doubt(moved_to.map(), Seen())
        moved_to.change(accepted)
        assert not told(moved_to.map())
    finally:
        other.kill()
