"""The arms of `offstage bench engine`: the same requests with and without the tier.

Each arm has an engine of its own, and all of them one daemon. All requests are sent once before, so
that the tier has their KV, and its memory a part of it. Between rounds vLLM's own cache is emptied.
Arms take turns within a round, idle while another runs, so the machine's noise meets all of them.
"""

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offstage.bindings.errors import BadInput, RunFailed
from offstage.testbeds.beds.daemon_process import Tier, serve, write_config
from offstage.testbeds.bench.engines.arrivals import Arrivals
from offstage.testbeds.bench.engines.link import Engine, engine

__all__ = ["ARMS", "Bed", "bed_of", "bench_engine"]

BLOCK = 32  # tokens: vLLM's blocks on a CPU

ARMS: dict[str, dict[str, Any] | None] = {
    "recompute": None,
    "looked up when scheduled": {"prefetch": False, "choose": False},
    "looked up on arrival": {"prefetch": True, "choose": False},
    "fetch or recompute": {"prefetch": True, "choose": True},
}
"""By name: switches of the connector, or none."""
WAIT_S = 600.0

Say = Callable[[str], None]


@dataclass(frozen=True)
class Bed:
    """What all arms run on: the engine's Python, the model, vLLM's arguments, and the daemon's."""

    python: Path
    model: Path
    arguments: dict[str, Any]
    vocabulary: int
    arena_bytes: int
    payload_bytes: int
    backend: str


