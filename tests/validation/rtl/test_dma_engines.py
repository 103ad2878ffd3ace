"""Do the Verilog DMA engines cut, start and end transfers like the model, in the same cycles?"""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from offstage.asic_model.hardware import BLOCKS
from offstage.bindings.chip import Chip, Limits, Network, Stage, Unit, make_requests

CYCLE_PS = 1_000
SIZES = BLOCKS["dma_engines"].tested
DESCRIPTORS = 2_000
PIECE, WIDTH = 1 << SIZES["PIECE_BITS"], 1 << SIZES["WIDTH_BITS"]
ENGINES, SLOTS = 1 << SIZES["ENGINE_BITS"], 1 << SIZES["SLOT_BITS"]

Simulate = Callable[[str, dict[str, int], dict[str, Any]], dict[str, Any]]


def draw_stimulus(seed: int, grain: int) -> dict[str, Any]:
    """Phases of rush and calm, of short and long transfers; `grain`: what addresses are multiples
    of, and lengths too, up to what an engine moves in a cycle."""
    draw, unit = random.Random(seed), min(grain, WIDTH)
    descriptors: list[dict[str, int]] = []
    cycle = 0
    while len(descriptors) < DESCRIPTORS:
        every, pieces = draw.choice([1, 30, 120]), draw.choice([1, 2, 12])
        for _ in range(draw.randint(1, 40)):
            cycle += draw.randint(1, every)
            one = {"cycle": cycle, "urgent": int(draw.random() < 0.3)}
            one["bytes"] = draw.randint(1, pieces * PIECE // unit) * unit
            one["address"] = draw.randrange(1 << 30) // grain * grain
            descriptors.append(one)
    return {"descriptors": descriptors}


def cut(descriptor: dict[str, int]) -> list[list[int]]:
    """Address and bytes of each piece: they end at multiples of the piece's size."""
    address, end = descriptor["address"], descriptor["address"] + descriptor["bytes"]
    found = []
    while address < end:
        after = min(end, (address // PIECE + 1) * PIECE)
        found.append([address, after - address])
        address = after
    return found


def run_model(stimulus: dict[str, Any]) -> dict[str, list[Any]]:
    """The same descriptors in the chip's engine: one piece a cycle is cut off, one is fetched while
    an engine is free, and the engines take setup and bytes as in `units/dma.py`."""
    network = Network(
        (
            Unit("cut", fixed_ps=CYCLE_PS),
            Unit("fetch", queue="priority", queue_max=1 << SIZES["QUEUE_BITS"], fixed_ps=CYCLE_PS),
            Unit(
                "dma",
                servers=ENGINES,
                queue_max=0,
                fixed_ps=SIZES["SETUP"] * CYCLE_PS,
                mib_ps=(1 << 20) // WIDTH * CYCLE_PS,
            ),
        ),
        {
            "move": (
                Stage("cut", bytes_permille=0, piece_bytes=PIECE),
                Stage("fetch", bytes_permille=0),
                Stage("dma"),
            )
        },
    )
    chip = Chip(network, limits=Limits(in_flight_max=SLOTS, sample_every=1))
    descriptors = stimulus["descriptors"]
    chip.run(
        make_requests(
            len(descriptors),
            at_ps=[one["cycle"] * CYCLE_PS for one in descriptors],
            size_bytes=[one["bytes"] for one in descriptors],
            priority=[1 - one["urgent"] for one in descriptors],
        )
    )
    visits = chip.visits()
    begun: list[list[int]] = [[] for _ in descriptors]
    entered, ended = [1 << 60] * len(descriptors), [0] * len(descriptors)
    for visit in visits:
        tag = int(visit["tag"])
        if visit["unit"] == 0:
            entered[tag] = min(entered[tag], int(visit["begin_ps"]) // CYCLE_PS)
        elif visit["unit"] == 2:
            begun[tag].append(int(visit["begin_ps"]) // CYCLE_PS)
            ended[tag] = max(ended[tag], int(visit["leave_ps"]) // CYCLE_PS)
    return {"entered": entered, "begun": [sorted(one) for one in begun], "ended": ended}


def spans(pieces: list[list[list[int]]]) -> list[tuple[int, int, int]]:
    """Engine, first cycle and the one after the last, of every piece."""
    return sorted(
        (engine, cycle, cycle + SIZES["SETUP"] - -size // WIDTH)
        for one in pieces
        for cycle, _, size, engine in one
    )


@pytest.mark.parametrize("seed", [1, 2])
def test_cycles(seed: int, simulate: Simulate) -> None:
    """Aligned, as blocks are: each descriptor is accepted, each of its pieces begun, and the last
    ended, in the model's cycles."""
    stimulus = draw_stimulus(seed, PIECE)
    rtl, model = simulate("dma_engines", SIZES, stimulus), run_model(stimulus)
    assert [[piece[0] for piece in one] for one in rtl["pieces"]] == model["begun"]
    assert rtl["ended"] == model["ended"]
    assert rtl["entered"] == model["entered"]
    # Coverage of the stimulus: no slot, several pieces, ends in another order and together.
    due = [one["cycle"] for one in stimulus["descriptors"]]
    assert sum(a > b for a, b in zip(rtl["entered"], due, strict=True)) > 100
    assert sum(len(one) > 1 for one in rtl["pieces"]) > 500
    assert sum(a > b for a, b in zip(rtl["ended"], rtl["ended"][1:], strict=False)) > 100
    assert len(set(rtl["ended"])) < len(rtl["ended"]) - 10


def test_pieces(simulate: Simulate) -> None:
    """Of any address and length: cut at the boundaries, each engine with one piece at a time, and a
    descriptor ends with the last of its pieces."""
    stimulus = draw_stimulus(3, 1)
    rtl = simulate("dma_engines", SIZES, stimulus)
    found = [[piece[1:3] for piece in one] for one in rtl["pieces"]]
    assert found == [cut(one) for one in stimulus["descriptors"]]
    used = spans(rtl["pieces"])
    for (engine, _, end), (after, begin, _) in pairwise(used):
        assert engine != after or end <= begin
    assert {engine for engine, _, _ in used} == set(range(ENGINES))
    for pieces, end in zip(rtl["pieces"], rtl["ended"], strict=True):
        assert end == max(end for _, _, end in spans([pieces]))
