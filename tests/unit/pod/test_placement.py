"""Does placement spread by weight, move only what it must, and give the same result everywhere?"""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.errors import RunFailed
from offstage.bindings.placement import times
from offstage.dpu.pod.map import Member, PodMap, State, added, checked, deleted, moved, noted
from offstage.dpu.pod.placement import (
    former_homes,
    homes,
    moved_share,
    ranked,
    shard_key,
)

KEYS = [hashlib.blake2b(bytes([n % 256, n // 256]), digest_size=16).digest() for n in range(6000)]

GOLDEN = [[2, 3], [0, 2], [1, 0], [2, 1], [3, 2], [1, 2], [1, 0], [0, 3]]
GOLDEN_ALL = "f24ee14d3c45caa9"
GOLDEN_KEY = "8a52b9b7665289261f80124983c92dce"


def members(*weights: int) -> list[Member]:
    return [
        Member(name=f"dpu{number:02}", endpoint=f"tcp://127.0.0.1:{7000 + number}", weight=weight)
        for number, weight in enumerate(weights)
    ]


def names(pod: list[Member], keys: list[bytes] = KEYS) -> list[str]:
    return [pod[index].name for index in ranked(pod, keys, 1)[:, 0]]


def mixed(word: int) -> int:
    """SplitMix64, from its definition."""
    word = (word + 0x9E3779B97F4A7C15) % 2**64
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    word = (word ^ word >> 27) * 0x94D049BB133111EB % 2**64
    return word ^ word >> 31


def test_golden() -> None:
    """Placement is the same on every machine, numpy and release: one that changed with an upgrade
    would empty every pod. These values are never regenerated."""
    pod = members(1, 2, 3, 1)
    assert ranked(pod, KEYS[:8], 2).tolist() == GOLDEN
    digest = hashlib.sha256(ranked(pod, KEYS, 4).astype("<i4").tobytes()).hexdigest()
    assert digest[:16] == GOLDEN_ALL
    assert shard_key([1, 2**127, 3], b"parent").hex() == GOLDEN_KEY


def test_it_is_the_formula() -> None:
    """-log2(h) / w in floating point, over a hash written independently from its definition."""

    def time(key: bytes, one: Member) -> float:
        seed = int.from_bytes(hashlib.blake2b(one.name.encode(), digest_size=8).digest(), "little")
        low, high = (int.from_bytes(half, "little") for half in (key[:8], key[8:]))
        return (64 - math.log2(mixed(mixed(low ^ seed) ^ high))) / one.weight

    pod = members(1, 2, 3, 1)
    expected = [sorted(range(4), key=lambda one: time(key, pod[one])) for key in KEYS[:2000]]
    assert ranked(pod, KEYS[:2000], 4).tolist() == expected


@given(
    st.lists(st.binary(min_size=16, max_size=16), max_size=5),
    st.lists(st.tuples(st.text(max_size=9), st.integers(1, 2**32)), max_size=5),
)
def test_all_shards_and_members_at_once_are_as_each_alone(
    shards: list[bytes], pod: list[tuple[str, int]]
) -> None:
    """The C function against Python's own integers: one bit of the logarithm after the other, for
    one shard and member at a time, to the last bit."""

    def alone(shard: bytes, name: str, weight: int) -> int:
        seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
        low, high = (int.from_bytes(half, "little") for half in (shard[:8], shard[8:]))
        drawn = mixed(mixed(low ^ seed) ^ high) | 1
        whole = 64 - drawn.bit_length()
        mantissa, fraction = (drawn << whole) >> 32, 0
        for _ in range(32):
            mantissa = mantissa * mantissa >> 31
            fraction = 2 * fraction + (mantissa >> 32)
            mantissa >>= mantissa >> 32
        return ((whole + 1 << 32) - fraction << 20) // weight

    found = times(shards, [name for name, _ in pod], [weight for _, weight in pod])
    assert found.tolist() == [[alone(shard, *one) for one in pod] for shard in shards]


@pytest.mark.parametrize("weights", [(1, 1, 1), (1,) * 16, (1, 2, 5), (100, 1, 50, 7, 7)])
def test_shares_are_the_weights(weights: tuple[int, ...]) -> None:
    """Chi-squared against the weights is within 5 of its standard deviations."""
    found = np.bincount(ranked(members(*weights), KEYS, 1)[:, 0], minlength=len(weights))
    expected = len(KEYS) * np.array(weights) / sum(weights)
    freedom = len(weights) - 1
    assert ((found - expected) ** 2 / expected).sum() < freedom + 5 * math.sqrt(2 * freedom)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=12), st.integers(0, 11))
def test_death_moves_only_the_dead_ones_shards(weights: list[int], dead: int) -> None:
    before = members(*weights)
    gone = before[dead % len(before)]
    after = [one for one in before if one is not gone]
    pairs = list(zip(names(before), names(after), strict=True))
    assert all(new == old for old, new in pairs if old != gone.name)
    assert all(new != gone.name for _, new in pairs)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 9))
