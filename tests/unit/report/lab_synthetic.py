"""Synthetic ledgers and summaries for tests of measurement and report, drawn from a seed.

Nothing in here is a result. Hit rates follow a formula of buffer and policy, so that a page made of
them has every section and is visibly synthetic.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from offstage.bindings.layouts import CAUSES
from offstage.bindings.ledger import Ledger
from offstage.bindings.notes import Note
from offstage.testbeds.lab.bounds.collect import BOUND_ROW, BOUNDS
from offstage.testbeds.lab.results.ledger import ROW
from offstage.testbeds.lab.results.measure import measure
from offstage.testbeds.lab.results.summary import (
    Failed,
    LabSummary,
    Manifest,
    PointInfo,
    PointSummary,
    RequestsRow,
    SeedBounds,
    SeedRun,
)

K = 32
BLOCK_BYTES = 1 << 16
BASE = 0.86
GAINS = {"none": 0.0, "window": 0.15, "ema": 0.45, "ema+lookahead": 0.62, "prev_step": 0.05}
PRICES = {"none": 0.0, "window": 0.1, "ema": 0.35, "ema+lookahead": 0.5, "prev_step": 0.9}


def info(**changes: Any) -> PointInfo:
    """Return a point's setting."""
    found: dict[str, Any] = {
        "workload": "invented",
        "policy": "none",
        "eviction": "lru",
        "buffer_over_k": 2.0,
        "buffer_blocks": 2 * K,
        "slot_count": 4 * K,
        "hbm_pool_over_k": 1.0,
        "bandwidth_bytes_per_s": 2_000_000_000,
        "storage": "nvme",
        "block_bytes": BLOCK_BYTES,
    }
    return PointInfo(**{**found, **changes})


def misses(policy: str, buffer_over_k: float) -> float:
    """Return a synthetic miss rate."""
    return (1 - BASE) * (1 - GAINS.get(policy, 0.3)) * buffer_over_k**-0.8


def run(
    policy: str,
    buffer_over_k: float,
    seed: int,
    sessions: int = 4,
    steps: int = 90,
    layers: int = 6,
) -> SeedRun:
    """Rows with a synthetic miss rate, worse in layer 1, in the first steps and after turns."""
    draw = np.random.default_rng([seed, 7])
    count = sessions * steps * layers
    rows = np.zeros(count, ROW)
    cells = np.arange(count)
    rows["session"], rows["layer"] = cells % sessions, cells // sessions % layers
    rows["step"] = cells // (sessions * layers)
    rows["selected"], rows["pool_hits"] = K, draw.integers(14, 19, count)
    rows["demands"] = rows["selected"] - rows["pool_hits"]
    rows["nontrivial"] = rows["demands"] - 2
    rows["nontrivial_selected"], rows["nontrivial_pool_hits"] = K - 6, rows["pool_hits"] - 4
    turn = (rows["step"] >= 50) & (rows["step"] < 58)
    hard = 1 + 2.5 * np.exp(rows["step"] / -9.0) + 1.8 * turn + 0.9 * (rows["layer"] == 1)
    easy = draw.uniform(0.6, 1.4, sessions)[rows["session"]]
    share = np.clip(misses(policy, buffer_over_k) * hard * easy, 0, 0.95)
    missed = draw.binomial(rows["nontrivial"], share)
    kinds = draw.multinomial(missed, [0.2, 0.25, 0.4, 0.15])
    rows["nontrivial_ends"][:, 5:] = kinds
    hits = rows["nontrivial"] - missed
    pattern = draw.binomial(hits, 0.2 * max(0.0, GAINS.get(policy, 0.3)))
    rows["nontrivial_ends"][:, 1], rows["nontrivial_ends"][:, 4] = pattern, hits - pattern
    rows["ends"] = rows["nontrivial_ends"]
    rows["ends"][:, 4] += 2
    rows["pollution"] = draw.binomial(kinds[:, 3], 0.3)
    rows["demand_reads"] = missed
    rows["prefetch_reads"] = pattern + draw.poisson(PRICES.get(policy, 0.4), count)
    rows["stall_ns"] = missed * draw.exponential(70_000, count)
    return SeedRun(
        seed=seed,
        rows=rows,
        counters=_counters(rows, policy),
        end_ns=int(1e9),
        reads=int(rows["demand_reads"].sum() + rows["prefetch_reads"].sum()),
        failed=0,
        turns={session: (50,) for session in range(sessions)},
    )


