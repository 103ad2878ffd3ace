"""What to set for an engine on the tier: `offstage plan --engine`.

Model: the plan says how many engines, drives and DPUs the question takes with KV in flash behind
DPUs, and how many turns they serve. Each DPU has one daemon, which serves an equal part of the
users. An engine's connector stores objects: a chunk of tokens, of one rank. The arena holds the
contexts that are loaded at once, 99 % of the time, or as much of them as the daemon's memory
leaves. The store holds the users' contexts, and keeps an object until as much again has been
written. `dpu/config/derive.py` says what follows from a configuration; `pasted.py` writes files.

What can fail: `BadInput` for KV that no connector stores, a context shorter than a chunk, memory
that is too small, and more than one daemon can hold.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import msgspec

from offstage.asic_model.parameters import names, read_preset
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import declared
from offstage.bindings.units import format_size, parse_size
from offstage.dpu.config.derive import Derived, derive
from offstage.dpu.config.options import Tenant
from offstage.dpu.config.values import SECTIONS, Config, load
from offstage.host.model.geometry import KvGeometry
from offstage.testbeds.plan.inputs import Inputs, Kind
from offstage.testbeds.plan.pasted import CONNECTORS, File, Served, connector_file, toml_of
from offstage.testbeds.plan.question import Question, Spec
from offstage.testbeds.plan.sizing import Place, places

__all__ = ["EnginePlan", "Setting", "make_engine"]

PRESET = Path(__file__).resolve().parents[1] / "presets/engines.toml"
MIB, GIB = 1 << 20, 1 << 30
NOW_AND_THEN = 0.99
"""Share of the time in which the arena holds all that is loaded at once."""
SPARE = 1.1
"""Room of the store over what the users' contexts take, so that the cleaner finds garbage."""
PAYLOAD_MAX = 4 * MIB
CHUNKS_MAX = 1 << 24
"""Blocks grow before a daemon knows more chunks than this."""
SESSIONS_MAX = 4096
OBJECTS_LEAST = 4
"""In the arena for each host: two that are read, and the next two."""
MEMORY_SHARE = 0.75
PATIENCE_LEAST_S, PATIENCE_TIMES = 5.0, 4.0
GRACE_TIMES = 2.0
"""As the presets for systemd, Compose and Kubernetes have it: a drain, and as long to close."""
BASE_BYTES, SESSION_BYTES, CHUNK_BYTES, VALUE_BYTES = 128 * MIB, 121_000, 100, 170
TABLES = (
    "put windows, buffers, and tables as of daemons with 256 and 2,304 sessions, 65,536 and 4.3 "
    "million chunks, none and 4 million values; x86-64, November 2026"
)
"""What the tables of a daemon take besides its arena, and how that was measured."""
FEWER = "plan for fewer users for each daemon"


class Setting(msgspec.Struct, kw_only=True):
    """One figure. `kind`: measured, modelled, cited or assumed; `source` says by what."""

    name: str
    value: float
    unit: str
    kind: Kind
    source: str


class EnginePlan(msgspec.Struct, kw_only=True):
    """What to set for an engine and for each daemon. `start`: the engine's command."""

    engine: str
    settings: list[Setting]
    daemon: File
    connector: File
    start: str


@dataclass(frozen=True)
class Objects:
    """The objects of one daemon. A context has `context` of them, of all ranks, and `kept` are
    stored. `blocks` are of one."""

    size_bytes: int
    payload_bytes: int
    blocks: int
    context: int
    kept: int


@dataclass(frozen=True)
class Part:
    """One daemon's part of the plan. `loads`: contexts that are loaded at once."""

    daemons: int
    engines: int
    ranks: int
    ports: int
    drives: int
    drive_bytes: float
    loads: int


