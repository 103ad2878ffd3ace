"""A GPU with a rival below its HBM: sessions it carries, tokens a second, and what a token waits.

Model of a decode step: the GPU reads its part of the weights, and of each session the selection
and the index; a layer then reads all rows that its pool lacks, of all sessions at once, and waits
for the slowest of them: a latency with its tail, and the greatest of bytes over the rate, reads
over the reads a second, and reads over those under way. A share of the GPU's time hides it. Of a
DPU, rows that are staged come over its link, the rest from flash; reading ahead takes drives' reads
first, and what they do not give is not staged, nor what the DPU's memory does not hold; where that
is slower, nothing is read ahead. The sessions of a GPU are as many as fit into HBM and tier, and as
keep the pace; the others wait.

Model of a prefix: sessions ask again after a gap. What the tier holds of their contexts is read,
the rest prefilled. Reads queue as M/D/1 with a tail that falls exponentially.

Pure functions of values in base units. Nothing can fail: what carries no session says why.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from offstage.bindings import tradeoffs as at
from offstage.testbeds.plan.kv import DTYPES
from offstage.testbeds.plan.rivals.design import DPU, HBM, Bought, bought
from offstage.testbeds.plan.rivals.question import Asked
from offstage.testbeds.plan.rivals.stream import ARENA_OVER_K

__all__ = ["Outcome", "outcome"]

REPLICA_SHARE = 2.0 / 3.0
"""Of HBM that weights may take: a replica is the least power of two of GPUs with which they do."""
P99 = 2.33
"""Deviations above the mean, of a normal sum over sessions."""
BUSY_MAX = 0.95
"""Of a link or drive that turns load from: beyond, waits have no bound."""
AHEAD_SHARE = 0.6
"""Of the drives' reads that reading ahead may take, so that demands do not wait for it."""


@dataclass(frozen=True)
class Outcome:
    """One rival. Figures are of one GPU with its part of the tier; infinite or 0 where none."""

    name: str
    sessions: int = 0
    tokens_per_s: float = 0.0
    tokens_per_usd: float = 0.0
    tokens_per_joule: float = 0.0
    stall_p99_s: float = math.inf
    bytes_per_usd: float = 0.0
    bound: str = ""
    note: str = ""


@dataclass(frozen=True)
class _Gpu:
    """What a question and its values say of one GPU. Bytes are of a session."""

    layers: int
    row: float
    session: float
    index: float
    weights: float
    room: float
    read: float
    prefill: float

    @staticmethod
    def of(asked: Asked, v: Mapping[str, float]) -> "_Gpu":
        layers = max(len(one.layers) for one in asked.shape().groups)
        indexed = v["model.index"]
        if not indexed and asked.use == "blocks":
            indexed = v["model.kv"] / asked.unit  # least and greatest key of a block: Quest
        room = v[f"{asked.gpu}.memory"] * v["serving.memory_share"]
        whole, replica = v["model.parameters"] * DTYPES[asked.weights], 1
        while whole / replica > REPLICA_SHARE * room:
            replica *= 2
        return _Gpu(
            layers,
            v["model.kv"] * asked.unit / layers,
            v["model.kv"] * asked.tokens,
            indexed * asked.tokens,
            whole / replica,
            room - whole / replica,
            v[f"{asked.gpu}.bandwidth"] * v["serving.bandwidth_share"],
            v["serving.prefill"] * v[f"{asked.gpu}.compute"] / (2.0 * v["model.active"]),
        )


