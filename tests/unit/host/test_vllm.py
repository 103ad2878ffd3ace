"""Does the scheduler's side of the vLLM connector match, plan and save the right blocks? Runs over
a stand-in for the tier."""

import json
import time
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
from vllm_stand_ins import BLOCK, SIZE, Store, request

from offstage.host.connectors.choice import Choice
from offstage.host.connectors.objects import Completion, State
from offstage.host.connectors.vllm import plans as plans_module
from offstage.host.connectors.vllm.events import Gone, Saved
from offstage.host.connectors.vllm.groups import Group, Groups
from offstage.host.connectors.vllm.hints import Hints, hints_of
from offstage.host.connectors.vllm.keys import chain, salt_of, shards
from offstage.host.connectors.vllm.plans import Plans
from offstage.host.connectors.vllm.steps import Landed, Report, Step
from offstage.host.model.identity import Adapters, Weights

GROUPS = Groups([Group(BLOCK, SIZE)])


def weights(digest: str) -> Weights:
    return Weights(digest, (), 0, 0, 0.0)


def arrive(store: Store, tokens: list[int], events: bool = False, **more: Any) -> tuple[Plans, Any]:
    plans = Plans(store, GROUPS, events=events)  # type: ignore[arg-type]
    one = request("r", tokens, **more)
    plans.arrive(one)
    store.answer()
    return plans, one


def test_a_key_is_of_all_tokens_up_to_its_end() -> None:
    """Keys depend on every token before, on salt and adapter, and not on later tokens."""
    tokens, salt = list(range(13)), salt_of(request("r", []))
    keys = chain(tokens, BLOCK, salt)
    assert len(keys) == 3 and chain(tokens[:8], BLOCK, salt) == keys[:2]
    assert chain(tokens, BLOCK, salt, keys[:1]) == keys
    other = chain([99, *tokens[1:]], BLOCK, salt)
    assert not set(keys) & set(other)
    one, other = weights("a"), weights("b")
    salts = [
        ({}, None),
        ({"cache_salt": "a"}, None),
        ({}, one),
        ({}, other),
        ({"cache_salt": "a"}, one),
    ]
    assert len({salt_of(request("r", [], **more), held) for more, held in salts}) == 5


def adapter(folder: Path, fill: int, number: int = 1) -> Any:
    """Return an adapter of one name with its own files, which are newer than any before."""
    time.sleep(0.02)
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(bytes([fill]) * 64)
    return SimpleNamespace(lora_name="sql", lora_path=str(folder), lora_int_id=number)


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Adapters:
    """Return the adapters of an engine that starts after their files were written."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Adapters(time.time_ns() + 3600 * 10**9)


def test_an_adapter_of_the_same_name_with_other_weights_is_a_miss(
    held: Adapters, tmp_path: Path
) -> None:
    """An engine finds what another stored with equal files at another path, and misses what it
    stored with different files under the same name."""
    tokens, found = list(range(13)), []
    first = adapter(tmp_path / "1", 1)
    store = Store()
    for lora in (first, adapter(tmp_path / "2", 2, 2), adapter(tmp_path / "3", 1, 3)):
        plans = Plans(store, GROUPS, adapters=held)  # type: ignore[arg-type]
        one = request("r", tokens, lora_request=lora)
        plans.arrive(one)
        store.answer()
        found.append(plans.match(one, 0))
        step = plans.plan({"r": 13}, lambda _: [[4, 5, 6]])
        if lora is first:
            store.stored.update(key for keys, _ in step.saves for key in keys)
            assert step.saves and step.adapters == [held.of(lora)]
    assert found == [0, 0, 12]


def test_an_adapter_that_changes_is_left_to_vllm(held: Adapters, tmp_path: Path) -> None:
    """Its files change after the lookup of a request: nothing is loaded or saved for it, its leases
    are released, nothing of its step is stored, and a later request is not looked up."""
    store, lora, tokens = Store(), adapter(tmp_path / "1", 1), list(range(13))
    plans = Plans(store, GROUPS, adapters=held)  # type: ignore[arg-type]
    one = request("r", tokens, lora_request=lora)
    plans.arrive(one)
    store.stored.update(store.lookups[0][0])
    store.answer()
    assert plans.match(one, 0) == 12
    step = plans.plan({"r": 12}, lambda _: [[4, 5, 6]])
    assert step.holds()
    adapter(tmp_path / "1", 2)
    assert not step.holds(), "the worker stores nothing of this step"
    assert plans.plan({"r": 13}, lambda _: [[4, 5, 6]]).saves == [] and store.released
    plans.arrive(request("q", tokens, lora_request=lora))
    assert not store.lookups and plans.match(request("q", tokens), 0) == 0
    assert plans.counts["adapter_unknown"] == 2


@pytest.mark.parametrize(
    ("count", "stored", "computed", "matched"),
    [
        (13, 3, 0, 12),
        (12, 3, 0, 8),
        (13, 2, 0, 8),
        (13, 3, 4, 8),
        (13, 1, 8, 0),
        (3, 0, 0, 0),
    ],
)
def test_the_longest_stored_prefix_is_matched(
    count: int, stored: int, computed: int, matched: int
) -> None:
    """It is in whole blocks, beyond vLLM's own, and never has the last token."""
    store, tokens = Store(), list(range(count))
    keys = chain(tokens, BLOCK, salt_of(request("r", [])))
    store.stored.update(keys[:stored])
    plans, one = Plans(store, GROUPS), request("r", tokens)  # type: ignore[arg-type]
    plans.arrive(one)
    most = (count - 1) // BLOCK * BLOCK - computed
    assert plans.match(one, computed) == (None if most > 0 else 0), "it is not known yet"
    assert plans.plan({"r": count}, lambda _: [[0, 1, 2, 3]]).saves == [], "the tier may have it"
    store.answer()
    assert plans.match(one, computed) == matched


