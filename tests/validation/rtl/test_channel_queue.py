"""Does the queue of a channel begin requests like the model's link, in the same cycles?"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from offstage.asic_model.hardware import BLOCKS
from offstage.bindings.chip import Chip, Limits, Network, Stage, Unit, make_requests

CYCLE_PS = 1_000
SIZES = BLOCKS["channel_queue"].tested
REQUESTS = 6_000
FLIGHT = 7  # cycles of the way over, and of a credit's way back


def draw_stimulus(seed: int) -> dict[str, Any]:
    """Phases of rush and calm, of long and short requests."""
    draw = random.Random(seed)
    requests: list[dict[str, int]] = []
    cycle = 0
    while len(requests) < REQUESTS:
        every, longest = draw.choice([1, 4, 12]), draw.choice([1, 3, 12])
        for _ in range(draw.randint(1, 80)):
            cycle += draw.randint(1, every)
            urgent = int(draw.random() < 0.4)
            cycles = draw.randint(1, longest)
            requests.append({"cycle": cycle, "urgent": urgent, "cycles": cycles})
    return {"requests": requests, "flight": FLIGHT}


def run_model(stimulus: dict[str, Any]) -> dict[str, list[int]]:
    """The same requests over a link of the chip's engine."""
    link = Unit(
        "link",
        "link",
        queue="priority",
        queue_max=1 << SIZES["QUEUE_BITS"],
        in_flight_max=SIZES["CREDITS"],
        item_ps=CYCLE_PS,
        latency_ps=FLIGHT * CYCLE_PS,
    )
    chip = Chip(
        Network((link,), {"request": (Stage("link", items="blocks"),)}),
        limits=Limits(in_flight_max=4096, sample_every=1),
    )
    requests = stimulus["requests"]
    chip.run(
        make_requests(
            len(requests),
            at_ps=[one["cycle"] * CYCLE_PS for one in requests],
            count=[one["cycles"] for one in requests],
            priority=[1 - one["urgent"] for one in requests],
        )
    )
    visits = chip.visits()
    visits = visits[visits["unit"] == 0]  # elsewhere it waits at the source
    visits.sort(order="tag")
    return {
        "entered": (visits["enter_ps"] // CYCLE_PS).tolist(),
        "begun": (visits["begin_ps"] // CYCLE_PS).tolist(),
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_cycles(
    seed: int, simulate: Callable[[str, dict[str, int], dict[str, Any]], dict[str, Any]]
) -> None:
    """Each request is accepted and begun in the same cycle, with credits that run out."""
    stimulus = draw_stimulus(seed)
    rtl, model = simulate("channel_queue", SIZES, stimulus), run_model(stimulus)
    assert rtl == model
    # Coverage of the stimulus: full queues, waiting, urgent requests that overtake.
    due = [one["cycle"] for one in stimulus["requests"]]
    assert sum(a > b for a, b in zip(rtl["entered"], due, strict=True)) > 100
    assert sum(a > b for a, b in zip(rtl["begun"], rtl["entered"], strict=True)) > 1000
    assert sum(a > b for a, b in zip(rtl["begun"], rtl["begun"][1:], strict=False)) > 100
