"""Blocks stored by groups of heads: do other numbers of vLLM's workers find and load them?"""

from types import SimpleNamespace
from typing import Any

import pytest
from vllm_stand_ins import Memory, one_step

from offstage.bindings.errors import BadInput
from offstage.host.connectors.objects import Completion, State
from offstage.host.connectors.vllm.copies import Copies
from offstage.host.connectors.vllm.groups import Group, Groups
from offstage.host.connectors.vllm.heads import head_groups_of
from offstage.host.connectors.vllm.steps import Step

HEADS, PARTS, BLOCKS = 8, 4, 6
OBJECT = HEADS // PARTS * 4 * 3 * 4 + HEADS // PARTS * 2 * 4 * 3 * 2
MODEL = SimpleNamespace(get_total_num_kv_heads=lambda: HEADS)


def memory_of(fill: int) -> list[Any]:
    """Return two layers of all heads: one of whole blocks, one of blocks in two parts."""
    torch = pytest.importorskip("torch")
    first = torch.arange(BLOCKS * HEADS * 12, dtype=torch.int32) + fill
    second = torch.arange(BLOCKS * HEADS * 24, dtype=torch.int32) % 200 + fill
    return [
        first.view(BLOCKS, HEADS, 4, 3),
        second.to(torch.bfloat16).view(2 * BLOCKS, HEADS, 4, 3),
    ]


def workers(store: Memory, layers: list[Any], ranks: int, by_layer: bool) -> list[Copies]:
    """Return workers that share the layers by heads, each with memory of its own."""
    made, each = [], HEADS // ranks
    for rank in range(ranks):
        one = Copies(
            store,  # type: ignore[arg-type]
            OBJECT,
            by_layer=by_layer,
            rank=rank,
            parts=PARTS,
            each=PARTS // ranks,
        )
        own = [layer[:, rank * each : (rank + 1) * each].clone() for layer in layers]
        one.register(own, BLOCKS)
        one.own = own  # type: ignore[attr-defined]
        made.append(one)
    return made


def whole(made: list[Copies]) -> list[Any]:
    torch = pytest.importorskip("torch")
    return [torch.cat(each, 1) for each in zip(*(one.own for one in made), strict=True)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("by_layer", [True, False])
@pytest.mark.parametrize(("stores", "loads"), [(2, 1), (1, 2), (4, 2), (1, 4), (2, 2)])
def test_another_number_of_workers_loads_the_same_heads(
    stores: int, loads: int, by_layer: bool
) -> None:
    """What some workers save has one object for each group of heads, and others load it into other
    blocks, step by step or apart."""
    store, kept = Memory(), memory_of(0)
    for one in workers(store, kept, stores, by_layer):
        step = Step(saves=[([b"a", b"b"], [0, 4, 2])])
        one_step(one, step)
        for keys, tell in store.unended:
            tell(Completion(1, (State.DONE,) * len(keys), ()))
        store.unended.clear()
        assert sorted(one.report(step).stored) == sorted([b"a", b"b"] * (PARTS // stores))
    assert len(store.objects) == 2 * PARTS
    assert {len(one) for one in store.objects.values()} == {OBJECT}
    before = memory_of(50)
    made = workers(store, before, loads, by_layer)
    for one in made:
        one_step(one, Step(loads=[(b"a", 1)], apart=[("r", [(b"b", 5)], 9.0)]))
        assert one.landed() == {"r"} and one.failed() == set()
    for was, now, source in zip(before, whole(made), kept, strict=True):
        was, now, source = (each.unflatten(0, (BLOCKS, -1)) for each in (was, now, source))
        assert (now[[1, 5]] == source[[4, 2]]).all()
        assert (now[[0, 2, 3, 4]] == was[[0, 2, 3, 4]]).all()


def test_a_block_without_one_of_its_groups_failed_to_load() -> None:
    """One worker loads two blocks by four objects each; of one the third is gone."""
    store = Memory()
    [first] = workers(store, memory_of(0), 1, True)
    one_step(first, Step(saves=[([b"a", b"b"], [0, 1])]))
    del store.objects[b"a" + (2).to_bytes(2, "big")]
    [second] = workers(store, memory_of(50), 1, True)
    one_step(second, Step(loads=[(b"a", 3), (b"b", 4)]))
    assert second.failed() == {3} and second.counts["load_failed_blocks"] == 1


def test_all_numbers_of_workers_ask_for_the_same_objects() -> None:
    """The scheduler's side: keys and sizes of a block's objects are those of any other number."""
    asked = [
        Groups([Group(4, HEADS * 100 // ranks, heads=HEADS // ranks)], ranks, PARTS).objects([b"u"])
        for ranks in (1, 2, 4)
    ]
    assert asked[0] == asked[1] == asked[2] and len(asked[0]) == PARTS
    assert {one.size for one in asked[0]} == {200}
    assert len(Groups([Group(4, 400)], 2).objects([b"u"])) == 2


def test_heads_that_cannot_be_split_are_one_line() -> None:
    """Other numbers of groups, layers without heads and what is no number are refused."""

    def found(parts: Any, ranks: int = 2, **more: Any) -> int:
        one = Group(4, 400, **({"heads": HEADS // ranks} | more))
        return head_groups_of({"head_groups": parts}, [one], MODEL, ranks)

    assert head_groups_of({}, [Group(4, 400)], None, 2) == 0 and found(0) == 0
    assert [found(parts) for parts in (2, 4, 8)] == [2, 4, 8] and found(1, 1) == 1
    for parts in (1, 3, 6, 16):
        with pytest.raises(BadInput, match=f"8 KV heads on 2 workers are not {parts} equal"):
            found(parts)
    with pytest.raises(BadInput, match="on 16 workers"):
        found(16, 16, heads=1)
    for parts in (-1, True, "2", 1.5):
        with pytest.raises(BadInput, match="head_groups is"):
            found(parts)
    for more in ({"latents": True}, {"heads": 0}):
        with pytest.raises(BadInput, match="not kept by heads"):
            found(2, **more)
