"""`offstage bench schedule`: the choice of host for a request, in a live pod and in virtual time.

The requests of a trace, compressed in time, go to four hosts and a pod of four daemons. A router
assigns them (`lab.pod.router`, the laboratory's); a host keeps the blocks of its last requests,
fetches the rest of the prefix from the pod as far as it is there, waits for the computing time of
the remainder, and puts that. Only computing is a wait: bytes are fetched, kept and compared.

The same requests then run in the laboratory, with one number from here: the time of a block from
the tier, of the first arm. All other arms test the prediction.

One thread routes and owns the rows; hosts are threads that report lookups and completions.
"""

import heapq
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.units import format_count, format_size, format_time
from offstage.host.decode.schedule import KINDS, Rule, Schedule
from offstage.host.endpoint import Endpoint
from offstage.host.link.tier_sessions import append_chunks
from offstage.host.request_record import Found
from offstage.testbeds.beds.local import TENANT, LocalBed
from offstage.testbeds.bench.pod.faults import LivePod
from offstage.testbeds.bench.pod.host import PAYLOAD_BYTES, Acked, Board, Host, Sample, content
from offstage.testbeds.bench.pod.run import live_pod
from offstage.testbeds.bench.rows import BenchResult
from offstage.testbeds.lab.pod.point_figures import Served, served
from offstage.testbeds.lab.pod.requests import Requests, requests_of, scaled, trace_notes
from offstage.testbeds.lab.pod.router import Later, Router, Taken
from offstage.testbeds.lab.pod.run import simulate
from offstage.testbeds.lab.pod.spec import PodSpec, Point
from offstage.testbeds.progress import Progress
from offstage.testbeds.table import Column, Table
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS

__all__ = ["DAEMONS", "HOSTS", "Arm", "ScheduleResult", "bench_schedule"]

HOSTS, DAEMONS = 4, 4
DEADLINE_S = 5.0
"""No faults here: slow answers are waited for."""
STORE_SHARE = 2
"""Room of one daemon over its share of all blocks of all arms."""
STORE_LEAST = 64 << 20
LOOK_S = 0.2
SWITCH_S = 2e-4
"""How long a thread may keep Python's lock from another; 5 ms would distort the figures."""
ARM_BITS = 33
"""Names of blocks begin with the arm's number, so that each arm begins with an empty tier."""


class Arm(msgspec.Struct, frozen=True):
    """One schedule under one load, live and in virtual time."""

    schedule: str
    load: str
    live: Served
    lab: Served


class ScheduleResult(BenchResult, kw_only=True):
    """Every arm, and how it was measured."""

    trace: str
    requests: int
    seconds: float
    compression: float
    saturated: float
    kept_blocks: int
    hosts: int = HOSTS
    daemons: int = DAEMONS
    block_bytes: int = PAYLOAD_BYTES
    blocks_distinct: int
    block_ms: float
    look_ms: float
    look_cpu_ms: float
    prefill_tokens_per_s: int
    arms: list[Arm]

    def about(self) -> list[str]:
        return [
            f"live on loopback: {self.daemons} daemons, {self.hosts} hosts that each keep "
            f"{self.kept_blocks:,} blocks of 512 tokens ({format_size(self.block_bytes)} "
            f"here); asking for a block took {self.look_ms:.2f} ms, of that "
            f"{self.look_cpu_ms:.2f} ms of the host's processor, and fetching it "
            f"{self.block_ms:.2f} ms",
            f"{self.requests:,} requests of {self.trace}, {self.compression:.2f} s of "
            f"it in one second, and {self.saturated:g} times as many; computing is a wait, of "
            f"{self.prefill_tokens_per_s:,} tokens/s a host; seed {self.seed}",
        ]

    def own_tables(self) -> list[Table]:
        """Live, and in the laboratory below it."""
        columns = [
            Column("load, schedule", left=True),
            Column("", left=True),
            Column("hit", _share),
            Column("kept", _share),
            Column("first token p50", _ms),
            Column("p99", _ms),
            Column("refused", format_count),
        ]
        rows = [
            [name, side, one.hit, one.pool_hit, one.first_ms_p50, one.first_ms_p99, one.refused]
            for arm in self.arms
            for name, side, one in (
                (f"{arm.load}, {arm.schedule}", "live", arm.live),
                ("", "lab", arm.lab),
            )
        ]
        return [Table.of(columns, rows)]


def _share(value: float) -> str:
    return f"{value:.1%}"


def _ms(value: float) -> str:
    return format_time(1e6 * value)


@dataclass(frozen=True)
class _Looked:
    """A host knows its computing work: `run` blocks were kept or fetched."""

    request: int
    run: int


