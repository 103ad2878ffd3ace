"""`offstage bench prefetch --python`: the moments of a hint in a real engine, from idle to
saturated.

vLLM serves the same requests once for each arm and load. Three engines share one daemon whose
memory is smaller than what it stores: one without the tier, one that looks a prompt up when it is
scheduled, one that does on arrival. A fourth has a daemon with room for everything, which is what
perfect hints could gain. The arms whose hints come from outside use the second engine:

- *router knows*: as a request arrives, the router, which follows the engine's KV events
  (`router`), hints what that engine lacks;
- *on pause*: a turn's request carries vLLM's `kv_hints`: `prefetch` by the end of the pause;
- *before resume*: the router hints as long before the pause's end as computing the prompt takes.

Every prompt is stored before. Before each arm other prompts take the tier's memory, and vLLM's
cache is emptied; after it they do again, so that the ledger knows the fate of all that was hinted.
What computing costs is measured in the same run, by the engine without the tier: it is the deadline
of each load, and sets the speed of arrivals.
"""

import contextlib
import heapq
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import CAUSES
from offstage.bindings.ledger import Ledger
from offstage.testbeds.beds.daemon import Daemon
from offstage.testbeds.bench.engines.arrivals import SPECIAL
from offstage.testbeds.bench.engines.bed import (
    BLOCK,
    WAIT_S,
    Bed,
    Ends,
    Say,
    check,
    connector,
    daemon,
    forget,
    told,
    warm,
)
from offstage.testbeds.bench.engines.link import End, Engine, engine
from offstage.testbeds.bench.engines.moment_result import (
    Cost,
    LiveLoad,
    LiveMoment,
    LivePrefetchResult,
    Loaded,
)
from offstage.testbeds.bench.engines.router import Router
from offstage.testbeds.bench.engines.turns import Turns
from offstage.testbeds.bench.hint_arms import NONE, PERFECT, RECOMPUTE

__all__ = ["ARMS", "PAUSES", "bench_moments"]

NOTHING, SCHEDULED, ARRIVAL, ROOMY = "no tier", "scheduled", "arrival", "roomy"
ARMS = {
    RECOMPUTE: NOTHING,
    NONE: SCHEDULED,
    "on arrival": ARRIVAL,
    "router knows": SCHEDULED,
    "on pause": SCHEDULED,
    "before resume": SCHEDULED,
    PERFECT: ROOMY,
}
"""By name, the engine that runs it."""
PAUSES = ("on pause", "before resume")
ARENA_CONTEXTS = 4
OUTPUTS = 4
COST_ROUNDS = 3
COST_LENGTHS = 4
COLD = {"eviction": "lru"}
TICK_S = 0.002  # between looks at what has ended, while nothing is due


@dataclass
class _Run:
    """The engines of a run, and what is known of it."""

    bed: Bed
    turns: Turns
    tiers: dict[str, Daemon]
    engines: dict[str, Engine]
    router: Router
    fillers: list[list[int]]
    cost: Cost
    expected: dict[int, list[int]] = field(default_factory=dict)