def outcome(name: str, asked: Asked, v: Mapping[str, float]) -> Outcome:
    """What a rival does for the question."""
    tier = bought(name, asked.budget, asked.gpu, asked.dpu, v)
    if tier.note:
        return Outcome(name, note=tier.note)
    gpu = _Gpu.of(asked, v)
    serve = _prefix if asked.use == "prefix" else _decode
    sessions, rate, stall_s, bound, note = serve(name, asked, tier, gpu, v)
    usd_per_s = (v[f"{asked.gpu}.hour"] + tier.usd / v["serving.life"]) / 3_600.0
    return Outcome(
        name,
        sessions,
        rate,
        rate / usd_per_s,
        rate / (v[f"{asked.gpu}.power"] + tier.watts),
        stall_s if sessions else math.inf,
        tier.capacity / tier.usd if tier.usd else 0.0,
        bound,
        note,
    )


_Served = tuple[int, float, float, str, str]


def _decode(name: str, asked: Asked, tier: Bought, gpu: _Gpu, v: Mapping[str, float]) -> _Served:
    """Sessions, tokens a second, a token's wait of the 99th percentile, what bounds, a note."""
    pool = 0.0 if name == HBM else gpu.layers * asked.pool * asked.k * gpu.row
    held = gpu.index + (gpu.session if name == HBM else pool)
    most = {
        "users": asked.users,
        "HBM": math.floor(gpu.room / held),
        "capacity": asked.users if name == HBM else math.floor(tier.capacity / gpu.session),
    }
    bound = min(most, key=lambda one: most[one])

    def step(sessions: int, deviations: float) -> tuple[float, float]:
        return _step(name, asked, tier, gpu, v, sessions, deviations)

    sessions = _most(most[bound], lambda one: sum(step(one, 0.0)) <= asked.pace_s)
    if sessions < most[bound]:
        bound = "pace"
    if not sessions:
        return 0, 0.0, math.inf, bound, f"not one session: {bound}"
    return sessions, sessions / sum(step(sessions, 0.0)), step(sessions, P99)[1], bound, ""


