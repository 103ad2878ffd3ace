"""The content of a trace, and the hit rates of caches on it: the figures of `offstage trace info`.

Definitions, shown with every figure because they move a hit rate by several points:
- an access is one block of one request, blocks taken in request order, a partial last block
  included where the format has an id for it; the unit is the trace's block;
- ideal: an endless cache. By block (id seen before), by prefix (unbroken run of seen ids from the
  front of the request) and by token (the tokens of blocks seen before, over all input tokens);
- LRU: block-level, an id is touched in request order and inserted on a miss; OPT: Belady with
  bypass, the most block hits that any policy can have. The capacity of both is
  floor(fraction x unique blocks), at least one block.

Caches with other eviction, admission or a TTL are in the laboratory, in
`offstage.testbeds.lab.bounds.prefix`.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Group
from rich.table import Table
from rich.text import Text

from offstage.bindings.bounds import Demands, belady
from offstage.bindings.notes import Note, note_lines
from offstage.bindings.prefix import Ideal, distances, ideal
from offstage.testbeds.workloads.requests.collector import Columns, runs_of
from offstage.testbeds.workloads.requests.columns import Origin, Trace
from offstage.testbeds.workloads.requests.trace import Request

__all__ = [
    "DEFINITIONS",
    "LRU_FRACTIONS",
    "BlockInfo",
    "HitPoint",
    "Optimum",
    "Quantiles",
    "SessionInfo",
    "TraceInfo",
    "collect",
    "render",
    "summarise",
    "to_dict",
]

LRU_FRACTIONS = (0.01, 0.05, 0.10, 0.25, 0.50)
"""Cache sizes at which LRU and OPT are reported, as fractions of the trace's unique blocks."""

RATE_WINDOW_S = 60.0

Int64Array = npt.NDArray[np.int64]

