"""What a spec's keys must be to each other: every contradiction that can be seen before a run.

Model: a list of rules in the order of the spec's tables, each a condition, the key at fault, and
the mend. A rule knows nothing of the others; the first that is broken is the `BadInput`.
"""

from collections.abc import Iterator

from offstage.bindings.core import EVICTIONS
from offstage.bindings.errors import BadInput
from offstage.bindings.storage import presets
from offstage.bindings.units import parse_time
from offstage.host.models import geometry
from offstage.testbeds.lab.registry import parse
from offstage.testbeds.lab.spec import UNLIMITED, Spec

__all__ = ["check"]

Rule = tuple[bool, str, str, str]
"""Broken or not, what is wrong, the key, the mend."""


def check(spec: Spec, where: str) -> None:
    """BadInput for the first contradiction; `where` names the file."""
    sides = [_workload(spec), _policies(spec)]
    if spec.workload.kind != "requests":
        sides = [_workload(spec), _sizes(spec), _tier(spec), _policies(spec)]
    for rules in sides:
        for broken, what, key, mend in rules:
            if broken:
                raise BadInput(what, f"{where}: {key}", mend)


def _workload(spec: Spec) -> Iterator[Rule]:
    work = spec.workload
    yield (work.kind != "generated" and not work.file, f"kind = {work.kind!r} without a file",
           "[workload] file", "name the file")  # fmt: skip
    yield (work.kind == "generated" and bool(work.file), "a generated workload with a file",
           "[workload] file", "leave it out, or give kind its name")  # fmt: skip
    yield (work.shared_prefix_tokens > work.context_tokens,
           f"a shared prefix of {work.shared_prefix_tokens} tokens is longer than the context",
           "[workload] shared_prefix_tokens", "shorten it")  # fmt: skip


def _sizes(spec: Spec) -> Iterator[Rule]:
    work, select = spec.workload, spec.selection
    shape = geometry(spec.geometry.model)
    block, granule = spec.geometry.block_tokens, spec.geometry.granule_tokens
    blocks = work.context_tokens // block
    yield (block > work.context_tokens,
           f"a block of {block} tokens is larger than the context of {work.context_tokens}",
           "[geometry] block_tokens", "give a smaller block")  # fmt: skip
    yield (granule is not None and block % granule != 0,
           f"{granule} does not divide block_tokens = {block}", "[geometry] granule_tokens",
           "give a divisor")  # fmt: skip
    yield (work.kind == "generated" and work.layers > shape.layer_count,
           f"{work.layers} layers of {shape.layer_count}", "[workload] layers",
           "give fewer, or 0 for all")  # fmt: skip
    yield (work.index_group > spec.layer_count,
           f"groups of {work.index_group} of {spec.layer_count} layers",
           "[workload] index_group", "give a smaller one")  # fmt: skip
    yield (select.k_blocks > blocks, f"k = {select.k_blocks} blocks of a context that has {blocks}",
           "[selection] k_blocks", "select fewer, or give a longer context")  # fmt: skip
    yield (select.sink_blocks + select.window_blocks >= select.k_blocks,
           f"sinks and window fill k = {select.k_blocks}", "[selection] window_blocks",
           "leave room for what is selected by score")  # fmt: skip


def _tier(spec: Spec) -> Iterator[Rule]:
    tier = spec.tier
    least = min(tier.buffer_over_k, default=0)
    yield (not tier.buffer_over_k, "no buffer", "[tier] buffer_over_k", "list one or more")
    yield (least < 1, f"a buffer of {least:g} k cannot hold one selection (B < k)",
           "[tier] buffer_over_k", "give 1 or more")  # fmt: skip
    yield (0 < tier.hbm_pool_over_k < 1,
           f"a pool of {tier.hbm_pool_over_k:g} k cannot hold one selection",
           "[tier] hbm_pool_over_k", "give 0 (no pool), or 1 or more")  # fmt: skip
    yield (tier.storage not in presets(), f"no NVMe preset {tier.storage!r}", "[tier] storage",
           f"choose one of {', '.join(presets())}")  # fmt: skip
    yield (spec.time_per_token_ns == 0, "a token takes no time", "[tier] time_per_token",
           "give one such as 40ms")  # fmt: skip
    parse_time(tier.warmup, "[tier] warmup")
    yield (not tier.bandwidth, "no bandwidth", "[tier] bandwidth", f'give ["{UNLIMITED}"]')


def _policies(spec: Spec) -> Iterator[Rule]:
    yield not spec.policy, "no policy", "[[policy]]", "name one or more"
    for one in spec.policy:
        if spec.workload.kind == "requests":
            name = one.eviction or one.use
            known = [eviction for eviction in EVICTIONS if eviction != "score"]
            yield (name not in known, f"{name!r} is no eviction that requests can have",
                   "[[policy]] use", f"choose one of {', '.join(known)}")  # fmt: skip
            continue
        combined = parse(one.use)
        yield (0 in spec.caps and (combined.guesses or bool(combined.core.prefetchers)),
               f"a cap of 0 with prefetch on ({one.use})", "[tier] bandwidth",
               f'give a rate, "{UNLIMITED}", or only policies without prefetch')  # fmt: skip