def make_engine(spec: Spec, inputs: Inputs) -> EnginePlan:
    """The settings of a checked question that names an engine."""
    question, v, shape = spec.plan, inputs.values, spec.shape()[0]
    place = places(msgspec.structs.replace(question, tiers=("dpu",)), v)[1]
    if not place.gpus:
        raise BadInput(
            place.note or "no number of GPUs serves this", "plan", "choose another GPU, or less"
        )
    part, base = _part(question, place, v["tlc.capacity"]), load(PRESET, environ={})
    objects = _objects(question, shape, v["model.kv"], place, part, base)
    config, wanted_bytes = _config(question, place, part, objects, base)
    patience_s = math.ceil(max(PATIENCE_LEAST_S, PATIENCE_TIMES * place.fetch_s))
    served = Served(
        model=question.model,
        chunk=CONNECTORS[question.engine].chunk,
        ranks=part.ranks,
        tokens=question.tokens,
        layout=f"KV {question.dtype}, weights {question.weights}",
        size_bytes=objects.size_bytes,
        tenant=config.tenants[0].name,
        patience_s=patience_s,
    )
    connector, start = connector_file(question.engine, served)
    settings = [
        *_of_objects(question, inputs, objects),
        *_of_daemons(part, config, wanted_bytes, question),
        *_of_tenants(config, derive(config)),
        *_of_machine(config),
    ]
    if connector.name.endswith(".json"):  # the one over libdoca_kv takes none
        why = f"{PATIENCE_TIMES:g} fetches of a context, {PATIENCE_LEAST_S:g} s or more"
        settings.append(_one("patience of a load, patience_s", patience_s, "s", "modelled", why))
    return EnginePlan(
        engine=question.engine,
        settings=settings,
        daemon=File(name="dpu.toml", text=toml_of(config)),
        connector=connector,
        start=start,
    )


def _part(question: Question, place: Place, capacity: float) -> Part:
    daemons = max(place.dpus, 1)
    each = math.ceil(place.gpus / place.replica / daemons / question.tenants)
    engines = each * question.tenants
    mean = place.turns_per_s * place.first_token_s / daemons
    often = mean + NormalDist().inv_cdf(NOW_AND_THEN) * math.sqrt(mean)
    return Part(
        daemons,
        engines,
        place.replica,
        engines * CONNECTORS[question.engine].hosts(place.replica),
        math.ceil(place.count / daemons),
        capacity,
        max(1, math.ceil(often)),
    )


