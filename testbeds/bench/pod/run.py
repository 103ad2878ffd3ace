"""`offstage bench pod`: the cost of each fault of a live pod, phase after phase under one load.

The first phase has no fault and is the reference of all others, which send the same requests:
the cost of a fault is the difference, request by request. After each fault the pod is restored
and filled again outside of any phase.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import msgspec

from offstage.bindings.errors import BadInput
from offstage.host.endpoint import Endpoint
from offstage.testbeds.beds import pod as beds
from offstage.testbeds.beds.local import TENANT, DaemonSizes
from offstage.testbeds.bench.pod.asks import CHUNK_TOKENS, Ask, Documents
from offstage.testbeds.bench.pod.faults import LivePod, Watch
from offstage.testbeds.bench.pod.host import PAYLOAD_BYTES, Board, Host
from offstage.testbeds.bench.pod.judge import judged
from offstage.testbeds.bench.pod.result import PodResult
from offstage.testbeds.progress import Progress

__all__ = ["HOSTS", "OF_ETCD", "PHASES", "bench_pod", "hosts_of", "live_pod", "under_load"]

HOSTS = 2
PHASES = (
    ("none", ""),
    ("death", "dpu1"),
    ("stop", "dpu2"),
    ("join", "dpu4"),
    ("drain", "dpu0"),
    ("etcd", "etcd0"),
    ("etcd", "etcd1"),
    ("etcd", "etcd2"),
    ("quorum", "etcd0,etcd1"),
)
OF_ETCD = ("etcd", "quorum")
STRUCK = 0.25
"""The share of a phase after which the fault is injected."""
ETCD_AGAIN = 0.5
"""The share after which a member of etcd is restarted."""
WHOLE_S = 30.0
LOOK_S = 0.02
SLOTS = 4096
STORE_BYTES = 256 << 20
SHARD_CHUNKS = 8
SESSIONS = 512


def bench_pod(
    *,
    folder: Path,
    seconds: float,
    rate_hz: float,
    deadline_s: float,
    seed: int,
    phases: Sequence[str],
    progress: Progress,
) -> PodResult:
    """Each phase takes `seconds`, with `rate_hz` requests a second over all hosts. `folder`
    contains stores and logs. BadInput: an unknown phase, or no etcd for its phases."""
    known = {fault for fault, _ in PHASES} - {"none"}
    if unknown := set(phases) - known:
        raise BadInput(
            f"unknown faults: {', '.join(sorted(unknown))}",
            "bench pod",
            f"choose one of {', '.join(sorted(known))}",
        )
    documents, board = Documents(seed), Board()
    with live_pod(folder, board) as (live, watch), hosts_of(live, deadline_s, board) as hosts:
        progress.start("fill", len(documents.all), "documents")
        _fill(hosts, documents, "fill", board, progress)
        for fault, member in PHASES:
            chosen = fault == "none" or fault in phases
            if not chosen or (fault in OF_ETCD and "etcd0" not in live.bed.processes):
                continue
            if board.broken:
                break
            name = f"{fault} {member}".strip()
            asks = documents.asks(name, seconds, rate_hz)
            live.prepare(fault, member)
            progress.start(name if member else "no fault", len(asks), "requests")
            _phase(live, hosts, name, asks, seconds, progress)
            _made_whole(live, hosts, documents, progress)
        with_etcd = "etcd0" in live.bed.processes
    return msgspec.structs.replace(
        judged(board, live.done, watch.looks, deadline_s),
        seconds=seconds,
        rate_hz=rate_hz,
        hosts=HOSTS,
        seed=seed,
        with_etcd=with_etcd,
    )


@contextmanager
def live_pod(
    folder: Path, board: Board, stored_bytes: int = STORE_BYTES
) -> Iterator[tuple[LivePod, Watch]]:
    """Four daemons, each with the given room, and three members of etcd if it is installed; they
    end with the block."""
    sizes = DaemonSizes(
        payload_bytes=PAYLOAD_BYTES,
        layers=1,
        block_tokens=CHUNK_TOKENS,
        slots=SLOTS,
        window_tokens=CHUNK_TOKENS,
        context_tokens=SHARD_CHUNKS * CHUNK_TOKENS * 8,
        stored_bytes=stored_bytes,
        sessions=SESSIONS,
    )
    bed = beds.up(folder, sizes)
    try:
        watch = Watch(bed.place, board)
        try:
            yield LivePod(bed, sizes, board), watch
        finally:
            watch.close()
    finally:
        for name, pid in bed.processes.items():
            if beds.runs(pid, name):
                os.kill(pid, signal.SIGCONT)
        beds.end(bed)


@contextmanager
def hosts_of(
    live: LivePod, deadline_s: float, board: Board, count: int = HOSTS
) -> Iterator[list[Host]]:
    """Hosts at all members, which log out with the block."""
    link = Endpoint("", TENANT, "shm")
    with ExitStack() as stack:
        hosts = []
        for number in range(count):
            hosts.append(
                Host(f"host{number}", live.bed.place, live.bed.runtime_dir, link, deadline_s, board)
            )
            stack.callback(hosts[-1].close)
        yield hosts


def under_load(
    hosts: Sequence[Host],
    phase: str,
    asks: Sequence[Ask],
    board: Board,
    progress: Progress,
    during: Sequence[tuple[float, Callable[[], None]]] = (),
) -> None:
    """All hosts send requests, the next free host each; `during` runs at its seconds since the
    beginning. A host that ends by an unexpected error is on the board as broken, and the run
    fails."""
    left, lock, begin_s = iter(enumerate(asks)), threading.Lock(), board.now_s()

    def given() -> tuple[int, Ask] | None:
        with lock:
            return next(left, None)

    threads = [
        threading.Thread(target=one.run, args=(phase, given, begin_s), daemon=True) for one in hosts
    ]
    for thread in threads:
        thread.start()
    to_do, told = list(during), len(board.samples)
    while to_do or any(thread.is_alive() for thread in threads):
        if to_do and board.now_s() >= begin_s + to_do[0][0]:
            to_do.pop(0)[1]()
        time.sleep(LOOK_S)
        now = len(board.samples)
        progress.advance(now - told)
        told = now
        if now:
            progress.note(f"{board.now_s() - begin_s:.0f} s")


def _fill(
    hosts: Sequence[Host], documents: Documents, phase: str, board: Board, progress: Progress
) -> int:
    """Every document once; returns how many known blocks were missed."""
    begun = len(board.samples)
    under_load(hosts, phase, [Ask(0.0, one) for one in documents.all], board, progress)
    return sum(sum(one.misses.values()) for one in board.samples[begun:])


def _phase(
    live: LivePod,
    hosts: Sequence[Host],
    name: str,
    asks: Sequence[Ask],
    seconds: float,
    progress: Progress,
) -> None:
    """Inject the fault under load; undo at the end whatever needs it."""
    fault, _, member = name.partition(" ")
    during: list[tuple[float, Callable[[], None]]] = []
    if member:
        live.board.mark(member)
        during = [(STRUCK * seconds, partial(live.strike, fault, member))]
        if fault in OF_ETCD:
            during.append((ETCD_AGAIN * seconds, partial(live.heal, fault, member)))
    before = live.board.moved_blocks()
    under_load(hosts, name, asks, live.board, progress, during)
    after = live.board.moved_blocks()
    live.board.phases[name] = after[0] - before[0], after[1] - before[1]
    if member and fault not in OF_ETCD:
        live.heal(fault, member)
    live.board.mark("")


def _made_whole(
    live: LivePod, hosts: Sequence[Host], documents: Documents, progress: Progress
) -> None:
    """Wait until all hosts send to all members and those have all blocks. A timeout is on the
    board as broken."""
    until_s = live.board.now_s() + WHOLE_S
    there = {name for name in live.bed.processes if name.startswith("dpu")}
    progress.start("refill", 1, "")
    while not live.board.broken:
        missed = _fill(hosts, documents, "refill", live.board, progress)
        if not missed and all(one.members() == there for one in hosts):
            return
        if live.board.now_s() > until_s:
            seen = {one.name: sorted(one.members()) for one in hosts}
            live.board.broken.append(
                f"the pod does not become whole again: {missed} blocks missing, {seen}"
            )
        time.sleep(LOOK_S)
