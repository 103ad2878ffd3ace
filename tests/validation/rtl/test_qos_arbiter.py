"""Does the Verilog arbiter take the decisions of the scheduler in C, cycle by cycle?"""

import random
from collections.abc import Callable
from typing import Any

import pytest

from offstage.bindings.qos import Item, Qos, QosConfig, Refusal, TenantShare

CYCLE_PS = 1_000
CYCLES = 25_000
SIZES = {"TENANT_BITS": 2, "DEPTH_BITS": 3, "SESSION_BITS": 4, "COST_BITS": 16, "TIME_BITS": 32}
TENANTS, SESSIONS = 1 << SIZES["TENANT_BITS"], 1 << SIZES["SESSION_BITS"]
QUANTUM = 16_384
BYTES_PER_CYCLE = 4_096
AHEAD_CYCLES = 300
SESSION_MAX = 4
TOKENS = 1 << 32  # per byte


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


def draw_stimulus(seed: int, tenants: list[TenantShare], round_bytes: int) -> dict[str, Any]:
    """Phases in which tenants and sessions offer much, little or no load; stalls of the line."""
    draw = random.Random(seed)
    puts: list[dict[str, int] | None] = []
    stalls: list[bool] = []
    while len(puts) < CYCLES:
        rate, stall = draw.choice([0.02, 0.2, 0.4, 0.9]), draw.choice([0, 0, 0.3, 0.9])
        who = [draw.randrange(SESSIONS) for _ in range(draw.randint(1, 8))]
        largest = draw.choice([500, QUANTUM])
        for _ in range(draw.randint(20, 600)):
            session = draw.choice(who)
            put = {
                "tenant": session % TENANTS,
                "session": session,
                "cost": draw.randint(1, largest),
                "deadline": max(len(puts) + draw.randint(-50, 2 * AHEAD_CYCLES), 0),
                "tag": len(puts),
            }
            puts.append(put if draw.random() < rate else None)
            stalls.append(draw.random() < stall)
    return {
        "puts": puts[:CYCLES],
        "stalls": stalls[:CYCLES],
        "bytes_per_cycle": BYTES_PER_CYCLE,
        "config": {
            "turn_bytes": packed([one.weight * QUANTUM for one in tenants], 32),
            "rate": packed([rate_tokens(one) * CYCLE_PS for one in tenants], 64),
            "burst": packed([one.burst_bytes * TOKENS for one in tenants], 64),
            "session_max": SESSION_MAX,
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
    tenants: list[TenantShare], stimulus: dict[str, Any], round_bytes: int
) -> dict[str, Any]:
    """Run the same stimulus through qos.c: each cycle a take, if the line is free, then a put."""
    qos = Qos(
        QosConfig(
            QUANTUM,
            SESSIONS,
            1 << SIZES["DEPTH_BITS"],
            SESSION_MAX,
            AHEAD_CYCLES * CYCLE_PS,
            round_bytes,
        ),
        tenants,
    )
    names = {Refusal.QUEUE_FULL: "full", Refusal.SESSION_FULL: "session"}
    taken, refused = [], []
    free_at = throttled = 0
    for cycle, (put, stall) in enumerate(zip(stimulus["puts"], stimulus["stalls"], strict=True)):
        now_ps = cycle * CYCLE_PS
        if free_at <= cycle and not stall:
            item = qos.take(now_ps)
            if item is not None:
                taken.append([cycle, item.tag, item.tenant])
                free_at = cycle - (-item.cost_bytes // BYTES_PER_CYCLE)
            throttled += item is None and qos.waiting > 0
        if put is not None:
            refusal = qos.put(
                now_ps,
                Item(
                    put["tag"],
                    put["cost"],
                    put["tenant"],
                    put["session"],
                    put["deadline"] * CYCLE_PS,
                ),
            )
            if refusal is not None:
                refused.append([cycle, names[refusal]])
    return {"taken": taken, "refused": refused, "throttled": throttled}


@pytest.mark.parametrize(("seed", "round_bytes"), [(1, 0), (2, QUANTUM), (3, 3 * QUANTUM)])
def test_decisions_and_cycles(
    seed: int,
    round_bytes: int,
    simulate: Callable[[str, dict[str, int], dict[str, Any]], dict[str, Any]],
) -> None:
    """Every item taken and every refusal agree in cycle and reason, with and without rounds of
    sessions."""
    tenants = draw_tenants(random.Random(seed))
    stimulus = draw_stimulus(seed, tenants, round_bytes)
    rtl = simulate("qos_arbiter", SIZES, stimulus)
    library = run_library(tenants, stimulus, round_bytes)
    assert rtl["taken"] == library["taken"]
    assert rtl["refused"] == library["refused"]
    assert not round_bytes or library["taken"] != run_library(tenants, stimulus, 0)["taken"]
    # Coverage of the stimulus: all tenants, both refusals, a line that waits for tokens.
    assert {tenant for _, _, tenant in rtl["taken"]} == set(range(TENANTS))
    reasons = [reason for _, reason in rtl["refused"]]
    assert min(reasons.count("full"), reasons.count("session")) > 100
    assert len(rtl["taken"]) > 2_000 and library["throttled"] > 100
