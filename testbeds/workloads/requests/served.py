"""The figures of served requests, from their records: one definition of each for every surface.

docs/reference/requests.md has them in words. A figure that cannot be computed is None, and
`absent` says why. Refused requests count as such and are in no other figure.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput
from offstage.bindings.ledger import share
from offstage.host.request_record import RequestRecord, ServedRun, Used

__all__ = [
    "SLO_TIMES",
    "Latency",
    "Objective",
    "ServedFigures",
    "column",
    "found_share",
    "served_figures",
    "spans_ms",
    "ttft_ms",
]

SLO_TIMES = 2.0
"""An objective that nobody gave is this many times the unloaded median."""
UNLOADED_MIN = 5
"""With fewer unloaded requests there is no unloaded median."""
COUNTS = ("absent", "unreadable", "late", "wasted")
UNSEEN = "this surface does not record it"
Spans = dict[str, tuple[NDArray[np.float64], NDArray[np.int64]]]
"""Times in ms by latency, and how often each occurred."""


class Latency(msgspec.Struct, kw_only=True, frozen=True):
    """Times in ms over `count` requests, or tokens."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float


class Objective(msgspec.Struct, kw_only=True, frozen=True):
    """The service level that goodput asks for; None: this time is not judged."""

    ttft_ms: float | None
    tpot_ms: float | None
    given: bool
    """False: `SLO_TIMES` the unloaded median."""
    met: float
    """Share of the requests within it."""


class ServedFigures(msgspec.Struct, kw_only=True, frozen=True):
    """The figures of one run. Rates are shares; blocks are over all requests."""

    label: str
    provenance: str
    requests: int
    refused: int
    span_s: float | None
    """From the first arrival to the last end."""
    ttft_ms: Latency | None
    tpot_ms: Latency | None
    itl_ms: Latency | None
    e2e_ms: Latency | None
    queue_ms: Latency | None
    unloaded: int
    objective: Objective | None
    goodput_per_s: float | None
    hit_tokens: float | None
    hit_requests: float | None
    hit_by_tier: dict[str, float]
    absent_blocks: int | None
    unreadable_blocks: int | None
    late_blocks: int | None
    wasted_blocks: int | None
    used: Used
    absent: dict[str, str]


def served_figures(
    run: ServedRun,
    records: Sequence[RequestRecord],
    ttft_ms_max: float | None = None,
    tpot_ms_max: float | None = None,
) -> ServedFigures:
    """The figures under that objective. BadInput: a record that contradicts itself, or an
    objective below the unloaded median."""
    for one in records:
        one.check(run.label)
    there = [one for one in records if not one.refused]
    spans = spans_ms(there)
    absent = {name: run.absent.get(name, UNSEEN) for name, (_, n) in spans.items() if not n.sum()}
    objective, unloaded, why = _objective(run, there, ttft_ms_max, tpot_ms_max)
    span_s = _span_s(there)
    goodput = None
    if not span_s:
        absent["goodput_per_s"] = run.absent.get("ttft_ms", "the run has no duration")
    elif objective is None:
        absent["goodput_per_s"] = why
    else:
        goodput = objective.met * len(there) / span_s
    counts = {name: _total(there, f"{name}_blocks") for name in COUNTS}
    for name, total in counts.items():
        if total is None:
            absent[f"{name}_blocks"] = run.absent.get(f"{name}_blocks", UNSEEN)
    hits = _hits(there)
    if hits is None:
        absent["hit_tokens"] = absent["hit_requests"] = run.absent.get("found", UNSEEN)
    return ServedFigures(
        label=run.label,
        provenance=run.provenance,
        requests=len(records),
        refused=len(records) - len(there),
        span_s=span_s,
        ttft_ms=_latency(*spans["ttft_ms"]),
        tpot_ms=_latency(*spans["tpot_ms"]),
        itl_ms=_latency(*spans["itl_ms"]),
        e2e_ms=_latency(*spans["e2e_ms"]),
        queue_ms=_latency(*spans["queue_ms"]),
        unloaded=unloaded,
        objective=objective,
        goodput_per_s=goodput,
        hit_tokens=hits and hits[0],
        hit_requests=hits and hits[1],
        hit_by_tier=_by_tier(there),
        absent_blocks=counts["absent"],
        unreadable_blocks=counts["unreadable"],
        late_blocks=counts["late"],
        wasted_blocks=counts["wasted"],
        used=run.used,
        absent=absent,
    )


