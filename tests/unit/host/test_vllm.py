"""Does the vLLM connector match, plan, load and save what it should? Over stand-ins of the tier."""

from types import SimpleNamespace
from typing import Any

import pytest

from offstage.bindings.errors import BadInput
from offstage.host.connectors.objects import Completion, State
from offstage.host.connectors.vllm import Copies, Plans, Step, chain, salt_of

BLOCK = 4
SIZE = 100


class Store:
    """Stands in for an object client: what is stored; lookups end when it is told to `answer`."""

    def __init__(self) -> None:
        self.stored: set[bytes] = set()
        self.released: list[bytes] = []
        self.lookups: list[Any] = []

    def prefetch(self, keys: list[bytes], sizes: list[int], *, lease_s: float, tell: Any) -> None:
        assert sizes == [SIZE] * len(keys) and lease_s > 0
        self.lookups.append((keys, tell))

    def answer(self) -> None:
        for keys, tell in self.lookups:
            states = tuple(State.DONE if key in self.stored else State.ABSENT for key in keys)
            tell(Completion(1, states, ("",) * len(keys)))
        self.lookups.clear()

    def release(self, keys: list[bytes]) -> None:
        self.released += keys


def request(name: str, tokens: list[int], **more: Any) -> Any:
    fields = {
        "request_id": name,
        "all_token_ids": tokens,
        "num_tokens": len(tokens),
        "mm_features": [],
        "prompt_embeds": None,
        "lora_request": None,
        "cache_salt": None,
    }
    return SimpleNamespace(**fields | more)  # fmt: skip


def arrive(store: Store, tokens: list[int], **more: Any) -> tuple[Plans, Any]:
    plans, one = Plans(store, BLOCK, SIZE), request("r", tokens, **more)  # type: ignore[arg-type]
    plans.arrive(one)
    store.answer()
    return plans, one


def test_a_key_is_of_all_tokens_up_to_its_end() -> None:
    """Do keys differ by every token before, by salt and adapter, and not by what comes after?"""
    tokens, salt = list(range(13)), salt_of(request("r", []))
    keys = chain(tokens, BLOCK, salt)
    assert len(keys) == 3 and chain(tokens[:8], BLOCK, salt) == keys[:2]
    assert chain(tokens, BLOCK, salt, keys[:1]) == keys
    other = chain([99, *tokens[1:]], BLOCK, salt)
    assert not set(keys) & set(other)
    lora = SimpleNamespace(lora_name="a")
    salts = {salt_of(request("r", [], **more))
             for more in ({}, {"cache_salt": "a"}, {"lora_request": lora})}  # fmt: skip
    assert len(salts) == 3


@pytest.mark.parametrize(("count", "stored", "computed", "matched"), [
    (13, 3, 0, 12), (12, 3, 0, 8), (13, 2, 0, 8), (13, 3, 4, 8), (13, 1, 8, 0), (3, 0, 0, 0),
])  # fmt: skip
def test_the_longest_stored_prefix_is_matched(
    count: int, stored: int, computed: int, matched: int
) -> None:
    """Is it whole blocks, beyond what vLLM has, and never the last token?"""
    store, tokens = Store(), list(range(count))
    keys = chain(tokens, BLOCK, salt_of(request("r", [])))
    store.stored.update(keys[:stored])
    plans, one = Plans(store, BLOCK, SIZE), request("r", tokens)  # type: ignore[arg-type]
    plans.arrive(one)
    assert plans.match(one, computed) is None, "it is not known yet"
    store.answer()
    assert plans.match(one, computed) == matched


def test_a_hole_ends_the_prefix_and_is_filled() -> None:
    """Is what lies behind an absent block computed, and saved together with it?"""
    store, tokens = Store(), list(range(17))
    keys = chain(tokens, BLOCK, salt_of(request("r", [])))
    store.stored.update(keys)
    store.stored.remove(keys[1])
    plans, one = arrive(store, tokens)
    assert plans.match(one, 0) == BLOCK
    blocks = [7, 8, 9, 10, 11]
    plans.load(one, blocks, BLOCK)
    step = plans.plan({"r": 17}, lambda _: blocks)
    assert step.loads == [(keys[0], 7)]
    assert step.saves == [(keys[1:], blocks[:4])]


def test_blocks_are_saved_once_when_their_tokens_are_known() -> None:
    """Are blocks of a prompt in parts, and of what is generated, saved as they fill, once, and not
    before the tokens are there that name them?"""
    plans, one = arrive(Store(), list(range(10)))
    saved = []
    for computed in (6, 10, 13):  # of the last step vLLM has not told the tokens yet
        saved += [blocks for _, blocks in plans.plan({"r": computed}, lambda _: [1, 2, 3, 4]).saves]
    assert saved == [[1], [1, 2]]
    one.all_token_ids += [5, 6, 7]
    [(keys, blocks)] = plans.plan({"r": 14}, lambda _: [1, 2, 3, 4]).saves
    assert blocks == [1, 2, 3] and keys == chain(one.all_token_ids, BLOCK, salt_of(one))[2:]