def bench_moments(
    bed: Bed, turns: Turns, loads: Sequence[float], *, seed: int, say: Say = lambda line: None
) -> LivePrefetchResult:
    """Every arm at every load. BadInput: a load that is no speed. RunFailed: an engine does not
    come up, or two arms answer differently."""
    for load in loads:
        if not 0 < load <= 100:
            raise BadInput(f"a load of {load:g}", "--load", "give more than 0, at most 100")
    before = os.getloadavg()[0]
    context = bed.arena_bytes
    small = replace(bed, arena_bytes=ARENA_CONTEXTS * context)
    stored = _stored_blocks(turns) + ARENA_CONTEXTS * (bed.context_tokens // BLOCK)
    whole = context * -(-stored * BLOCK // bed.context_tokens)
    roomy = replace(bed, arena_bytes=max(2 * whole, small.arena_bytes))
    paused = any(one.next >= 0 for one in turns.turns)
    why = "no request is a later turn of a session, so that no pause is known"
    left_out = {} if paused else dict.fromkeys(PAUSES, why)
    with _started(small, roomy, turns, seed, say) as run:
        found = LivePrefetchResult(
            seed=seed,
            provenance="measured" if bed.backend in ("io_uring", "posix") else "emulated",
            storage=run.tiers[SCHEDULED].storage,
            model=bed.model.name,
            trace=turns.trace,
            requests=len(turns.turns),
            scale=turns.scale,
            tokens=[len(one.prompt) for one in turns.turns],
            sessions=sum(one.before < 0 for one in turns.turns),
            arena_bytes=small.arena_bytes,
            stored_bytes=whole,
            engine_tokens=int(str(bed.arguments["num_gpu_blocks_override"])) * BLOCK,
            cost=run.cost,
            loads=[],
            left_out=left_out,
            load_before=before,
        )
        for load in sorted(loads):
            speed = turns.speed(load, run.cost.of)
            one = LiveLoad(load=load, speed=speed)
            for arm in ARMS:
                if arm not in left_out:
                    one.moments.append(_arm(run, arm, speed))
                    mean = statistics.mean(one.moments[-1].first_s)
                    say(f"load {load:g}, {arm}: {mean * 1e3:.0f} ms to the first token")
            one.compare()
            found.loads.append(one)
    return found


def _stored_blocks(turns: Turns) -> int:
    """Different blocks of all prompts."""
    seen = set()
    for one in turns.turns:
        name = 0
        for at in range(0, len(one.prompt) - BLOCK + 1, BLOCK):
            name = hash((name, *one.prompt[at : at + BLOCK]))
            seen.add(name)
    return len(seen)


@contextlib.contextmanager
def _started(small: Bed, roomy: Bed, turns: Turns, seed: int, say: Say) -> Iterator[_Run]:
    """Daemons, engines and router; every prompt is stored and what computing costs is known."""
    rng = np.random.default_rng([seed, SPECIAL])
    longest = small.context_tokens - OUTPUTS
    fillers = [
        rng.integers(SPECIAL, small.vocabulary, longest).tolist() for _ in range(ARENA_CONTEXTS)
    ]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="offstage-moments-")))
        router = Router()
        stack.callback(router.close)
        tiers = {}
        for name, bed in ((SCHEDULED, small), (ROOMY, roomy)):
            (folder / name).mkdir()
            tiers[name] = stack.enter_context(daemon(bed, folder / name, policy=COLD))
        tiers[ARRIVAL] = tiers[SCHEDULED]
        engines = {}
        for name in dict.fromkeys(ARMS.values()):
            config, arguments = None, small.arguments
            if name != NOTHING:
                config = connector(tiers[name], {"prefetch": name == ARRIVAL, "choose": False})
            if name == SCHEDULED:
                arguments = arguments | {"kv_events_config": router.events_config()}
            log = folder / f"{name.replace(' ', '-')}.log"
            made = engine(small.python, small.model, config, arguments, log)
            engines[name] = stack.enter_context(made)
            warm(engines[name])
        say("engines are up")
        run = _Run(small, turns, tiers, engines, router, fillers, Cost([], []))
        for name in (SCHEDULED, ROOMY):
            for prompt in [*(one.prompt for one in turns.turns), *fillers]:
                _ask(engines[name], prompt)
                forget(engines[name])
        run.cost = _measured(engines[NOTHING], turns, rng, small.vocabulary)
        say("every prompt is stored, and the cost of computing is measured")
        yield run


def _ask(one: Engine, prompt: list[int]) -> float:
    """A prompt alone; returns its time to the first token."""
    sent_s = time.monotonic()
    one.send(id=0, prompt=prompt, outputs=OUTPUTS)
    return one.answer(End, WAIT_S).first_s - sent_s


def _measured(one: Engine, turns: Turns, rng: np.random.Generator, vocabulary: int) -> Cost:
    """Medians of prompts that are alone and computed, from a block to the longest prompt. Noise
    that would make a longer prompt cheaper is levelled."""
    longest = max(len(turn.prompt) for turn in turns.turns)
    lengths = sorted({max(BLOCK, int(at)) for at in np.geomspace(BLOCK, longest, COST_LENGTHS + 1)})
    seconds = []
    for tokens in lengths:
        times = []
        for _ in range(COST_ROUNDS):
            times.append(_ask(one, rng.integers(SPECIAL, vocabulary, tokens).tolist()))
            forget(one)
        seconds.append(statistics.median(times))
    return Cost(lengths, np.maximum.accumulate(seconds).tolist())