def column(records: Sequence[RequestRecord], name: str) -> NDArray[np.int64]:
    """A number of every record, int64 `[records]`; -1: not recorded."""
    values = (getattr(one, name) for one in records)
    return np.array([-1 if one is None else one for one in values], np.int64)


def ttft_ms(records: Sequence[RequestRecord]) -> NDArray[np.float64]:
    """Arrival to first token, of those that have one."""
    return _between(records, "arrival_ns", "first_token_ns")


def found_share(records: Sequence[RequestRecord], *tiers: str) -> float:
    """Prompt tokens whose KV was found, in these tiers or in all, over all prompt tokens."""
    found = sum(one.found_tokens(tiers) for one in records)
    return share(found, sum(one.input_tokens for one in records))


def spans_ms(there: Sequence[RequestRecord]) -> Spans:
    """Every latency of requests that were not refused, by its key in `ServedFigures`."""
    gaps = np.array([run for one in there for run in one.gaps_ns], np.int64).reshape(-1, 2)
    spans = {
        "ttft_ms": ttft_ms(there),
        "tpot_ms": np.array([at for one in there if (at := _tpot_ms(one)) is not None]),
        "e2e_ms": _between(there, "arrival_ns", "end_ns"),
        "queue_ms": _between(there, "arrival_ns", "scheduled_ns"),
    }
    found = {name: (times, np.ones(len(times), np.int64)) for name, times in spans.items()}
    return {**found, "itl_ms": (gaps[:, 0] / 1e6, gaps[:, 1])}


def _span_s(there: Sequence[RequestRecord]) -> float | None:
    """First arrival to last end; None where either is not recorded."""
    arrived, ended = (column(there, name) for name in ("arrival_ns", "end_ns"))
    if not len(there) or arrived.min() < 0 or ended.min() < 0:
        return None
    return float(ended.max() - arrived.min()) / 1e9


def _between(records: Sequence[RequestRecord], begin: str, end: str) -> NDArray[np.float64]:
    return np.array(
        [
            (there - since) / 1e6
            for one in records
            if (there := getattr(one, end)) is not None
            and (since := getattr(one, begin)) is not None
        ],
        np.float64,
    )


def _tpot_ms(one: RequestRecord) -> float | None:
    """First token to end, over the tokens after the first."""
    after = (one.output_tokens or 0) - 1
    if one.first_token_ns is None or one.end_ns is None or after < 1:
        return None
    return (one.end_ns - one.first_token_ns) / after / 1e6


def _latency(times_ms: NDArray[np.float64], counts: NDArray[np.int64]) -> Latency | None:
    total = int(counts.sum())
    if not total:
        return None
    order = np.argsort(times_ms)
    ordered, up_to = times_ms[order], np.cumsum(counts[order])

    def at(position: float) -> float:
        """Linearly interpolated, as if every time stood there as often as it occurred."""
        low = int(position)
        below, above = (
            float(ordered[np.searchsorted(up_to, min(one, total - 1), side="right")])
            for one in (low, low + 1)
        )
        return below + (above - below) * (position - low)

    p50, p90, p99 = (at(share * (total - 1)) for share in (0.5, 0.9, 0.99))
    mean = float((times_ms * counts).sum() / total)
    return Latency(count=total, mean=mean, p50=p50, p90=p90, p99=p99)


