"""The results of a real model's run, as data: positions, passes, and predictions.

Every figure here was computed from logits, or counted by the agent's record or the daemon's
ledger. Logarithms are natural; KL is that of dense attention to the tier's, in nats.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.ledger import quantile
from offstage.bindings.notes import Note, gathered
from offstage.host.decode.foretold import CurveRow
from offstage.host.decode.predicted import LayerAgreement
from offstage.host.decode.record import AgentRecord
from offstage.host.model.geometry import KvGeometry
from offstage.host.model.quantized import HEAD_TYPES, head_bytes
from offstage.host.model.quantized_rows import ROWS, Quantizer, RowQuantizer
from offstage.host.transformer.sensitivity import Choice
from offstage.testbeds.machine import Machine

__all__ = [
    "LIKE_DENSE_NATS",
    "GroupRead",
    "KvChosen",
    "KvHeads",
    "KvStored",
    "ModelIdentity",
    "ModelMachine",
    "ModelPass",
    "ModelSummary",
    "PolicyKeys",
    "Position",
    "StatesKept",
    "TextWorkload",
    "TierUsed",
    "compared",
    "perplexity",
    "share_read",
    "varied",
]

LIKE_DENSE_NATS = 0.01
"""Mean KL up to which the tier's output counts as dense attention's: a text's perplexity then rises
by 1 % at most, in expectation."""

PolicyKeys = dict[str, int | str | list[str]]
"""The keys of `[policy]` as a daemon reports them."""


class Position(msgspec.Struct, kw_only=True):
    """One decoded token: the model's output after it, with the tier and with dense attention.
    `session`: which of those that decoded together, from 0 on."""

    session: int
    position: int
    token: int
    top1: int
    dense_top1: int
    kl: float
    nll: float | None
    """Negative log-likelihood of the next token; None after the last generated token."""
    dense_nll: float | None
    logit_error: float
    """Largest difference of a logit."""


class GroupRead(msgspec.Struct, kw_only=True, frozen=True):
    """What the tokens of a pass demanded of one cache group, which the HBM pool lacked, and how
    long they waited for it."""

    group: str
    demands: int
    bytes_per_token: float
    stall_ms_p50: float
    stall_ms_p99: float

    @classmethod
    def of(cls, group: str, tokens: Sequence[tuple[int, int]], size_bytes: int) -> "GroupRead":
        """From each token's demands of blocks of this size, and its stall in nanoseconds."""
        demands = sum(demands for demands, _ in tokens)
        stall_ms = np.array([stall_ns for _, stall_ns in tokens], np.float64) / 1e6
        return cls(
            group=group,
            demands=demands,
            bytes_per_token=demands * size_bytes / len(tokens),
            stall_ms_p50=quantile(stall_ms, 0.5),
            stall_ms_p99=quantile(stall_ms, 0.99),
        )


class ModelPass(msgspec.Struct, kw_only=True):
    """One selection: the same tokens from the same context."""

    arm: str
    """What the daemon prefetched by, where several ways are compared; else empty."""
    context_tokens: int
    kv_dtype: str
    selector: str
    """`indexer`: the model's own."""
    select_blocks: int
    """The requested number of blocks of a layer, sinks and window included; with an indexer the
    most that its tokens can lie in."""
    share_read: float
    """Blocks that attention read over blocks that existed, over all steps and layers."""
    perplexity: float
    dense_perplexity: float
    top1_agreement: float
    kl_mean: float
    kl_max: float
    logit_error_max: float
    bit_equal: bool | None
    """Equal to the same kernel over the same blocks in memory; None unless all were read, or those
    that the model's own indexer selects."""
    demands: int
    bytes_read: int
    """From the drive, on demand and ahead."""
    hit: float
    late: float
    stall_ms_p50: float
    stall_ms_p99: float
    token_ms_p50: float
    tokens_per_s: float
    """Of all sessions, while they decoded."""
    index_key_bytes: int
    """Keys of the model's indexers for the contexts of all sessions, in the model's type, which
    every step reads. 0 of a model without one."""
    state_bytes: int
    """What recurrent layers, or compressors, keep of the context, entries of blocks not yet full
    included: resident. 0 of a model without any."""
    groups: list[GroupRead]
    """Demands and stall by cache group, where index keys are in the tier; else empty."""
    blocks_verified: int
    blocks_corrupt: int
    blocks_recomputed: int
    ends_differ: int
    """A lower bound of the demands whose end differs between the host's counts and the ledger."""
    pace_overruns: float
    """Share of requests that ended later than on the modelled device; -1 if none was modelled,
    or its counters are not visible to this user."""
    positions: list[Position]
    predicted: list[LayerAgreement]
    guesses: int
    """Blocks of the next layer announced to the tier ahead of their demand."""
    guesses_used: int
    """Guessed blocks that were staged before their demand; `late`: demanded while in flight;
    `unused`: evicted without a demand."""
    guesses_late: int
    guesses_unused: int
    traffic: float | None
    """Reads over those of LRU without prefetch at 2 k, by the host's count of it. None, as `worth`:
    nothing was guessed by a prediction."""
    worth: float | None
    """The least probability that was worth a read at the end."""
    curve: list[CurveRow]
    """What each such probability would have had in the last steps, by the host's directories."""
    text: str
    """The generated text; empty if the text was given."""
    notes: list[Note]
    """Notes on this selection; notes on all selections are in the summary's."""