def bed_of(python: Path, model: Path, context_tokens: int, backend: str) -> Bed:
    """A bed for a model: vLLM's own cache holds two of its contexts, and the tier's memory one.
    BadInput: there is no such model."""
    try:
        config = json.loads((model / "config.json").read_text())
        heads, size = config["num_key_value_heads"], config["head_dim"]
        layers, vocabulary = config["num_hidden_layers"], config["vocab_size"]
    except (OSError, KeyError, ValueError):
        raise BadInput("no model with a config.json of attention", str(model),
                       "give a model's folder") from None  # fmt: skip
    layer_bytes = 2 * heads * size * 4 * BLOCK  # of one layer of a block, in float32
    blocks = -(-context_tokens // BLOCK)
    payload = max(4096, min(1 << 18, 1 << (layer_bytes - 1).bit_length()))
    each = (payload + 4096) * -(-layer_bytes * layers // payload)
    arguments = {
        "enforce_eager": True, "max_model_len": context_tokens, "max_num_seqs": 4,
        "block_size": BLOCK, "enable_prefix_caching": True, "disable_log_stats": False,
        "num_gpu_blocks_override": 2 * blocks + 8, "max_num_batched_tokens": 2048,
        "dtype": "float32",
    }  # fmt: skip
    return Bed(python, model, arguments, vocabulary, blocks * each, payload, backend)


def bench_engine(
    bed: Bed, traffic: Arrivals, *, rounds: int = 3, say: Say = lambda line: None
) -> dict[str, Any]:
    """Times to the first token by arm, and how the tier had what was read. RunFailed: an engine
    does not come up, or answers otherwise than the reference."""
    with tempfile.TemporaryDirectory(prefix="offstage-engine-") as made:
        folder = Path(made)
        found: dict[str, Any] = {
            "trace": traffic.trace, "scale": traffic.scale, "hurry": traffic.hurry,
            "requests": len(traffic.requests), "reuse": traffic.reuse, "rounds": rounds,
            "tokens": [len(one.prompt) for one in traffic.requests],
            "provenance": "measured" if bed.backend in ("io_uring", "posix") else "emulated",
        }  # fmt: skip
        with _daemon(bed, folder) as tier:
            found["storage"] = str(tier.ready["storage"])
            found["arms"] = _together(bed, tier, traffic, rounds, folder, say)
    return found


@contextlib.contextmanager
def _daemon(bed: Bed, folder: Path) -> Iterator[Tier]:
    config = folder / "daemon.toml"
    write_config(config, {
        "daemon": {"endpoint": f"ipc://{folder}/control", "runtime_dir": str(folder / "run"),
                   "metrics_endpoint": "", "host_timeout": "1h"},
        "arena": {"size": bed.arena_bytes, "payload": bed.payload_bytes, "layers": 1},
        "storage": {"path": str(folder / "store"), "size": 4 << 30, "backend": bed.backend},
        "store": {"durable": False, "segment": 8 << 20},
        "limits": {"sessions": 1024, "context_tokens": 65536, "ports": 16, "chunks": 1 << 18},
    }, "default")  # fmt: skip
    with serve(config, folder / "daemon.log") as tier:
        yield tier


def _connector(tier: Tier, switches: dict[str, Any]) -> dict[str, Any]:
    where = {"endpoint": tier.endpoint, "runtime_dir": str(tier.ready["runtime_dir"])}
    return {
        "kv_connector": "OffstageConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "offstage.host.connectors.vllm",
        "kv_load_failure_policy": "recompute", "kv_connector_extra_config": where | switches,
    }  # fmt: skip


def _together(
    bed: Bed, tier: Tier, traffic: Arrivals, rounds: int, folder: Path, say: Say
) -> dict[str, Any]:
    found: dict[str, dict[str, Any]] = {
        name: {"first_s": [], "reused": [], "counters": {}, "decisions": []} for name in ARMS
    }
    expected: dict[int, list[int]] = {}
    with contextlib.ExitStack() as stack:
        engines = {}
        for name, switches in ARMS.items():
            config = None if switches is None else _connector(tier, switches)
            log = folder / f"{name.replace(' ', '-')}.log"
            one = engine(bed.python, bed.model, config, bed.arguments, log)
            engines[name] = stack.enter_context(one)
            _warm(engines[name])
            _play(engines[name], traffic, hurry=True)  # fills the tier, and what the choice goes by
        for number in range(rounds):
            for name, one_engine in engines.items():
                _turn(name, one_engine, traffic, found[name], expected)
                middle = statistics.median(found[name]["first_s"])
                say(f"round {number + 1}, {name}: {middle * 1e3:.0f} ms to the first token")
    return found


def _turn(
    name: str, one: Engine, traffic: Arrivals, arm: dict[str, Any], expected: dict[int, list[int]]
) -> None:
    """One arm in one round."""
    _forget(one)
    before = _told(one)
    ends = _play(one, traffic)
    after = _told(one)
    _check(name, ends, expected)
    arm["first_s"] += [ends[i]["first_s"] - ends[i]["sent_s"] for i in sorted(ends)]
    arm["reused"] += [ends[i]["reused"] for i in sorted(ends)]
    for key, value in after["counters"].items():
        added = value - before["counters"].get(key, 0)
        arm["counters"][key] = arm["counters"].get(key, 0) + added
    arm["decisions"] += after["decisions"][len(before["decisions"]) :]


def _play(one: Engine, traffic: Arrivals, *, hurry: bool = False) -> dict[int, dict[str, Any]]:
    """Send every request at its time; how each ended. `hurry`: at once."""
    ends: dict[int, dict[str, Any]] = {}
    sent: dict[int, float] = {}
    begin_s = time.monotonic()
    for number, request in enumerate(traffic.requests):
        due_s = begin_s + (0.0 if hurry else request.at_s)
        while (left_s := due_s - time.monotonic()) > 0:
            ends |= {line["id"]: line for line in one.ready(left_s)}
        sent[number] = time.monotonic()
        one.send(id=number, prompt=request.prompt, outputs=request.outputs)
    while len(ends) < len(traffic.requests):
        line = one.answer(WAIT_S)
        ends[line["id"]] = line
    return {number: line | {"sent_s": sent[number]} for number, line in ends.items()}


def _warm(one: Engine) -> None:
    for number in range(3):
        one.send(id=number, prompt=[20 + number] * 600, outputs=4)
        one.answer(WAIT_S)
    _forget(one)


def _forget(one: Engine) -> None:
    one.send(forget=1)
    one.answer()


def _told(one: Engine) -> dict[str, Any]:
    one.send(told=1)
    return one.answer()


def _check(name: str, ends: dict[int, dict[str, Any]], expected: dict[int, list[int]]) -> None:
    """Every arm answers alike."""
    for number, line in ends.items():
        if line["tokens"] != expected.setdefault(number, line["tokens"]):
            raise RunFailed(f"request {number} has other tokens", name,
                            "this must not be: report it")  # fmt: skip
