"""A lab experiment as a TOML file: what is run, at which sizes, under which policies.

Model: a spec is plain data. Reading it checks every key and value by itself and every pair that can
contradict each other; what is wrong is one `BadInput` that names the file and the key. A sweep's
axes replace keys of the spec, so that each of its variants is a spec like any other.
"""

from typing import Annotated, Any, Literal

import msgspec

from offstage.bindings.units import parse_rate, parse_time
from offstage.host.model.models import geometry

__all__ = [
    "UNLIMITED",
    "BelowSpec",
    "GeometrySpec",
    "PolicySpec",
    "ReferenceSpec",
    "SelectionSpec",
    "Spec",
    "TierSpec",
    "WorkloadSpec",
]

UNLIMITED = "unlimited"

Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Multiple = Annotated[float, msgspec.Meta(gt=0, le=4096)]


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who decodes, and how long. `kind` says where the selections come from."""

    kind: Literal["generated", "captured", "selections", "requests"] = "generated"
    profile: str = "published-mix"
    """generated: which fitted processes, of `offstage trace generate --explain`."""
    context_tokens: Positive = 131_072
    sessions: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 4
    concurrent: Count = 0
    """Sessions that decode at once; the others wait their turn. 0: all of them."""
    steps: Positive = 512
    turn_steps: Count = 0
    """A new turn of the conversation begins every so many steps; 0: never."""
    shared_prefix_tokens: Count = 0
    groups: Positive = 1
    """Distinct shared prefixes; sessions take them in turn."""
    draft_agreement: Share = 0.0
    """The share of a draft's selection that the model selects too; 0: no draft model."""
    draft_cost: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.125
    """What a draft model takes for a token, as a share of the model's time: so late in a step its
    selection is known. Chinchilla's draft takes 1.8 ms of 14.1 (Chen et al., arXiv:2302.01318)."""
    foretold: Literal["", "captured"] = ""
    """generated: what each layer's input foretells of the next one's selection; captured: drawn, as
    often right as on captures of a trained model; empty: nothing."""
    layers: Count = 0
    """Layers, the geometry's from the front; 0: all of them. captured, selections: the file's."""
    index_group: Positive = 1
    """Consecutive layers that use one index set, as GLM-5.2's do; 1: as the geometry says."""
    trace: str = ""
    """generated: a request trace that gives lengths, arrivals and sharing."""
    time_unit: Literal["", "s", "ms", "us", "ns"] = ""
    """Of the trace's times, or the file's requests; none: as its format has them."""
    context_tokens_min: Positive = 65_536
    """With a trace: shorter requests are passed over, longer ones cut to context_tokens."""
    split: Literal["dev", "test"] = "dev"
    """Which half of that trace: policies are tuned on dev and reported on test."""
    file: str = ""
    """captured, selections, requests: the file."""
    ttl_s: tuple[float, ...] = (0.0,)
    """requests: a block that nobody asked for so long expires; 0: never."""
    admission: tuple[str, ...] = ("all",)
    warm_up_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    """requests: of the trace's, those that come first: they fill the cache and are not counted."""
    capacity_share: tuple[float, ...] = (0.01, 0.05, 0.1, 0.25, 0.5)


class GeometrySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose KV cache it is."""

    model: str = "llama-3-70b"
    block_tokens: Positive = 64
    granule_tokens: Positive | None = None
    """Tokens that the policy component `granule` stages together; default: whole blocks."""


class SelectionSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a layer reads in a step, in blocks, sinks and window included."""

    selector: str = "mass"
    k_blocks: Positive = 32
    sink_blocks: Count = 1
    window_blocks: Count = 2


class BelowSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tier below the arena."""

    use: str
    """A preset of `spec/tiers.toml`, such as host-dram or object."""
    capacity: str | int = ""
    """Bytes, such as "64GiB"."""
    devices: Count = 0
    """Modules or drives; 0: as many as the capacity takes."""
    promote_within: str = ""
    """A block that is read again sooner is copied here; "always", "never", or a time. Default: the
    reuse interval at which this tier costs what the next one does."""


class TierSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The staging tier and what lies below and above it."""

    buffer_over_k: tuple[Multiple, ...] = (2.0, 4.0)
    hbm_pool_over_k: Annotated[float, msgspec.Meta(ge=0, le=4096)] = 0.0
    """Blocks of each layer that the GPU keeps, in multiples of k; 0: it keeps none."""
    storage: str = "gen5-tlc"
    bandwidth: tuple[str | float, ...] = (UNLIMITED,)
    """Cap of prefetch reads, such as "4GB/s"; "unlimited": the drive's own limit only."""
    time_per_token: str = "40ms"
    """The GPU's own time for one token of one session."""
    decode_cost: str = ""
    """A file of `offstage host calibrate`: that time as it was measured for as many sessions as
    decode at once, at k blocks each. Read when the spec is, into `time_per_token`."""
    warmup: str = "50ms"
    """Between the end of a prefill and the first demand."""
    in_flight: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 128
    device: str = ""
    """What takes commands, reads and hits: a preset of the chip model, or a file of one; without
    one the drive's times and a constant for the rest."""
    below: tuple[BelowSpec, ...] = ()
    """What lies below the arena in place of `storage`, the fastest first."""
    copies: Literal["inclusive", "exclusive"] = "inclusive"
    """inclusive: what a tier holds, all below it hold too; exclusive: a block is in one tier."""
    place: Literal["first", "last"] = "first"
    """The tier that a new block is written to."""
    timing: Literal["mid", "slow", "fast"] = "mid"
    """Which end of their ranges the tiers' latencies and rates are taken from."""
    prices: str = ""
    """A file of numbers in place of single ones of `offstage plan`'s."""


class PolicySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy: components joined by +, as `offstage lab policies` lists them."""

    use: str
    eviction: str = ""
    """Default: what the components want, lru where none wants anything."""
    label: str = ""
    parameters: dict[str, int] = {}
    """Fields of the decision core's policy, such as degree_max."""


class ReferenceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The point whose reads are 1.0 of `traffic_vs_reference`."""

    use: str = "none"
    eviction: str = "lru"
    buffer_over_k: Multiple = 2.0


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One experiment."""

    name: str
    seeds: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1, max_length=1000)] = (1,)
    workload: WorkloadSpec = WorkloadSpec()
    geometry: GeometrySpec = GeometrySpec()
    selection: SelectionSpec = SelectionSpec()
    tier: TierSpec = TierSpec()
    policy: tuple[PolicySpec, ...] = (PolicySpec(use="none"), PolicySpec(use="window+ema"))
    reference: ReferenceSpec = ReferenceSpec()
    sweep: dict[str, tuple[Any, ...]] = {}

    @property
    def layer_count(self) -> int:
        """Layers that are run."""
        return self.workload.layers or geometry(self.geometry.model).layer_count

    @property
    def concurrent(self) -> int:
        """Sessions that decode at once."""
        return min(self.workload.concurrent or self.workload.sessions, self.workload.sessions)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of one layer."""
        shape = geometry(self.geometry.model)
        return shape.block_bytes(0) // shape.block_tokens * self.geometry.block_tokens

    @property
    def granules(self) -> int:
        """Granules of one block; 1 where whole blocks are staged."""
        tokens = self.geometry.granule_tokens or self.geometry.block_tokens
        return max(self.geometry.block_tokens // tokens, 1)

    @property
    def time_per_token_ns(self) -> int:
        """The GPU's own time."""
        return parse_time(self.tier.time_per_token, "[tier] time_per_token")

    @property
    def caps(self) -> list[int | None]:
        """The caps of prefetch reads in bytes per second; None: no cap."""
        return [
            None if one == UNLIMITED else int(parse_rate(one, "[tier] bandwidth"))
            for one in self.tier.bandwidth
        ]