@dataclass(frozen=True)
class _Done:
    """The first token was computed."""

    request: int


_Said = _Looked | _Done


@dataclass(frozen=True)
class _Given:
    """A host's next request."""

    taken: Taken
    tokens: int
    chunks: tuple[int, ...]


class _KeepingHost(Host):
    """Serves one request after another, in the order in which they were assigned."""

    def __init__(
        self,
        name: str,
        place: str,
        runtime_dir: Path,
        board: Board,
        room: int,
        compute_s: float,
    ) -> None:
        """`room`: blocks that it keeps; `compute_s`: time of one token."""
        super().__init__(name, place, runtime_dir, Endpoint("", TENANT, "shm"), DEADLINE_S, board)
        self._room, self._compute_s = room, compute_s
        self._kept: OrderedDict[int, NDArray[np.uint8]] = OrderedDict()
        self.looked: list[tuple[float, int]] = []
        """The time of the pod's lookup and the number of blocks, by request."""
        self.worked: list[tuple[float, int]] = []
        """The same, of this thread's processor time."""
        self.fetched: list[tuple[float, int]] = []
        """The time of each fetch, and its number of blocks."""
        self.unfound = 0

    def serve(self, given: SimpleQueue[_Given | None], told: SimpleQueue[_Said]) -> None:
        """Serve until it is given None, reporting each step. Keeps nothing from an earlier run."""
        self._told = told
        self._kept.clear()
        try:
            while (one := given.get()) is not None:
                self._given = one
                number = one.taken.request
                sample = self._ask("schedule", number, self._board.now_s(), one.chunks)
                self._board.samples.append(sample)
                if sample.error:
                    raise RunFailed(
                        f"request {number}: {sample.error}", self.name, "see the daemons' logs"
                    )
                self._follow()
        except Exception as error:
            self._board.broken.append(f"{self.name}: {type(error).__name__}: {error}")

    def _served(
        self,
        sample: Sample,
        session: int,
        chunks: tuple[int, ...],
        where: list[Acked],
        marked: NDArray[np.bool_],
    ) -> None:
        given, first = self._given, self._given.taken.kept
        asked_s, worked_s = time.monotonic(), time.thread_time()
        found = append_chunks(self._sessions, session, chunks, 1)
        self.looked.append((time.monotonic() - asked_s, len(chunks)))
        self.worked.append((time.thread_time() - worked_s, len(chunks)))
        stored = np.asarray(found.stored_layers) > 0
        self.unfound += sum(
            bool(at) and not there for (at, _), there in zip(where, stored, strict=True)
        )
        came: dict[int, NDArray[np.uint8]] = {}
        begun_s = time.monotonic()
        for one in self._batches(np.flatnonzero(_front(stored, first))):
            rcs = self._fetched(sample, session, chunks, one, found.keys[0])
            good = len(one) if not rcs.any() else int(np.argmax(rcs != 0))
            came.update((chunks[one[at]], self._rows[at].copy()) for at in range(good))
            if good < len(one):
                break
        self.fetched.append((time.monotonic() - begun_s, len(came)))
        sample.hits, run = len(came), first + len(came)
        kept = np.stack([self._kept[one] for one in chunks[:first]]) if first else None
        if kept is not None:
            sample.wrong += int((kept.view(np.uint64) != content(chunks[:first])).any(1).sum())
        self._told.put(_Looked(given.taken.request, run))
        left = given.tokens - min(given.tokens, run * TRACE_BLOCK_TOKENS)
        time.sleep(left * self._compute_s)
        self._told.put(_Done(given.taken.request))
        absent = np.flatnonzero(~stored)
        self._put(sample, session, chunks, absent[absent >= run], where)
        self._keep(chunks, came)

    def _batches(self, some: NDArray[np.intp]) -> Sequence[NDArray[np.intp]]:
        most = self._fabric.demand_max
        return [some[at : at + most] for at in range(0, len(some), most)]

    def _keep(self, chunks: tuple[int, ...], came: Mapping[int, NDArray[np.uint8]]) -> None:
        """As `bindings.caches` does it: each becomes the most recent, in order."""
        for one in chunks:
            if one not in self._kept:
                self._kept[one] = came[one] if one in came else content([one]).view(np.uint8)[0]
            self._kept.move_to_end(one)
            while len(self._kept) > self._room:
                self._kept.popitem(last=False)


def _front(stored: NDArray[np.bool_], first: int) -> NDArray[np.bool_]:
    """The blocks from `first` on that precede the first hole: bool `[blocks]`."""
    front = np.zeros(len(stored), np.bool_)
    front[first:] = np.logical_and.accumulate(stored[first:])
    return front