class ModelIdentity(msgspec.Struct, kw_only=True, frozen=True):
    """The model, and the number format in which it computed."""

    name: str
    architecture: str
    dtype: str
    value_type: str
    layers: int
    top_k: int
    """Tokens that the indexer of a layer selects in a step at most, compressed entries where
    `compresses`; 0: it has none."""
    compresses: bool
    """Whether layers keep an entry for several tokens, beside a window."""
    config_sha256: str
    rope: str
    """Scaling of rotary positions beyond the config's; empty: none."""
    weights: str
    """Their digest."""
    weights_read: str
    """How long reading them for it took, in words."""

    @property
    def chooses_itself(self) -> bool:
        """Whether the model says of every layer what a step reads."""
        return self.compresses or self.top_k > 0


class StatesKept(msgspec.Struct, kw_only=True, frozen=True):
    """The states of the longest context that no block holds, of recurrent layers or of compressors,
    and their checkpoints in the tier; of the contexts of all sessions together."""

    layers: int
    """That keep a state: recurrent ones, which have no KV, or all of a model that compresses."""
    state_bytes: int
    """Of all of them, after the context: what a checkpoint holds. Those of recurrent layers are
    resident; with those of compressors are windows, which blocks hold too."""
    every_blocks: int
    """Blocks from one checkpoint to the next; 0: none are kept."""
    checkpoints_written: int
    """That the tier did not have."""
    bytes_written: int
    """Of these, with the names of their tensors."""
    kept_tokens: int
    """Tokens from the first on of which the tier had all KV, in whole blocks or with the last
    checkpoint; 0 without checkpoints."""
    returned_tokens: int
    """Those of them before the last checkpoint, after which the context was read again."""


class TextWorkload(msgspec.Struct, kw_only=True, frozen=True):
    """The decoded text, and how blocks were selected and attended to. `sessions`: that decoded
    together, each a part of the text."""

    text: str
    sessions: int
    context_tokens: int
    """Of the longest context."""
    steps: int
    block_tokens: int
    block_bytes: int
    """The daemon's."""
    selector: str
    """All that ran, separated by commas."""
    kernel: str
    device: str
    sink_blocks: int
    window_blocks: int
    generated: bool
    ahead: str
    index_keys: str
    """`resident` or `tier`; empty for a model without an indexer."""
    prefill_blocks_written: int


class KvChosen(msgspec.Struct, kw_only=True, frozen=True):
    """How types were chosen: KL in nats a token, on the last `tail_tokens` of the context."""

    max_kl: float
    predicted: float
    """Sum of the effects of single heads."""
    checked: float
    """With all heads in their types."""
    tail_tokens: int
    block_bytes: int
    """The smallest block that holds them; the daemon's may be larger."""


class KvHeads(msgspec.Struct, kw_only=True, frozen=True):
    """The heads of all layers in one type."""

    dtype: str
    heads: int
    bytes_per_token: float


class KvStored(msgspec.Struct, kw_only=True, frozen=True):
    """How K and V lie in the tier's blocks. Bytes are those of all layers."""

    dtype: str
    block_bytes: int
    """Of several types each in the smallest blocks that hold it, of one in the daemon's."""
    bytes_per_token: float
    """Scales and padding included: what drive, arena and link hold and carry."""
    padding_per_token: float
    model_bytes_per_token: float
    """In the model's own type."""
    saved: float
    heads: list[KvHeads]
    layers: list[list[str]]
    """The type of each KV head, by layer."""
    chosen: KvChosen | None

    @classmethod
    def of(
        cls,
        dtype: str,
        geometry: KvGeometry,
        quantizer: Quantizer | None,
        choice: Choice | None,
        max_kl: float | None,
    ) -> "KvStored":
        """Of blocks of `quantizer`, or of the model's own; `choice` is how it came about."""
        numbers = [n for n, one in enumerate(geometry.layers) if one.has_entries]
        own = (
            sum(geometry.block_bytes(one) / geometry.chunks_per_block(one) for one in numbers)
            / geometry.block_tokens
        )
        used = stored = own
        if quantizer is not None:
            used = sum(map(quantizer.block_bytes, numbers)) / geometry.block_tokens
            stored = quantizer.payload_bytes * len(numbers) / geometry.block_tokens
        chosen = None
        if choice is not None and max_kl is not None:
            least = choice.quantizer or quantizer
            chosen = KvChosen(
                max_kl=max_kl,
                predicted=choice.predicted,
                checked=choice.checked,
                tail_tokens=choice.tail_tokens,
                block_bytes=geometry.block_bytes(0) if least is None else least.payload_bytes,
            )
        layers = [["model"] * geometry.layers[one].kv_heads for one in numbers]
        if quantizer is not None:
            layers = [[*kinds] for kinds in quantizer.kinds]
        every = [kind for one in layers for kind in one]
        sizes: dict[str, int] = {
            kind: head_bytes(geometry, kind) for kind in HEAD_TYPES if kind in every
        }
        if isinstance(quantizer, RowQuantizer):
            sizes = {ROWS: quantizer.head_bytes}
        return cls(
            dtype=dtype,
            block_bytes=geometry.block_bytes(0) if quantizer is None else quantizer.payload_bytes,
            bytes_per_token=stored,
            padding_per_token=stored - used,
            model_bytes_per_token=own,
            saved=1 - stored / own,
            heads=[
                KvHeads(
                    dtype=kind,
                    heads=every.count(kind),
                    bytes_per_token=every.count(kind) * size / geometry.block_tokens,
                )
                for kind, size in sizes.items()
            ],
            layers=layers,
            chosen=chosen,
        )