def test_a_join_takes_its_share_and_moves_nothing_else(weights: list[int], new: int) -> None:
    after = members(*weights, new)
    joined, before = after[-1].name, after[:-1]
    moved = [after for old, after in zip(names(before), names(after), strict=True) if old != after]
    assert set(moved) <= {joined}
    share = new / (sum(weights) + new)
    deviation = math.sqrt(share * (1 - share) / len(KEYS))
    assert abs(len(moved) / len(KEYS) - share) < 5 * deviation


def test_a_join_of_equals_moves_at_most_one_part_of_all() -> None:
    """It moves 1 / (N + 1), within the statistical error of a sample of this size."""
    for count in (1, 3, 7, 15):
        pair = zip(names(members(*[1] * count)), names(members(*[1] * (count + 1))), strict=True)
        moved = sum(old != new for old, new in pair) / len(KEYS)
        bound = 1 / (count + 1)
        assert moved < bound + 4 * math.sqrt(bound / len(KEYS))


def test_the_order_of_members_and_of_shards_does_not_matter() -> None:
    pod = members(3, 1, 4, 1, 5)
    assert names(pod) == names(pod[::-1])
    assert names(pod)[::-1] == names(pod, KEYS[::-1])


def test_copies_are_different_members_and_the_first_is_the_home() -> None:
    pod = members(1, 1, 2, 3)
    ranks = ranked(pod, KEYS, 3)
    assert all(len(set(row)) == 3 for row in ranks.tolist())
    assert (ranks[:, 0] == ranked(pod, KEYS, 1)[:, 0]).all()


def test_draining_and_gone_members_are_no_homes() -> None:
    one, two, three = members(1, 1, 1)
    pod = PodMap(
        epoch=1,
        member=(
            one,
            Member(name=two.name, endpoint=two.endpoint, state="draining"),
            Member(name=three.name, endpoint=three.endpoint, state="gone"),
        ),
    )
    assert {one.name for one in homes(pod, KEYS)} == {"dpu00"}
    with pytest.raises(RunFailed, match="offstage pod status"):
        homes(PodMap(epoch=1), KEYS)


def test_how_much_a_change_moves() -> None:
    one, two, three = members(1, 1, 2)
    before = PodMap(epoch=1, member=(one, two))
    moved, least = moved_share(before, PodMap(epoch=2, member=(one, two, three)))
    assert least == 0.5 and moved == pytest.approx(0.5, abs=0.04)
    moved, least = moved_share(before, PodMap(epoch=2, member=(one,)))
    assert least == 0.5 and moved == pytest.approx(0.5, abs=0.04)
    assert moved_share(before, before) == (0.0, 0.0)


def test_former_homes_after_a_change() -> None:
    """After a join exactly the new member's shards have a former home, the previous one, until its
    time is over or the member is gone. Of two changes the later comes first."""
    one, two, three, four = members(1, 1, 2, 1)
    before = checked(PodMap(epoch=1, member=(one, two)), "")
    joined = noted(before, added(before, three), 1000)
    old, new = (placed(pod) for pod in (before, joined))
    found = former_homes(joined, KEYS, 1000 + joined.fill_s - 1)
    assert found == [[o] if o != n else [] for o, n in zip(old, new, strict=True)]
    assert {n for o, n in zip(old, new, strict=True) if o != n} == {three.name}
    assert not any(former_homes(joined, KEYS, 1000 + joined.fill_s))
    dead = noted(joined, moved(joined, two.name, "gone"), 1001)
    assert all(two.name not in names for names in former_homes(dead, KEYS, 1001))
    twice = noted(joined, added(joined, four), 1001)
    both = [names for names in former_homes(twice, KEYS, 1001) if len(names) == 2]
    assert both and all(names[0] == three.name for names in both)


def placed(pod: PodMap) -> list[str]:
    return [one.name for one in homes(pod, KEYS)]


def test_what_a_map_remembers_is_bounded() -> None:
    """It remembers the last four changes of homes, and no others."""
    pod = PodMap(epoch=1, member=tuple(members(1, 1, 1)))
    for second in range(9):
        state: State = "draining" if second % 2 == 0 else "up"
        pod = noted(pod, moved(pod, "dpu01", state), second)
    assert [one.until_s for one in pod.former] == [8, 7, 6, 5]
    assert noted(pod, deleted(pod, "lab"), 9).former == pod.former
    assert [one.until_s for one in noted(pod, pod, 3606).former] == [8, 7]


def test_a_shards_key_is_of_all_before_it() -> None:
    assert shard_key([1, 2], shard_key([0])) != shard_key([1, 2], shard_key([9]))
    assert shard_key([1, 2]) != shard_key([2, 1]) != shard_key([2, 1, 0])
