"""Does the metadata SRAM's pipeline decide like the model's tags, in the same cycles?"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from offstage.asic_model.hardware import BLOCKS
from offstage.bindings.chip import Chip, Limits, Network, Stage, Unit, make_requests

CYCLE_PS = 1_000
LOOKUPS = 12_000
CYCLES, SIZES = BLOCKS["metadata_lookup"].cycles, BLOCKS["metadata_lookup"].tested
SINK_ROOM = 2


def draw_stimulus(seed: int) -> dict[str, Any]:
    """Phases of low and high load, of few or many keys, and of a fast or slow sink.

    Equal keys in a row exercise forwarding; few keys fill a set again and again.
    """
    draw = random.Random(seed)
    keys, cycles, sink_cycles = [], [], []
    cycle = here = 0
    while len(keys) < LOOKUPS:
        every, slow = draw.choice([1, 1, 2, 4]), draw.random()
        span = draw.choice([1, 3, 200, 10**6])
        for _ in range(draw.randint(1, 80)):
            keys.append(draw.randrange(span) if draw.random() < 0.9 else draw.getrandbits(64))
            here = 0 if cycles and cycles[-1] < cycle else here
            if here == 2 or draw.randrange(every):
                cycle, here = cycle + draw.randint(1, every), 0
            cycles.append(cycle)
            here += 1
            sink_cycles.append(1 + (draw.randrange(4) if draw.random() < slow else 0))
    return {
        "keys": keys,
        "cycles": cycles,
        "sink_cycles": sink_cycles,
        "sink_room": SINK_ROOM,
    }


def run_model(stimulus: dict[str, Any]) -> dict[str, list[int]]:
    """Run the same lookups in the chip's engine: tags, and a sink of one cycle plus its items."""
    network = Network(
        (
            Unit(
                "tags",
                "tags",
                queue_max=1 << SIZES["QUEUE_BITS"],
                in_flight_max=1 << SIZES["CREDIT_BITS"],
                set_count=1 << SIZES["SET_BITS"],
                way_count=1 << SIZES["WAY_BITS"],
                fixed_ps=CYCLE_PS,
                latency_ps=(CYCLES - 1) * CYCLE_PS,
            ),
            Unit("sink", queue_max=SINK_ROOM, fixed_ps=CYCLE_PS, item_ps=CYCLE_PS),
        ),
        {
            "lookup": (
                Stage("tags", miss="missed"),
                Stage("sink", "found", next="end", items="blocks"),
                Stage("sink", "missed", items="blocks"),
            )
        },
    )
    count = len(stimulus["keys"])
    chip = Chip(network, limits=Limits(in_flight_max=4096, sample_every=1))
    chip.run(
        make_requests(
            count,
            at_ps=[cycle * CYCLE_PS for cycle in stimulus["cycles"]],
            key=stimulus["keys"],
            count=[cycles - 1 for cycles in stimulus["sink_cycles"]],
        )
    )
    visits = chip.visits()
    at_tags = visits[visits["unit"] == 0]
    at_sink = visits[visits["unit"] == 1]
    at_tags.sort(order="tag")
    at_sink.sort(order="tag")
    assert len(at_tags) == len(at_sink) == count
    return {
        "entered": (at_tags["enter_ps"] // CYCLE_PS).tolist(),
        "left": (at_tags["leave_ps"] // CYCLE_PS).tolist(),
        "hit": (at_sink["stage"] == 1).astype(int).tolist(),
        "evictions": [chip.stats()["tags"].evictions],
    }


@pytest.mark.parametrize("seed", [1, 2])
def test_decisions_and_cycles(
    seed: int, simulate: Callable[[str, dict[str, int], dict[str, Any]], dict[str, Any]]
) -> None:
    """Each lookup agrees on hit or miss and on the cycles in which it enters and leaves."""
    stimulus = draw_stimulus(seed)
    rtl, model = simulate("metadata_lookup", SIZES, stimulus), run_model(stimulus)
    assert rtl["hit"] == model["hit"]
    assert sum(rtl["evicts"]) == model["evictions"][0]
    assert rtl["left"] == model["left"]
    assert rtl["entered"] == model["entered"]
    # Coverage of the stimulus: a full queue, a stalled sink, hits, misses, evictions.
    waits = [a - b for a, b in zip(rtl["entered"], stimulus["cycles"], strict=True)]
    transits = [a - b for a, b in zip(rtl["left"], rtl["entered"], strict=True)]
    assert max(waits) > 0 and min(transits) == CYCLES < max(transits)
    assert 1000 < sum(rtl["hit"]) < LOOKUPS - 1000 and sum(rtl["evicts"]) > 1000