DEFINITIONS = {
    "access": "one block of one request, in request order, a partial last block included",
    "ideal_block_hit_rate": "accesses whose id was seen before / accesses (endless cache)",
    "ideal_prefix_hit_rate": "accesses in the unbroken run of seen ids from the front / accesses",
    "ideal_token_hit_rate": "input tokens in blocks seen before / input tokens",
    "lru": "block-level LRU of floor(fraction x unique blocks), ids touched in request order",
    "opt": "Belady with bypass at the same sizes: the most block hits that any policy can have",
    "reuse_distance_blocks": "other blocks touched since the last use, over re-accesses",
    "reuse_time_s": "time since the last use, over re-accesses",
    "hits_in_session": "re-accesses whose last use was by the same session / re-accesses",
    "hits_on_top_1_percent": "re-accesses of the 1 % most used blocks / re-accesses",
    "gap_s": "arrival less the arrival of the session's last request, over all but first requests",
    "think_s": "the client's part of that gap, as recorded, over requests where it is known",
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
class HitPoint:
    """Hit rate over all accesses, at one capacity."""

    fraction: float
    capacity_blocks: int
    hit_rate: float


@dataclass(frozen=True)
class BlockInfo:
    """Figures of a trace with block ids; the module's docstring has their definitions."""

    block_tokens: int
    block_access_count: int
    unique_block_count: int
    reused_block_fraction: float
    block_uses_max: int
    hits_on_top_1_percent: float
    hits_on_top_10_percent: float
    requests_with_hit_fraction: float
    ideal_block_hit_rate: float
    ideal_prefix_hit_rate: float
    ideal_token_hit_rate: float
    hits_in_session: float | None
    """None where the trace has no sessions."""
    lru: tuple[HitPoint, ...]
    opt: tuple[HitPoint, ...]
    reuse_distance_blocks: Quantiles | None
    reuse_time_s: Quantiles | None
    """None where no block is used again."""


@dataclass(frozen=True)
class SessionInfo:
    """Figures of a trace with sessions. `gap_s` is None if no session has a second request,
    `think_s` if no request has it."""

    session_count: int
    turns: Quantiles
    gap_s: Quantiles | None
    think_s: Quantiles | None


@dataclass(frozen=True)
class TraceInfo:
    """The figures of one trace; `blocks` and `sessions` are None where the format has none."""

    trace: str
    format: str
    licence: str
    notes: tuple[Note, ...]
    request_count: int
    duration_s: float
    tick_count: int
    """Distinct arrival times: the order within one carries no information."""
    requests_per_s: float | None
    requests_per_s_max: float | None
    """Rate in the busiest minute, counted from the first arrival. None, as the one before, where
    all requests arrive at once."""
    input_tokens: Quantiles
    output_tokens: Quantiles
    blocks: BlockInfo | None
    sessions: SessionInfo | None


def collect(requests: Iterable[Request], name: str) -> Trace:
    """A trace of requests in memory, all of one block size; `name` is its name in reports."""
    columns: Columns | None = None
    for request in requests:
        columns = columns or Columns(request.trace_block_tokens, ordered=True)
        columns.add(
            f"{name}: request {request.index}",
            request.timestamp_ms / 1e3,
            request.input_tokens,
            request.output_tokens,
            runs_of(request.block_ids),
            session=request.session,
            think_s=request.think_s,
        )
    assert columns is not None, "a trace has at least one request"
    return columns.finish(Origin(name, "requests"))


def summarise(trace: Trace) -> TraceInfo:
    """Computes the figures of a trace of at least one request."""
    duration_s = float(trace.arrival_s[-1] - trace.arrival_s[0])
    minutes = ((trace.arrival_s - trace.arrival_s[0]) / RATE_WINDOW_S).astype(np.int64)
    busiest = int(np.unique(minutes, return_counts=True)[1].max())
    return TraceInfo(
        trace=trace.origin.name,
        format=trace.origin.format,
        licence=trace.origin.licence,
        notes=trace.notes,
        request_count=len(trace),
        duration_s=duration_s,
        tick_count=len(np.unique(trace.arrival_s)),
        requests_per_s=len(trace) / duration_s if duration_s else None,
        requests_per_s_max=busiest / min(RATE_WINDOW_S, duration_s) if duration_s else None,
        input_tokens=_quantiles(trace.input_tokens),
        output_tokens=_quantiles(trace.output_tokens),
        blocks=None if trace.block_tokens is None else _blocks(trace, trace.block_tokens),
        sessions=_sessions(trace) if trace.has_sessions else None,
    )


def _blocks(trace: Trace, block_tokens: int) -> BlockInfo:
    runs = trace.runs
    found = ideal(runs)
    rows, uses = found.rows, np.sort(found.uses.astype(np.int64))[::-1]
    histogram = distances(runs).astype(np.int64)
    accesses, unique = runs.access_count, runs.block_count
    hits = accesses - unique
    reuses = found.reuses
    elapsed_s = trace.arrival_s[reuses["request"]] - trace.arrival_s[reuses["previous"]]
    tokens = np.minimum(trace.tokens_of(rows["hits"], rows["last"]), trace.input_tokens)
    return BlockInfo(
        block_tokens=block_tokens,
        block_access_count=accesses,
        unique_block_count=unique,
        reused_block_fraction=_ratio(int((uses > 1).sum()), unique),
        block_uses_max=int(uses.max(initial=0)),
        hits_on_top_1_percent=_ratio(_hits_on_top(uses, 0.01), hits),
        hits_on_top_10_percent=_ratio(_hits_on_top(uses, 0.1), hits),
        requests_with_hit_fraction=_ratio(int((rows["hits"] > 0).sum()), len(trace)),
        ideal_block_hit_rate=_ratio(hits, accesses),
        ideal_prefix_hit_rate=_ratio(int(rows["prefix"].sum(dtype=np.int64)), accesses),
        ideal_token_hit_rate=_ratio(int(tokens.sum()), int(trace.input_tokens.sum())),
        hits_in_session=_in_session(trace, found, hits) if trace.has_sessions else None,
        lru=_lru_points(histogram, accesses, unique),
        opt=_opt_points(trace, unique),
        reuse_distance_blocks=_weighted_quantiles(np.arange(len(histogram)), histogram),
        reuse_time_s=_weighted_quantiles(elapsed_s, reuses["count"].astype(np.int64)),
    )


def _hits_on_top(uses: Int64Array, share: float) -> int:
    top = uses[: max(1, int(share * len(uses)))]
    return int(top.sum()) - len(top)


def _in_session(trace: Trace, found: Ideal, hits: int) -> float:
    reuses = found.reuses
    same = trace.session[reuses["request"]] == trace.session[reuses["previous"]]
    return _ratio(int(reuses["count"][same].sum(dtype=np.int64)), hits)


def _sessions(trace: Trace) -> SessionInfo:
    known, later = ~np.isnan(trace.think_s), trace.turn > 0
    return SessionInfo(
        session_count=trace.session_count,
        turns=_quantiles(np.bincount(np.unique(trace.session, return_inverse=True)[1])),
        gap_s=_quantiles(trace.gap_s[later]) if later.any() else None,
        think_s=_quantiles(trace.think_s[known]) if known.any() else None,
    )


def _lru_points(histogram: Int64Array, access_count: int, unique: int) -> tuple[HitPoint, ...]:
    """An access hits an LRU cache of C blocks exactly when its stack distance is below C."""
    below = np.cumsum(histogram)
    points = []
    for fraction in LRU_FRACTIONS:
        capacity = max(1, int(fraction * unique))
        points.append(HitPoint(fraction, capacity, _ratio(int(below[capacity - 1]), access_count)))
    return tuple(points)


def _opt_points(trace: Trace, unique: int) -> tuple[HitPoint, ...]:
    optimum = Optimum(trace)
    sizes = [(fraction, max(1, int(fraction * unique))) for fraction in LRU_FRACTIONS]
    return tuple(HitPoint(fraction, size, optimum.block_hit_rate(size)) for fraction, size in sizes)


def _quantiles(values: npt.NDArray[Any]) -> Quantiles:
    found = _weighted_quantiles(values, np.ones(len(values), np.int64))
    assert found is not None, "a trace has at least one request"
    return found


def _weighted_quantiles(values: npt.NDArray[Any], counts: Int64Array) -> Quantiles | None:
    """Quantiles of values repeated by their counts, interpolated as numpy's percentile does; None
    where there is no value."""
    present = counts > 0
    if not present.any():
        return None
    values, counts = values[present].astype(np.float64), counts[present]
    order = np.argsort(values, kind="stable")
    values, ends = values[order], np.cumsum(counts[order])
    total = int(ends[-1])

    def at(share: float) -> float:
        rank = share * (total - 1)
        low = values[np.searchsorted(ends, int(rank), side="right")]
        high = values[np.searchsorted(ends, min(int(rank) + 1, total - 1), side="right")]
        return float(low + (high - low) * (rank - int(rank)))

    mean = float((values * counts[order]).sum() / total)
    return Quantiles(mean, at(0.5), at(0.9), at(0.99), float(values[-1]))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def to_dict(info: TraceInfo) -> dict[str, Any]:
    """The figures as JSON-ready values, with their definitions under "definitions"."""
    plain = asdict(info)
    blocks, sessions = plain.pop("blocks") or {}, plain.pop("sessions") or {}
    return {**plain, **blocks, **sessions, "definitions": DEFINITIONS}


# The figures of a trace as a table for the terminal.

Row = tuple[str, str, str]


def render(info: TraceInfo) -> Group:
    """Name, value and meaning, one figure a row, under the notes; without figures that the format
    does not have."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column("what", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("meaning", style="dim", overflow="fold")
    rows = [
        ("format", info.format, info.licence),
        ("requests", f"{info.request_count:,}", f"{info.tick_count:,} distinct arrival times"),
        ("duration", f"{_rounded(info.duration_s)} s", "first to last arrival"),
        _rate(info),
    ]
    if info.blocks:
        rows += _block_rows(info.blocks)
    rows += [_spread("input", "tokens", info.input_tokens)]
    rows += [_spread("output", "tokens", info.output_tokens)]
    if info.blocks:
        rows += [_spread("reuse distance", "blocks", info.blocks.reuse_distance_blocks)]
        rows += [_spread("reuse time", "s", info.blocks.reuse_time_s)]
    if info.sessions:
        rows += _session_rows(info.sessions)
    for row in rows:
        table.add_row(*row)
    return Group(Text(info.trace), *map(Text, note_lines(info.notes)), table)


def _block_rows(info: BlockInfo) -> list[Row]:
    tokens = f"{info.block_tokens} tokens a block"
    share = f"{info.reused_block_fraction:.1%} of them used again"
    rows = [
        ("block accesses", f"{info.block_access_count:,}", tokens),
        ("unique blocks", f"{info.unique_block_count:,}", share),
        ("ideal hit rate, block", f"{info.ideal_block_hit_rate:.4f}", "endless cache"),
        ("ideal hit rate, prefix", f"{info.ideal_prefix_hit_rate:.4f}", "unbroken from the front"),
        ("ideal hit rate, token", f"{info.ideal_token_hit_rate:.4f}", "tokens of blocks seen"),
    ]
    for lru, opt in zip(info.lru, info.opt, strict=True):
        blocks = f"{lru.capacity_blocks:,} block{'s' * (lru.capacity_blocks != 1)}"
        size = f"{blocks}; at best {opt.hit_rate:.4f} (OPT)"
        rows.append((f"LRU hit rate at {lru.fraction:.0%}", f"{lru.hit_rate:.4f}", size))
    return rows


def _session_rows(info: SessionInfo) -> list[Row]:
    rows = [
        ("sessions", f"{info.session_count:,}", ""),
        _spread("turns", "requests of a session", info.turns),
        _spread("gap", "s since the session's last request", info.gap_s),
    ]
    if info.think_s:
        rows.append(_spread("think time", "s, the client's part", info.think_s))
    return rows


def _rate(info: TraceInfo) -> Row:
    if info.requests_per_s is None:
        return "rate", "–", "all arrive at once"
    most = f"at most {info.requests_per_s_max:,.2f} /s in a minute"
    return "rate", f"{info.requests_per_s:,.2f} /s", most


def _spread(label: str, unit: str, values: Quantiles | None) -> Row:
    label = f"{label} p50/90/99"
    if values is None:
        return label, "–", "there is none"
    spread = " / ".join(map(_rounded, (values.p50, values.p90, values.p99)))
    return label, spread, f"{unit}; mean {_rounded(values.mean)}"


def _rounded(value: float) -> str:
    """To the whole number from 10 on, below it to two digits: time may be counted in ms."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


# The most block hits that any cache can have on a trace of requests.
#
# OPT is Belady's choice with bypass, which may also decline to keep a block: an upper bound on
# block hits for every eviction and admission of that capacity. It knows the future, so no policy
# attains it.


class Optimum:
    """OPT of one trace at any capacity; allocates 17 bytes for each access on first use.

    warm_up: the first requests, which fill the buffer and are not counted. The optimum then covers
    the requests after them, starting with the best possible buffer of blocks accessed before.
    """

    def __init__(self, trace: Trace, warm_up: int = 0) -> None:
        trace.need_blocks("OPT")
        self._trace = trace
        self._warm_accesses = int(trace.block_counts[:warm_up].sum())

    @cached_property
    def _demands(self) -> Demands:
        accesses = self._trace.accesses()
        if self._warm_accesses:
            # Each once: no hit among them, so blocks are kept only for later requests.
            warm, accesses = np.split(accesses, [self._warm_accesses])
            accesses = np.concatenate([np.unique(warm), accesses])
        return Demands(
            accesses,
            np.arange(len(accesses) + 1, dtype=np.uint64),
            np.zeros(len(accesses), np.uint8),
            self._trace.runs.block_count,
        )

    def block_hit_rate(self, capacity_blocks: int) -> float:
        """Hits over accesses with a buffer of `capacity_blocks`; 0 without accesses."""
        counted = self._trace.runs.access_count - self._warm_accesses
        if not counted:
            return 0.0
        hits = belady(self._demands, capacity_blocks, bypass=True).hits
        return int(hits.sum(dtype=np.int64)) / counted