class TierUsed(msgspec.Struct, kw_only=True, frozen=True):
    """The daemon of the run; `policy`: as it reported it."""

    fabric: str
    storage: str
    policy: PolicyKeys


class ModelMachine(Machine, kw_only=True, frozen=True):
    """The machine, and the versions of the libraries that computed."""

    torch: str
    transformers: str


class ModelSummary(msgspec.Struct, kw_only=True):
    """What `--format json` prints."""

    model: ModelIdentity
    workload: TextWorkload
    kv: list[KvStored]
    """One for each type."""
    states: StatesKept | None
    """Of a model with recurrent layers."""
    tier: TierUsed
    dense_perplexity: float
    passes: list[ModelPass]
    notes: list[Note]
    """Notes that apply to every pass."""
    machine: ModelMachine
    command: str
    version: str
    dense_text: str = ""
    """What the model writes with its own dense attention, where arms are compared."""

    def like_dense(self) -> dict[str, float | None]:
        """By selector, and what else varies: the least share of blocks from which on the mean KL
        stays within LIKE_DENSE_NATS; None: at no share that ran."""
        found: dict[str, float | None] = {}
        names = [" ".join([*varied(self.passes, one), one.selector]) for one in self.passes]
        for name in dict.fromkeys(names):
            rows = [one for one, own in zip(self.passes, names, strict=True) if own == name]
            found[name] = None
            for one in sorted(rows, key=lambda row: -row.share_read):
                if one.kl_mean > LIKE_DENSE_NATS:
                    break
                found[name] = one.share_read
        return found

    def noted(self) -> dict[Note, str]:
        """Every note once, with the selections that it applies to."""
        return gathered(
            self.notes,
            [(self.named(one), one.notes) for one in self.passes],
        )

    def named(self, one: ModelPass) -> str:
        """A pass by its selection, and what else varies."""
        return ", ".join([*varied(self.passes, one), f"{one.select_blocks} blocks"])


def varied(passes: Sequence[ModelPass], one: ModelPass) -> list[str]:
    """The pass by its context's length and its type of KV, where there are several of these."""
    lengths, kinds = (
        {getattr(row, name) for row in passes} for name in ("context_tokens", "kv_dtype")
    )
    return [f"{one.context_tokens:,} tokens"] * (len(lengths) > 1) + [one.kv_dtype] * (
        len(kinds) > 1
    )


def share_read(record: AgentRecord, geometry: KvGeometry, context_tokens: int) -> float:
    """Blocks that attention read over those that the model's own reads, over all steps."""
    there = sum(geometry.blocks_read(context_tokens + token.step + 1) for token in record.tokens)
    return sum(token.selected for token in record.tokens) / there


def perplexity(nll: Sequence[float | None]) -> float:
    """Over the tokens whose successor is known."""
    return float(np.exp(np.mean([one for one in nll if one is not None])))


def compared(
    logits: NDArray[np.float32],
    dense: NDArray[np.float32],
    tokens: list[int],
    first_position: int,
    session: int = 0,
) -> list[Position]:
    """Compare position by position; `tokens` are the decoded ones and, if known, the next one."""
    found = []
    for step, (own, other) in enumerate(zip(logits, dense, strict=True)):
        log_own, log_other = _log_softmax(own), _log_softmax(other)
        following = tokens[step + 1] if step + 1 < len(tokens) else None
        found.append(
            Position(
                session=session,
                position=first_position + step,
                token=tokens[step],
                top1=int(own.argmax()),
                dense_top1=int(other.argmax()),
                kl=max(0.0, float(np.exp(log_other) @ (log_other - log_own))),
                nll=None if following is None else -float(log_own[following]),
                dense_nll=None if following is None else -float(log_other[following]),
                logit_error=float(np.abs(own - other).max()),
            )
        )
    return found


def _log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    found: NDArray[np.float64] = wide - np.log(np.exp(wide).sum())
    return found