def _counters(rows: npt.NDArray[np.void], policy: str) -> Ledger:
    found = Ledger(
        demand_bytes_read=int(rows["demand_reads"].sum()) * BLOCK_BYTES,
        prefetch_bytes_read=int(rows["prefetch_reads"].sum()) * BLOCK_BYTES,
        hint_bytes=0 if policy == "none" else 1000 * len(rows),
    )
    read, used = int(rows["prefetch_reads"].sum()), int(rows["ends"][:, 1].sum())
    cause = CAUSES.index("lookahead" if "lookahead" in policy else "pattern")
    if read:
        found.fates[cause] = [used, read // 20, read - used - read // 20, read // 3, 5]
    found.issued[1], found.issued[cause] = int(rows["demand_reads"].sum()), read
    lead = np.exp(-((np.arange(64) - 21.0 - 2 * GAINS.get(policy, 0.3)) ** 2) / 6) * used
    late = np.exp(-((np.arange(64) - 16.5) ** 2) / 4) * int(rows["ends"][:, 5].sum())
    found.lead_ns_log2 = [int(n) for n in lead]
    found.late_ns_log2 = [int(n) for n in late]
    return found


def bounds(none: SeedRun) -> SeedBounds:
    """Bounds above the synthetic policies, for the same demands as a run."""
    rows = np.zeros(len(none.rows), BOUND_ROW)
    for name in ("session", "step", "layer", "demands", "nontrivial"):
        rows[name] = none.rows[name]
    left = none.rows["nontrivial_ends"][:, 5:].sum(axis=1, dtype=np.int64)
    draw = np.random.default_rng([none.seed, 8])
    for at, share in enumerate((0.18, 0.6, 0.3, 0.5, 0.45)):
        rows["nontrivial_hits"][:, at] = rows["nontrivial"] - draw.binomial(left, share)
        rows["hits"][:, at] = rows["nontrivial_hits"][:, at] + 2
    misses_of = {
        name: int((rows["demands"] - rows["hits"][:, at]).sum()) for at, name in enumerate(BOUNDS)
    }
    return SeedBounds(
        seed=none.seed,
        names=BOUNDS,
        rows=rows,
        reads={"belady": misses_of["belady"], "clairvoyant": misses_of["belady"]},
        limit_hits=int(rows["demands"].sum()) - misses_of["clairvoyant"] // 2,
    )


def points(
    policies: tuple[str, ...] = tuple(GAINS),
    buffers: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0),
    seeds: tuple[int, ...] = (1, 2, 3),
    steps: int = 90,
    **setting: Any,
) -> list[PointSummary]:
    """Points of every policy and buffer, measured as those of a run are."""
    size = {"steps": steps}
    reference = [run("none", 2.0, seed, **size) for seed in seeds]
    found = []
    for buffer in buffers:
        none = [run("none", buffer, seed, **size) for seed in seeds]
        limits = [bounds(one) for one in none]
        for policy in policies:
            where = info(
                policy=policy, buffer_over_k=buffer, buffer_blocks=int(buffer * K), **setting
            )
            runs = [run(policy, buffer, seed, **size) for seed in seeds]
            found.append(
                measure(where, runs, limits, none=none, reference=reference, resamples=200)
            )
    return found


def request_rows() -> list[RequestsRow]:
    """Prefix caching of two synthetic traces."""
    return [
        RequestsRow(
            trace=trace,
            eviction=eviction,
            admission=admission,
            ttl_s=None,
            capacity_share=share,
            capacity_blocks=int(share * 180_000),
            block_hit_rate=ideal * share**0.4 * gain,
            token_hit_rate=ideal * share**0.4 * gain * 0.97,
            request_hit_rate=ideal * share**0.4 * gain * 0.8,
            ideal=ideal,
            opt=ideal * share**0.25,
        )
        for trace, ideal in (("invented chat", 0.36), ("invented agents", 0.93))
        for eviction, admission, gain in (
            ("lru", "all", 0.8),
            ("sieve", "all", 0.9),
            ("lru", "second-touch", 0.87),
        )
        for share in (0.01, 0.05, 0.1, 0.25, 0.5)
    ]


def summary(**changes: Any) -> LabSummary:
    """A complete summary: points, request rows, a failed point, a manifest."""
    found: dict[str, Any] = {
        "name": "invented",
        "spec": {"name": "invented", "buffer_over_k": [1, 2, 4, 8], "policies": list(GAINS)},
        "manifest": Manifest(
            version="0.1.0",
            command="offstage lab run invented.toml --out lab-out",
            workloads={
                "invented": {
                    "kind": "generated",
                    "profile": "mixed",
                    "synthetic": True,
                    "block_tokens": 64,
                    "selector": "top-k",
                    "layer_count": 6,
                }
            },
            code_sha256="0" * 64,
        ),
        "points": [],
        "failed": [Failed(point="prr-ema at 2 k", message="the policy raised ValueError")],
        "notes": [Note("one", "parameters were set on seeds 101 to 105")],
        "requests": request_rows(),
    }
    if "points" not in changes:
        found["points"] = points()
    return LabSummary(**{**found, **changes})
