"""The arms of `offstage bench engine`: the same requests with and without the tier.

Each arm has a separate engine, and all share one daemon. All requests are sent once before, so
that the tier has their KV, and its memory a part of it. Between rounds vLLM's cache is
emptied. Arms take turns within a round, idle while another runs, so the machine's noise affects
all of them alike.
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from offstage.testbeds.beds.daemon import Daemon
from offstage.testbeds.bench.engines.arrivals import Arrivals
from offstage.testbeds.bench.engines.bed import (
    WAIT_S,
    Bed,
    Ends,
    Say,
    add,
    check,
    connector,
    daemon,
    forget,
    result_of,
    told,
    warm,
)
from offstage.testbeds.bench.engines.link import End, Engine, engine
from offstage.testbeds.bench.engines.result import Arm, EngineResult

__all__ = ["ARMS", "bench_engine", "play_in_turn"]

ARMS: dict[str, dict[str, object] | None] = {
    "recompute": None,
    "looked up when scheduled": {"prefetch": False, "choose": False},
    "looked up on arrival": {"prefetch": True, "choose": False},
    "fetch or recompute": {"prefetch": True, "choose": True},
}
"""By name: switches of the connector, or none."""


def bench_engine(
    bed: Bed, traffic: Arrivals, *, rounds: int = 3, say: Say = lambda line: None
) -> EngineResult:
    """Times to the first token by arm, and where the tier had what was read. RunFailed: an
    engine does not come up, or its answer differs from the reference."""
    with tempfile.TemporaryDirectory(prefix="offstage-engine-") as made:
        folder = Path(made)
        found = result_of(bed, traffic, rounds, ARMS)
        with daemon(bed, folder) as tier:
            found.storage = tier.storage
            _together(bed, tier, traffic, found, folder, say)
    found.compare()
    return found


def _together(
    bed: Bed, tier: Daemon, traffic: Arrivals, found: EngineResult, folder: Path, say: Say
) -> None:
    expected: dict[int, list[int]] = {}
    with contextlib.ExitStack() as stack:
        engines = {}
        for name, switches in ARMS.items():
            config = None if switches is None else connector(tier, switches)
            log = folder / f"{name.replace(' ', '-')}.log"
            one = engine(bed.python, bed.model, config, bed.arguments, log)
            engines[name] = stack.enter_context(one)
            warm(engines[name])
            _play(
                engines[name], traffic, hurry=True
            )  # fills the tier and the measurements behind the choice
        for number in range(found.rounds):
            for name, one_engine in engines.items():
                _turn(name, one_engine, traffic, found.arms[name], expected)
                middle = statistics.median(found.arms[name].first_s[-len(traffic.requests) :])
                say(f"round {number + 1}, {name}: {middle * 1e3:.0f} ms to the first token")


def _turn(
    name: str, one: Engine, traffic: Arrivals, into: Arm, expected: dict[int, list[int]]
) -> None:
    """One arm in one round."""
    forget(one)
    before = told(one)
    ends = _play(one, traffic)
    check(name, ends, expected)
    add(into, ends, before, told(one))


def _play(one: Engine, traffic: Arrivals, *, hurry: bool = False) -> Ends:
    """Send every request at its time; returns how each ended. `hurry`: send all without waiting."""
    ends: dict[int, End] = {}
    sent: dict[int, float] = {}
    begin_s = time.monotonic()
    for number, request in enumerate(traffic.requests):
        due_s = begin_s + (0.0 if hurry else request.at_s)
        while (left_s := due_s - time.monotonic()) > 0:
            ends |= {end.id: end for end in one.ready(left_s)}
        sent[number] = time.monotonic()
        one.send(id=number, prompt=request.prompt, outputs=request.outputs)
    while len(ends) < len(traffic.requests):
        end = one.answer(End, WAIT_S)
        ends[end.id] = end
    return {number: (sent[number], end) for number, end in ends.items()}


def play_in_turn(one: Engine, traffic: Arrivals, numbers: Iterable[int] | None = None) -> Ends:
    """Send these requests, or all, each when the one before it has ended."""
    ends: Ends = {}
    for number in range(len(traffic.requests)) if numbers is None else numbers:
        request = traffic.requests[number]
        sent_s = time.monotonic()
        one.send(id=number, prompt=request.prompt, outputs=request.outputs)
        ends[number] = sent_s, one.answer(End, WAIT_S)
    return ends
