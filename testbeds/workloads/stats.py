"""What a trace holds, and what a cache could hit on it: the figures of `offstage trace info`.

Definitions, which move a hit rate by several points and so stand beside every figure:
- an access is one hash id of one request, ids taken in request order, the partial last block
  included; the unit is the 512-token trace block;
- ideal: an endless cache. By block (id seen before), by prefix (unbroken run of seen ids from the
  front of the request) and by token (the tokens of blocks seen before, over all input tokens);
- LRU: block-level, an id is touched in request order and inserted on a miss, capacity is
  floor(fraction x unique blocks), at least one block.

One pass gives every capacity: an access hits an LRU cache of C blocks exactly when fewer than C
other blocks were touched since its last use (Mattson, Gecsei, Slutz, Traiger, IBM Systems Journal
9(2), 1970).
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from offstage.testbeds.workloads.mooncake import iterate
from offstage.testbeds.workloads.trace import TRACE_BLOCK_TOKENS, Request

__all__ = [
    "LRU_FRACTIONS",
    "LruPoint",
    "Quantiles",
    "TraceInfo",
    "render",
    "stack_distances",
    "summarise",
    "to_dict",
    "trace_info",
]

LRU_FRACTIONS = (0.01, 0.05, 0.10, 0.25, 0.50)
"""Cache sizes at which LRU is reported, as fractions of the trace's unique blocks."""

Int64Array = npt.NDArray[np.int64]

DEFINITIONS = {
    "access": "one hash id of one request, in request order, the partial last block included",
    "ideal_block_hit_rate": "accesses whose id was seen before / accesses (endless cache)",
    "ideal_prefix_hit_rate": "accesses in the unbroken run of seen ids from the front / accesses",
    "ideal_token_hit_rate": "input tokens in blocks seen before / input tokens",
    "lru": "block-level LRU of floor(fraction x unique blocks), ids touched in request order",
    "reuse_distance_blocks": "other blocks touched since the last use, over re-accesses",
    "reuse_time_s": "time since the last use, over re-accesses",
}


@dataclass(frozen=True)
class Quantiles:
    """Mean, largest value and percentiles (linear interpolation) of one quantity."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


@dataclass(frozen=True)
class LruPoint:
    """LRU hit rate over all accesses, at one capacity."""

    fraction: float
    capacity_blocks: int
    hit_rate: float


@dataclass(frozen=True)
class TraceInfo:
    """The figures of one trace; the module's docstring has their definitions."""

    trace: str
    request_count: int
    duration_s: float
    tick_count: int
    """Distinct timestamps: order inside one of them carries no information."""
    block_tokens: int
    block_access_count: int
    unique_block_count: int
    reused_block_fraction: float
    ideal_block_hit_rate: float
    ideal_prefix_hit_rate: float
    ideal_token_hit_rate: float
    lru: tuple[LruPoint, ...]
    input_tokens: Quantiles
    output_tokens: Quantiles
    reuse_distance_blocks: Quantiles
    reuse_time_s: Quantiles


def trace_info(path: str | Path, limit: int | None = None) -> TraceInfo:
    """Reads a Mooncake-format trace and computes its figures; BadInput as the reader raises it."""
    path = Path(path)
    return summarise(iterate(path, limit), path.name)


def summarise(requests: Iterable[Request], name: str) -> TraceInfo:
    """Computes the figures of at least one request; `name` is how the report calls the trace."""
    rows = list(requests)
    assert rows, "the reader refuses an empty trace"
    lengths = np.array([len(row.block_ids) for row in rows], dtype=np.int64)
    access_count = int(lengths.sum())
    ids = np.fromiter(
        (block for row in rows for block in row.block_ids), dtype=np.int64, count=access_count
    )
    times_s = np.array([row.timestamp_ms for row in rows]) / 1e3
    input_tokens = np.array([row.input_tokens for row in rows], dtype=np.int64)
    owner = np.repeat(np.arange(len(rows)), lengths)
    ordinal = np.arange(access_count) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    block_tokens = np.minimum(
        TRACE_BLOCK_TOKENS, input_tokens[owner] - TRACE_BLOCK_TOKENS * ordinal
    )

    previous = previous_access(ids)
    seen = previous >= 0
    distances = stack_distances(previous)
    unique_count = access_count - int(seen.sum())
    again = np.flatnonzero(seen)
    return TraceInfo(
        trace=name,
        request_count=len(rows),
        duration_s=float(times_s[-1] - times_s[0]),
        tick_count=len(np.unique(times_s)),
        block_tokens=TRACE_BLOCK_TOKENS,
        block_access_count=access_count,
        unique_block_count=unique_count,
        reused_block_fraction=_ratio(len(np.unique(ids[seen])), unique_count),
        ideal_block_hit_rate=_ratio(len(again), access_count),
        ideal_prefix_hit_rate=_ratio(_prefix_hits(seen, ordinal, lengths), access_count),
        ideal_token_hit_rate=_ratio(int(block_tokens[seen].sum()), int(input_tokens.sum())),
        lru=_lru_points(distances, access_count, unique_count),
        input_tokens=_quantiles(input_tokens),
        output_tokens=_quantiles(np.array([row.output_tokens for row in rows])),
        reuse_distance_blocks=_quantiles(distances),
        reuse_time_s=_quantiles(times_s[owner[again]] - times_s[owner[previous[again]]]),
    )


