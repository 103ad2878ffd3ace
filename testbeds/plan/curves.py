"""The benefit of a capacity on a trace: hits, writes and years of drive life, by admission.

Model: the blocks of a request trace pass through caches of many sizes (`lab/bounds/prefix.py`). LRU
is exact at every size, from stack distances; OPT is the upper bound of hits; a TTL, second touch
and class-aware admission (`turns`: single-turn, unshared requests are not admitted) are simulated
at a few sizes. A write is an admitted block, a hit is a saved prefill, and the trace's pace
gives the writes of a day. Years are those of as much flash as the capacity.

Of a trace with tens of millions of accesses only LRU is simulated, which takes half a minute;
`--limit` takes its beginning, for all of them, and `--whole` all of it, which takes most of an
hour. Formats without prefixes, such as Azure's, give arrivals and lengths and no curve. What can
fail: `BadInput` of the reader, and for a trace without times.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from offstage.asic_model.blocks import Number
from offstage.bindings import tradeoffs as at
from offstage.bindings.errors import BadInput
from offstage.bindings.notes import Note
from offstage.bindings.prefix import distances
from offstage.testbeds.lab.bounds.prefix import PrefixOptions, PrefixTrace, simulate
from offstage.testbeds.plan.sizing import wears
from offstage.testbeds.progress import Progress
from offstage.testbeds.workloads.requests.columns import Trace
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.stats import Optimum

__all__ = ["CurvePoint", "Curves", "from_trace", "measured_workload"]

ACCESSES_MAX = 8_000_000
"""Longer traces are not simulated, so that a page takes a minute or two and not an hour."""
LRU_POINTS = 40
SIMULATED = (1 / 128, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""Capacities that are simulated, as shares of the unique blocks."""
TTLS_S = (300.0, 1_800.0)
SPAN_S = (1.0, 100_000.0)
HIT_SHARE = 0.9
"""Share of an infinite cache's hits: the sentence names the capacity that reaches it."""


class CurvePoint(msgspec.Struct, kw_only=True):
    """One capacity. `written_per_hit`: blocks written per hit; None for OPT, which does not
    define its writes."""

    capacity_bytes: float
    hit_rate: float
    written_per_hit: float | None = None
    written_bytes_per_day: float | None = None
    life_years: float | None = None


class Curves(msgspec.Struct, kw_only=True):
    """A trace's curves. `reuse`: seconds, and the share of all re-accesses within them."""

    trace: str
    format: str
    requests: int
    duration_s: float
    input_p50: float
    output_p50: float
    notes: list[Note]
    unique_bytes: float = 0.0
    ideal_hit_rate: float | None = None
    needed_bytes: float | None = None
    """The least LRU capacity with 90 % of the hits of an infinite cache."""
    reuse: list[tuple[float, float]] = []
    kept: dict[str, list[CurvePoint]] = {}
    """Points by eviction method: lru, opt, ..."""


def from_trace(
    path: Path,
    format: str | None,
    limit: int | None,
    v: Mapping[str, float],
    progress: Progress,
    *,
    whole: bool = False,
    time_unit: str | None = None,
) -> tuple[Curves, Trace]:
    """The curves of a trace file, with the bytes of a token and the flash of a plan's values.
    `whole`: simulate all methods, however many accesses there are."""
    progress.start(f"read {path.name}", 1, "")
    trace = open_trace(path, format, limit=limit, time_unit=time_unit)
    progress.advance(1)
    duration_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    if not duration_s:
        raise BadInput(
            "all requests have one arrival time",
            trace.origin.name,
            "give a trace with times, which the rate of writes needs",
        )
    found = Curves(
        trace=trace.origin.name,
        format=trace.origin.format,
        requests=len(trace),
        duration_s=duration_s,
        input_p50=float(np.median(trace.input_tokens)),
        output_p50=float(np.median(trace.output_tokens)),
        notes=list(trace.notes),
    )
    if trace.block_tokens is None:
        found.notes.append(
            Note(
                "no-prefixes",
                f"format {found.format} has no prefixes: arrivals and lengths only, no hit rate",
            )
        )
        return found, trace
    block = v["model.kv"] * trace.block_tokens
    years = _Years(block, duration_s, v["tlc.endurance"] / v["tlc.capacity"], wears(v))
    _walk(found, PrefixTrace(trace), years, progress, whole)
    return found, trace