def bench_schedule(
    *,
    trace: Path,
    requests: int,
    seconds: float,
    saturated: float,
    kept_blocks: int,
    folder: Path,
    seed: int,
    progress: Progress,
    time_unit: str | None = None,
) -> ScheduleResult:
    """The first `requests` of a trace in `seconds`, then `saturated` times as fast, by each
    schedule. `kept_blocks`: of 512 tokens, that each host keeps; `folder`: stores and logs;
    those of an earlier run are deleted. BadInput: no trace of prefixes; RunFailed: a host ended
    by an unexpected error."""
    spec = PodSpec(
        trace=str(trace),
        requests=requests,
        hosts=HOSTS,
        daemons=(DAEMONS,),
        seeds=(seed,),
        drives=1024,
        time_unit=time_unit or "",
    )
    asked = requests_of(spec, 1, seed)
    if len(asked) < 2 or not asked.arrival_ns[-1]:
        raise BadInput(
            "fewer than two requests, or all with one arrival time",
            str(trace),
            "give a longer trace",
        )
    rate = int(asked.arrival_ns[-1]) / 1e9 / seconds
    spec = msgspec.structs.replace(
        spec,
        pool_bytes=kept_blocks * spec.block_bytes,
        prefill_tokens_per_s=round(rate * spec.prefill_tokens_per_s),
    )
    loads = {"as it came": rate, "saturated": rate * saturated}
    room = STORE_SHARE * asked.block_count * len(loads) * len(KINDS) * PAYLOAD_BYTES // DAEMONS
    board = Board()
    LocalBed(folder).clear("pod.toml")  # of an earlier run, with its blocks
    with (
        live_pod(folder, board, max(STORE_LEAST, room)) as (live, _),
        _keeping(live, board, kept_blocks, 1 / spec.prefill_tokens_per_s) as hosts,
    ):
        arms, look_s, worked_s, block_s = _arms(spec, asked, loads, hosts, board, progress)
    return ScheduleResult(
        trace=trace.name,
        requests=len(asked),
        seconds=seconds,
        compression=rate,
        saturated=saturated,
        kept_blocks=kept_blocks,
        seed=seed,
        blocks_distinct=asked.block_count,
        block_ms=block_s * 1e3,
        look_ms=look_s * 1e3,
        look_cpu_ms=worked_s * 1e3,
        notes=trace_notes(spec),
        prefill_tokens_per_s=spec.prefill_tokens_per_s,
        arms=arms,
        verdicts=_verdicts(board, hosts, arms),
    )


def _verdicts(
    board: Board, hosts: Sequence[_KeepingHost], arms: Sequence[Arm]
) -> dict[str, bool | None]:
    answered = sum(one.live.requests - one.live.refused for one in arms)
    return {
        "every_block_right": not any(one.wrong for one in board.samples),
        "every_request_ended": len(board.samples) == answered,
        "every_acknowledged_block_found": not any(one.unfound for one in hosts),
    }


