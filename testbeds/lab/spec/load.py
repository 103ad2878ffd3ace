"""Read a TOML file into a spec, and check every key, value and contradiction before a run.

Model: reading checks each key and value alone, then checks the spec against a list of rules in the
order of its tables. A rule is a condition, a message, the key at fault and the fix; rules are
independent, and the first broken one raises `BadInput`. No data is opened here: the values that a
file of selections determines are read when an experiment is planned (`lab/run/source.py`) and
then checked by the same rules.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from offstage.asic_model.parameters import Preset, read_preset
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import EVICTIONS
from offstage.bindings.settings import check_known, convert, declared, read_toml
from offstage.bindings.storage import presets
from offstage.bindings.tiers import DRIVES_MAX, TIERS_MAX
from offstage.bindings.units import format_size, parse_size, parse_time
from offstage.host.decode.step_cost import read
from offstage.host.model.models import geometry
from offstage.testbeds.lab.policies.registry import GRANULE, parse
from offstage.testbeds.lab.spec.idle import refuse_idle
from offstage.testbeds.lab.spec.schema import UNLIMITED, Spec
from offstage.testbeds.lab.spec.staged import settle
from offstage.testbeds.lab.spec.tiers import ALWAYS, NEVER, presets_of_tiers, tiers_of
from offstage.testbeds.lab.spec.weights import weights_rules

__all__ = ["built", "check", "find", "load"]

SPECS = Path(__file__).resolve().parents[2] / "specs"

WIDTH_MAX = 65535
"""Most units that a row of the ledger can count."""
CHUNKS_MAX = 1 << 26
BLOCKS_MAX = (1 << 32) - 2
"""Most blocks that a decision core can number; unshared content counts twice."""
SLOTS_MAX = 1 << 28
"""Most slots that a decision core can number."""
PARAMETER_MAX = 0xFFFFFFFF
HOUR_NS = 3_600_000_000_000
RATE_MAX = 10**15

OF_TIERS = ("copies", "place", "timing", "prices")
"""Keys of [tier] that describe the tiers below the arena."""

Rule = tuple[bool, str, str, str]
"""(broken, what is wrong, the key, the fix)."""


def find(name: str) -> Path:
    """The file of a spec, by path or by the name of one that ships with Offstage. Folders are
    ignored: the results of `cmx-128k` are often in a folder of that name."""
    path = Path(name)
    if path.suffix == ".toml" or (path.exists() and not path.is_dir()):
        return path
    shipped = SPECS / f"{name}.toml"
    if shipped.is_file():
        return shipped
    known = sorted(one.stem for one in SPECS.glob("*.toml"))
    fix = f"give a TOML file, or one of {', '.join(known)}" if known else "give a TOML file"
    raise BadInput(f"no spec is named {name!r}", "lab", fix)


def load(path: Path, changes: Mapping[str, Any] | None = None) -> Spec:
    """The spec in a file, with `changes` (`table.key` to value) applied. BadInput if it is not
    TOML, has an unknown key, a value out of range, or keys that contradict each other."""
    return built(read_toml(path, "give a spec's TOML file"), str(path), changes or {})


def built(raw: dict[str, Any], where: str, changes: Mapping[str, Any]) -> Spec:
    """The spec of a file's tables, with `changes` applied. BadInput as `load`."""
    if not raw and not changes:
        raise BadInput("the spec is empty", where, "begin it with [workload]")
    tables = {key: dict(one) if isinstance(one, dict) else one for key, one in raw.items()}
    tables.setdefault("name", Path(where).stem)
    for key, value in changes.items():
        table, dot, name = key.partition(".")
        if dot:
            check_known(table, declared(Spec), where)
            inner = tables.setdefault(table, {})
            if not isinstance(inner, dict):
                raise BadInput(f"{key!r} cannot be changed", where, "name a key of a table")
            inner[name] = value
        else:
            tables[key] = value
    workload = tables.get("workload")
    if isinstance(workload, dict) and workload.get("kind") == "requests":
        tables.setdefault("policy", [{"use": name} for name in EVICTIONS if name != "score"])
    tier = tables.get("tier")
    if isinstance(tier, dict):
        _check_pairs(tier, where)
    settle(tables, where)
    spec = _paced(convert(tables, Spec, where).beside(Path(where).parent))
    check(spec, where)
    refuse_idle(tables, spec, where)
    return spec


def _check_pairs(tier: Mapping[str, Any], where: str) -> None:
    """BadInput for a key that contradicts another, or that needs a missing one."""
    if {"time_per_token", "decode_cost"} <= set(tier):
        raise BadInput(
            "decode_cost and time_per_token are both set",
            f"{where}: [tier] decode_cost",
            "leave one of them out",
        )
    if {"storage", "below"} <= set(tier):
        raise BadInput(
            "storage and [[tier.below]] are both set",
            f"{where}: [tier] storage",
            "leave one of them out",
        )
    alone = [] if "below" in tier else [key for key in OF_TIERS if key in tier]
    if alone:
        raise BadInput(
            "there are no tiers below the arena",
            f"{where}: [tier] {alone[0]}",
            "list them as [[tier.below]], or leave it out",
        )