def _arm(run: _Run, name: str, speed: float) -> LiveMoment:
    """One arm at one speed of arrivals, from a cold memory of the tier on."""
    kind = ARMS[name]
    one, found = run.engines[kind], LiveMoment(name=name)
    tier = run.tiers.get(kind)
    _cool(run, kind)
    before, ledger = told(one), _ledger(tier)
    ends = _play(run, one, name, speed)
    after, played = told(one), _ledger(tier).since(ledger)
    check(name, ends, run.expected)
    found.first_s = [end.first_s - sent_s for _, (sent_s, end) in sorted(ends.items())]
    for way in ("on_time", "late", "missing"):
        key = f"objects_{way}"
        setattr(found, way, int(after.counters.get(key, 0) - before.counters.get(key, 0)))
    found.loads = [
        Loaded(made.tokens, made.took_s, run.cost.of(made.tokens))
        for made in after.decisions[len(before.decisions) :]
        if made.fetched and made.took_s >= 0
    ]
    _cool(run, kind)  # what was hinted and not demanded leaves the tier's memory
    found.read = played.issued[CAUSES.index("demand")] + played.prefetched_blocks
    found.dropped = sum(row["dropped"] for row in played.prefetched().values())
    if kind != ROOMY:  # which keeps everything
        fates = _ledger(tier).since(ledger).prefetched().values()
        found.wasted = sum(row["unused"] + row["cancelled"] for row in fates)
    return found


def _ledger(tier: Daemon | None) -> Ledger:
    if tier is None:
        return Ledger()
    with tier.control(heartbeat=False) as control:
        return Ledger.of(control.ledger())


def _cool(run: _Run, kind: str) -> None:
    """Other prompts take the memory of the tier, and vLLM's cache is emptied. With room for
    everything every prompt is read, so that memory has it."""
    reader = run.engines[kind if kind != ARRIVAL else SCHEDULED]
    if kind == ROOMY:
        for turn in run.turns.turns:
            _ask(reader, turn.prompt)
            forget(reader)
    elif kind != NOTHING:
        for prompt in run.fillers:
            _ask(reader, prompt)
            forget(reader)
    forget(run.engines[kind])


def _play(run: _Run, one: Engine, arm: str, speed: float) -> Ends:
    """Send every request at its time, or when the turn before it has ended; returns how each
    ended."""
    turns = run.turns.turns
    ends: Ends = {}
    sent: dict[int, float] = {}
    begin_s = time.monotonic()
    due: list[tuple[float, int, int]] = []  # when, 0: a hint, 1: a request; of which request
    for number, turn in enumerate(turns):
        if turn.before < 0:
            _plan(run, due, arm, number, begin_s + turn.at_s / speed)
    while len(ends) < len(turns):
        wait_s = due[0][0] - time.monotonic() if due else TICK_S
        for end in one.ready(max(TICK_S / 4, min(wait_s, TICK_S))):
            ends[end.id] = sent[end.id], end
            after = turns[end.id].next
            if after >= 0:
                at_s = max(begin_s + turns[after].at_s / speed, time.monotonic())
                _plan(run, due, arm, after, at_s)
        while due and due[0][0] <= time.monotonic():
            _, is_request, number = heapq.heappop(due)
            turn = turns[number]
            if not is_request:
                _hint(run, one, turn.prompt, run.cost.of(len(turn.prompt)))
                continue
            if arm == "router knows":
                _hint(run, one, turn.prompt, 0.0)
            sent[number] = time.monotonic()
            more = _pause(run, number, speed) if arm == "on pause" else {}
            one.send(id=number, prompt=turn.prompt, outputs=OUTPUTS, **more)
    return ends


def _plan(run: _Run, due: list[tuple[float, int, int]], arm: str, number: int, at_s: float) -> None:
    """A request is due, and before it the hint of the router that knows the end of its pause."""
    heapq.heappush(due, (at_s, 1, number))
    turn = run.turns.turns[number]
    if arm == "before resume" and turn.before >= 0:
        heapq.heappush(due, (at_s - run.cost.of(len(turn.prompt)), 0, number))


def _hint(run: _Run, one: Engine, prompt: list[int], in_s: float) -> None:
    """The router hints what the engine lacks of a prompt, needed `in_s` from now."""
    held = run.router.held_tokens(prompt, BLOCK)
    one.send(hint=prompt, held=held, in_s=in_s)


def _pause(run: _Run, number: int, speed: float) -> dict[str, object]:
    """`kv_hints` of a turn that a pause follows, as long as its orchestrator knows."""
    turn = run.turns.turns[number]
    if turn.next < 0:
        return {}
    gap_s = (run.turns.turns[turn.next].at_s - turn.at_s) / speed
    left_s = max(0.0, gap_s - run.cost.of(len(turn.prompt)))
    return {"hints": {"prefetch": {"in_seconds": left_s}}}
