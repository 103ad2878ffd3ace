"""Does a prompt that can load nothing cost vLLM's connector nothing before its first token, and is
it stored all the same? Does a router's hint reach the tier? Over a stand-in for it."""

from vllm_stand_ins import BLOCK, SIZE, Store, request

from offstage.host.connectors.vllm.groups import Group, Groups
from offstage.host.connectors.vllm.keys import chain, salt_of
from offstage.host.connectors.vllm.plans import Plans
from offstage.host.connectors.vllm.steps import Report

GROUPS = Groups([Group(BLOCK, SIZE)])


def test_what_nobody_waited_for_is_saved_when_the_tier_lacks_it() -> None:
    """A prompt of one block can load nothing. It is looked up with its second step, when its first
    token is out, and saved by the step after the answer. Where none follows an answer, as in an
    engine that only prefills, the first step saves it unasked."""
    saved = []
    for outputs in (4, 2, 1):
        store = Store()
        plans = Plans(store, GROUPS)  # type: ignore[arg-type]
        one = request("r", list(range(BLOCK)), max_tokens=outputs)
        plans.arrive(one)
        assert plans.match(one, 0) == 0
        step = plans.plan({"r": BLOCK}, lambda _: [[5]])
        assert not store.lookups
        plans.learn(Report(step.number, BLOCK))
        assert not store.lookups, "the first token is not out yet"
        saved.append([len(step.saves)])
        saved[-1].append(len(plans.plan({"r": BLOCK + 1}, lambda _: [[5]]).saves))
        assert len(store.lookups) == (outputs > 2)
        store.answer()
        assert plans.counts["asked_tokens"] == BLOCK
        saved[-1].append(len(plans.plan({"r": BLOCK + 2}, lambda _: [[5]]).saves))
    assert saved == [[0, 0, 1], [1, 0, 0], [1, 0, 0]]


def test_a_prompt_below_a_block_is_asked_for_when_it_has_one() -> None:
    """It costs nothing until its first block is whole; when it ends before, nothing is asked or
    released."""
    store = Store()
    plans = Plans(store, GROUPS)  # type: ignore[arg-type]
    one = request("r", list(range(BLOCK - 1)))
    plans.arrive(one)
    assert plans.match(one, 0) == 0
    for tokens in (BLOCK - 1, BLOCK):
        step = plans.plan({"r": tokens}, lambda _: [[5]])
        assert not step.saves and not store.lookups
        plans.learn(Report(step.number, 1))
        one.all_token_ids.append(7)
        one.num_tokens += 1
    plans.plan({"r": BLOCK + 1}, lambda _: [[5]])
    assert len(store.lookups) == 1
    store.answer()
    assert len(plans.plan({"r": BLOCK + 2}, lambda _: [[5, 6]]).saves) == 1
    other = request("q", list(range(BLOCK)))
    plans.arrive(other)
    plans.finish(other)
    assert not store.released and not store.lookups


def test_a_routers_hint_names_what_the_engine_lacks() -> None:
    """The blocks behind those that it holds, due when the request comes, under the keys of a
    request that has these tokens."""
    store, tokens = Store(), list(range(3 * BLOCK + 1))
    plans = Plans(store, GROUPS, ahead=False)  # type: ignore[arg-type]
    plans.hint(tokens, BLOCK, 2.5)
    keys = chain(tokens, BLOCK, salt_of(request("r", tokens)))
    ((hinted, _),), (more,) = store.lookups, store.leases
    assert hinted == keys[1:] and more["due_s"] == 2.5 < more["lease_s"]
    Plans(None, GROUPS).hint(tokens, 0, 0.0)