def _objects(
    question: Question, shape: KvGeometry, token: float, place: Place, part: Part, base: Config
) -> Objects:
    """The objects of a daemon. BadInput for KV that connectors do not store, and too few tokens."""
    connector, groups = CONNECTORS[question.engine], shape.groups
    if len(groups) > 1 or groups[0].kind not in ("full", "latent"):
        raise BadInput(
            f"{question.model} keeps other KV than that of full attention, which no connector "
            "stores",
            "model",
            "choose another model, or run it without a tier",
        )
    if question.tokens < connector.chunk:
        raise BadInput(
            f"{question.tokens} tokens are less than an object of {connector.chunk}",
            "context",
            "give a longer one",
        )
    latent = groups[0].kind == "latent"
    heads = 1 if latent else shape.layers[0].kv_heads
    share = -(-heads // part.ranks) / heads
    parts = 1 if latent and connector.shares_latents else part.ranks
    size = math.ceil(connector.chunk * token * share)
    users_bytes = place.capacity_bytes / part.daemons
    kept = math.ceil(SPARE * parts * users_bytes / (connector.chunk * token))
    lba = base.storage.lba_bytes
    payload = min(base.arena.payload_bytes, -(-size // lba) * lba)
    while kept * -(-size // payload) > CHUNKS_MAX and payload < min(size, PAYLOAD_MAX):
        payload *= 2
    context = question.tokens // connector.chunk * parts
    return Objects(size, payload, -(-size // payload), context, kept)


def _config(
    question: Question, place: Place, part: Part, objects: Objects, base: Config
) -> tuple[Config, int]:
    """The daemon's configuration, and the arena that would hold all that is loaded at once."""
    replace = msgspec.structs.replace
    loading = part.loads * objects.context
    stored = objects.kept * objects.blocks
    sessions = max(base.limits.sessions, min(loading, SESSIONS_MAX))
    limits = replace(
        base.limits,
        context_tokens=(objects.blocks + 1) * base.arena.block_tokens,
        sessions=sessions,
        chunks=stored + sessions * (objects.blocks + 1),  # a session names one more than there is
        values=objects.kept,
        ports=part.ports,
        connections=max(base.limits.connections, 4 * part.ports),
    )
    ttl_s = place.capacity_bytes / place.write_bytes_per_s
    config = replace(
        base,
        daemon=replace(base.daemon, runtime_dir="cmx" if question.engine == "cmx" else ""),
        arena=replace(base.arena, payload_bytes=objects.payload_bytes),
        store=replace(base.store, ttl_ns=math.ceil(ttl_s) * 10**9),
        limits=limits,
    )
    _check_high(config)
    derived = derive(config)
    segments = derived.segment_count_min + question.tenants + 1  # the first blocks have one
    segments += math.ceil(stored / derived.segment_record_max)
    segments = math.ceil(segments * 100 / (100 - base.store.room_percent))
    config = replace(
        config,
        arena=replace(config.arena, size_bytes=_arena(question, part, objects, config, derived)),
        storage=replace(config.storage, size_bytes=segments * config.store.segment_bytes),
    )
    config = replace(config, tenants=_tenants(question.tenants, config))
    _check_high(config)
    return config, loading * objects.blocks * derived.record_size_bytes


def _arena(
    question: Question, part: Part, objects: Objects, config: Config, derived: Derived
) -> int:
    """All that is loaded at once, or what the memory leaves. BadInput where that is too little."""
    object_bytes = objects.blocks * derived.record_size_bytes
    wanted = part.loads * objects.context * object_bytes
    least = OBJECTS_LEAST * part.ports * object_bytes
    memory, whose = _memory(question)
    left = memory - _tables(config)
    if left < least:
        raise BadInput(
            f"the least arena, {OBJECTS_LEAST} objects for each of {part.ports} hosts, has "
            f"{format_size(least)}, and {whose} of {format_size(memory)} leaves "
            f"{format_size(max(left, 0))}",
            "memory",
            f"give the daemon more, or {FEWER}",
        )
    return max(min(-(-wanted // MIB) * MIB, left // MIB * MIB), least)


def _tables(config: Config) -> int:
    """Memory of a daemon besides its arena: measured tables, put windows, buffers of the drive."""
    limits = config.limits
    blocks = limits.ports * limits.put_slots + config.store.io_max
    return (
        BASE_BYTES
        + limits.sessions * SESSION_BYTES
        + limits.chunks * CHUNK_BYTES
        + limits.values * VALUE_BYTES
        + blocks * config.arena.payload_bytes
    )


def _memory(question: Question) -> tuple[int, str]:
    """What the daemon may have, and whose it is. BadInput for a DPU whose memory is not known."""
    if question.memory:
        return parse_size(question.memory, "memory"), "the given memory"
    if question.dpu not in names() or (ddr := read_preset(question.dpu).ddr) is None:
        raise BadInput(f"the memory of {question.dpu} is not known", "memory", "give it")
    whole = ddr.channels.base * ddr.capacity.base
    return int(MEMORY_SHARE * whole), f"{MEMORY_SHARE:.0%} of the memory of {question.dpu}"


def _tenants(count: int, config: Config) -> tuple[Tenant, ...]:
    """Equal quotas; one tenant needs none."""
    if count == 1:
        return config.tenants
    return tuple(
        Tenant(
            name=f"tenant-{number}",
            chunks_max=config.limits.chunks // count,
            store_max_bytes=config.storage.size_bytes // count,
        )
        for number in range(1, count + 1)
    )


def _check_high(config: Config) -> None:
    """BadInput for the first number that is above what a daemon takes."""
    for section, kind in SECTIONS.items():
        for key, one in declared(kind).items():
            value = getattr(getattr(config, section), one.name)
            if one.high is not None and value > one.high:
                raise BadInput(
                    f"{section}.{key} would be {value:,}, and a daemon takes {one.high:,}",
                    "plan",
                    FEWER,
                )


def _of_objects(question: Question, inputs: Inputs, objects: Objects) -> Iterator[Setting]:
    connector, kv = CONNECTORS[question.engine], inputs.of["model.kv"]
    yield _one("chunk", connector.chunk, "tokens", "assumed", connector.source)
    why = f"of one rank; {kv.number.source}"
    yield _one("object", objects.size_bytes, "B", kv.kind, why)
    why = "presets/engines.toml; smaller for small objects, larger for many"
    yield _one("block, arena.payload", objects.payload_bytes, "B", "assumed", why)
    yield _one("objects of a context", objects.context, "1", "modelled", "of all ranks")
    why = f"of all contexts, and {SPARE - 1:.0%} for the cleaner"
    yield _one("objects kept, limits.values", objects.kept, "1", "modelled", why)


def _of_daemons(
    part: Part, config: Config, wanted_bytes: int, question: Question
) -> Iterator[Setting]:
    arena, store = config.arena.size_bytes, config.storage.size_bytes
    yield _one("daemons", part.daemons, "1", "modelled", "DPUs of the plan")
    why = "replicas of the plan, as many for each tenant"
    yield _one("engines of a daemon", part.engines, "1", "modelled", why)
    yield _one("ranks of an engine", part.ranks, "1", "modelled", "GPUs of a replica")
    why = f"turns a second times first token; {NOW_AND_THEN:.0%} of the time"
    yield _one("contexts loaded at once", part.loads, "1", "modelled", why)
    why = f"those contexts, or what {_memory(question)[1]} leaves"
    yield _one("arena, arena.size", arena, "B", "modelled", why)
    yield _one("of them in the arena", min(1.0, arena / wanted_bytes), "share", "modelled", why)
    yield _one("memory beside it", _tables(config), "B", "measured", TABLES)
    yield _one("store, storage.size", store, "B", "modelled", "the objects kept, in segments")
    drives = max(part.drives, math.ceil(store / part.drive_bytes))
    why = "of the plan, or of that store; stripe several into one"
    yield _one("drives of a daemon", drives, "1", "modelled", why)
    why = "until as much as all contexts was written"
    yield _one("kept for, store.ttl", config.store.ttl_ns / 1e9, "s", "modelled", why)


def _of_tenants(config: Config, derived: Derived) -> Iterator[Setting]:
    """The first tenant's; all are alike."""
    tenant, why = config.tenants[0], "dpu/config/derive.py"
    yield _one("tenants", len(config.tenants), "1", "assumed", "given")
    slots, record = derived.slot_counts[0], derived.record_size_bytes
    yield _one("arena of a tenant", slots * record, "B", "modelled", why)
    yield _one("sessions of a tenant", derived.session_counts[0], "1", "modelled", why)
    yield _one("hosts of a tenant", derived.port_counts[0], "1", "modelled", why)
    if len(config.tenants) > 1:
        yield _one("store of a tenant", tenant.store_max_bytes, "B", "modelled", "an equal part")
        yield _one("chunks of a tenant", tenant.chunks_max, "1", "modelled", "an equal part")


def _of_machine(config: Config) -> Iterator[Setting]:
    arena, drain_s = config.arena.size_bytes, config.daemon.drain_timeout_ns / 1e9
    why = "the arena; buffers of the drive come on top: set no limit"
    yield _one("memlock, at least", arena, "B", "modelled", why)
    yield _one("huge pages of 2 MiB", math.ceil(arena / (2 * MIB)), "1", "modelled", "the arena")
    why = "regions go by descriptor"
    yield _one("/dev/shm", 0, "B", "cited", f"docs/reference/memory-map.md: {why}")
    why = "default; puts go through, so that it writes nothing back"
    yield _one("drain, daemon.drain_timeout", drain_s, "s", "assumed", why)
    why = f"{GRACE_TIMES:g} drains: TimeoutStopSec, terminationGracePeriodSeconds"
    yield _one("grace of systemd and Kubernetes", GRACE_TIMES * drain_s, "s", "assumed", why)
    silent_s = config.daemon.host_timeout_ns / 1e9
    yield _one("silence of a dead host", silent_s, "s", "assumed", "default, daemon.host_timeout")


def _one(name: str, value: float, unit: str, kind: Kind, source: str) -> Setting:
    return Setting(name=name, value=value, unit=unit, kind=kind, source=source)