def _paced(spec: Spec) -> Spec:
    """The spec with `time_per_token` set from the measurement that it names, if any. The run then
    depends on that time alone, even if the file changes later."""
    if not spec.tier.decode_cost:
        return spec
    shape = replace(geometry(spec.geometry.model), block_tokens=spec.geometry.block_tokens)
    tokens = spec.selection.k_blocks * spec.geometry.block_tokens
    token_ns = read(Path(spec.tier.decode_cost)).token_ns(shape, spec.concurrent, tokens)
    own_ns = token_ns * spec.layer_count // shape.layer_count
    tier = msgspec.structs.replace(spec.tier, time_per_token=f"{own_ns}ns")
    return msgspec.structs.replace(spec, tier=tier)


def check(spec: Spec, where: str) -> None:
    """BadInput for the first contradiction; `where` names the file."""
    sides = [_workload(spec), weights_rules(spec), _policies(spec)]
    if spec.workload.kind != "requests":
        sides[1:1] = [_sizes(spec), _tier(spec)]
        sides.append(_reference(spec))
    try:
        for rules in sides:
            for broken, what, key, fix in rules:
                if broken:
                    raise BadInput(what, key, fix)
    except BadInput as error:
        raise BadInput(error.what, f"{where}: {error.where}", error.fix) from None


def _workload(spec: Spec) -> Iterator[Rule]:
    work = spec.workload
    yield (
        work.kind != "generated" and not work.file,
        f"kind = {work.kind!r} needs a file",
        "[workload] file",
        "name the file",
    )
    yield (
        work.kind != "generated" and spec.geometry.staged != "all",
        f"the layers that a model selects for are drawn, and kind is {work.kind!r}",
        "[geometry] staged",
        'leave it out, or set kind = "generated"',
    )
    for key, given in (
        ("[workload] layers", work.layers > 0),
        ("[workload] index_group", work.index_group > 1),
        ("[tier] decode_cost", bool(spec.tier.decode_cost)),
    ):
        yield (
            given and spec.staged is not None,
            f"{key.split()[1]} beside staged = 'selected', where the model says which layers",
            key,
            "leave it out",
        )
    yield (
        work.kind == "generated" and bool(work.file),
        "a generated workload with a file",
        "[workload] file",
        "leave it out, or set kind to the file's kind",
    )
    yield (
        work.kind != "generated" and bool(work.predicted),
        f"predicted has no effect on kind {work.kind!r}",
        "[workload] predicted",
        "leave it out",
    )
    yield (
        work.kind != "requests" and work.warm_up_share > 0,
        f"warm_up_share has no effect on kind {work.kind!r}",
        "[workload] warm_up_share",
        "leave it out: the first steps are reported separately",
    )
    yield (
        work.shared_prefix_tokens > work.context_tokens,
        f"a shared prefix of {work.shared_prefix_tokens} tokens is longer than the context",
        "[workload] shared_prefix_tokens",
        "shorten it",
    )
    yield (
        work.kind == "requests" and bool(spec.tier.below),
        "kind = 'requests' has no tiers below the arena",
        "[[tier.below]]",
        "leave them out",
    )
    twice = sorted({seed for seed in spec.seeds if spec.seeds.count(seed) > 1})
    yield bool(twice), f"seed {twice[:1]} appears twice", "seeds", "list each seed once"


def _sizes(spec: Spec) -> Iterator[Rule]:
    work = spec.workload
    shape = geometry(spec.geometry.model)
    block, granule = spec.geometry.block_tokens, spec.geometry.granule_tokens
    blocks = work.context_tokens // block
    names = work.sessions * blocks * spec.granules
    yield (
        block > work.context_tokens,
        f"a block of {block} tokens is larger than the context of {work.context_tokens}",
        "[geometry] block_tokens",
        "give a smaller block",
    )
    yield (
        granule is not None and block % granule != 0,
        f"{granule} does not divide block_tokens = {block}",
        "[geometry] granule_tokens",
        "give a divisor",
    )
    yield (
        bool(work.time_unit) and not work.trace and work.kind != "requests",
        "time_unit is set, but trace is not",
        "[workload] time_unit",
        "leave it out",
    )
    if work.kind != "generated":
        return  # a file is compared with the spec when it is opened
    yield (
        work.layers > shape.layer_count,
        f"{work.layers} layers of {shape.layer_count}",
        "[workload] layers",
        "give fewer, or 0 for all",
    )
    for key in () if work.trace else ("context_tokens", "shared_prefix_tokens"):
        tokens = getattr(work, key)
        yield (
            tokens % block != 0,
            f"{tokens} tokens are not a multiple of the block's {block}",
            f"[workload] {key}",
            f"give a multiple of {block}",
        )
    yield (
        2 * names > CHUNKS_MAX or 2 * names * spec.layer_count > BLOCKS_MAX,
        f"{work.sessions} sessions of {blocks * spec.granules:,} units and {spec.layer_count} "
        "layers are too many",
        "[workload] sessions",
        "give fewer, and more seeds",
    )
    uneven = f"{work.tenants} tenants for {spec.concurrent} sessions at once"
    yield spec.concurrent % work.tenants != 0, uneven, "[workload] tenants", "give a divisor"
    yield (
        work.index_group > spec.layer_count,
        f"groups of {work.index_group} of {spec.layer_count} layers",
        "[workload] index_group",
        "give a smaller one",
    )
    yield from _selection(spec, blocks)


