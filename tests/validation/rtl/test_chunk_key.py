"""Does the Verilog hash give the firmware's keys of chunks, one a cycle, in the model's cycles?"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from offstage.asic_model.hardware import BLOCKS
from offstage.bindings.chip import Chip, Limits, Network, Stage, Unit, make_requests
from offstage.bindings.core import siphash

CYCLE_PS = 1_000
MESSAGES = 4_000
CYCLES, SIZES = BLOCKS["chunk_key"].cycles, BLOCKS["chunk_key"].tested
SINK_ROOM = 2


def draw_stimulus(seed: int) -> dict[str, Any]:
    """Phases of rush and calm, of a fast and a slow receiver; words at random, none or all ones."""
    draw = random.Random(seed)
    messages: list[dict[str, int]] = []
    sink_cycles: list[int] = []
    cycle = 0
    while len(messages) < MESSAGES:
        every, slow = draw.choice([1, 1, 3, 12]), draw.choice([0, 0, 0.5, 1])
        for _ in range(draw.randint(1, 120)):
            cycle += draw.randint(1, every)
            one = {"cycle": cycle, "short": int(draw.random() < 0.3)}
            for name in ("secret", "parent", "content"):
                one[name] = draw.choice([0, (1 << 128) - 1, *[draw.getrandbits(128)] * 6])
            messages.append(one)
            sink_cycles.append(1 + (draw.randrange(4) if draw.random() < slow else 0))
    return {"messages": messages, "sink_cycles": sink_cycles, "sink_room": SINK_ROOM}


def firmware_key(message: dict[str, int]) -> int:
    """The key by siphash.c, of the bytes that session.c gives it."""
    whole = message["parent"].to_bytes(16, "little") + message["content"].to_bytes(16, "little")
    secret = message["secret"].to_bytes(16, "little")
    return int.from_bytes(siphash(secret, whole[:24] if message["short"] else whole), "little")


def run_model(stimulus: dict[str, Any]) -> dict[str, list[int]]:
    """The same keys through the chip's engine: a pipe with credits, and the sink behind it."""
    network = Network(
        (
            Unit(
                "keys",
                "pipe",
                queue_max=0,
                in_flight_max=SIZES["CREDITS"],
                fixed_ps=CYCLE_PS,
                latency_ps=(CYCLES - 1) * CYCLE_PS,
            ),
            Unit("sink", queue_max=SINK_ROOM, fixed_ps=CYCLE_PS, item_ps=CYCLE_PS),
        ),
        {"key": (Stage("keys"), Stage("sink", items="blocks"))},
    )
    chip = Chip(network, limits=Limits(in_flight_max=4096, sample_every=1))
    messages = stimulus["messages"]
    chip.run(
        make_requests(
            len(messages),
            at_ps=[one["cycle"] * CYCLE_PS for one in messages],
            count=[cycles - 1 for cycles in stimulus["sink_cycles"]],
        )
    )
    visits = chip.visits()
    visits = visits[visits["unit"] == 0]
    visits.sort(order="tag")
    return {
        "entered": (visits["enter_ps"] // CYCLE_PS).tolist(),
        "left": (visits["leave_ps"] // CYCLE_PS).tolist(),
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_keys_and_cycles(
    seed: int, simulate: Callable[[str, dict[str, int], dict[str, Any]], dict[str, Any]]
) -> None:
    """Every key is the firmware's; each begins and is taken in the model's cycles."""
    stimulus = draw_stimulus(seed)
    rtl, model = simulate("chunk_key", SIZES, stimulus), run_model(stimulus)
    assert rtl["keys"] == [f"{firmware_key(one):032x}" for one in stimulus["messages"]]
    assert rtl["entered"] == model["entered"]
    assert rtl["left"] == model["left"]
    # Coverage of the stimulus: one in each cycle, waits for a credit, a receiver that is slow.
    due = [one["cycle"] for one in stimulus["messages"]]
    transits = [a - b for a, b in zip(rtl["left"], rtl["entered"], strict=True)]
    assert sum(a > b for a, b in zip(rtl["entered"], due, strict=True)) > 100
    assert min(transits) == CYCLES < max(transits)
    assert sum(b == a + 1 for a, b in zip(rtl["left"], rtl["left"][1:], strict=False)) > 500
