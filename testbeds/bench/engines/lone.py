"""`offstage bench engine --length`: stored prompts, each alone in a second engine, by length.

A first engine computes and stores every prompt. The arms are engines that never had it: one
without the tier, one that fetches whatever is stored, and one that decides. In a round each arm
gets all prompts, the next one when the last has ended. Before its turn the first engine reads
another prompt, as long as the tier's memory, which forgets what was read least lately: so the arm's
are cold, and only the store has them. vLLM's cache is emptied before each turn. Arms take turns
within a round, and each is first as often as another.

The first request after a pause of seconds is slower in every arm, so a turn begins with one that is
not timed. An arm without the tier computes it and others load it, which leaves the model's weights
in the processor's caches or not; so then all arms compute the same prompts of half a block, in
which the tier has no part.
"""

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from offstage.bindings.errors import BadInput
from offstage.testbeds.bench.engines.arms import play_in_turn
from offstage.testbeds.bench.engines.arrivals import SPECIAL, Arrival, Arrivals
from offstage.testbeds.bench.engines.bed import (
    BLOCK,
    WAIT_S,
    Bed,
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

__all__ = ["ARMS", "bench_lone", "prompts_of"]

ARMS: dict[str, dict[str, object] | None] = {
    "recompute": None,
    "fetch": {"choose": False},
    "fetch or recompute": {"choose": True},
}
"""By name: switches of the connector, or none."""
OUTPUTS = 4
COLD = {"eviction": "lru"}
WAKE = ([SPECIAL + 1] * 600, *[[SPECIAL + 2] * (BLOCK // 2)] * 4)


def prompts_of(lengths: Sequence[int], bed: Bed, seed: int) -> Arrivals:
    """A prompt of each length, of tokens drawn from the seed. BadInput: there is none, or it does
    not fit."""
    if not lengths:
        raise BadInput("neither a trace nor a length", "bench engine", "give --trace or --length")
    worst = max(lengths) + OUTPUTS
    if min(lengths) < 1 or worst > bed.context_tokens:
        raise BadInput(
            f"prompts of {min(lengths):,} to {max(lengths):,} tokens",
            "--length",
            f"give 1 to {bed.context_tokens - OUTPUTS:,}, or a longer --context",
        )
    rng = np.random.default_rng(seed)
    made = [rng.integers(SPECIAL, bed.vocabulary, one).tolist() for one in sorted(set(lengths))]
    return Arrivals([Arrival(0.0, one, OUTPUTS) for one in made], "", 1.0, 1.0)


def bench_lone(
    bed: Bed, traffic: Arrivals, *, rounds: int = 3, say: Say = lambda line: None
) -> EngineResult:
    """Times to the first token by length and arm. RunFailed: an engine does not come up, or its
    answer differs from the reference."""
    names = [f"{len(one.prompt):,} tokens, {arm}" for one in traffic.requests for arm in ARMS]
    with tempfile.TemporaryDirectory(prefix="offstage-lone-") as made:
        folder = Path(made)
        found = result_of(bed, traffic, rounds, names)
        found.load_before = os.getloadavg()[0]
        expected: dict[int, list[int]] = {}
        with daemon(bed, folder, policy=COLD) as tier, contextlib.ExitStack() as stack:
            found.storage = tier.storage
            first = connector(tier, {"choose": False})
            engines = {}
            other = stack.enter_context(
                engine(bed.python, bed.model, first, bed.arguments, folder / "first.log")
            )
            check("the first engine", play_in_turn(other, traffic), expected)
            for arm, switches in ARMS.items():
                config = None if switches is None else connector(tier, switches)
                log = folder / f"{arm.replace(' ', '-')}.log"
                engines[arm] = stack.enter_context(
                    engine(bed.python, bed.model, config, bed.arguments, log)
                )
                warm(engines[arm])
            for number in range(rounds):
                for place in range(len(ARMS)):
                    arm = list(ARMS)[(number + place) % len(ARMS)]
                    one = engines[arm]
                    _read(other, [SPECIAL] * (bed.context_tokens - OUTPUTS))
                    for prompt in WAKE:
                        _read(one, prompt)
                    times = _turn(arm, one, traffic, found, expected)
                    say(f"round {number + 1}, {arm}: {times}")
    found.compare()
    return found


def _read(one: Engine, prompt: list[int]) -> None:
    """An engine reads a prompt that is not timed, and forgets it."""
    one.send(id=0, prompt=prompt, outputs=OUTPUTS)
    one.answer(End, WAIT_S)
    forget(one)


def _turn(
    arm: str,
    one: Engine,
    traffic: Arrivals,
    found: EngineResult,
    expected: dict[int, list[int]],
) -> str:
    """All prompts once; returns their times."""
    times = []
    for number, request in enumerate(traffic.requests):
        into: Arm = found.arms[f"{len(request.prompt):,} tokens, {arm}"]
        before = told(one)
        ends = play_in_turn(one, traffic, [number])
        check(arm, ends, expected)
        add(into, ends, before, told(one))
        times.append(f"{into.first_s[-1] * 1e3:.0f} ms")
    return ", ".join(times)