def _selection(spec: Spec, blocks: int) -> Iterator[Rule]:
    """Rules for the selection of a generated context of `blocks` blocks."""
    select = spec.selection
    yield (
        select.k_blocks > blocks,
        f"k = {select.k_blocks} blocks, but the context has {blocks}",
        "[selection] k_blocks",
        "select fewer, or give a longer context",
    )
    yield (
        select.sink_blocks + select.window_blocks >= select.k_blocks,
        f"sinks and window leave no room in k = {select.k_blocks}",
        "[selection] window_blocks",
        "leave room for blocks selected by score",
    )
    yield (
        select.k_blocks * spec.granules > WIDTH_MAX,
        f"k of {select.k_blocks * spec.granules} units is more than {WIDTH_MAX}",
        "[selection] k_blocks",
        "select fewer, or in larger granules",
    )


def _tier(spec: Spec) -> Iterator[Rule]:
    tier = spec.tier
    least = min(tier.buffer_over_k, default=0)
    yield (not tier.buffer_over_k, "no buffer", "[tier] buffer_over_k", "list one or more")
    yield (
        least < 1,
        f"a buffer of {least:g} k cannot hold one selection (B < k)",
        "[tier] buffer_over_k",
        "give 1 or more",
    )
    yield (
        0 < tier.hbm_pool_over_k < 1,
        f"a pool of {tier.hbm_pool_over_k:g} k cannot hold one selection",
        "[tier] hbm_pool_over_k",
        "give 0 (no pool), or 1 or more",
    )
    yield (
        tier.storage not in presets(),
        f"no NVMe preset {tier.storage!r}",
        "[tier] storage",
        f"choose one of {', '.join(presets())}",
    )
    yield (
        spec.time_per_token_ns < spec.layer_count,
        "a layer takes no time",
        "[tier] time_per_token",
        "give one such as 40ms",
    )
    for key in ("time_per_token", "warmup"):
        time_ns = parse_time(getattr(tier, key), f"[tier] {key}")
        yield time_ns > HOUR_NS, "longer than an hour", f"[tier] {key}", "give less"
    yield (not tier.bandwidth, "no bandwidth", "[tier] bandwidth", f'give ["{UNLIMITED}"]')
    yield (
        max(one or 0 for one in spec.caps) > RATE_MAX,
        "more than any drive has",
        "[tier] bandwidth",
        f'give a rate such as "4GB/s", or "{UNLIMITED}"',
    )
    if tier.device:
        yield from _device(spec, read_preset(tier.device))
    if tier.below:
        yield from _below(spec)
    slots = max(tier.buffer_over_k) * spec.selection.k_blocks * spec.granules * spec.layer_count
    yield (
        slots * (spec.workload.concurrent or spec.workload.sessions) > SLOTS_MAX,
        f"a buffer of {max(tier.buffer_over_k):g} k makes the arena too large",
        "[tier] buffer_over_k",
        "give less",
    )


