"""Does the Verilog arbiter take the decisions of the scheduler in C, in the cycles it says?"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from offstage.asic_model.hardware import BLOCKS
from offstage.bindings.qos import Item, Qos, QosConfig, Refusal, TenantShare

CYCLE_PS = 1_000
CYCLES = 100_000
BLOCK = BLOCKS["qos_arbiter"]
TENANTS = 1 << BLOCK.tested["TENANT_BITS"]
QUANTUM = 16_384
BYTES_PER_CYCLE = 512
AHEAD_CYCLES = 2_000
TOKENS = 1 << 32  # per byte


@dataclass(frozen=True)
class Size:
    """A size of the block; cycles after which its memories have been swept, and for how many more
    the line stands still while four sessions fill the queues."""

    parameters: dict[str, int]
    session_max: int
    swept: int
    fills: int = 0

    @property
    def sessions(self) -> int:
        return 1 << self.parameters["SESSION_BITS"]


SMALL = Size(BLOCK.tested, 20, 300)
PRESET = Size(BLOCK.larger, 512, 8_400, 60_000)
FILLING = [0, 4, 8, 1]  # three of one tenant, one of another


def draw_tenants(draw: random.Random) -> list[TenantShare]:
    """Weights from 1 to 7; two of the four are limited, at times to less than their load."""
    line = BYTES_PER_CYCLE * 10**12 // CYCLE_PS
    return [
        TenantShare(
            draw.randint(1, 7),
            draw.randint(line // 40, line // 4) if tenant % 2 else 0,
            draw.randint(QUANTUM, 4 * QUANTUM),
        )
        for tenant in range(TENANTS)
    ]


def draw_stimulus(
    seed: int, tenants: list[TenantShare], round_bytes: int, size: Size
) -> dict[str, Any]:
    """Phases in which tenants and sessions offer much, little or no load; stalls of the line."""
    draw = random.Random(seed)
    puts: list[dict[str, Any]] = []
    stalls = [False] * size.swept
    while len(stalls) < CYCLES + size.fills:
        every, stall = draw.choice([8, 8, 20, 60, 200]), draw.choice([0, 0, 0.3, 0.98])
        who = [draw.randrange(size.sessions) for _ in range(draw.randint(1, 8))]
        largest, lasts = draw.choice([500, QUANTUM]), draw.randint(100, 3_000)
        if size.fills and not puts:
            every, stall, who, lasts = 8, 1, FILLING, size.fills
        for cycle in range(len(stalls), len(stalls) + lasts):
            stalls.append(draw.random() < stall)
            if draw.random() * every < 1:
                session = draw.choice(who)
                item = {
                    "tenant": session % TENANTS,
                    "session": session,
                    "cost": draw.randint(1, largest),
                    "deadline": max(cycle + draw.randint(-50, 2 * AHEAD_CYCLES), 0),
                    "tag": len(puts),
                }
                puts.append({"cycle": cycle, "item": item})
    return {
        "puts": puts,
        "stalls": stalls,
        "bytes_per_cycle": BYTES_PER_CYCLE,
        "config": {
            "turn_bytes": packed([one.weight * QUANTUM for one in tenants], 32),
            "rate": packed([rate_tokens(one) * CYCLE_PS for one in tenants], 64),
            "burst": packed([one.burst_bytes * TOKENS for one in tenants], 64),
            "session_max": size.session_max,
            "session_quantum": round_bytes,
            "ahead_max": AHEAD_CYCLES,
        },
    }


def rate_tokens(share: TenantShare) -> int:
    """Tokens per ps, rounded down as in qos.h."""
    return share.rate_bytes_per_s * TOKENS // 10**12


def packed(values: list[int], bits: int) -> int:
    return sum(value << bits * number for number, value in enumerate(values))


def run_library(
    tenants: list[TenantShare], stimulus: dict[str, Any], round_bytes: int, size: Size
) -> dict[str, Any]:
    """Run the same stimulus through qos.c: an operation when the next one may begin, a take if the
    line is free and somebody is ready, a put if one waits, in turns if both."""
    qos = Qos(
        QosConfig(
            QUANTUM,
            size.sessions,
            1 << size.parameters["DEPTH_BITS"],
            size.session_max,
            AHEAD_CYCLES * CYCLE_PS,
            round_bytes,
        ),
        tenants,
    )
    names = {Refusal.QUEUE_FULL: "full", Refusal.SESSION_FULL: "session_full"}
    puts = stimulus["puts"]
    entered: list[int] = []
    taken, refused = [], []
    interval = size.parameters["INTERVAL"]
    free_at, began, took, throttled = 0, -2 * interval, False, 0
    # What begins later is not answered within the course.
    for cycle, stall in enumerate(stimulus["stalls"][: -BLOCK.cycles]):
        now_ps, since, number = cycle * CYCLE_PS, cycle - began, len(entered)
        if since < interval or (since % 2 == 0 and since < 2 * interval) or cycle < size.swept:
            continue
        offers = number < len(puts) and puts[number]["cycle"] <= cycle
        free = free_at <= cycle and not stall
        next_ps = qos.next_ps()
        ready = next_ps is not None and next_ps <= now_ps
        if free and ready and not (offers and took):
            item = qos.take(now_ps)
            assert item is not None
            answered = cycle + BLOCK.cycles
            taken.append([cycle, answered, item.tag, item.tenant])
            free_at = answered - (-item.cost_bytes // BYTES_PER_CYCLE)
            began, took = cycle, True
        elif offers:
            one = puts[number]["item"]
            refusal = qos.put(
                now_ps,
                Item(
                    one["tag"],
                    one["cost"],
                    one["tenant"],
                    one["session"],
                    one["deadline"] * CYCLE_PS,
                ),
            )
            if refusal is not None:
                refused.append([cycle, cycle + BLOCK.cycles, names[refusal]])
            entered.append(cycle)
            began, took = cycle, False
        else:
            throttled += free and next_ps is not None
    return {"entered": entered, "taken": taken, "refused": refused, "throttled": throttled}


@pytest.mark.parametrize(
    ("seed", "round_bytes", "size"),
    [(1, 0, SMALL), (2, QUANTUM, SMALL), (3, 3 * QUANTUM, SMALL), (4, QUANTUM, PRESET)],
)
def test_decisions_and_cycles(
    seed: int,
    round_bytes: int,
    size: Size,
    simulate: Callable[[str, dict[str, int], dict[str, Any]], dict[str, Any]],
) -> None:
    """Every item taken and every refusal agree in cycle and reason, with and without rounds of
    sessions, and at a preset's size."""
    tenants = draw_tenants(random.Random(seed))
    stimulus = draw_stimulus(seed, tenants, round_bytes, size)
    rtl = simulate("qos_arbiter", size.parameters, stimulus)
    library = run_library(tenants, stimulus, round_bytes, size)
    assert rtl["entered"][: len(library["entered"])] == library["entered"]
    assert rtl["taken"] == library["taken"]
    assert rtl["refused"] == library["refused"]
    assert not round_bytes or library["taken"] != run_library(tenants, stimulus, 0, size)["taken"]
    # Coverage of the stimulus: all tenants, both refusals, and of small ones a line that waits for
    # tokens.
    assert {tenant for *_, tenant in rtl["taken"]} == set(range(TENANTS))
    reasons = [reason for *_, reason in rtl["refused"]]
    assert min(reasons.count("full"), reasons.count("session_full")) > 100
    assert len(rtl["taken"]) > 2_000 and (size is PRESET or library["throttled"] > 100)
