"""Does the Verilog heap give out candidates in the decision core's order, in the model's cycles?"""

import heapq
import random
from collections.abc import Callable
from typing import Any

import pytest

from offstage.asic_model.hardware import BLOCKS
from offstage.bindings.chip import Chip, Limits, Network, Stage, Unit, make_requests

CYCLE_PS = 1_000
BLOCK = BLOCKS["candidate_heap"]
SIZES = BLOCK.tested
ASKED = 8_000
ROOM = (1 << SIZES["LEVELS"]) - 1
SWEPT = 100  # cycles after which the heap has been swept


def draw_stimulus(seed: int) -> dict[str, Any]:
    """Phases of puts, of takes and of both; deadlines and probabilities that are often equal."""
    draw = random.Random(seed)
    asked: list[dict[str, int]] = []
    cycle = SWEPT
    while len(asked) < ASKED:
        takes, every = draw.choice([0.05, 0.5, 0.5, 0.95]), draw.choice([1, 6, 12])
        ahead, chances = draw.choice([3, 2000, 20_000]), draw.choice([2, 1 << 16])
        for _ in range(draw.randint(1, 200)):
            cycle += draw.randint(1, every)
            one = {"cycle": cycle, "take": int(draw.random() < takes), "tag": len(asked)}
            one["deadline"] = cycle + draw.randrange(ahead)
            one["chance"] = draw.randrange(chances)
            asked.append(one)
    return {"asked": asked}


def run_model(stimulus: dict[str, Any]) -> dict[str, list[int]]:
    """When each operation is accepted and begun in the chip's engine: one server, takes first."""
    unit = Unit(
        "heap",
        queue="priority",
        queue_max=1 << SIZES["QUEUE_BITS"],
        fixed_ps=BLOCK.interval * CYCLE_PS,
    )
    chip = Chip(
        Network((unit,), {"ask": (Stage("heap"),)}),
        limits=Limits(in_flight_max=8192, sample_every=1),
    )
    asked = stimulus["asked"]
    chip.run(
        make_requests(
            len(asked),
            at_ps=[one["cycle"] * CYCLE_PS for one in asked],
            priority=[1 - one["take"] for one in asked],
        )
    )
    visits = chip.visits()
    visits = visits[visits["unit"] == 0]  # elsewhere it waits at the source
    visits.sort(order="tag")
    return {
        "entered": (visits["enter_ps"] // CYCLE_PS).tolist(),
        "begun": (visits["begin_ps"] // CYCLE_PS).tolist(),
    }


def decide(stimulus: dict[str, Any], begun: list[int]) -> list[list[int]]:
    """What each operation gives when they begin so, by queue.c's rules: the earliest deadline, then
    the most probable, then the oldest; a full heap refuses what comes."""
    asked = stimulus["asked"]
    heap: list[tuple[int, int, int, int]] = []
    answers: list[list[int]] = [[] for _ in asked]
    for age, number in enumerate(sorted(range(len(asked)), key=lambda which: begun[which])):
        one = asked[number]
        if one["take"]:
            if heap:
                deadline, _, _, tag = heapq.heappop(heap)
                late = deadline < begun[number] + BLOCK.cycles
                answers[number] = [0, tag, int(late)]
            else:
                answers[number] = [1]
        elif len(heap) < ROOM:
            heapq.heappush(heap, (one["deadline"], -one["chance"], age, one["tag"]))
            answers[number] = [0]
        else:
            answers[number] = [1]
    return answers


@pytest.mark.parametrize("seed", [1, 2])
def test_decisions_and_cycles(
    seed: int, simulate: Callable[[str, dict[str, int], dict[str, Any]], dict[str, Any]]
) -> None:
    """Each operation is accepted and begun in the model's cycle, and gives what the core would."""
    stimulus = draw_stimulus(seed)
    rtl, model = simulate("candidate_heap", SIZES, stimulus), run_model(stimulus)
    assert rtl["entered"] == model["entered"]
    assert rtl["begun"] == sorted(model["begun"])
    assert rtl["answered"] == [cycle + BLOCK.cycles for cycle in model["begun"]]
    assert rtl["answers"] == decide(stimulus, model["begun"])
    # Coverage of the stimulus: takes that overtake, both refusals, late ones and others.
    asked = stimulus["asked"]
    refused = [(one["take"], rest[0]) for one, rest in zip(asked, rtl["answers"], strict=True)]
    late = [rest[2] for rest in rtl["answers"] if len(rest) == 3]
    assert min(refused.count((take, 1)) for take in (0, 1)) > 100
    assert min(late.count(0), late.count(1)) > 100
    assert sum(a > b for a, b in zip(model["begun"], model["begun"][1:], strict=False)) > 100
