"""Synthetic summaries for tests of the report, drawn from a seed.

Nothing in here is a result. The shapes resemble a demo's, so that a page made of them has every
section; the storage names say that they are synthetic.
"""

from typing import Any

import numpy as np

from offstage.bindings.layouts import ENDS
from offstage.bindings.notes import Note
from offstage.testbeds.live.results import CurvePoint, RunResult, RunWorkload, Summary
from offstage.testbeds.machine import RunMachine
from offstage.testbeds.report import as_text, sentence
from offstage.testbeds.workloads.requests.sessions import SessionAccount

SETS: tuple[tuple[str, ...], ...] = (
    (),
    ("window",),
    ("window", "ema"),
    ("window", "ema", "shared"),
)
STORAGES = (("synthetic disk", "measured"), ("synthetic drive", "emulated"))
HITS = (0.84, 0.87, 0.93, 0.962)
CAUSES = {"window": "window", "ema": "pattern", "shared": "shared"}


LEVELS = {"window": 1, "ema": 2, "shared": 3}

WORKLOAD = RunWorkload(
    sentence="4 sessions, the longest of 131,072 tokens, generated, starting together",
    source="generated",
    trace="",
    seed=1,
    session_count=1,
    sessions_max=1,
    sharing_session_count=0,
    block_tokens=64,
    chunk_bytes=1 << 17,
    stored_bytes=1 << 29,
    budget_bytes=None,
    time_compression=1.0,
    trace_span_s=0.0,
    context_tokens_min=0,
    context_tokens_max=131_072,
    requests_taken=[],
    requests_capped=[],
    requests_left_out={},
    requests_before_count=0,
    requests_after_count=0,
    sessions=[
        SessionAccount(
            name="session-0",
            tenant="default",
            arrival_s=0.0,
            context_tokens=131_072,
            decode_steps=300,
            chunk_count=2048,
            shared_chunk_count=0,
            retained_chunk_count=0,
            request_index=None,
            asked_context_tokens=131_072,
            asked_decode_steps=300,
        )
    ],
    context_tokens=131_072,
    decode_steps=300,
    geometry="synthetic",
    geometry_note="scaled down: 4 layers, 2,048 bytes per token",
    layer_count=4,
    kv_heads=2,
    block_bytes=1 << 15,
    bytes_per_token=2048,
    selector="quest",
    kernel="numpy",
    device="cpu",
    select_blocks=32,
    sink_blocks=1,
    window_blocks=4,
    pool_ratio=1.5,
    pool_blocks=196,
    time_per_token_ms=25.0,
    time_per_token_source="given",
    processes=["drawn"],
)
MACHINE = RunMachine(
    processor="Synthetic CPU",
    core_count=2,
    memory_bytes=24 << 30,
    kernel="6.0",
    python="3.12",
    architecture="any",
    memory_peak_bytes={"host": 1 << 30},
    wall_s=60.0,
)


def _ends(prefetchers: tuple[str, ...], demands: int, hits: int) -> dict[str, int]:
    ends = dict.fromkeys(ENDS, 0)
    for prefetcher in prefetchers:
        ends[CAUSES.get(prefetcher, "lookahead")] = int(hits * 0.09 * LEVELS.get(prefetcher, 1))
    ends["retained"] = hits - sum(ends.values())
    rest = demands - hits
    ends["late"], ends["cold"] = rest // 5, rest // 3
    ends["capacity"] = (rest - ends["late"] - ends["cold"]) * 3 // 4
    ends["policy"] = rest - ends["late"] - ends["cold"] - ends["capacity"]
    return ends


def _fates(
    prefetchers: tuple[str, ...], demands: int, ends: dict[str, int]
) -> dict[str, dict[str, int]]:
    return {
        CAUSES.get(p, p): {
            "used": ends[CAUSES.get(p, "lookahead")],
            "late": ends["late"] // len(prefetchers),
            "unused": int(demands * 0.04 * LEVELS.get(p, 1)),
            "dropped": int(demands * 0.1),
            "cancelled": 37,
        }
        for p in prefetchers
    }