def _unloaded(there: Sequence[RequestRecord]) -> list[RequestRecord]:
    """Requests that were alone on their host from arrival to end."""
    found = []
    hosts: dict[int, list[tuple[int, int, int, RequestRecord]]] = {}
    for at, one in enumerate(there):
        if one.arrival_ns is not None and one.end_ns is not None:
            hosts.setdefault(one.host, []).append((one.arrival_ns, one.end_ns, at, one))
    for own in map(sorted, hosts.values()):
        busy_ns = -1
        for at, (arrival_ns, end_ns, _, one) in enumerate(own):
            last = at + 1 == len(own)
            if arrival_ns >= busy_ns and (last or own[at + 1][0] >= end_ns):
                found.append(one)
            busy_ns = max(busy_ns, end_ns)
    return found


def _objective(
    run: ServedRun,
    there: Sequence[RequestRecord],
    ttft_ms_max: float | None,
    tpot_ms_max: float | None,
) -> tuple[Objective | None, int, str]:
    """What is asked, how many requests were unloaded, and why there is none."""
    alone = _unloaded(there)
    spans = spans_ms(alone)
    medians: dict[str, float | None] = {
        name: float(np.median(spans[f"{name}_ms"][0]))
        if len(spans[f"{name}_ms"][0]) >= UNLOADED_MIN
        else None
        for name in ("ttft", "tpot")
    }
    limits = {"ttft": ttft_ms_max, "tpot": tpot_ms_max}
    for name, limit in limits.items():
        median = medians[name]
        if limit is not None and median is not None and limit < median:
            raise BadInput(
                f"--{name} {limit:g}ms is below the {median:.4g} ms of an unloaded request",
                run.label,
                "no load meets it: give more, or leave it out for twice the unloaded median",
            )
    given = any(limit is not None for limit in limits.values())
    if not given:
        limits = {name: None if one is None else SLO_TIMES * one for name, one in medians.items()}
    if limits["ttft"] is None and limits["tpot"] is None:
        few = f"{len(alone)} requests were alone on their host, fewer than {UNLOADED_MIN}"
        return None, len(alone), f"{few}: give --ttft or --tpot"
    if why := _unjudged(run, there, limits):
        return None, len(alone), why
    met = sum(_within(one, limits["ttft"], limits["tpot"]) for one in there)
    told = Objective(
        ttft_ms=limits["ttft"], tpot_ms=limits["tpot"], given=given, met=share(met, len(there))
    )
    return told, len(alone), ""


def _unjudged(
    run: ServedRun, there: Sequence[RequestRecord], limits: Mapping[str, float | None]
) -> str:
    """Why an objective cannot be judged: no request has the moments of a time that it limits."""
    owed = [one for one in there if (one.output_tokens or 0) > 1]  # one token has no TPOT to miss
    for name, recorded in (
        ("ttft", len(ttft_ms(there)) > 0),
        ("tpot", not owed or any(_tpot_ms(one) is not None for one in owed)),
    ):
        if limits[name] is not None and not recorded:
            return run.absent.get(f"{name}_ms", UNSEEN)
    return ""


def _within(one: RequestRecord, ttft: float | None, tpot: float | None) -> bool:
    """Whether the request met both; one without a second token has no TPOT to miss."""
    if ttft is not None and not (ttft_ms([one]) <= ttft).sum():
        return False
    own = _tpot_ms(one)
    return tpot is None or own is None or own <= tpot


def _hits(there: Sequence[RequestRecord]) -> tuple[float, float] | None:
    """Hit rates by tokens and by requests; None where no request recorded what was found."""
    told = [one for one in there if one.found is not None]
    if not told or not sum(one.input_tokens for one in told):
        return None
    return found_share(told), share(sum(one.found_tokens() > 0 for one in told), len(told))


def _by_tier(there: Sequence[RequestRecord]) -> dict[str, float]:
    told = [one for one in there if one.found is not None]
    tiers = dict.fromkeys(found.tier for one in told for found in one.found or ())
    return {tier: found_share(told, tier) for tier in tiers}


def _total(there: Sequence[RequestRecord], name: str) -> int | None:
    values = [at for one in there if (at := getattr(one, name)) is not None]
    return sum(values) if values else None
