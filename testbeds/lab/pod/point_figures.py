"""The figures of a point: hits, first tokens, load, and the cost of a fault against no fault.

Definitions. Hit rate and time to the first token are those of every served request
(`workloads/requests/served.py`). Load: bytes that each daemon sent;
its coefficient of variation, and its maximum over its mean. A fault is compared with the same
requests, schedule and seed without it: *lost* is the net number of prefix tokens that were hit
without the fault and missed with it, over requests that arrived after the fault. A run is *back*
after the last window whose hits are below a share of those without the fault: 95 %, or 95 % less
the faulty daemon's share of the pod. Provenance of all: modelled.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.ledger import quantile, share
from offstage.host.request_record import RequestRecord
from offstage.testbeds.lab.pod.router import HBM
from offstage.testbeds.lab.pod.run import Ran
from offstage.testbeds.lab.pod.spec import PodSpec, Point
from offstage.testbeds.workloads.requests.served import column, found_share, ttft_ms
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS

__all__ = ["BACK_SHARE", "Loss", "PodPoint", "Served", "figures_of", "served"]

BACK_SHARE = 0.95
"""Share of the hits without a fault at which a run counts as back."""


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a fault."""

    tokens: int
    """Prefix tokens hit without the fault, less those hit with it."""
    share: float
    """`tokens` over the prefix tokens that were hit after the fault's time without the fault."""
    lowest: float
    """Hits of the worst window over those without the fault."""
    back_s: float | None
    """Seconds from the fault until hits are back; None: not within the run."""
    back_less_s: float | None
    """`back_s` against 95 % less the faulty daemon's share of the pod."""


class PodPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one point; rates are shares, and a time's name contains its unit."""

    daemons: int
    schedule: str
    fault: str
    seed: int
    requests: int
    refused: int
    hit: float
    pool_hit: float
    """The part of `hit` that was in the host's HBM pool."""
    first_ms_p50: float
    first_ms_p99: float
    load_cv: float
    load_max: float
    """Load of the most loaded daemon over the mean."""
    shards: int
    shards_cv: float
    """Coefficient of variation of the shards homed at each daemon."""
    shards_cv_expected: float
    """`shards_cv` of random placement on daemons of equal weight, sqrt((N - 1) / shards)."""
    read_bytes: int
    put_bytes: int
    filled_bytes: int
    filled_share: float
    """Bytes copied to a new home over bytes read from the pod after the fault."""
    copies: int
    """Copies of shards at the end of the run, homes not counted."""
    copied_bytes: int
    deadlines: int
    passed_max: int
    """Most times that any request was passed over."""
    loss: Loss | None = None


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of the requests, in virtual time or live; fields of `PodPoint`."""

    requests: int
    refused: int
    hit: float
    pool_hit: float
    first_ms_p50: float
    first_ms_p99: float


def served(records: Sequence[RequestRecord]) -> Served:
    """The figures of a router's records."""
    there = [one for one in records if not one.refused]
    first_ms = ttft_ms(there)
    return Served(
        requests=len(records),
        refused=len(records) - len(there),
        hit=found_share(there),
        pool_hit=found_share(there, HBM),
        first_ms_p50=quantile(first_ms, 0.5),
        first_ms_p99=quantile(first_ms, 0.99),
    )


def figures_of(spec: PodSpec, point: Point, ran: Ran, without: Ran | None) -> PodPoint:
    """The figures of a run; `without`: the same run without the fault."""
    there = [one for one in ran.records if not one.refused]
    present = ran.shards > 0 if point.fault == "join" else np.ones(point.daemons, bool)
    homed = ran.shards[present]
    later = [one for one in there if (one.arrival_ns or 0) >= ran.fault_ns]
    moved = sum(one.found_tokens() - one.found_tokens([HBM]) for one in later)
    asked = moved // TRACE_BLOCK_TOKENS * spec.block_bytes
    return PodPoint(
        daemons=point.daemons,
        schedule=point.schedule,
        fault=point.fault,
        seed=point.seed,
        **msgspec.structs.asdict(served(ran.records)),
        load_cv=_cv(ran.read),
        load_max=share(float(ran.read.max()), float(ran.read.mean())),
        shards=int(homed.sum()),
        shards_cv=_cv(homed),
        shards_cv_expected=math.sqrt((len(homed) - 1) / max(1, int(homed.sum()))),
        read_bytes=int(ran.read.sum()),
        put_bytes=int(ran.put.sum()),
        filled_bytes=int(ran.filled.sum()),
        filled_share=share(int(ran.filled.sum()), asked),
        copies=ran.copies,
        copied_bytes=int(ran.copied.sum()),
        deadlines=ran.deadlines,
        passed_max=max((one.passed_over or 0 for one in ran.records), default=0),
        loss=None if without is None else _loss(spec, point, ran, without),
    )


def _loss(spec: PodSpec, point: Point, ran: Ran, without: Ran) -> Loss:
    """The cost of the fault, request by request: both runs have equal requests in equal order."""
    hits, before = (
        np.array([each.found_tokens() for each in one.records], np.int64) for one in (ran, without)
    )
    after_ns = column(without.records, "arrival_ns") - without.fault_ns
    later = after_ns >= 0
    window = after_ns[later] // spec.window_ns
    count = int(window.max(initial=-1)) + 1
    now, then = (np.bincount(window, one[later], count) for one in (hits, before))
    ratio = np.divide(now, then, out=np.ones(count), where=then > 0)
    lost = int(before[later].sum() - hits[later].sum())
    return Loss(
        tokens=lost,
        share=share(lost, int(before[later].sum())),
        lowest=float(ratio.min(initial=1.0)),
        back_s=_back_s(ratio, BACK_SHARE, spec.window_ns),
        back_less_s=_back_s(ratio, BACK_SHARE * (1 - 1 / point.daemons), spec.window_ns),
    )


def _back_s(ratio: NDArray[np.float64], wanted: float, window_ns: int) -> float | None:
    """Seconds from the fault to the end of the last window below `wanted`."""
    below = np.flatnonzero(ratio < wanted)
    if len(below) and below[-1] == len(ratio) - 1:
        return None
    return float((below[-1] + 1) * window_ns / 1e9) if len(below) else 0.0


def _cv(values: NDArray[np.int64]) -> float:
    return float(values.std() / values.mean()) if values.any() else 0.0
