"""Disaggregated prefill: one engine prefills, another decodes, and the KV goes between them.

Of each request the prefilling engine makes one token, and the decoding one all of them: its first
token is the one that is timed, from the request's arrival. The arms differ in how the KV is
transferred:

- "recompute": not at all, the decoding engine computes it;
- "file system": by vLLM's `ExampleConnector`, which stores a prompt in a file for each layer;
  it cannot wait, so the decoding engine gets the request when the prefilling one has ended;
- "tier in turn": by the tier, with requests sent as with files. The hint `expect` makes it wait for
  the last blocks, which are still in flight to the tier when the prefilling engine has ended;
- "tier streamed": both engines get the request together, the decoding one with that hint. Layers
  are written while later ones are computed, and the decoding engine polls for blocks until all are
  there.

Each engine has half of the machine's cores, in every arm. A round has its own `cache_salt` at
the tier and an empty folder of files, so nothing is there before it is made.
"""

import contextlib
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from offstage.bindings.errors import RunFailed
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
from offstage.testbeds.bench.engines.link import Engine, engine
from offstage.testbeds.bench.engines.result import Arm, EngineResult

__all__ = ["ARMS", "bench_apart"]

ARMS = ("recompute", "file system", "tier in turn", "tier streamed")
TURN_S = 0.001  # wait for an answer of one engine before polling the other


@dataclass
class _Pair:
    """Two engines and the transfer of the KV from one to the other. `prefill` None: no transfer."""

    prefill: Engine | None
    decode: Engine
    salted: bool = False
    streamed: bool = False


def bench_apart(
    bed: Bed, traffic: Arrivals, *, rounds: int = 3, say: Say = lambda line: None
) -> EngineResult:
    """Times to the first token of the decoding engine, by arm. RunFailed: an engine does not
    come up, or its answer differs from that of the one that computes."""
    # The file connector stores what is computed in the step in which a prompt begins: all of it,
    # since prompts are prefilled one at a time, in every arm.
    arguments = bed.arguments | {"max_num_batched_tokens": bed.arguments["max_model_len"]}
    bed = replace(bed, arguments=arguments)
    with tempfile.TemporaryDirectory(prefix="offstage-apart-") as made:
        folder = Path(made)
        found = result_of(bed, traffic, rounds, ARMS, apart=True)
        expected: dict[int, list[int]] = {}
        with daemon(bed, folder) as tier, contextlib.ExitStack() as stack:
            found.storage = tier.storage
            pairs = _pairs(stack, bed, connector(tier, {"choose": False}), folder)
            for number in range(rounds):
                for name in ARMS:
                    shutil.rmtree(folder / "files", ignore_errors=True)
                    (folder / "files").mkdir()
                    _turn(
                        name,
                        f"{name} {number}",
                        pairs[name],
                        traffic,
                        found.arms[name],
                        expected,
                    )
                    times = found.arms[name].first_s[-len(traffic.requests) :]
                    middle = statistics.median(times)
                    say(f"round {number + 1}, {name}: {middle * 1e3:.0f} ms to the first token")
    found.compare()
    return found


def _pairs(
    stack: contextlib.ExitStack, bed: Bed, ours: dict[str, object], folder: Path
) -> dict[str, _Pair]:
    where = {"shared_storage_path": str(folder / "files")}
    files: dict[str, object] = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": where,
    }
    halves = _halves()

    def begin(name: str, config: dict[str, object] | None, half: int) -> Engine:
        arguments = bed.arguments | ({"max_num_seqs": 1} if "prefill" in name else {})
        made = stack.enter_context(
            engine(
                bed.python,
                bed.model,
                config,
                arguments,
                folder / f"{name}.log",
                VLLM_CPU_OMP_THREADS_BIND=halves[half],
            )
        )
        warm(made)
        return made

    (folder / "files").mkdir()
    alone = _Pair(None, begin("alone", None, 1))
    by_files = _Pair(begin("files-prefill", files, 0), begin("files-decode", files, 1))
    by_tier = _Pair(begin("tier-prefill", ours, 0), begin("tier-decode", ours, 1), salted=True)
    pairs = (alone, by_files, by_tier, replace(by_tier, streamed=True))
    return dict(zip(ARMS, pairs, strict=True))


def _halves() -> tuple[str, str]:
    """Halves of the cores that this process may use; both the same core if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    first = cores[: max(1, len(cores) // 2)]
    second = cores[len(first) : 2 * len(first)] or first
    return ",".join(map(str, first)), ",".join(map(str, second))


def _turn(
    name: str,
    salt: str,
    pair: _Pair,
    traffic: Arrivals,
    into: Arm,
    expected: dict[int, list[int]],
) -> None:
    """One arm in one round."""
    for one in (pair.prefill, pair.decode):
        if one is not None:
            forget(one)
    before = told(pair.decode)
    ends = _play(pair, traffic, salt if pair.salted else None)
    check(name, ends, expected)
    add(into, ends, before, told(pair.decode))


def _play(pair: _Pair, traffic: Arrivals, salt: str | None) -> Ends:
    """Send every request at its time, to one engine or both; returns how each ended at the
    decoding one."""
    ends: Ends = {}
    sent: dict[int, float] = {}
    count, prefilled = len(traffic.requests), 0
    begin_s = time.monotonic()
    while len(ends) < count or (pair.prefill is not None and prefilled < count):
        now_s = time.monotonic() - begin_s
        if now_s > WAIT_S + traffic.requests[-1].at_s:
            raise RunFailed(f"{len(ends)} of {count} requests ended", "an engine", "see its log")
        while len(sent) < count and traffic.requests[len(sent)].at_s <= now_s:
            _send(pair, len(sent), traffic, salt)
            sent[len(sent)] = time.monotonic()
        for end in pair.prefill.ready() if pair.prefill is not None else []:
            prefilled += 1
            if not pair.streamed:
                _decode(pair, end.id, traffic, salt)
        for end in pair.decode.ready(TURN_S):
            ends[end.id] = sent[end.id], end
    return ends


def _send(pair: _Pair, number: int, traffic: Arrivals, salt: str | None) -> None:
    """Send to the prefilling engine, and to the decoding one unless that waits for prefill."""
    if pair.prefill is not None:
        pair.prefill.send(id=number, prompt=traffic.requests[number].prompt, salt=salt, outputs=1)
    if pair.prefill is None or pair.streamed:
        _decode(pair, number, traffic, salt)


def _decode(pair: _Pair, number: int, traffic: Arrivals, salt: str | None) -> None:
    one = traffic.requests[number]
    hint = {"offstage": {"expect": {"tokens": len(one.prompt), "seconds": WAIT_S}}}
    pair.decode.send(
        id=number, prompt=one.prompt, salt=salt, outputs=one.outputs, params=hint if salt else None
    )
