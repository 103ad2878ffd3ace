"""Does vLLM's connector fetch what is fetched faster, after events that look like a slow tier? A
simulated clock: a step of other requests takes 0.4 s, a load 20 ms, computing its tokens 0.2 s."""

from typing import Any

import pytest

from offstage.host.connectors.choice import SAMPLES_MIN, TRY_EVERY, Choice
from offstage.host.connectors.objects import Completion, State
from offstage.host.connectors.vllm import loads
from offstage.host.connectors.vllm.loads import Apart, parts_of

TOKENS, SIZE, STEP_S, LOAD_S, PER_TOKEN_S = 2048, 4096, 0.4, 0.02, 1e-4
START_S = 0.01  # of a step, whatever it computes


class Clock:
    """Time, and a client whose loads follow each other, each of LOAD_S."""

    def __init__(self) -> None:
        self.now_s, self.calls = 100.0, list[Any]()

    def monotonic(self) -> float:
        return self.now_s

    def get(self, keys: list[bytes], _: Any, **more: Any) -> None:
        self.calls.append((len(keys), more))

    def load(self) -> None:
        """The first load that is in flight lands."""
        count, more = self.calls.pop(0)
        self.now_s += LOAD_S
        assert more["cuts"] == [SIZE], "a call for each layer, though nobody waits for one"
        more["landed"](0, frozenset())
        more["tell"](Completion(1, (State.DONE,) * count, ("",) * count))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(loads, "time", found)
    return found


def choice() -> Choice:
    """One that knows what computing costs."""
    found = Choice(SIZE / TOKENS)
    for tokens in (64, 512, 2048):
        found.compute.learn(tokens, START_S + PER_TOKEN_S * tokens)
    return found


@pytest.mark.parametrize("together", [1, 4])
def test_a_load_costs_neither_the_step_beside_it_nor_the_loads_before(
    clock: Clock, together: int
) -> None:
    """Loads that land during a long step are reported when it ends, and those of several requests
    follow each other. Each counts with its own time, so the next prefix is fetched."""
    apart, chosen = Apart(clock, SIZE), choice()  # type: ignore[arg-type]
    for _ in range(SAMPLES_MIN):
        for one in range(together):
            apart.add(str(one), [b"key"], [1], 60.0)
        until_s = clock.now_s + STEP_S
        for _ in range(together):
            clock.load()
        clock.now_s = until_s
        ended = apart.ended()
        assert [one.took_s for _, one in ended] == pytest.approx(
            [LOAD_S * (1 + one) for one in range(together)]
        )
        for _, landed in ended:
            chosen.fetch.learn(SIZE, landed.alone_s)
    made = chosen.decide(TOKENS, apart=True)
    assert made.fetch_s == pytest.approx(LOAD_S + START_S) and made.fetched
    assert made.compute_s == pytest.approx(PER_TOKEN_S * TOKENS)


def test_slow_first_loads_are_forgotten() -> None:
    """Twenty loads that took a second, as of a cold store or a machine that was busy, and then each
    takes 20 ms: at the end of five rounds of tries everything is fetched."""
    chosen = choice()
    for _ in range(20):
        chosen.fetch.learn(SIZE, 1.0)
    made = list[bool]()
    for _ in range(5 * (TRY_EVERY + 1)):
        made.append(chosen.decide(TOKENS, apart=True).fetched)
        if made[-1]:
            chosen.fetch.learn(SIZE, LOAD_S)
    assert not any(made[:TRY_EVERY]) and all(made[-TRY_EVERY:])


def test_a_tier_that_stays_slow_is_tried_rarely() -> None:
    """One decision in TRY_EVERY + 1."""
    chosen = choice()
    for _ in range(20):
        chosen.fetch.learn(SIZE, 1.0)
    made = list[bool]()
    for _ in range(5 * (TRY_EVERY + 1)):
        made.append(chosen.decide(TOKENS, apart=True).fetched)
        if made[-1]:
            chosen.fetch.learn(SIZE, 1.0)
    assert sum(made) == 5


def test_a_short_prefix_is_not_worth_a_step() -> None:
    """A load apart ends beside a step, and its request joins the next: what is computed in less
    than a step's fixed time is not fetched apart, and is within a step."""
    chosen = choice()
    for _ in range(SAMPLES_MIN):
        chosen.fetch.learn(SIZE, 1e-4)
    tokens = int(0.9 * START_S / PER_TOKEN_S)
    assert not chosen.decide(tokens, apart=True).fetched and chosen.decide(tokens).fetched


def test_parts_of_an_object_are_worth_their_calls() -> None:
    """Layers of 16 KiB are waited for four at a time, those of 1 MiB one by one."""
    assert parts_of([(1 + one) << 14 for one in range(6)]) == [4 << 14, 6 << 14]
    assert parts_of([(1 + one) << 20 for one in range(3)]) == [1 << 20, 2 << 20, 3 << 20]
    assert parts_of([7]) == [7]


def test_steps_of_one_size_are_told_from_their_fixed_part() -> None:
    """An engine that fetches computes 32 tokens in most of its steps. With steps of one token,
    which take 5 ms, the line says that 32 more tokens cost 3 ms, and not the 8 ms of the step: a
    load of 6 ms is not worth it."""
    chosen = Choice(SIZE / TOKENS)
    for _ in range(SAMPLES_MIN):
        chosen.compute.learn(32, 0.008)
        chosen.fetch.learn(32 * SIZE / TOKENS, 0.006)
    assert chosen.decide(32).fetched
    chosen.compute.begins(0.005)
    one = chosen.decide(32)
    assert one.compute_s == pytest.approx(0.003, rel=0.1) and not one.fetched
