"""Without an engine: are the requests of `offstage bench prefetch --python` those of their trace,
does its router follow KV events, and does the result judge loads by the measured deadline?"""

import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from offstage.bindings.errors import BadInput
from offstage.testbeds.bench.engines.moment_result import (
    Cost,
    LiveLoad,
    LiveMoment,
    LivePrefetchResult,
    Loaded,
)
from offstage.testbeds.bench.engines.router import Router
from offstage.testbeds.bench.engines.turns import turns_of
from offstage.testbeds.bench.prefetch import requests_by
from offstage.testbeds.cli import run

SET: dict[str, Any] = {"sessions": 3, "turns": 3}
LIVE_COST = Cost([32, 1_000], [0.008, 0.12])
LIVE_PREFETCH = LivePrefetchResult(
    seed=1,
    provenance="measured",
    storage="io_uring",
    model="pycode-3m",
    trace="generated",
    requests=2,
    scale=0.11,
    tokens=[500, 1_000],
    sessions=2,
    arena_bytes=27_000_000,
    stored_bytes=90_000_000,
    engine_tokens=4_352,
    cost=LIVE_COST,
    loads=[
        LiveLoad(
            load=0.25,
            speed=9.0,
            moments=[
                LiveMoment(
                    name="none",
                    first_s=[0.02, 0.03],
                    loads=[Loaded(480, 0.01, LIVE_COST.of(480))],
                    missing=15,
                    gained=0.0,
                ),
                LiveMoment(
                    name="on arrival",
                    first_s=[0.018, 0.029],
                    on_time=12,
                    late=3,
                    read=20,
                    wasted=5,
                    gained=0.06,
                ),
            ],
        )
    ],
    left_out={"on pause": "no request is a later turn of a session, so that no pause is known"},
    load_before=0.6,
)


def test_turns_follow_each_other_and_share_their_sessions_prefix() -> None:
    """Each turn repeats the one before it and adds tokens; the longest fits; a load of 1 gives the
    engine as much to compute as there is time."""
    requests = requests_by(SET, trace=None, seed=1, time_unit=None)
    made = turns_of(requests, "generated", longest=1000, vocabulary=4096, seed=1)
    turns = made.turns
    assert len(turns) == 9 and sum(one.before < 0 for one in turns) == 3
    for number, one in enumerate(turns):
        if one.before >= 0:
            before = turns[one.before]
            assert before.next == number and before.at_s < one.at_s
            assert one.prompt[: len(before.prompt)] == before.prompt
    longest = max(len(one.prompt) for one in turns)
    assert 900 < longest <= 1000 and made.scale == pytest.approx(
        longest / max(requests.input_tokens), rel=0.1
    )
    busy_s = sum(1e-3 * len(one.prompt) for one in turns)
    speed = made.speed(1.0, lambda tokens: 1e-3 * tokens)
    assert max(one.at_s for one in turns) / speed == pytest.approx(busy_s)
    assert made.speed(2.0, lambda tokens: 1e-3 * tokens) == pytest.approx(2 * speed)
    with pytest.raises(BadInput, match="longer --context"):
        turns_of(requests, "generated", longest=9, vocabulary=4096, seed=1)


def stored(hashes: list[bytes], parent: bytes | None, tokens: list[int], medium: str) -> list[Any]:
    return ["BlockStored", hashes, parent, tokens, 4, None, medium, None]


def test_a_router_knows_what_the_engine_holds() -> None:
    """By vLLM's events, as they are published: blocks of the engine count, those of the tier do
    not, and what is removed or cleared counts no more."""
    router, context = Router(), zmq.Context()
    sender = context.socket(zmq.PUB)
    try:
        sender.connect(router.endpoint)
        assert router.events_config()["endpoint"] == router.endpoint
        prompt = list(range(14))
        batch = [
            stored([b"a", b"b"], None, prompt[:8], "GPU"),
            stored([b"c"], b"b", prompt[8:12], "STORAGE"),
        ]
        for _ in range(1_000):  # until the subscription has reached the sender
            sender.send_multipart([b"", b"", msgspec.msgpack.encode([0.0, batch])])
            if router.held_tokens(prompt, 4):
                break
            time.sleep(0.01)
        assert router.held_tokens(prompt, 4) == 8
        assert router.held_tokens([9, *prompt[1:]], 4) == 0
        router.learn(["BlockRemoved", [b"b"], "STORAGE"])
        assert router.held_tokens(prompt, 4) == 8
        router.learn(["BlockRemoved", [b"b"], "GPU"])
        assert router.held_tokens(prompt, 4) == 4
        router.learn(["AllBlocksCleared"])
        assert router.held_tokens(prompt, 4) == 0
    finally:
        sender.close(linger=0)
        context.term()
        router.close()


def test_a_load_is_late_when_computing_its_tokens_is_faster() -> None:
    """The deadline is measured, and between measured lengths on a line."""
    cost = Cost([100, 200, 400], [0.1, 0.15, 0.4])
    assert [cost.of(one) for one in (50, 100, 150, 400, 800)] == pytest.approx(
        [0.05, 0.1, 0.125, 0.4, 0.8]
    )
    loads = [Loaded(150, took, cost.of(150)) for took in (0.12, 0.13, 0.2)]
    assert LiveMoment(name="none", loads=loads).past_deadline == 2


def test_the_table_has_a_row_for_each_arm_and_load() -> None:
    (table,) = LIVE_PREFETCH.own_tables()
    assert len(table.parts[0].rows) == sum(len(one.moments) for one in LIVE_PREFETCH.loads)
    told = " ".join(LIVE_PREFETCH.about())
    assert "the deadline of a load" in told and "no arm on pause" in told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--python", "/nowhere/python"], "give both"),
        (["--python", "p", "--model", "m", "--trace", "a", "--trace", "b"], "give one"),
        (["--python", "p", "--model", "m", "--set", "hints=pause"], "the bench sets it"),
    ],
)
def test_bad_options_are_one_line(words: list[str], says: str, capsys: Any, tmp_path: Path) -> None:
    assert run(["bench", "prefetch", *words]) == 2
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1 and says in told[0]
