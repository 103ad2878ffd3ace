"""Do the transitions of a pod's map distinguish incarnations and reject invalid changes?"""

import pytest

from offstage.bindings.errors import BadInput
from offstage.dpu.pod.map import Member, PodMap, added, deleted, from_tables, moved, reconciled


def member(name: str, incarnation: int = 1) -> Member:
    return Member(name=name, endpoint=f"ipc:///{name}", incarnation=incarnation)


POD = PodMap(epoch=7, member=(member("a"), member("b", 3)))


def test_a_new_life_takes_the_place_of_the_old() -> None:
    again = added(POD, member("b", 4))
    assert [one.incarnation for one in again.member] == [1, 4]
    for old in (3, 2):
        with pytest.raises(BadInput, match="incarnation 3"):
            added(POD, member("b", old))


def test_a_life_is_not_used_again_after_a_death() -> None:
    dead = reconciled(POD, [member("a")])
    assert [one.state for one in dead.member] == ["up", "gone"]
    with pytest.raises(BadInput, match="already seen"):
        added(dead, member("b", 3))
    with pytest.raises(BadInput, match="no member is called 'b'"):
        moved(dead, "b", "up")


def test_a_lease_of_another_life_does_not_keep_this_one() -> None:
    after = reconciled(POD, [member("a"), member("b", 2)])
    assert [one.state for one in after.member] == ["up", "gone"]


def test_a_member_without_lives_is_not_removed() -> None:
    pod = added(PodMap(epoch=1), member("c", 0))
    assert reconciled(pod, []) == pod
    with pytest.raises(BadInput, match="a member already"):
        added(pod, member("c", 0))


def test_draining_and_back() -> None:
    draining = moved(POD, "a", "draining")
    assert [one.name for one in draining.homes] == ["b"]
    assert [one.name for one in draining.readable] == ["a", "b"]
    assert moved(draining, "a", "up") == POD


def test_a_deletion_is_of_all_epochs_before_the_next() -> None:
    assert deleted(POD, "lab").deleted == {"lab": 8}


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"members": []}, "did you mean 'member'"),
        ({"member": [{"name": "a", "endpoint": "x", "wieght": 1}]}, "did you mean 'weight'"),
        ({"member": [{"name": "a", "endpoint": "x", "weight": 0}]}, "weight"),
        ({"member": [{"name": "a"}]}, "endpoint"),
        ({"member": [{"name": "a", "endpoint": "x"}] * 2}, "two members have the name 'a'"),
        ({"member": [{"name": n, "endpoint": "x"} for n in "ab"]}, "the endpoint 'x'"),
        ({"member": [{"name": "", "endpoint": "x"}]}, "without name"),
        ({"member": [{"name": str(n), "endpoint": str(n)} for n in range(300)]}, "at most 256"),
        ({"member": [{"name": "../x", "endpoint": "ipc:///a"}]}, "not a name for a member"),
        ({"member": [{"name": "a", "endpoint": "http://b"}]}, "'http://b' is not an endpoint"),
        ({"shard_tokens": 100}, "shard_tokens"),
        ({"epoch": "new"}, "epoch"),
    ],
)
def test_a_wrong_map_is_one_line(tables: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput) as error:
        from_tables(tables, "pod.toml")
    assert said in str(error.value) and "\n" not in str(error.value)
