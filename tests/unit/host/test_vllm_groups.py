"""Does a prefix count as stored where every group of layers has what it needs, and no earlier?"""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm_stand_ins import request

from offstage.bindings.errors import BadInput
from offstage.host.connectors.objects import Completion, State
from offstage.host.connectors.vllm.copies import Copies
from offstage.host.connectors.vllm.events import Saved
from offstage.host.connectors.vllm.groups import Group, Groups, groups_of
from offstage.host.connectors.vllm.keys import chain, salt_of
from offstage.host.connectors.vllm.plans import Plans
from offstage.host.connectors.vllm.steps import Landed, Report, Step
from offstage.host.connectors.vllm.worker import Worker

FULL, WINDOW = Group(4, 100, names=("a",)), Group(8, 60, window=9, names=("b", "c"))
BOTH = Groups([FULL, WINDOW])


class Store:
    """A stand-in for an object client: sizes of the stored objects; lookups end at once."""

    def __init__(self) -> None:
        self.stored: dict[bytes, int] = {}
        self.asked: dict[str, list[bytes]] = {"prefetch": [], "exists": []}
        self.released: list[bytes] = []

    def prefetch(self, keys: list[bytes], sizes: list[int], **more: Any) -> None:
        self._answer("prefetch", keys, sizes, more["tell"])

    def exists(self, keys: list[bytes], sizes: list[int], **more: Any) -> None:
        self._answer("exists", keys, sizes, more["tell"])

    def _answer(self, call: str, keys: list[bytes], sizes: list[int], tell: Any) -> None:
        self.asked[call] += keys
        there = [self.stored.get(key) == size for key, size in zip(keys, sizes, strict=True)]
        states = tuple(State.DONE if one else State.ABSENT for one in there)
        tell(Completion(1, states, ("",) * len(keys)))

    def release(self, keys: list[bytes]) -> None:
        self.released += keys


def units(tokens: list[int]) -> list[bytes]:
    return chain(tokens, BOTH.unit, salt_of(request("r", [])))


def test_units_and_objects() -> None:
    """A unit is whole blocks of every group, and each of them is an object of its own key and size;
    a model of one group of full attention has its units' keys."""
    assert (BOTH.unit, BOTH.objects_per_unit, BOTH.whole) == (8, 3, True)
    found = BOTH.objects([b"x" * 32, b"y" * 32])
    assert [(one.size, one.group, one.unit) for one in found] == [
        *[(100, 0, 0)] * 2,
        *[(100, 0, 1)] * 2,
        (60, 1, 0),
        (60, 1, 1),
    ]
    assert len({one.key for one in found}) == 6
    assert {BOTH.unit_of(one.key) for one in found} == {b"x" * 32, b"y" * 32}
    alone = Groups([FULL])
    assert not alone.whole and [one.key for one in alone.objects([b"x"])] == [b"x"]
    assert Groups([WINDOW]).whole