def _most(limit: int, keeps: Callable[[int], bool]) -> int:
    """The greatest count up to a limit that keeps the pace: a step of more sessions is longer."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle - 1)
    return low


def _step(
    name: str,
    asked: Asked,
    tier: Bought,
    gpu: _Gpu,
    v: Mapping[str, float],
    sessions: int,
    deviations: float,
) -> tuple[float, float]:
    """Seconds of the GPU, and seconds that it waits, for one token of all sessions."""
    selected = gpu.layers * asked.k * gpu.row
    busy = (gpu.weights + sessions * (selected + gpu.index)) / gpu.read
    if name == HBM:
        return busy, 0.0
    mean = sessions * asked.k * v["stream.missed"]
    rows = mean + deviations * math.sqrt(sessions) * asked.k * v["stream.spread"]
    hidden = v["rivals.overlap"] * busy / gpu.layers
    if name == DPU:
        layer = _staged(asked, tier, gpu, v, sessions, rows, busy / gpu.layers)
    else:
        layer = _demanded(tier, gpu, v, rows, 1.0)
    return busy, gpu.layers * max(0.0, layer - hidden)


def _reads(tier: Bought, gpu: _Gpu, v: Mapping[str, float], rows: float) -> tuple[float, float]:
    """Reads and bytes of so many rows: whole granules, which neighbours share if larger."""
    if tier.granule > 2.0 * gpu.row:
        together = v["stream.pages"] / v["stream.missed"] if v["stream.missed"] else 1.0
        return rows * together, rows * together * tier.granule
    return rows, rows * math.ceil(gpu.row / tier.granule) * tier.granule


def _demanded(tier: Bought, gpu: _Gpu, v: Mapping[str, float], rows: float, share: float) -> float:
    """Seconds until a layer has its rows, with a share of the reads a second."""
    if rows <= 0:
        return 0.0
    reads, size = _reads(tier, gpu, v, rows)
    work = max(
        size / (tier.rate * share),
        reads / (tier.iops * share),
        reads * tier.wait_s / tier.under_way,
    )
    some = 1.0 - math.exp(-rows)  # a layer of which no session misses anything does not wait
    return some * tier.slowest_s + work


def _staged(
    asked: Asked,
    tier: Bought,
    gpu: _Gpu,
    v: Mapping[str, float],
    sessions: int,
    rows: float,
    least_s: float,
) -> float:
    """Seconds until a layer has its rows from a DPU that reads ahead of it."""
    link_s = v[f"{asked.dpu}.latency"]
    link = min(v[f"{asked.gpu}.link"], v[f"{asked.dpu}.link"] / v["rival-dpu.shares"])
    arena = sessions * gpu.layers * ARENA_OVER_K * asked.k * gpu.row
    memory = v["rival-dpu.memory"] / v["rival-dpu.shares"]
    reads, size = _reads(tier, gpu, v, sessions * asked.k * v["stream.ahead"])
    needed_s = max(size / tier.rate, reads / tier.iops)
    always = v["stream.unstaged"] / v["stream.missed"] if v["stream.missed"] else 0.0
    over_link = link_s + rows * gpu.row / link
    wait = max(over_link, _demanded(tier, gpu, v, rows, 1.0))  # without reading ahead
    for _ in range(3):  # a longer step leaves more time to read ahead, and settles at once
        layer_s = least_s + wait
        fits = min(1.0, memory / arena, AHEAD_SHARE * layer_s / needed_s if needed_s else 1.0)
        late = rows * (1.0 - fits * (1.0 - always))
        left = 1.0 - needed_s * fits / layer_s
        wait = min(wait, max(over_link, _demanded(tier, gpu, v, late, left)))
    return wait


def _prefix(name: str, asked: Asked, tier: Bought, gpu: _Gpu, v: Mapping[str, float]) -> _Served:
    """The same where contexts wait in the tier between turns. A token's wait is the turn's."""
    answer = v["workload.answer"]
    room = math.floor(gpu.room / gpu.session)
    if not room:
        return 0, 0.0, math.inf, "HBM", "not one session: HBM"
    # A trace's reuse is a share of all it asks for; without one, a turn has new tokens.
    old = asked.tokens * (1.0 if asked.reuse else 1.0 - 1.0 / asked.turns)
    live = 2.0 if name == HBM else 1.0  # without a tier half of HBM keeps what waits
    kept = (gpu.room / live if name == HBM else tier.capacity) / gpu.session
    held = v["workload.prefix"] * _held(asked, min(1.0, kept / asked.users))
    batch = max(1.0, room / live)
    token_s = (gpu.weights / batch + gpu.session) / gpu.read
    gpu_s = at.prefill_s(asked.tokens - old * held, gpu.prefill) + answer * token_s
    fetch_s = old * held * v["model.kv"] / tier.rate if math.isfinite(tier.rate) else 0.0
    most = min(1.0 / gpu_s, BUSY_MAX / fetch_s if fetch_s else math.inf)
    wanted = asked.users / (v["workload.gap"] + answer * v["workload.pace"])
    turns = min(wanted, most)
    bound = "users" if turns == wanted else "GPU" if most * gpu_s > 1 - 1e-9 else "rate"
    sessions = min(asked.users, math.ceil(turns / wanted * asked.users))
    stall_s = _queued(fetch_s, turns) + (tier.slowest_s if fetch_s else 0.0)
    return sessions, turns * (asked.tokens + answer), stall_s, bound, ""


def _held(asked: Asked, kept: float) -> float:
    """Share of an endless place's hits that one with a share of all contexts has."""
    if not asked.reuse:
        return kept
    sizes, hits = zip((0.0, 0.0), *asked.reuse, strict=True)
    return float(np.interp([kept], np.array(sizes), np.array(hits))[0])


def _queued(service_s: float, per_s: float) -> float:
    """The 99th percentile of wait and service of M/D/1, within 20 %."""
    load = min(BUSY_MAX, service_s * per_s)
    if load <= 0.01:
        return service_s
    mean = load * service_s / (2.0 * (1.0 - load))
    return service_s + mean / load * math.log(100.0 * load)