def test_a_block_that_did_not_load_is_saved_again() -> None:
    """Is it saved with all that follows it, and is the worker told that it was noted?"""
    store, tokens = Store(), list(range(17))
    keys = chain(tokens, BLOCK, salt_of(request("r", [])))
    store.stored.update(keys)
    plans, _ = arrive(store, tokens)
    blocks = [7, 8, 9, 10, 11]
    assert plans.plan({"r": 17}, lambda _: blocks).saves == []
    plans.fail({9}, lambda _: blocks)
    step = plans.plan({"r": 17}, lambda _: blocks)
    assert step.noted == {9} and step.saves == [(keys[2:], blocks[:4])]
    assert plans.plan({"r": 17}, lambda _: blocks).noted == set()


def test_pictures_and_no_daemon_are_left_to_vllm() -> None:
    """Is what its tokens do not name neither matched nor saved, nor anything without a tier?"""
    for plans, one in (arrive(Store(), list(range(9)), mm_features=["a"]),
                       (Plans(None, BLOCK, SIZE), request("r", list(range(9))))):  # fmt: skip
        plans.arrive(one)
        assert plans.match(one, 0) == 0
        assert plans.plan({"r": 9}, lambda _: [1, 2]).saves == []
        plans.finish(one)


def test_a_finished_request_lets_go() -> None:
    """Are its leases released, and is it forgotten?"""
    store = Store()
    plans, one = arrive(store, list(range(9)))
    plans.finish(one)
    assert len(store.released) == 2 and plans.match(one, 0) == 0


class Memory:
    """Stands in for an object client: objects by key; what is not there cannot be read."""

    def __init__(self) -> None:
        self.objects: dict[bytes, bytes] = {}
        self.unended: list[Any] = []

    def put(self, keys: list[bytes], buffers: Any, *, tell: Any) -> None:
        self.objects.update((key, bytes(one)) for key, one in zip(keys, buffers, strict=True))
        self.unended.append(tell)

    def get(self, keys: list[bytes], buffers: Any) -> tuple[State, ...]:
        for key, buffer in zip(keys, buffers, strict=True):
            buffer[:] = list(self.objects.get(key, bytes(len(buffer))))
        return tuple(State.DONE if key in self.objects else State.UNREADABLE for key in keys)

    def wait(self, begin: Any, *arguments: Any) -> Completion:
        return Completion(1, begin(*arguments), ())


def copies(memory: Memory, fill: int) -> tuple[Copies, list[Any]]:
    """A worker with two layers of 6 blocks: 4 bytes a block in one part, 24 in two."""
    torch = pytest.importorskip("torch")
    layers = [torch.arange(6, dtype=torch.int32).reshape(6, 1, 1, 1) + fill,
              torch.arange(72, dtype=torch.bfloat16).reshape(12, 1, 2, 3) + fill]  # fmt: skip
    worker = Copies(memory, 28)  # type: ignore[arg-type]
    worker.register(layers, 6)
    return worker, layers


def test_what_is_saved_is_loaded_into_other_blocks() -> None:
    """Do all layers of a block come back, into the blocks that they are loaded for only?"""
    memory = Memory()
    worker, layers = copies(memory, 0)
    worker.save(Step(saves=[([b"a", b"b"], [0, 4, 2])]))
    assert sorted(memory.objects) == [b"a", b"b"] and len(memory.objects[b"a"]) == 28
    other, loaded = copies(memory, 100)
    before = [one.clone() for one in loaded]
    other.load(Step(loads=[(b"a", 1), (b"b", 5)]))
    assert other.failed() == set()
    for trio in zip(before, loaded, layers, strict=True):
        was, now, source = (one.unflatten(0, (6, -1)) for one in trio)
        assert (now[[1, 5]] == source[[4, 2]]).all()
        assert (now[[0, 2, 3, 4]] == was[[0, 2, 3, 4]]).all()


def test_nothing_computed_from_a_block_that_failed_is_saved() -> None:
    """Is it told once, its memory left, and no request that has it saved until that was noted?"""
    memory = Memory()
    worker, layers = copies(memory, 0)
    before = layers[0].clone()
    worker.load(Step(loads=[(b"x", 3)]))
    assert worker.failed() == {3} and worker.failed() == set()
    assert (layers[0] == before).all()
    saves = [([b"a"], [3, 4]), ([b"b"], [1, 2])]
    worker.save(Step(saves=saves))
    assert sorted(memory.objects) == [b"b"]
    worker.load(Step())
    worker.save(Step(saves=saves))
    assert sorted(memory.objects) == [b"b"], "the scheduler has not noted it"
    worker.load(Step(noted={3}))
    worker.save(Step(saves=saves))
    assert sorted(memory.objects) == [b"a", b"b"]


def test_an_object_on_its_way_is_not_stored_twice() -> None:
    """Is it left out until it has ended, as when two requests have one prefix?"""
    memory = Memory()
    worker, _ = copies(memory, 0)
    for _ in range(2):
        worker.save(Step(saves=[([b"a"], [1])]))
    assert len(memory.unended) == 1
    memory.unended[0](None)
    worker.save(Step(saves=[([b"a"], [1])]))
    assert len(memory.unended) == 2


def test_another_size_is_refused() -> None:
    """Is memory refused that makes other objects than the scheduler looks for?"""
    torch = pytest.importorskip("torch")
    with pytest.raises(BadInput, match="has 20 bytes here and 28"):
        Copies(None, 28).register([torch.zeros(6, 1, 1, 1), torch.zeros(12, 1, 1, 2)], 6)