@pytest.mark.parametrize("busy", [False, True])
def test_an_answer_ends_the_wait_for_it(busy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM is told in the pass in which the answer comes, where nothing else runs; where something
    does, it never waits."""
    monkeypatch.setattr(plans_module, "LOOK_IDLE_S", 60.0)
    store, tokens = Store(), list(range(9))
    plans, one = Plans(store, GROUPS), request("r", tokens)  # type: ignore[arg-type]
    plans.arrive(one)
    store.stored.update(store.lookups[0][0])
    plans.plan({"other": 1} if busy else {}, lambda _: [[]])
    Timer(0.05, store.answer).start()
    assert plans.match(one, 0) == (None if busy else 8)


def test_a_request_of_prompt_figures_loads_nothing() -> None:
    """vLLM computes all of its prompt: nothing waits for the look-up, and nothing is decided."""
    store, tokens = Store(), list(range(17))
    store.stored.update(chain(tokens, BLOCK, salt_of(request("r", []))))
    plans, one = Plans(store, GROUPS), request("r", tokens)  # type: ignore[arg-type]
    one.skip_reading_prefix_cache = True
    plans.arrive(one)
    assert plans.match(one, 0) == 0 and not plans.choice.decisions
    store.answer()
    assert plans.match(one, 0) == 0 and not plans.choice.decisions


def test_a_hole_ends_the_prefix_and_is_filled() -> None:
    """The blocks after an absent one are computed, and saved together with it."""
    store, tokens = Store(), list(range(17))
    keys = chain(tokens, BLOCK, salt_of(request("r", [])))
    store.stored.update(keys)
    store.stored.remove(keys[1])
    plans, one = arrive(store, tokens)
    assert plans.match(one, 0) == BLOCK
    blocks = [7, 8, 9, 10, 11]
    plans.load(one, [blocks], BLOCK)
    step = plans.plan({"r": 17}, lambda _: [blocks])
    assert step.loads == [(keys[0], 7)]
    assert step.saves == [(keys[1:], blocks[:4])]


def test_blocks_are_saved_once_when_their_tokens_are_known() -> None:
    """Blocks of a chunked prompt and generated blocks are saved once, as they fill, and not before
    all tokens in their names are known."""
    plans, one = arrive(Store(), list(range(10)))
    saved = []
    for computed in (6, 10, 13):  # vLLM has not reported the last step's tokens yet
        saved += [
            blocks for _, blocks in plans.plan({"r": computed}, lambda _: [[1, 2, 3, 4]]).saves
        ]
    assert saved == [[1], [1, 2]]
    one.all_token_ids += [5, 6, 7]
    [(keys, blocks)] = plans.plan({"r": 14}, lambda _: [[1, 2, 3, 4]]).saves
    assert blocks == [1, 2, 3] and keys == chain(one.all_token_ids, BLOCK, salt_of(one))[2:]


def test_a_block_that_did_not_load_is_saved_again() -> None:
    """It is saved with all that follows it, and the worker learns that the failure was noted."""
    store, tokens = Store(), list(range(17))
    keys = chain(tokens, BLOCK, salt_of(request("r", [])))
    store.stored.update(keys)
    plans, _ = arrive(store, tokens)
    blocks = [7, 8, 9, 10, 11]
    assert plans.plan({"r": 17}, lambda _: [blocks]).saves == []
    plans.fail({9}, lambda _: [blocks])
    step = plans.plan({"r": 17}, lambda _: [blocks])
    assert step.noted == {9} and step.saves == [(keys[2:], blocks[:4])]
    assert plans.plan({"r": 17}, lambda _: [blocks]).noted == set()


def test_a_lookup_that_waits_for_its_turn_is_made_then() -> None:
    """Without prefetch, nothing is looked up before vLLM asks."""
    store, one = Store(), request("r", list(range(9)))
    plans = Plans(store, GROUPS, ahead=False)  # type: ignore[arg-type]
    plans.arrive(one)
    assert not store.lookups and plans.match(one, 0) is None and len(store.lookups) == 1


def test_an_unanswered_lookup_is_a_miss() -> None:
    """If the daemon is frozen when a request arrives, the request is computed in the end."""
    store = Store()
    plans = Plans(store, GROUPS)  # type: ignore[arg-type]
    one = request("r", list(range(20)))
    plans.arrive(one)
    assert plans.match(one, 0) is None
    plans._requests["r"].looked_s -= 60.0
    store.lookups[0][1](Completion(1, (State.LATE,) * 5, ("",) * 5))
    assert plans.match(one, 0) == 0 and plans.counts["lookup_late"] == 1


def test_bounds_are_what_they_are_set_to() -> None:
    """A load or a lookup is bounded by the setting until the compute time is known, then by that
    time, but no less than the setting."""
    store = Store()
    plans = Plans(store, GROUPS, patience_s=60.0, patience_min_s=0.5)  # type: ignore[arg-type]
    assert plans.plan({}, lambda _: [[]]).patience_s == 60.0
    plans.arrive(request("q", list(range(20))))
    assert store.leases[-1]["within_s"] == 60.0
    for number in range(40):
        plans.choice.compute.learn(100 + number, 0.001 * (100 + number))
    assert plans.choice.compute.known
    for count, patience_s in ((1, 0.5), (1000, 1000 * BLOCK * 0.001)):
        plans._step.loads = [(b"k", 1)] * count
        assert plans.plan({}, lambda _: [[]]).patience_s == pytest.approx(patience_s)
    for name, count, within_s in (("short", 20, 0.5), ("r", 4000, 4.0), ("long", 80_000, 60.0)):
        one = request(name, list(range(count)))
        plans.arrive(one)
        assert store.leases[-1]["within_s"] == pytest.approx(within_s)
        if name == "r":
            assert plans.match(one, 0) is None
            plans._requests[name].looked_s -= within_s
            assert plans.match(one, 0) == 0 and plans.counts["lookup_late"] == 1


def test_what_another_engine_prefills_is_waited_for() -> None:
    """A request is not scheduled before its blocks are there. Only the next block is looked up
    until it is there, then more, none twice. The wait ends at its limit."""
    store, tokens = Store(), list(range(17))
    keys = chain(tokens, BLOCK, salt_of(request("r", [])))
    store.stored.add(keys[0])
    for seconds, ends in ((100.0, None), (0.0, BLOCK)):
        wish = {"offstage": {"expect": {"tokens": 17, "seconds": seconds}}}
        plans, one = arrive(store, tokens, kv_transfer_params=wish)
        assert plans.match(one, 0) == ends
    plans, one = arrive(
        store, tokens, kv_transfer_params={"offstage": {"expect": {"tokens": 99, "seconds": 100}}}
    )
    while not store.lookups:
        assert plans.match(one, 0) is None
    assert store.lookups[0][0] == keys[1:2]
    store.stored.update(keys)
    asked: list[bytes] = []
    while (tokens_there := plans.match(one, 0)) is None:
        asked += [key for names, _ in store.lookups for key in names]
        store.answer()
    assert tokens_there == 4 * BLOCK and asked == keys[1:]


def test_hints_come_by_both_doors() -> None:
    """Actions in vLLM's envelope and in transfer parameters are understood; invalid ones are
    ignored."""
    actions = [
        SimpleNamespace(action_type=name, payload=payload)
        for name, payload in (
            ("retain", {"seconds": 9}),
            ("share", {"tokens": 64}),
            ("prefetch", {"in_seconds": 2.5}),
            ("retain", {"seconds": -1}),
            ("burn", {}),
            ("share", [1]),
            ("priority", {"speed": 1}),
        )
    ]
    one = request(
        "r",
        [],
        kv_hints=SimpleNamespace(actions=actions),
        kv_transfer_params={"offstage": {"priority": {"chance": 0.25}}},
    )
    assert hints_of(one) == Hints(0.25, 9.0, 2.5, 1.0, 64)
    assert hints_of(request("r", [], kv_transfer_params={"offstage": 3})) == Hints()


@pytest.mark.parametrize(
    ("hint", "understood"),
    [
        ('{"share": {"tokens": 1e999}}', Hints()),
        ('{"expect": {"tokens": Infinity, "seconds": 3}}', Hints()),
        ('{"expect": {"seconds": 3}}', Hints()),
        (f'{{"retain": {{"seconds": {10**400}}}}}', Hints()),
        ('{"retain": {"seconds": NaN}}', Hints()),
        ('{"prefetch": {"in_seconds": 1e999}}', Hints()),
        ('{"prefetch": {"in_seconds": 1e12}}', Hints(resume_s=86_400.0)),
        ('{"retain": {"seconds": 1e12}}', Hints(retain_s=86_400.0)),
        ('{"two\\nlines": {}}', Hints()),
    ],
)
def test_no_number_of_a_client_ends_the_engine(
    hint: str, understood: Hints, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What any client of vLLM's server can send, such as a number that JSON has and no clock: is it
    left out in one line, or bounded, where it would raise in the scheduler of all requests?"""
    monkeypatch.setattr("offstage.host.connectors.vllm.hints._said", set())
    one = request("r", range(64), kv_transfer_params={"offstage": json.loads(hint)})
    assert hints_of(one) == understood
    assert len(caplog.messages) == (understood == Hints()) and "\n" not in caplog.text.strip()


def test_a_pause_keeps_and_asks_back() -> None:
    """A request's stored blocks are leased beyond its end and prefetched by the time it resumes.
    For a request that shares less, less is saved."""
    store, tokens = Store(), list(range(17))
    wish = {"prefetch": {"in_seconds": 3}, "retain": {"seconds": 60}, "share": {"tokens": 8}}
    plans, one = arrive(store, tokens, kv_transfer_params={"offstage": wish})
    [(keys, _)] = plans.plan({"r": 17}, lambda _: [[1, 2, 3, 4]]).saves
    assert len(keys) == 2
    plans.finish(one)
    assert store.lookups[0][0] == keys and plans.counts["paused"] == 1
    assert store.leases[-1] == {"lease_s": 60.0, "due_s": 3.0, "chance": 1.0}


def test_only_a_request_that_is_alone_is_loaded_within_its_step() -> None:
    """While another request waits or runs, a request is loaded asynchronously with its own bound.
    The fetch time is learned once all workers have their part."""
    store, tokens = Store(), list(range(13))
    store.stored.update(shards(chain(tokens, BLOCK, salt_of(request("r", []))), 2))
    plans = Plans(store, Groups([Group(BLOCK, SIZE)], 2), patience_s=60.0)  # type: ignore[arg-type]
    alone, other = request("r", tokens), request("q", [7])

    def load(one: Any) -> Step:
        plans.arrive(one)
        store.answer()
        assert plans.match(one, 0) == 12
        plans.load(one, [[4, 5, 6]], 12)
        step = plans.plan({}, lambda _: [[]])
        plans.finish(one)
        return step

    assert len(load(alone).loads) == 3 and not plans.choice.fetch.count
    plans.plan({"picture": 5}, lambda _: [[]])
    assert not load(alone).loads, "another one runs"
    plans.plan({}, lambda _: [[]])
    plans.arrive(other)
    plans.arrive(alone)
    store.answer()
    assert plans.match(alone, 0) == 12 and plans.is_apart(alone), "another one waits"
    plans.load(alone, [[4, 5, 6]], 12)
    step = plans.plan({}, lambda _: [[]])
    [(name, pairs, patience_s)] = step.apart
    assert (name, [block for _, block in pairs], patience_s) == ("r", [4, 5, 6], 60.0)
    assert plans.counts["matched_tokens"] == 24
    first = Report(
        step.number, 0, landed=[Landed("r", 100, -1.0, -1.0), Landed("r", 200, 2.0, 1.5)]
    )
    plans.learn(first)
    assert plans.choice.fetch.count == 0 and plans.choice.decisions[-1].took_s == -1.0
    last = [Landed("r", 300, 1.0, 1.0), Landed("gone", 1, 1.0, 1.0)]
    plans.learn(Report(step.number + 1, 0, landed=last))
    assert plans.choice.fetch.count == 1 and plans.choice.decisions[-1].took_s == 2.0
    assert plans.choice.fetch.fit == (0.0, 1.5 / 600), "the wait for other loads is not its cost"


def test_subscribers_are_told_of_what_is_stored_and_gone() -> None:
    """Each block is announced by vLLM's hash once it is stored, and removed once it is found
    absent."""
    plans, _ = arrive(Store(), list(range(9)), events=True)
    step = plans.plan({"r": 9}, lambda _: [[5, 6]])
    assert plans.events() == []
    plans.learn(Report(step.number, 9, stored=step.saves[0][0]))
    assert plans.events() == [
        Saved(b"h0", None, [0, 1, 2, 3], None),
        Saved(b"h1", b"h0", [4, 5, 6, 7], None),
    ]
    plans.fail({6}, lambda _: [[5, 6]])
    assert plans.events() == [Gone(b"h1")]


def test_what_is_computed_faster_is_computed() -> None:
    """Once steps and loads are measured, the faster one is chosen, and its regret is counted."""
    store, tokens = Store(), list(range(17))
    store.stored.update(chain(tokens, BLOCK, salt_of(request("r", []))))
    plans, one = arrive(store, tokens)
    for count in (4, 8, 12, 16):
        plans.learn(
            Report(0, count, loaded_bytes=100 * count, waited_s=1.0 * count, took_s=1.01 * count)
        )
    assert plans.match(one, 0) == 0 and plans.match(one, 0) == 0
    step = plans.plan({"r": 17}, lambda _: [[1, 2, 3, 4, 5]], 17)
    plans.learn(Report(step.number, 17, took_s=0.5))
    assert plans.counts["recomputed_tokens"] == 16 and not plans.counts["fetched_tokens"]
    [made] = plans.choice.decisions
    assert made.took_s == pytest.approx(0.5 * 16 / 17) and made.regret_s == 0.0


def test_a_prefix_is_fetched_while_computing_seems_to_cost_nothing() -> None:
    """If steps of more tokens took no longer, a prefix is fetched all the same."""
    choice = Choice(100.0)
    for tokens in (2048, 2048, 600, 32):
        choice.compute.learn(tokens, 0.01)
        choice.fetch.learn(100.0 * tokens, 0.5)
    assert choice.decide(2048).fetched
    for tokens in (2048, 1024, 64):
        choice.compute.learn(tokens, 0.001 * tokens)
    assert choice.decide(2048).fetched and not choice.decide(64).fetched


def test_pictures_and_no_daemon_are_left_to_vllm() -> None:
    """Requests that tokens do not fully name are neither matched nor saved; without a tier, none
    are."""
    for plans, one in (
        arrive(Store(), list(range(9)), mm_features=["a"]),
        (Plans(None, GROUPS), request("r", list(range(9)))),
    ):
        plans.arrive(one)
        assert plans.match(one, 0) == 0
        assert plans.plan({"r": 9}, lambda _: [[1, 2]]).saves == []
        plans.finish(one)


def test_a_finished_request_lets_go() -> None:
    """Its leases are released, and it is forgotten."""
    store = Store()
    plans, one = arrive(store, list(range(9)))
    plans.finish(one)
    assert len(store.released) == 2 and plans.match(one, 0) == 0


def test_a_block_is_there_when_all_workers_have_their_part() -> None:
    """With two workers, only a block that both have stored is a hit. Each part is leased and
    released, and subscribers are notified once, when the second part is stored."""
    store = Store()
    plans = Plans(store, Groups([Group(BLOCK, SIZE)], 2), events=True)  # type: ignore[arg-type]
    one = request("r", list(range(9)))
    keys = chain(one.all_token_ids, BLOCK, salt_of(one))
    parts = shards(keys, 2)
    assert len(set(parts)) == 4 and not set(parts) & set(keys) and shards(keys, 1) == keys
    store.stored = {parts[0], parts[1], parts[3]}
    plans.arrive(one)
    store.answer()
    assert plans.match(one, 0) == BLOCK
    plans.plan({"r": 9}, lambda _: [[1, 2, 3]], 9)
    first, second = Report(1, 9, 10, 0.5, 3.0, [keys[1]]), Report(1, 9, 20, 1.0, 2.0, [])
    plans.learn(first.aggregate(second))
    assert plans.events() == []
    plans.learn(second.aggregate(Report(2, 9, stored=[keys[1]])))
    assert [told.block_hash for told in plans.events()] == [b"h1"]
    both = first.aggregate(second)
    assert (both.loaded_bytes, both.waited_s, both.took_s) == (30, 1.0, 3.0)
    plans.finish(one)
    assert store.released == parts