def _below(spec: Spec) -> Iterator[Rule]:
    """Rules for the tiers below the arena, each alone and against its neighbours."""
    tier, where = spec.tier, "[[tier.below]]"
    yield (
        bool(tier.device),
        "a modelled device includes its drives",
        "[tier] device",
        "leave out device or [[tier.below]]",
    )
    yield (
        len(tier.below) > TIERS_MAX,
        f"{len(tier.below)} tiers",
        where,
        f"give at most {TIERS_MAX}",
    )
    for one in tier.below:
        check_known(one.use, presets_of_tiers(), f"{where} use", "tier")
        at = f"{where} capacity"
        yield (one.capacity == "", f"{one.use} has no capacity", at, 'give one such as "64GiB"')
        bare = isinstance(one.capacity, int) or one.capacity.strip().isdigit()
        yield (bare, f"{one.use}: {one.capacity} has no unit", at, 'give one such as "64GiB"')
        size = parse_size(one.capacity, at)
        yield (
            size < spec.block_bytes,
            f"{one.use}: {one.capacity} holds no block of {format_size(spec.block_bytes)}",
            at,
            "give more",
        )
        if one.promote_within not in ("", ALWAYS, NEVER):
            parse_time(one.promote_within, f"{where} promote_within")
    sizes = [parse_size(one.capacity) for one in tier.below]
    for above, under in itertools.pairwise(range(len(sizes))):
        yield (
            sizes[under] < sizes[above],
            f"{tier.below[above].use} of "
            f"{tier.below[above].capacity} is above {tier.below[under].use} of "
            f"{tier.below[under].capacity}",
            f"{where} capacity",
            "list the fastest first, each at least as large as the one above",
        )
    yield (
        bool(tier.below[-1].promote_within),
        f"{tier.below[-1].use} is the last tier and holds all blocks",
        f"{where} promote_within",
        "leave it out",
    )
    for built in tiers_of(spec, spec.block_bytes):
        yield (
            bool(built.drive) and built.devices > DRIVES_MAX,
            f"{built.devices} drives",
            f"{where} devices",
            f"give at most {DRIVES_MAX}",
        )
    work = spec.workload
    tokens = work.context_tokens + work.steps
    chunks = work.sessions * -(-tokens // spec.geometry.block_tokens)
    wants = chunks * spec.layer_count * spec.block_bytes
    yield (
        sizes[-1] < wants,
        f"{tier.below[-1].use} of {tier.below[-1].capacity} is the last tier, but "
        f"cannot hold all {format_size(wants)}",
        f"{where} capacity",
        "give more, or a tier below it",
    )


def _device(spec: Spec, preset: Preset) -> Iterator[Rule]:
    """The arena must fit into the device's memory."""
    has = preset.arena_bytes
    slots = max(spec.tier.buffer_over_k) * spec.selection.k_blocks * spec.layer_count
    wants = slots * (spec.workload.concurrent or spec.workload.sessions) * spec.block_bytes
    yield (
        wants > has,
        f"the arena needs {format_size(int(wants))}, but {preset.name} has "
        f"{format_size(has)} of {preset.staging}",
        "[tier] device",
        "give a smaller buffer, or another device",
    )


def _policies(spec: Spec) -> Iterator[Rule]:
    yield not spec.policy, "no policy", "[[policy]]", "name one or more"
    for one in spec.policy:
        if spec.workload.kind == "requests":
            name = one.eviction or one.use
            known = [eviction for eviction in EVICTIONS if eviction != "score"]
            yield (
                name not in known,
                f"kind = 'requests' has no eviction {name!r}",
                "[[policy]] use",
                f"choose one of {', '.join(known)}",
            )
            continue
        combined = parse(one.use)
        yield (
            0 in spec.caps and (combined.guesses or bool(combined.core.prefetchers)),
            f"{one.use} prefetches, but the cap is 0",
            "[tier] bandwidth",
            f'give a rate, "{UNLIMITED}", or only policies without prefetch',
        )
        yield _eviction(one.eviction, "[[policy]] eviction")
        for name, value in one.parameters.items():
            yield (
                name == "prefetch_bytes_per_s_max",
                "the cap is not a policy parameter",
                "[[policy]] parameters",
                "set bandwidth in [tier]",
            )
            yield (
                value > PARAMETER_MAX,
                f"{name} = {value}",
                "[[policy]] parameters",
                f"give at most {PARAMETER_MAX}",
            )
        combined.core_policy(spec.geometry.block_tokens, **one.parameters)
        yield from _granule(spec, one.parameters)


def _granule(spec: Spec, parameters: Mapping[str, int]) -> Iterator[Rule]:
    """Rules for the tokens that a policy stages together."""
    block = spec.geometry.block_tokens
    least, tokens = block // spec.granules, parameters.get(GRANULE)
    yield (
        tokens is not None and (tokens < 1 or bool(tokens % least) or bool(block % tokens)),
        f"{GRANULE} = {tokens}, of blocks of {block} that are selected {least} at a time",
        "[[policy]] parameters",
        f"give a multiple of {least} that divides {block}",
    )


def _reference(spec: Spec) -> Iterator[Rule]:
    one = spec.reference
    parse(one.use)
    yield _eviction(one.eviction, "[reference] eviction")
    yield (
        one.buffer_over_k < 1,
        f"a buffer of {one.buffer_over_k:g} k cannot hold one selection",
        "[reference] buffer_over_k",
        "give 1 or more",
    )


def _eviction(name: str, key: str) -> Rule:
    return (
        name not in ("", *EVICTIONS),
        f"unknown eviction {name!r}",
        key,
        f"choose one of {', '.join(EVICTIONS)}",
    )