@contextmanager
def _keeping(
    live: LivePod, board: Board, room: int, compute_s: float
) -> Iterator[list[_KeepingHost]]:
    """Hosts that each keep `room` blocks, and compute a token in `compute_s`."""
    place, folder = live.bed.place, live.bed.runtime_dir
    with ExitStack() as stack:
        hosts = []
        for number in range(HOSTS):
            hosts.append(_KeepingHost(f"host{number}", place, folder, board, room, compute_s))
            stack.callback(hosts[-1].close)
        stack.callback(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(SWITCH_S)
        yield hosts


def _arms(
    spec: PodSpec,
    asked: Requests,
    loads: Mapping[str, float],
    hosts: Sequence[_KeepingHost],
    board: Board,
    progress: Progress,
) -> tuple[list[Arm], float, float, float]:
    """Each schedule under each load, live and modelled; the seconds of a block's lookup, those of
    the host's processor for it, and the seconds of its fetch, in the first of them; the model uses
    the last."""
    arms: list[Arm] = []
    look_s = worked_s = block_s = 0.0
    for load, rate in loads.items():
        these = _faster(asked, rate)
        for kind in KINDS:
            progress.start(f"{kind}, {load}", len(these), "requests")
            arm = _LiveArm(spec, kind, these, hosts, len(arms), board)
            arm.run(progress)
            if not arms:
                look_s = _each([one.looked for one in hosts])
                worked_s = _each([one.worked for one in hosts])
                block_s = _each([one.fetched for one in hosts])
                link = max(1, round(spec.block_bytes / block_s))
                spec = msgspec.structs.replace(spec, link_bytes_per_s=link)
            modelled = simulate(spec, Point(DAEMONS, kind, "none", spec.seeds[0]), these, HOSTS)
            met = (served(records) for records in (arm.router.records, modelled.records))
            arms.append(Arm(kind, load, *met))
    return arms, look_s, worked_s, block_s


def _each(hosts: Sequence[Sequence[tuple[float, int]]]) -> float:
    """Seconds per block over all requests; at least a ns."""
    all_s, count = (sum(one[at] for times in hosts for one in times) for at in (0, 1))
    return max(1e-9, all_s / max(1, count))


def _faster(asked: Requests, rate: float) -> Requests:
    """The requests with their times divided by a factor; answers take no time, since nothing
    decodes."""
    return replace(scaled(asked, rate), output_tokens=np.zeros_like(asked.output_tokens))


class _LiveArm:
    """One schedule under one load, on the router's thread."""

    def __init__(
        self,
        spec: PodSpec,
        kind: Schedule,
        requests: Requests,
        hosts: Sequence[_KeepingHost],
        number: int,
        board: Board,
    ) -> None:
        rule = Rule(kind=kind, weight=spec.weight, patience=spec.patience)
        kept = np.full(len(hosts), spec.blocks(spec.pool_bytes), np.int64)
        self.router = Router(rule, requests, kept, spec.active, spec.waiting)
        self._requests, self._hosts, self._board = requests, hosts, board
        self._told: SimpleQueue[_Said] = SimpleQueue()
        self._names = number << ARM_BITS
        self._given: list[SimpleQueue[_Given | None]] = [SimpleQueue() for _ in hosts]
        self._ahead = np.zeros(len(hosts), np.int64)
        """Tokens that each host has still to compute; for those not looked up yet, all but the
        kept ones."""
        self._come: list[Later] = []
        """A heap of the requests that arrive at a known time."""
        self._left: dict[int, int] = {}

    def run(self, progress: Progress) -> None:
        """Run from the first arrival to the last first token. RunFailed: a host ended."""
        threads = [
            threading.Thread(target=host.serve, args=(given, self._told), daemon=True)
            for host, given in zip(self._hosts, self._given, strict=True)
        ]
        for thread in threads:
            thread.start()
        arrival_ns = self._requests.arrival_ns
        self._come = [Later(int(arrival_ns[one]), one) for one in self.router.come]
        heapq.heapify(self._come)
        begun_ns = time.monotonic_ns()
        while (self._come or not self.router.idle) and not self._board.broken:
            now_ns = time.monotonic_ns() - begun_ns
            while self._come and self._come[0].at_ns <= now_ns:
                self._later(self.router.arrived(heapq.heappop(self._come).request))
            while (taken := self.router.begin(now_ns, self._ahead)) is not None:
                self._give(taken)
            wait_s = (self._come[0].at_ns - now_ns) / 1e9 if self._come else LOOK_S
            try:
                said = self._told.get(timeout=max(0.0, min(wait_s, LOOK_S)))
            except Empty:
                continue
            self._heard(said, time.monotonic_ns() - begun_ns, progress)
        for given in self._given:
            given.put(None)
        for thread in threads:
            thread.join()
        if self._board.broken:
            raise RunFailed(self._board.broken[0], "bench schedule", "report this with the seed")

    def _give(self, taken: Taken) -> None:
        tokens = self.router.records[taken.request].input_tokens
        blocks = self._requests.of(taken.request).tolist()
        self._computes(taken.request, taken.host, taken.kept)
        self._given[taken.host].put(
            _Given(taken, tokens, tuple(self._names + one + 1 for one in blocks))
        )

    def _computes(self, request: int, host: int, run: int) -> None:
        """The number of blocks found: the rest is the host's work."""
        tokens = self.router.records[request].input_tokens
        left = tokens - min(tokens, run * TRACE_BLOCK_TOKENS)
        self._ahead[host] += left - self._left.get(request, 0)
        self._left[request] = left

    def _heard(self, said: _Said, now_ns: int, progress: Progress) -> None:
        record = self.router.records[said.request]
        if isinstance(said, _Looked):
            self._computes(said.request, record.host, said.run)
            prefix = min(record.input_tokens, said.run * TRACE_BLOCK_TOKENS)
            behind = Found("tier", prefix - record.found_tokens())
            record.found = [*(record.found or []), behind]
            return
        record.first_token_ns = record.end_ns = now_ns
        self._ahead[record.host] -= self._left.pop(said.request)
        self._later(self.router.ended(said.request, now_ns))
        progress.advance(1)

    def _later(self, turn: Later | None) -> None:
        if turn is not None:
            heapq.heappush(self._come, turn)
