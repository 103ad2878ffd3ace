"""`offstage bench pod --trace`: a trace's requests, compressed in time, with random faults.

Sharing and arrival times are the trace's; faults come one after another, each for a while, with
pauses between. Verdicts: every block that came was right, and every miss has a reason. Durations
are printed next to the delay with which the requests began.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from offstage.testbeds.bench.pod.asks import Traced
from offstage.testbeds.bench.pod.faults import FAULTS
from offstage.testbeds.bench.pod.host import PAYLOAD_BYTES, Board
from offstage.testbeds.bench.pod.judge import of_run
from offstage.testbeds.bench.pod.result import TraceResult
from offstage.testbeds.bench.pod.run import OF_ETCD, hosts_of, live_pod, under_load
from offstage.testbeds.progress import Progress

__all__ = ["Struck", "bench_hour", "drawn"]

HOSTS = 4
PREPARED_S = 5.0
FIRST_S, PAUSE_S, LASTS_S = 10.0, (8.0, 20.0), (4.0, 15.0)
DAEMONS, ETCD = 4, 3
STORE_SHARE = 2
"""Room of one daemon over its share of all blocks: the others take over those of an absent one."""


@dataclass(frozen=True)
class Struck:
    """A planned fault."""

    at_s: float
    until_s: float
    fault: str
    member: str


def drawn(seed: int, seconds: float, *, with_etcd: bool) -> list[Struck]:
    """The random faults of a run, one at a time: kind, member and duration."""
    rng = np.random.default_rng([seed, 3])
    kinds = [one for one in FAULTS if with_etcd or one not in OF_ETCD]
    found, at_s = [], FIRST_S
    while at_s + LASTS_S[1] < seconds - FIRST_S:
        fault = str(rng.choice(kinds))
        whom = f"dpu{rng.integers(DAEMONS)}"
        if fault == "join":
            whom = f"dpu{DAEMONS}"
        elif fault in OF_ETCD:
            first = int(rng.integers(ETCD))
            whom = f"etcd{first}" + (f",etcd{(first + 1) % ETCD}" if fault == "quorum" else "")
        lasts_s = float(rng.uniform(*LASTS_S))
        found.append(Struck(at_s, at_s + lasts_s, fault, whom))
        at_s += lasts_s + float(rng.uniform(*PAUSE_S))
    return found


def bench_hour(
    traced: Traced, *, folder: Path, deadline_s: float, seed: int, progress: Progress
) -> TraceResult:
    """`folder` contains stores and logs."""
    board = Board()
    distinct = len({chunk for ask in traced.asks for chunk in ask.chunks})
    room = max(64 << 20, STORE_SHARE * distinct * PAYLOAD_BYTES // DAEMONS)
    with (
        live_pod(folder, board, room) as (live, watch),
        hosts_of(live, deadline_s, board, HOSTS) as hosts,
    ):
        faults = drawn(seed, traced.seconds, with_etcd="etcd0" in live.bed.processes)
        during = []
        for one in faults:
            during += [
                (one.at_s - PREPARED_S, partial(live.prepare, one.fault, one.member)),
                (one.at_s, partial(live.strike, one.fault, one.member)),
                (one.until_s, partial(live.heal, one.fault, one.member)),
            ]
        progress.start(f"{traced.trace}, {len(faults)} faults", len(traced.asks), "requests")
        begun_s = board.now_s()
        under_load(hosts, "trace", traced.asks, board, progress, during)
        took_s = board.now_s() - begun_s
    found = of_run(board, live.done, watch.looks, deadline_s)
    filled, found.figures.blocks_copied = board.moved_blocks()
    return msgspec.structs.replace(
        found,
        trace=traced.trace,
        begin_s=traced.begin_s,
        span_s=traced.span_s,
        seconds=took_s,
        compression=traced.span_s / took_s,
        compression_asked=traced.compression,
        seed=seed,
        notes=list(traced.notes),
        hosts=HOSTS,
        blocks_distinct=distinct,
        blocks_filled=filled,
        with_etcd="etcd0" in live.bed.processes,
    )