def previous_access(ids: Int64Array) -> Int64Array:
    """For each access, the position of the last access to the same id, or -1; shape of `ids`."""
    order = np.argsort(ids, kind="stable")
    previous = np.full(len(ids), -1, dtype=np.int64)
    same = ids[order[1:]] == ids[order[:-1]]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def stack_distances(previous: Int64Array) -> Int64Array:
    """LRU stack distance of every re-access, in order of access.

    Between the last use p and the access t stand t - p - 1 accesses. Those whose own last use lies
    after p touch a block a second time in that span, so they are not another block: the distance is
    t - p - 1 less the earlier accesses whose last use is later than p. Counting these is counting
    inversions, done here for all accesses at once, one bit of p at a time from the highest:
    O(n log n) in numpy, no loop over accesses.
    """
    position = np.flatnonzero(previous >= 0)
    last_use = previous[position]
    repeats = np.zeros(len(position), dtype=np.int64)
    order = np.arange(len(position))
    for bit in range(max(1, len(previous)).bit_length() - 1, -1, -1):
        # `order` is grouped by the bits above `bit`, and in order of access inside each group.
        value = last_use[order]
        group = value >> (bit + 1)
        is_one = (value >> bit) & 1
        ones_before = np.cumsum(is_one) - is_one
        if len(group):
            start = np.searchsorted(group, group, side="left")
            inside = ones_before - ones_before[start]
            zero = is_one == 0
            repeats[order[zero]] += inside[zero]
        order = order[np.argsort(value >> bit, kind="stable")]
    distances: Int64Array = position - last_use - 1 - repeats
    return distances


def _lru_points(
    distances: Int64Array, access_count: int, unique_count: int
) -> tuple[LruPoint, ...]:
    points = []
    for fraction in LRU_FRACTIONS:
        capacity = max(1, int(fraction * unique_count))
        hits = int((distances < capacity).sum())
        points.append(LruPoint(fraction, capacity, _ratio(hits, access_count)))
    return tuple(points)


def _prefix_hits(seen: npt.NDArray[np.bool_], ordinal: Int64Array, lengths: Int64Array) -> int:
    """Accesses before the first unseen id of their own request.

    An id that occurs twice in one request counts as seen the second time; prefix-chained traces
    have none.
    """
    unseen = np.where(seen, np.iinfo(np.int64).max, ordinal)
    first = np.minimum.reduceat(unseen, (np.cumsum(lengths) - lengths)[lengths > 0])
    return int(np.minimum(first, lengths[lengths > 0]).sum())


def _quantiles(values: npt.NDArray[Any]) -> Quantiles:
    if not len(values):
        return Quantiles(0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p90, p99 = (float(value) for value in np.percentile(values, (50, 90, 99)))
    return Quantiles(float(values.mean()), p50, p90, p99, float(values.max()))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def to_dict(info: TraceInfo) -> dict[str, Any]:
    """The figures as JSON-ready values, with their definitions under "definitions"."""
    return {**asdict(info), "lru": [asdict(p) for p in info.lru], "definitions": DEFINITIONS}


def render(info: TraceInfo) -> Table:
    """The figures as one table for the terminal."""
    table = Table(title=info.trace, title_justify="left", show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("meaning", style="dim")
    for row in _rows(info):
        table.add_row(*row)
    return table


def _rows(info: TraceInfo) -> Sequence[tuple[str, str, str]]:
    tokens = f"{info.block_tokens} tokens a block"
    share = f"{info.reused_block_fraction:.1%} of them used again"
    rows = [
        ("requests", f"{info.request_count:,}", f"{info.tick_count:,} distinct arrival times"),
        ("duration", f"{info.duration_s:,.0f} s", "first to last arrival"),
        ("block accesses", f"{info.block_access_count:,}", tokens),
        ("unique blocks", f"{info.unique_block_count:,}", share),
        ("ideal hit rate, block", f"{info.ideal_block_hit_rate:.4f}", "endless cache"),
        ("ideal hit rate, prefix", f"{info.ideal_prefix_hit_rate:.4f}", "unbroken from the front"),
        ("ideal hit rate, token", f"{info.ideal_token_hit_rate:.4f}", "tokens of blocks seen"),
    ]
    for point in info.lru:
        size = f"{point.capacity_blocks:,} blocks"
        rows.append((f"LRU hit rate at {point.fraction:.0%}", f"{point.hit_rate:.4f}", size))
    for label, unit, values in (
        ("input", "tokens", info.input_tokens),
        ("output", "tokens", info.output_tokens),
        ("reuse distance", "blocks", info.reuse_distance_blocks),
        ("reuse time", "s", info.reuse_time_s),
    ):
        spread = f"{values.p50:,.0f} / {values.p90:,.0f} / {values.p99:,.0f}"
        rows.append((f"{label} p50/90/99", spread, f"{unit}; mean {values.mean:,.0f}"))
    return rows