def run(
    prefetchers: tuple[str, ...] = ("window",),
    storage: str = "synthetic disk",
    provenance: str = "measured",
    hit: float = 0.9,
    steps: int = 300,
    seed: int = 1,
    **changes: Any,
) -> RunResult:
    """One run whose counts add up to (nearly) `hit`; `changes` replace fields."""
    draw = np.random.default_rng([seed, len(prefetchers), len(storage)])
    demands_by_step = draw.integers(600, 1100, steps)
    rates = np.clip(hit + draw.normal(0, 0.02, steps), 0, 1)
    rates -= 0.12 * np.exp(-np.arange(steps) / 12)
    demands = int(demands_by_step.sum())
    hits = int(demands * hit)
    ends = _ends(prefetchers, demands, hits)
    rest = demands - hits
    fates = _fates(prefetchers, demands, ends)
    lead = np.exp(-((np.arange(64) - 26.0 - len(prefetchers)) ** 2) / 8)
    late = np.exp(-((np.arange(64) - 18.0) ** 2) / 4)
    stall = np.sort(draw.exponential(0.9 * (1.02 - hit) * 10, 1000) ** 1.4)
    stall[:300] = 0
    fields: dict[str, Any] = {
        "name": f"{'+'.join(prefetchers) or 'none'} on {storage}",
        "storage": storage,
        "provenance": provenance,
        "prefetchers": list(prefetchers),
        "selected": demands * 4,
        "demands": demands,
        "hit": hits / demands,
        "nontrivial_hit": max(0.0, hits / demands - 0.031),
        "hit_without_cold": hits / (demands - ends["cold"]),
        "hbm_share": 0.75,
        "selection_hit": 0.75 + 0.25 * hits / demands,
        "late": ends["late"] / demands,
        "miss": (rest - ends["late"]) / demands,
        "coverage": 1 - (1 - hit) / 0.16,
        "accuracy": 0.81 - 0.1 * len(prefetchers) if prefetchers else 0.0,
        "traffic_ratio": 1.0 + 0.13 * len(prefetchers) ** 1.3,
        "stall_ms_p50": float(np.quantile(stall, 0.5)),
        "stall_ms_p99": float(np.quantile(stall, 0.99)),
        "token_ms_p50": 25.0 + float(np.quantile(stall, 0.5)),
        "token_ms_p99": 25.4 + float(np.quantile(stall, 0.99)),
        "token_ms_mean": 25.1 + float(np.mean(stall)),
        "bytes_read": int(2.6e9 * (1.0 + 0.13 * len(prefetchers) ** 1.3)),
        "blocks_verified": demands,
        "blocks_corrupt": 0,
        "blocks_recomputed": 0,
        "attention_checked": 480,
        "attention_error_max": 3.2e-7,
        "pollution": 12 * len(prefetchers),
        "evictions": 51_234,
        "shared_chunks": 256 if "shared" in prefetchers else 0,
        "decisions_replayed": demands,
        "busy_share": 0.21,
        "wall_s": 9.3,
        "ends": ends,
        "nontrivial_ends": {end: count // 2 for end, count in ends.items()},
        "fates": fates,
        "hit_rate_by_step": [float(rate) for rate in np.clip(rates, 0, 1)],
        "demands_by_step": [int(count) for count in demands_by_step],
        "lead_ns_log2": [int(n) for n in lead * sum(row["used"] for row in fates.values()) / 5],
        "late_ns_log2": [int(n) for n in late * ends["late"] / 3],
        "stall_ms_by_token": [float(value) for value in stall],
        "wear": _wear(hits),
    }
    return RunResult(**{**fields, **changes})


def _wear(hits: int) -> dict[str, float | None]:
    return {
        "prefill_bytes": 3.1e9,
        "decode_bytes": 2.0e7,
        "written_per_hit_bytes": 3.12e9 / max(hits, 1),
        "amplification": 1.07,
        "drive_writes_per_day": 0.412,
        "life_years": None,
    }


def summary(**changes: Any) -> Summary:
    """Four sets of prefetchers on two storages, and a curve of two policies."""
    runs = [
        run(prefetchers, storage, provenance, rate - 0.011 * (provenance == "emulated"))
        for storage, provenance in STORAGES
        for prefetchers, rate in zip(SETS, HITS, strict=True)
    ]
    late = "3.1 % of the emulated reads ended later than the model says"
    runs[6].notes = [Note("emulation-late", late)]
    curve = [
        CurvePoint(
            label=f"degree {degree}",
            policy=policy,
            hit=0.85 + gain * (1 - 0.6**degree),
            traffic_ratio=1.0 + cost * degree,
            provenance="modelled",
        )
        for policy, gain, cost in (("ema", 0.10, 0.21), ("prev_step", 0.03, 0.3))
        for degree in range(1, 7)
    ]
    fields: dict[str, Any] = {
        "runs": runs,
        "workload": WORKLOAD,
        "machine": MACHINE,
        "seed": 1,
        "sentence": sentence(runs),
        "curve": curve,
        "definitions": as_text(),
        "command": "offstage demo --out demo-out --seed 1",
        "version": "0.1.0",
    }
    return Summary(**{**fields, **changes})
