"""Every fabric of this machine against its reference: the part `links` of `offstage bench fabric`.

A fabric runs between two processes: a daemon with blocks of one size staged, and a host. Measured
is one read (latency) and a batch of reads begun together (bandwidth), in turns with the floor:

* `shm`: one-sided reads, unchecked, against memcpy of as many bytes in C;
* `nixl` (UCX's own choice, on one machine process_vm_readv) and `nixl-tcp`: the same against a bare
  NIXL loop of the same size and batch between two other processes, over prepared requests;
* `verbs`: the same against perftest's reads, over the machine's adapter;
* `zmq`: a fetch of staged blocks by message, against a plain ZMQ echo of as many bytes.

And for all a fetch of the batch as a host makes it: looked up, read, checked, from Python. Each
fabric's host is a separate process, because UCX reads its environment once.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import zmq
from numpy.typing import NDArray

from offstage.bindings import nixl, verbs
from offstage.bindings.driver import Driver
from offstage.bindings.errors import BadInput, OffstageError, RunFailed
from offstage.bindings.fabric import FetchRequest, PutRequest
from offstage.bindings.floors import memcpy_times
from offstage.bindings.keys import block_keys
from offstage.bindings.outside import said_json
from offstage.bindings.units import format_size
from offstage.host.fabrics import Fabric
from offstage.host.link.control import Control
from offstage.testbeds.beds.daemon import serve
from offstage.testbeds.beds.said import Lines, ask
from offstage.testbeds.bench.perftest import Perftest
from offstage.testbeds.bench.rows import BenchResult, Row, aimed

__all__ = ["LINKS", "LinkFigures", "LinksResult", "bench_links", "line_rate", "rows_of"]

KIB, MIB = 1 << 10, 1 << 20
PAGE = 4096
ARENA_BYTES = 64 * MIB
BATCH = 32
TIMEOUT_S = 600
PATIENCE_NS = 120_000_000_000  # an emulated processor copies a few megabytes a second
BANDWIDTH_MIN, LATENCY_MAX = 0.86, 1.3  # of nixl and verbs, at 64 KiB
AIM_BYTES = 64 * KIB
INFINIBAND = Path("/sys/class/infiniband")

Say = Callable[[str], None]
Times = Callable[[int, int], NDArray[np.uint64]]
"""ns of each round: (reads in a round, rounds)."""

# By name: the fabric, and what its two processes have in their environment.
LINKS: dict[str, tuple[str, dict[str, str]]] = {
    "shm": ("shm", {}),
    "zmq": ("zmq", {}),
    "nixl": ("nixl", {}),
    "nixl-tcp": ("nixl", {"UCX_TLS": "tcp"}),
    "verbs": ("verbs", {}),
}


class LinkFigures(msgspec.Struct, frozen=True):
    """One link and block size: medians over the rounds of ours and of the floor. A ratio is that of
    a turn, with its least and largest. `line_bytes_per_s`: of the port of a NIC; None: the link is
    none."""

    link: str
    block_bytes: int
    latency_ns: float
    floor_latency_ns: float
    latency_ratio: float
    latency_ratio_range: tuple[float, float]
    bytes_per_s: float
    floor_bytes_per_s: float
    bandwidth_ratio: float
    bandwidth_ratio_range: tuple[float, float]
    fetch_ns: float
    line_bytes_per_s: float | None = None


class LinksResult(BenchResult, kw_only=True):
    """Every link and size, against its own floor."""

    links: list[LinkFigures]
    aim_bytes: int = AIM_BYTES
    batch: int = BATCH
    rounds: int

    def about(self) -> list[str]:
        return [
            f"measured between two processes of one machine, medians of {self.rounds} turns, "
            f"seed {self.seed}; "
            "floors: memcpy (shm), a plain echo of as many bytes (zmq), a bare NIXL loop (nixl, "
            "nixl-tcp); a fetch is looked up, read and checked, from Python",
        ]


def bench_links(
    links: tuple[str, ...] = (),
    block_bytes: tuple[int, ...] = (4 * KIB, AIM_BYTES),
    rounds: int = 9,
    seed: int = 1,
    say: Say = lambda line: None,
) -> LinksResult:
    """A row for each link and size; without `links`, all that this machine has. BadInput:
    unknown link, or its library is missing."""
    unknown = [name for name in links if name not in LINKS]
    if unknown:
        raise BadInput(
            f"unknown link {unknown[0]!r}", "bench fabric", f"choose one of {', '.join(LINKS)}"
        )
    wanted = links or tuple(name for name in LINKS if _is_here(LINKS[name][0]))
    for fabric in {LINKS[name][0] for name in wanted}:
        if fabric == "nixl":
            nixl.load()
        if fabric == "verbs":
            Perftest(verbs.prepare(verbs.Rdma()), AIM_BYTES)
    found = []
    for name in wanted:
        for size in block_bytes:
            found.append(row := _in_a_process(name, size, rounds, seed))
            say(
                f"{name} {size // KIB} KiB: read {row.latency_ns / 1e3:.1f} us, "
                f"{row.latency_ratio:.2f} of its floor; {BATCH} together "
                f"{row.bytes_per_s / 1e9:.2f} GB/s, {row.bandwidth_ratio:.2f}"
            )
    rows = [row for one in found for row in rows_of(one)]
    return LinksResult(links=found, rows=rows, rounds=rounds, seed=seed)


def _is_here(fabric: str) -> bool:
    if fabric != "verbs":
        return fabric != "nixl" or nixl.find() is not None
    try:
        verbs.prepare(verbs.Rdma())
    except OffstageError:
        return False
    return True


def rows_of(one: LinkFigures) -> list[Row]:
    """One read, a batch of them, and a fetch. The aims are those of RDMA-like links at 64 KiB."""
    name = f"{one.link} {format_size(one.block_bytes)}"
    held = LINKS[one.link][0] in ("nixl", "verbs") and one.block_bytes == AIM_BYTES
    return [
        Row(
            f"{name} one read",
            "ns",
            one.latency_ns,
            one.floor_latency_ns,
            one.latency_ratio,
            aimed(one.latency_ratio, "<=", LATENCY_MAX) if held else None,
        ),
        Row(
            f"{name} {BATCH} together",
            "bytes/s",
            one.bytes_per_s,
            one.floor_bytes_per_s,
            one.bandwidth_ratio,
            aimed(one.bandwidth_ratio, ">=", BANDWIDTH_MIN) if held else None,
        ),
        *_of_line(f"{name} {BATCH} together, of the NIC's line rate", one),
        Row(f"{name} a fetch of {BATCH}", "ns", one.fetch_ns),
    ]


def _of_line(text: str, one: LinkFigures) -> Iterator[Row]:
    if one.line_bytes_per_s is not None:
        share = one.bytes_per_s / one.line_bytes_per_s
        yield Row(text, "bytes/s", one.bytes_per_s, one.line_bytes_per_s, share)


def _in_a_process(name: str, size: int, rounds: int, seed: int) -> LinkFigures:
    code = "from offstage.testbeds.bench.links import run_one; run_one()"
    where, fix = f"bench fabric, link {name}", "give fewer --rounds, or run `offstage doctor`"
    said, complaint = ask(
        [sys.executable, "-c", code],
        where,
        fix,
        TIMEOUT_S,
        given=json.dumps([name, size, rounds, seed]),
        environ={**os.environ, **LINKS[name][1]},
    )
    line = said.strip().rpartition(b"\n")[2]
    return said_json(line, complaint, where, fix, LinkFigures)


def run_one() -> None:
    """One link and size, read from standard input; the row is written to standard output."""
    name, size, rounds, seed = json.loads(sys.stdin.read())
    with tempfile.TemporaryDirectory() as folder, _attached(Path(folder), name, size) as host:
        control, fabric = host
        fetch = _staged(control, fabric, size, seed)
        with _ends(name, fabric, size, fetch) as (ours, floor):
            row = _row(name, ours, floor, fetch, size, rounds)
        if name == "verbs":
            adapter = verbs.prepare(verbs.Rdma())
            line = line_rate(adapter.device, adapter.port)
            row = msgspec.structs.replace(row, line_bytes_per_s=line)
    print(msgspec.json.encode(row).decode(), flush=True)


def line_rate(device: str, port: int, devices: Path = INFINIBAND) -> float | None:
    """Bytes/s that the port's link signals, as the kernel tells it (`100 Gb/sec (4X EDR)`, less
    coding). None: the adapter is no device of a bus, as soft RoCE is none, or it tells no rate."""
    folder = devices / device
    try:
        rate = (folder / f"ports/{port}/rate").read_text(encoding="ascii").partition(" Gb/sec")
        gigabits = float(rate[0]) if rate[1] and (folder / "device").exists() else 0.0
    except (OSError, ValueError):
        return None
    return gigabits * 1e9 / 8 if gigabits > 0 else None


@contextmanager
def _attached(folder: Path, name: str, size: int) -> Iterator[tuple[Control, Fabric]]:
    sections = {
        "daemon": {
            "endpoint": f"ipc://{folder}/control",
            "runtime_dir": str(folder / "run"),
            "metrics_endpoint": "",
            "nixl": LINKS[name][0] == "nixl",
            "fabric_endpoint": "tcp://127.0.0.1:*",
        },
        "rdma": {"enabled": LINKS[name][0] == "verbs"},
        "arena": {"size": ARENA_BYTES, "payload": size, "layers": 1, "block_tokens": 16},
        "storage": {"backend": "emulated", "size": 4 * ARENA_BYTES},
        "limits": {"demands": 2 * BATCH, "put_slots": BATCH, "context_tokens": 65536},
        "tenant": [{"name": "bench"}],
    }
    with serve(sections, folder) as tier, tier.at(fabric=LINKS[name][0]).attached() as host:
        yield host


def _staged(control: Control, fabric: Fabric, size: int, seed: int) -> Times:
    """Write and fetch some blocks, so that all of them are hits; returns the function that
    fetches a batch of them."""
    count = 8 * BATCH
    session = control.session_open(select_blocks=count)
    reply = control.append(session, [i.to_bytes(16, "little") for i in range(count)])
    keys = block_keys(reply.keys, 1)[0]
    source = np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)
    target = np.zeros((count, size), np.uint8)
    fabric.register(target)
    ordinals = np.arange(count, dtype=np.uint32)
    put = fabric.put_begin(PutRequest(session, 0, ordinals, source, timeout_ns=PATIENCE_NS))
    if fabric.put_end(put).any():
        raise RunFailed("blocks could not be written", "bench fabric", "see the daemon's log")
    step = 0

    def fetch(batch: int, rounds: int) -> NDArray[np.uint64]:
        nonlocal step
        times = np.zeros(rounds, np.uint64)
        for number in range(rounds):
            first = number * batch % (count - batch + 1)
            some = ordinals[first : first + batch]
            few = np.ascontiguousarray(keys[first : first + batch])
            step += 1
            start = time.perf_counter_ns()
            one = fabric.fetch_begin(
                FetchRequest(session, step, 0, some, few, target, timeout_ns=PATIENCE_NS)
            )
            done = fabric.fetch_end(one)
            times[number] = time.perf_counter_ns() - start
            if done.rcs.any():
                raise RunFailed("a staged block did not arrive", "bench fabric", "see its errno")
        return times

    fetch(count, 2)
    if not np.array_equal(target, source):
        raise RunFailed("a block arrived with different bytes", "bench fabric", "report this")
    return fetch


def _row(name: str, ours: Times, floor: Times, fetch: Times, size: int, rounds: int) -> LinkFigures:
    """Medians over the rounds of each turn's medians; ratios are those of a turn, with their
    least and largest."""
    turns = []
    slow = ours is fetch or isinstance(floor, Perftest)  # a message for each; processes for each
    for _ in range(rounds + 1):
        turns.append(
            [
                float(np.median(one(batch, (400 if slow else 4000) // batch)))
                for batch in (1, BATCH)
                for one in (ours, floor)
            ]
        )
    one, one_floor, many, many_floor = (list(column) for column in zip(*turns[1:], strict=True))
    latency = [a / b for a, b in zip(one, one_floor, strict=True)]
    bandwidth = [b / a for a, b in zip(many, many_floor, strict=True)]
    batch_bytes = size * BATCH * 1e9
    return LinkFigures(
        link=name,
        block_bytes=size,
        latency_ns=statistics.median(one),
        floor_latency_ns=statistics.median(one_floor),
        latency_ratio=statistics.median(latency),
        latency_ratio_range=(min(latency), max(latency)),
        bytes_per_s=batch_bytes / statistics.median(many),
        floor_bytes_per_s=batch_bytes / statistics.median(many_floor),
        bandwidth_ratio=statistics.median(bandwidth),
        bandwidth_ratio_range=(min(bandwidth), max(bandwidth)),
        fetch_ns=float(np.median(fetch(BATCH, 20 if slow else 200))),
    )


@contextmanager
def _ends(name: str, fabric: Fabric, size: int, fetch: Times) -> Iterator[tuple[Times, Times]]:
    """The measured end of this link, and its floor."""
    if name == "zmq":
        with _echo(size) as floor:
            yield fetch, floor
        return
    assert isinstance(fabric, Driver)
    rows = np.zeros(size * BATCH + PAGE, np.uint8)
    target = rows[-rows.ctypes.data % PAGE :][: size * BATCH]  # as the floor's begins: on a page
    fabric.register(target)

    def ours(batch: int, rounds: int) -> NDArray[np.uint64]:
        return fabric.bench_link(size, batch, rounds, target)

    if name == "shm":
        source = np.ones(ARENA_BYTES, np.uint8)
        yield ours, lambda batch, rounds: memcpy_times(source, size, batch, rounds, target)
        return
    if name == "verbs":
        yield ours, Perftest(verbs.prepare(verbs.Rdma()), size)
        return
    with _nixl_loop(size) as floor:
        yield ours, floor


@contextmanager
def _child(code: str) -> Iterator[str]:
    """A process that runs as long as its standard input is open, and its line of output."""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        line = Lines(process.stdout.fileno()).whole(TIMEOUT_S)
        if not line:
            raise RunFailed(
                "the other end of the loop did not start",
                "bench fabric",
                "see its last line above, or run `offstage doctor`",
            )
        yield line.decode(errors="replace").strip()
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(30)


def _strange(said: str) -> RunFailed:
    return RunFailed(
        f"the other end of the loop printed {said[:80]!r}", "bench fabric", "run `offstage doctor`"
    )


@contextmanager
def _nixl_loop(size: int) -> Iterator[Times]:
    code = f"from offstage.testbeds.bench.links import nixl_target; nixl_target({ARENA_BYTES})"
    with _child(code) as said, nixl.Loop(size * BATCH, target=False) as loop:
        try:
            blob = bytes.fromhex(said)
        except ValueError:
            raise _strange(said) from None
        yield lambda batch, rounds: loop.run(blob, size, batch, rounds)


def nixl_target(size_bytes: int) -> None:
    """The far end of a bare NIXL loop, until standard input ends."""
    with nixl.Loop(size_bytes, target=True) as loop:
        print(loop.export().hex(), flush=True)
        sys.stdin.read()


@contextmanager
def _echo(size: int) -> Iterator[Times]:
    code = f"from offstage.testbeds.bench.links import zmq_target; zmq_target({size})"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with _child(code) as said:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RCVTIMEO, 10_000)
        try:
            socket.connect(said)
        except zmq.ZMQError:
            raise _strange(said) from None

        def floor(batch: int, rounds: int) -> NDArray[np.uint64]:
            times = np.zeros(rounds, np.uint64)
            for number in range(rounds):
                start = time.perf_counter_ns()
                socket.send(batch.to_bytes(4, "little"))
                socket.recv(copy=False)
                times[number] = time.perf_counter_ns() - start
            return times

        try:
            yield floor
        finally:
            context.destroy(linger=0)


def zmq_target(size: int) -> None:
    """Answers a number with that many blocks in one frame, until standard input ends."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    print(f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}", flush=True)
    blocks = memoryview(bytes(size * BATCH))
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(sys.stdin, zmq.POLLIN)
    while sys.stdin.fileno() not in dict(poller.poll()):
        routing, count = socket.recv_multipart()
        part = blocks[: size * int.from_bytes(count, "little")]
        socket.send_multipart([routing, part], copy=False)
    context.destroy(linger=0)