@given(
    st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=12),
    st.integers(2, 40),
    st.integers(0, 12),
)
def test_the_longest_prefix_of_which_each_group_has_what_it_needs(
    there: list[tuple[bool, bool]], window: int, most: int
) -> None:
    """Against the definition: the tokens that the next one sees, group by group."""
    groups = Groups([Group(8, 1), Group(8, 1, window=window)])

    def has(units: int) -> bool:
        tokens = units * 8
        seen = range(max(0, tokens - window + 1), tokens)
        return all(there[unit][0] for unit in range(units)) and all(
            there[token // 8][1] for token in seen
        )

    rows = [[one[0] for one in there], [one[1] for one in there]]
    wanted = max(units for units in range(min(most, len(there)) + 1) if has(units))
    assert groups.usable(rows, most) == wanted


def test_a_hit_needs_the_windows_last_blocks_alone() -> None:
    """Of 4 units, the window's first two are gone: the hit stays, and the load has no block of
    them. Without the last one it is one unit shorter; without the last two there is none."""
    store, tokens = Store(), list(range(33))
    keys = units(tokens)
    store.stored = {one.key: one.size for one in BOTH.objects(keys)}
    for place in (0, 1):
        del store.stored[BOTH.keys(1, keys)[place]]
    plans, one = Plans(store, BOTH), request("r", tokens)  # type: ignore[arg-type]
    plans.arrive(one)
    assert store.asked["exists"] == BOTH.keys(1, keys)[:3], "not likely to be needed"
    assert plans.match(one, 0) == 32 and plans.is_apart(one)
    plans.load(one, [list(range(10, 18)), [0, 0, 0, 20]], 32)
    step = plans.plan({}, lambda _: [])
    [full], [window] = (each.apart for each in step.groups)
    assert [block for _, block in full[1]] == list(range(10, 18))
    assert window[1] == [(BOTH.keys(1, keys)[3], 20)]
    assert not step.loads and not step.others[0].loads
    for place, tokens_found in ((3, 24), (2, 0)):
        del store.stored[BOTH.keys(1, keys)[place]]
        plans.finish(one)
        plans.arrive(one)
        assert plans.match(one, 0) == tokens_found


def test_what_vllm_has_is_not_loaded() -> None:
    """vLLM has 16 tokens: the load begins behind them, in each group."""
    store, tokens = Store(), list(range(33))
    keys = units(tokens)
    store.stored = {one.key: one.size for one in BOTH.objects(keys)}
    plans, one = Plans(store, BOTH), request("r", tokens)  # type: ignore[arg-type]
    plans.arrive(one)
    assert plans.match(one, 16) == 16
    plans.load(one, [list(range(10, 18)), [0, 0, 0, 20]], 16)
    parts = [each.apart[0][1] for each in plans.plan({}, lambda _: []).groups]
    assert [[block for _, block in pairs] for pairs in parts] == [[14, 15, 16, 17], [20]]


def test_saves_leave_out_what_a_window_has_forgotten() -> None:
    """A step saves whole units, each group under its own keys, and no block that vLLM gave away. An
    event comes when all objects of a unit are stored, by the hash of its end."""
    store, one = Store(), request("r", list(range(33)))
    plans = Plans(store, BOTH, events=True, hash_tokens=4)  # type: ignore[arg-type]
    plans.arrive(one)
    step = plans.plan({"r": 31}, lambda _: [list(range(1, 9)), [0, 20, 21, 22]])
    keys = units(one.all_token_ids)
    assert step.saves == [(BOTH.keys(0, keys[:3]), [1, 2, 3, 4, 5, 6])]
    assert step.others[0].saves == [(BOTH.keys(1, keys[1:3]), [20, 21])]
    stored = [each.key for each in BOTH.objects(keys[1:2])]
    plans.learn(Report(step.number, 0, stored=stored[:-1]))
    assert plans.events() == []
    plans.learn(Report(step.number, 0, stored=stored[-1:]))
    assert plans.events() == [Saved(b"h3", b"h1", list(range(8, 16)), None)]


def test_a_request_whose_load_failed_is_computed_and_saved_again() -> None:
    """All of it, since vLLM keeps nothing of such a load; its leases end."""
    store, tokens = Store(), list(range(33))
    keys = units(tokens)
    store.stored = {one.key: one.size for one in BOTH.objects(keys)}
    plans, one = Plans(store, BOTH), request("r", tokens)  # type: ignore[arg-type]
    plans.arrive(one)
    assert plans.match(one, 0) == 32
    plans.fail_whole("r")
    plans.fail_whole("gone")
    assert plans.match(one, 0) == 0
    assert set(store.released) == {each.key for each in BOTH.objects(keys)}
    step = plans.plan({"r": 32}, lambda _: [list(range(1, 9)), [20, 21, 22, 23]])
    assert [len(each.saves[0][0]) for each in step.groups] == [8, 4]


class Fake:
    """A stand-in for `Copies`: what `landed` gives, and what did not load."""

    def __init__(self, *turns: set[str], lost: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.turns, self.unloaded, self.begun = list(turns), set(lost), Step()

    def load(self, step: Step) -> None:
        self.begun = step

    def landed(self) -> set[str]:
        return self.turns.pop(0)

    def failed(self) -> set[int]:
        return {3}


def test_a_load_has_ended_when_it_has_in_every_group() -> None:
    """A request that loads in one group alone ends with it. With a block of any group missing the
    request is lost, and vLLM is told of no block."""
    copies: list[Any] = [Fake({"s"}, {"r"}, set()), Fake(set(), set(), {"r"}, lost={"r"})]
    worker = Worker(BOTH, copies)
    step = Step.of(2)
    step.apart = [("r", [(b"k", 1)], 1.0), ("s", [(b"k", 1)], 1.0)]
    step.others[0].apart = [("r", [(b"l", 2)], 1.0)]
    worker.load(step)
    assert [one.begun for one in copies] == step.groups
    assert [worker.landed() for _ in range(3)] == [({"s"}, set()), (set(), set()), ({"r"}, {"r"})]
    assert worker.failed() == set() and Worker(Groups([FULL]), [copies[0]]).failed() == {3}


def test_each_group_registers_its_own_layers() -> None:
    """By vLLM's names, whatever their order; sizes that differ from vLLM's are refused."""
    torch = pytest.importorskip("torch")
    sizes = {"a": 100, "b": 30, "c": 30}
    memory = {name: torch.zeros((6, size), dtype=torch.uint8) for name, size in sizes.items()}
    copies = [Copies(None, one.size) for one in BOTH]
    Worker(BOTH, copies).register(memory, 6)
    assert [len(one._layers) for one in copies] == [1, 2]
    with pytest.raises(BadInput, match="30 bytes"):
        Worker(BOTH, copies).register(memory | {"a": memory["b"]}, 6)


def spec(kind: str, **more: Any) -> Any:
    fields = {"block_size": 32, "real_page_size_bytes": 64} | more
    return type(kind, (), fields)()


def test_vllms_groups() -> None:
    """Full attention, latents and windows are known, also several kinds of pages in one group; a
    group of anything else is refused by its name."""
    latents = {"d": spec("MLAAttentionSpec"), "e": spec("MLAAttentionSpec", real_page_size_bytes=6)}
    window = spec("SlidingWindowSpec", sliding_window=512, block_size=64)
    kinds = [
        (spec("FullAttentionSpec"), ["a", "b"]),
        (window, ["c"]),
        (spec("UniformTypeKVCacheSpecs", kv_cache_specs=latents), ["d", "e"]),
    ]
    groups = [SimpleNamespace(kv_cache_spec=one, layer_names=names) for one, names in kinds]
    config = SimpleNamespace(kv_cache_groups=groups)
    assert groups_of(config) == [
        Group(32, 128, 0, ("a", "b")),
        Group(64, 64, 512, ("c",)),
        Group(32, 70, 0, ("d", "e"), latents=True),
    ]
    config.kv_cache_groups[0].kv_cache_spec = spec("MambaSpec")
    with pytest.raises(BadInput, match="keeps MambaSpec"):
        groups_of(config)


def test_time_of_a_load_is_learned_when_all_groups_have_it() -> None:
    """Two groups load for a request: its time is known with the second one."""
    store, tokens = Store(), list(range(33))
    store.stored = {one.key: one.size for one in BOTH.objects(units(tokens))}
    plans, one = Plans(store, BOTH), request("r", tokens)  # type: ignore[arg-type]
    plans.arrive(one)
    assert plans.match(one, 0) == 32
    plans.load(one, [list(range(10, 18)), [0, 0, 0, 20]], 32)
    plans.plan({}, lambda _: [])
    plans.learn(Report(1, 0, landed=[Landed("r", 800, 1.0, 1.0)]))
    assert plans.choice.fetch.count == 0
    plans.learn(Report(2, 0, landed=[Landed("r", 60, 2.0, 2.0)]))
    assert plans.choice.fetch.count == 1
