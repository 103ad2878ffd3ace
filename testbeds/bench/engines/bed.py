"""The bed of all arms of `offstage bench engine`: a model, a daemon, and engines."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.outside import read_json
from offstage.testbeds.beds.daemon import Daemon, serve
from offstage.testbeds.bench.engines.arrivals import Arrivals
from offstage.testbeds.bench.engines.link import End, Engine
from offstage.testbeds.bench.engines.result import Arm, EngineResult

__all__ = [
    "WAIT_S",
    "Bed",
    "Ends",
    "Say",
    "add",
    "bed_of",
    "check",
    "connector",
    "daemon",
    "forget",
    "result_of",
    "told",
    "warm",
]

BLOCK = 32  # tokens: vLLM's blocks on a CPU
WAIT_S = 600.0

Ends = dict[int, tuple[float, End]]
"""By request when it was sent, and how it ended."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Bed:
    """The engine's Python, the model, vLLM's arguments, and the daemon's."""

    python: Path
    model: Path
    arguments: dict[str, object]
    vocabulary: int
    arena_bytes: int
    payload_bytes: int
    backend: str

    @property
    def context_tokens(self) -> int:
        """Of the model."""
        return int(str(self.arguments["max_model_len"]))


def bed_of(python: Path, model: Path, context_tokens: int, backend: str) -> Bed:
    """A bed for a model: vLLM's cache holds two of its contexts, and the tier's memory one.
    BadInput: the model does not exist."""
    try:
        config = read_json(model / "config.json", "give the folder of a model")
        heads, size = config["num_key_value_heads"], config["head_dim"]
        layers, vocabulary = config["num_hidden_layers"], config["vocab_size"]
    except (KeyError, TypeError):
        raise BadInput(
            "config.json does not describe an attention model", str(model), "give a model's folder"
        ) from None
    layer_bytes = 2 * heads * size * 4 * BLOCK  # of one layer of a block, in float32
    blocks = -(-context_tokens // BLOCK)
    payload = max(4096, min(1 << 18, 1 << (layer_bytes - 1).bit_length()))
    each = (payload + 4096) * -(-layer_bytes * layers // payload)
    arguments: dict[str, object] = {
        "enforce_eager": True,
        "max_model_len": context_tokens,
        "max_num_seqs": 4,
        "block_size": BLOCK,
        "enable_prefix_caching": True,
        "disable_log_stats": False,
        "num_gpu_blocks_override": 2 * blocks + 8,
        "max_num_batched_tokens": 2048,
        "dtype": "float32",
    }
    return Bed(python, model, arguments, vocabulary, blocks * each, payload, backend)


@contextlib.contextmanager
def daemon(bed: Bed, folder: Path, **more: Mapping[str, object]) -> Iterator[Daemon]:
    """One daemon for all arms; `more` sections of its configuration."""
    sections = {
        "daemon": {
            "endpoint": f"ipc://{folder}/control",
            "runtime_dir": str(folder / "run"),
            "metrics_endpoint": "",
            "host_timeout": "1h",
        },
        "arena": {"size": bed.arena_bytes, "payload": bed.payload_bytes, "layers": 1},
        "storage": {"path": str(folder / "store"), "size": 4 << 30, "backend": bed.backend},
        "store": {"durable": False, "segment": 8 << 20},
        "limits": {
            "sessions": 1024,
            "context_tokens": 65536,
            "ports": 16,
            "chunks": 1 << 18,
            "values": 1 << 17,
        },
    }
    with serve(sections | more, folder) as tier:
        yield tier


def connector(tier: Daemon, switches: Mapping[str, object]) -> dict[str, object]:
    """vLLM's KV transfer configuration for ours."""
    where: dict[str, object] = {
        "endpoint": tier.endpoint,
        "runtime_dir": str(tier.runtime_dir),
    }
    return {
        "kv_connector": "OffstageConnector",
        "kv_role": "kv_both",
        "kv_connector_module_path": "offstage.host.connectors.vllm",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": where | dict(switches),
    }


def result_of(
    bed: Bed, traffic: Arrivals, rounds: int, arms: Iterable[str], *, apart: bool = False
) -> EngineResult:
    """The setup, with arms that have not run yet."""
    return EngineResult(
        notes=list(traffic.notes),
        trace=traffic.trace,
        scale=traffic.scale,
        hurry=traffic.hurry,
        requests=len(traffic.requests),
        reuse=traffic.reuse,
        rounds=rounds,
        tokens=[len(one.prompt) for one in traffic.requests],
        provenance="measured" if bed.backend in ("io_uring", "posix") else "emulated",
        arms={name: Arm() for name in arms},
        apart=apart,
    )


def add(into: Arm, ends: Ends, before: Arm, after: Arm) -> None:
    """Adds a round of an arm: how its requests ended, and its connector's counts meanwhile."""
    for _, (sent_s, end) in sorted(ends.items()):
        into.first_s.append(end.first_s - sent_s)
        into.reused.append(end.reused)
    for key, value in after.counters.items():
        added = value - before.counters.get(key, 0)
        into.counters[key] = into.counters.get(key, 0) + added
    into.decisions += after.decisions[len(before.decisions) :]


def warm(one: Engine) -> None:
    """Run once the operations that are slower the first time."""
    for number in range(3):
        one.send(id=number, prompt=[20 + number] * 600, outputs=4)
        one.answer(End, WAIT_S)
    forget(one)


def forget(one: Engine) -> None:
    """Empty vLLM's cache."""
    one.send(forget=1)
    one.answer(dict)


def told(one: Engine) -> Arm:
    """Counters and decisions of the connector, so far."""
    one.send(told=1)
    return one.answer(Arm)


def check(name: str, ends: Ends, expected: dict[int, list[int]]) -> None:
    """RunFailed: this arm's answers differ from the others'."""
    for number, (_, end) in ends.items():
        if end.tokens != expected.setdefault(number, end.tokens):
            raise RunFailed(f"request {number} got different tokens", name, "report this bug")