class _Years:
    """Converts counts of blocks to bytes per day, and to years of flash of that capacity."""

    def __init__(self, block: float, duration_s: float, endurance: float, wa: float) -> None:
        self.block, self.duration_s, self.endurance, self.wa = block, duration_s, endurance, wa

    def point(self, capacity: int, hits: float, accesses: int, written: float | None) -> CurvePoint:
        """One point; `hits` and `written` are blocks."""
        size = capacity * self.block
        if written is None:
            return CurvePoint(capacity_bytes=size, hit_rate=hits / accesses)
        rate = written * self.block / self.duration_s
        life = at.life_years(size * self.endurance, rate, self.wa)
        return CurvePoint(
            capacity_bytes=size,
            hit_rate=hits / accesses,
            written_per_hit=written / hits if hits else None,
            written_bytes_per_day=rate * at.DAY_S,
            life_years=life if math.isfinite(life) else None,
        )


def _walk(
    found: Curves, prepared: PrefixTrace, years: _Years, progress: Progress, whole: bool
) -> None:
    """Fills in everything that needs blocks."""
    runs = prepared.runs
    accesses, unique = runs.access_count, runs.block_count
    found.unique_bytes = unique * years.block
    found.ideal_hit_rate = prepared.ideal.block
    found.reuse = _reuse(prepared)
    hits = np.cumsum(distances(runs).astype(np.int64))
    capacities = sorted({max(1, int(share * unique)) for share in SIMULATED})
    sizes = np.geomspace(max(1, unique // 1_000), unique, LRU_POINTS).astype(np.int64)
    sizes = np.union1d(sizes, capacities)
    found.kept["lru"] = [
        years.point(int(size), int(hits[size - 1]), accesses, accesses - int(hits[size - 1]))
        for size in sizes
    ]
    enough = int(np.searchsorted(hits, HIT_SHARE * hits[-1])) + 1
    found.needed_bytes = enough * years.block if hits[-1] else None
    if accesses > ACCESSES_MAX and not whole:
        found.notes.append(
            Note(
                "lru-alone",
                f"{accesses:,} accesses are too many to simulate: LRU only",
                "simulate a part with --limit, or the whole trace with --whole",
            )
        )
        return
    kinds = {f"ttl {ttl_s:g} s": PrefixOptions(1, ttl_s=ttl_s) for ttl_s in TTLS_S}
    kinds["second touch"] = PrefixOptions(1, admission="second-touch")
    if prepared.trace.has_sessions:
        kinds["class-aware"] = PrefixOptions(1, admission="turns")
    else:
        found.notes.append(Note("no-sessions", "no sessions: no class-aware admission"))
    optimum = Optimum(prepared.trace)
    progress.start(f"caches of {found.trace}", len(capacities) * (len(kinds) + 1), "caches")
    for capacity in capacities:
        share = optimum.block_hit_rate(capacity)
        found.kept.setdefault("opt", []).append(
            years.point(capacity, share * accesses, accesses, None)
        )
        progress.advance(1)
        for name, options in kinds.items():
            done = simulate(prepared, replace(options, capacity_blocks=capacity))
            found.kept.setdefault(name, []).append(
                years.point(capacity, done.hit_rates.block * accesses, accesses, done.admitted)
            )
            progress.advance(1)


def _elapsed(prepared: PrefixTrace) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Seconds since the last use, ascending, and the number of blocks for each."""
    reuses, arrival = prepared.endless.reuses, prepared.trace.arrival_s
    elapsed = arrival[reuses["request"]] - arrival[reuses["previous"]]
    order = np.argsort(elapsed, kind="stable")
    return elapsed[order], reuses["count"].astype(np.int64)[order]


def _reuse(prepared: PrefixTrace) -> list[tuple[float, float]]:
    elapsed, counts = _elapsed(prepared)
    if not len(elapsed):
        return []
    below = np.cumsum(counts) / counts.sum()
    spots = np.geomspace(*SPAN_S, 61)
    found = np.searchsorted(elapsed, spots, side="right")
    shares = np.where(found > 0, below[np.maximum(found, 1) - 1], 0.0)
    return list(zip(spots.tolist(), shares.tolist(), strict=True))


def measured_workload(trace: Trace, curves: Curves) -> dict[str, Number]:
    """The trace's inputs of a plan: tokens of an answer, and seconds until the next use."""
    low, mid, high = np.percentile(trace.output_tokens, (10, 50, 90))
    found = {}
    if low > 0:
        found["workload.answer"] = _number(
            float(low), float(mid), float(high), "1", trace, "tokens of an answer, p10, p50 and p90"
        )
    if curves.reuse and curves.reuse[-1][1] > 0.9:
        early, usual, late = (
            next(s for s, below in curves.reuse if below >= share) for share in (0.25, 0.5, 0.9)
        )
        found["workload.gap"] = _number(
            early, usual, late, "s", trace, "time since the last use, p25, p50 and p90"
        )
    return found


def _number(low: float, value: float, high: float, unit: str, trace: Trace, what: str) -> Number:
    return Number(
        value=value,
        unit=unit,
        low=low,
        high=high,
        tag="measured",
        source=f"{trace.origin.name}: {what}",
    )
