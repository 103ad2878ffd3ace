"""A lab experiment as a TOML file: its workload, sizes and policies.

Model: a spec is plain data. Reading it checks each key and value alone and every pair that can
contradict each other; an error is one `BadInput` that names the file and the key. A sweep's axes
replace keys of the spec, so that each variant is an ordinary spec.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from offstage.bindings.units import parse_rate, parse_time
from offstage.host.model.models import geometry
from offstage.testbeds.lab.policies.from_file import from_folder
from offstage.testbeds.lab.spec.staged import SELECTED, Staged, entry_bytes, staged

__all__ = [
    "UNLIMITED",
    "BelowSpec",
    "GeometrySpec",
    "PolicySpec",
    "ReferenceSpec",
    "SelectionSpec",
    "Spec",
    "TierSpec",
    "WeightsSpec",
    "WorkloadSpec",
]

UNLIMITED = "unlimited"

Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Multiple = Annotated[float, msgspec.Meta(gt=0, le=4096)]


class WorkloadSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sessions and their lengths. `kind` is the source of the selections."""

    kind: Literal["generated", "captured", "selections", "requests"] = "generated"
    profile: str = "published-mix"
    """generated: the fitted processes, as `offstage trace generate --explain` lists them."""
    context_tokens: Positive = 131_072
    sessions: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 4
    concurrent: Count = 0
    """Sessions that decode concurrently; the others wait. 0: all of them."""
    tenants: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 1
    """generated: to whom the sessions belong in turn: each has a secret, so that prefixes are
    shared within it alone, and an equal part of the arena."""
    steps: Positive = 512
    turn_steps: Count = 0
    """Steps between turns of the conversation; 0: no turns."""
    shared_prefix_tokens: Count = 0
    groups: Positive = 1
    """Distinct shared prefixes, assigned to sessions round robin."""
    draft_agreement: Share = 0.0
    """The share of a draft's selection that the model selects too; 0: no draft model."""
    draft_cost: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.125
    """A draft model's time for a token, as a share of the model's time: its selection is known that
    late in a step. Chinchilla's draft takes 1.8 ms of 14.1 (Chen et al., arXiv:2302.01318)."""
    predicted: Literal["", "captured"] = ""
    """generated: whether each layer's input predicts the next layer's selection; captured: drawn,
    with the accuracy measured on captures of a trained model; empty: no prediction."""
    layers: Count = 0
    """The first layers of the geometry; 0: all. captured, selections: from the file."""
    index_group: Positive = 1
    """Consecutive layers that use one index set, as in GLM-5.2; 1: as the geometry says."""
    indexers: Count = 0
    """With staged = "selected": indexers that are drawn of the model's, evenly over the depth, each
    with the layers that reuse its selection; 0: all."""
    trace: str = ""
    """generated: a request trace that gives lengths, arrivals and sharing."""
    time_unit: Literal["", "s", "ms", "us", "ns"] = ""
    """Unit of the times in the trace or the file of requests; empty: the unit of its format."""
    context_tokens_min: Positive = 65_536
    """With a trace: shorter requests are skipped, longer ones cut to context_tokens."""
    split: Literal["dev", "test"] = "dev"
    """Which half of that trace: policies are tuned on dev and reported on test."""
    file: str = ""
    """captured, selections, requests: the file."""
    ttl_s: tuple[float, ...] = (0.0,)
    """requests: a block expires after this time without a request; 0: never."""
    admission: tuple[str, ...] = ("all",)
    warm_up_share: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    """requests: share of the trace, from its start, that fills the cache and is not counted."""
    capacity_share: tuple[float, ...] = (0.01, 0.05, 0.1, 0.25, 0.5)


class GeometrySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model, and how its KV cache is divided into blocks."""

    model: str = "llama-3-70b"
    block_tokens: Positive = 64
    granule_tokens: Positive | None = None
    """Tokens that the policy component `granule` stages together; default: whole blocks."""
    staged: Literal["all", "selected"] = "all"
    """all: every layer, as the first one stores. selected: the layers whose selection the model
    makes itself; all else it keeps is read whole at every step, and stays with the GPU."""
    top_k: Count = 0
    """selected: entries that a layer selects, of a model without a source; 0: as it says."""


class SelectionSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The blocks that a layer reads in a step, sinks and window included."""

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
    """A block that is read again within this time is copied here; "always", "never", or a time.
    Default: the reuse interval at which this tier costs as much as the next one."""


class TierSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The staging tier, the HBM pool above it and the tiers below it."""

    buffer_over_k: tuple[Multiple, ...] = (2.0, 4.0)
    hbm_pool_over_k: Annotated[float, msgspec.Meta(ge=0, le=4096)] = 0.0
    """Blocks of each layer that the GPU keeps, in multiples of k; 0: none."""
    storage: str = "gen5-tlc"
    bandwidth: tuple[str | float, ...] = (UNLIMITED,)
    """Cap of prefetch reads, such as "4GB/s"; "unlimited": only the drive's limit applies."""
    time_per_token: str = "40ms"
    """The GPU's compute time for one token of one session, without stalls."""
    decode_cost: str = ""
    """A file of `offstage host calibrate`: that time as measured for the number of concurrent
    sessions, at k blocks each. Read together with the spec, into `time_per_token`."""
    warmup: str = "50ms"
    """Time between the end of a prefill and the first demand."""
    in_flight: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 128
    device: str = ""
    """The chip that serves commands, reads and hits: a preset of the chip model, or a file of one.
    Empty: the drive's times, and a constant for the rest."""
    below: tuple[BelowSpec, ...] = ()
    """The tiers below the arena, in place of `storage`, the fastest first."""
    copies: Literal["inclusive", "exclusive"] = "inclusive"
    """inclusive: all tiers below a tier hold its blocks too; exclusive: a block is in one tier."""
    place: Literal["first", "last"] = "first"
    """The tier that a new block is written to."""
    timing: Literal["mid", "slow", "fast"] = "mid"
    """The end of their ranges from which the tiers' latencies and rates are taken."""
    prices: str = ""
    """A file of numbers that replace some of `offstage plan`'s."""


class WeightsSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's weights, read once from the drive of `storage` while sessions decode."""

    bytes: str | int = 0
    """Of all weights, such as "70GB"; 0: none, the reference that is run anyway."""
    start: str = "0s"
    """When the stream begins; the first session's warm-up begins at 0."""
    floor: str | float = 0.0
    """What the stream gets first, such as "2GB/s"; 0: turns alone."""
    cap: str | float = UNLIMITED
    """The most it reads, such as "8GB/s"."""
    in_flight: str | int = "2MiB"
    """What it may have at the drive at once, beside what its floor is owed; KV has `kv_weight`
    times that."""
    kv_weight: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 8
    """Turns of KV's reads for each of the stream's."""


class PolicySpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy: components joined by +, as `offstage lab policies` lists them."""

    use: str
    eviction: str = ""
    """Default: the eviction that the components name, or lru if none names one."""
    label: str = ""
    parameters: dict[str, int] = {}
    """Fields of the decision core's policy, such as degree_max."""


class ReferenceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The point whose reads are 1.0 in `traffic_vs_reference`."""

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
    weights: WeightsSpec | None = None
    policy: tuple[PolicySpec, ...] = (PolicySpec(use="none"), PolicySpec(use="window+ema"))
    reference: ReferenceSpec = ReferenceSpec()
    sweep: dict[str, tuple[Any, ...]] = {}

    def beside(self, folder: Path) -> "Spec":
        """The spec read in `folder`: policies whose file is there are named by their path."""
        replace = msgspec.structs.replace
        policy = tuple(replace(one, use=from_folder(one.use, folder)) for one in self.policy)
        use = from_folder(self.reference.use, folder)
        return replace(self, policy=policy, reference=replace(self.reference, use=use))

    @property
    def layer_count(self) -> int:
        """Number of layers that are run."""
        if found := self.staged:
            return len(found.layers)
        return self.workload.layers or geometry(self.geometry.model).layer_count

    @property
    def staged(self) -> Staged | None:
        """The layers that select, where only they are staged."""
        if self.geometry.staged != SELECTED:
            return None
        return staged(self.geometry.model, self.workload.indexers)

    @property
    def concurrent(self) -> int:
        """Number of sessions that decode concurrently."""
        return min(self.workload.concurrent or self.workload.sessions, self.workload.sessions)

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of one layer."""
        shape = geometry(self.geometry.model)
        if found := self.staged:
            tokens = found.form.tokens_per_entry
            return self.geometry.block_tokens // tokens * entry_bytes(shape, found.form)
        return shape.block_bytes(0) // shape.block_tokens * self.geometry.block_tokens

    @property
    def granules(self) -> int:
        """Granules of one block; 1 if whole blocks are staged."""
        tokens = self.geometry.granule_tokens or self.geometry.block_tokens
        return max(self.geometry.block_tokens // tokens, 1)

    @property
    def time_per_token_ns(self) -> int:
        """The GPU's compute time for one token, in ns; where some layers are drawn for all, their
        share of it."""
        whole_ns = parse_time(self.tier.time_per_token, "[tier] time_per_token")
        return whole_ns * self.layer_count // self.staged.of if self.staged else whole_ns

    @property
    def caps(self) -> list[int | None]:
        """The caps of prefetch reads in bytes per second; None: no cap."""
        return [
            None if one == UNLIMITED else int(parse_rate(one, "[tier] bandwidth"))
            for one in self.tier.bandwidth
        ]
