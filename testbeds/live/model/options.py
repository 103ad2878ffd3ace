"""Which model and text to decode and how, and which blocks the tier serves."""

import math
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import msgspec

from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_bounds, within
from offstage.host.arrays import Arrays, open_arrays
from offstage.host.attention import arrays_of, kernel
from offstage.host.gpu import check_device
from offstage.host.model.quantized import HEAD_TYPES, HeadType
from offstage.host.model.quantized_rows import ROWS
from offstage.host.selection import SELECTORS
from offstage.host.transformer.tiered import Ahead
from offstage.testbeds.live.options import SELECT_BLOCKS, TimePerToken

__all__ = [
    "ALL_BLOCKS",
    "CHECKPOINT_BLOCKS",
    "KvType",
    "ModelOptions",
    "parse_lengths",
    "parse_selections",
]

KvType = HeadType | Literal["fp8", "auto"]

IndexHome = Literal["resident", "tier"]

CHECKPOINT_BLOCKS = 256
"""Of `ModelOptions.checkpoint_blocks`: 4,096 tokens in blocks of 16. The states of
Qwen3-Next have 74.25 MiB, as the KV of 3,168 tokens (`model show`)."""

ALL_BLOCKS = 1 << 20
"""A selection of this many blocks means all of them: 16 million tokens in blocks of 16."""


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One model, one text. Blocks are of one layer; their tokens are the daemon's."""

    where: ClassVar[str] = "host run --model"

    model: Path
    text: Path
    sessions: Annotated[int, within(1, 64)] = 1
    """Sessions that decode together, each a part of the text."""
    steps: Annotated[int, within(1, 100_000)] = 128
    context_tokens: tuple[int, ...] = ()
    """Lengths to decode after, each a front of the longest, which is read once. None: the longest
    context that leaves room for the steps in the text and the model."""
    selections: tuple[int, ...] = (SELECT_BLOCKS,)
    """Blocks a layer reads in a step; one run for each, from the same context."""
    sink_blocks: int = 1
    window_blocks: int = 4
    pool_ratio: float = 1.5
    """Blocks of the HBM pool per layer over the blocks selected."""
    selectors: tuple[str, ...] = ("quest",)
    """Scorers of blocks; every selection runs with each."""
    kernel: str = "torch"
    device: str = "cpu"
    dtype: str = "auto"
    kv_dtypes: tuple[KvType, ...] = ("model",)
    """In what the tier's blocks hold K and V, one pass for each; fp8: rows with scales, which the
    kernel reads; auto: each head of each layer what it bears. Several have blocks of one size, the
    daemon's."""
    max_kl: float | None = None
    """With auto: the KL in nats a token that the types may cost, on the context's last tokens."""
    index_keys: IndexHome = "resident"
    """Where the keys of the model's indexers are: in memory, or in blocks of the tier."""
    checkpoint_blocks: Annotated[int, within(0, 1 << 20)] = CHECKPOINT_BLOCKS
    """Blocks from one checkpoint of states in the tier to the next; 0: none. Of recurrent layers,
    and of compressors where index keys are in the tier."""
    rope: str = ""
    """Scaling of rotary positions, as `parse_rope` reads it; empty: the config's own."""
    generate: bool = False
    """The model chooses the tokens after the context; otherwise they are the text's."""
    predict: bool = False
    """Also measure how well the next layer's selection is predicted."""
    ahead: Ahead = "none"
    """How blocks are used that are predicted, or known of layers that share a selection."""
    traffic: float = 1.3
    """Reads that guesses may bring them to, over those of LRU without prefetch at 2 k."""
    prefill_piece: int = 512
    time_per_token_s: TimePerToken = 0.020
    """The pace announced to the tier; the model runs at its own speed."""
    command: str = "offstage host run"

    def check(self) -> None:
        """Raises BadInput for a number out of range or two that contradict each other."""
        check_bounds(self, self.where)
        least = self.sink_blocks + self.window_blocks
        if not self.selections or min(self.selections) <= least:
            raise BadInput(
                "the selection leaves no room besides sinks and window",
                "--select-blocks",
                f"select more than {least} blocks",
            )
        if unknown := [one for one in self.selectors if one not in SELECTORS]:
            raise BadInput(
                f"unknown selector {unknown[0]!r}",
                "--selector",
                f"choose one of {', '.join(SELECTORS)}",
            )
        self._check_kv_types()
        if self.sessions > 1 and (self.predict or self.max_kl is not None):
            raise BadInput(
                f"{self.sessions} sessions of a model with "
                f"{'--predict' if self.predict else '--kv-dtype auto'}, which is of one",
                "--sessions",
                "leave one of them out",
            )
        if self.generate and len(self.context_tokens) > 1:
            raise BadInput(
                "--generate goes on from the end of what was read, and several --context-tokens "
                "end before it",
                self.where,
                "give one length",
            )
        if not 0 < self.traffic <= 1000:
            raise BadInput(f"--traffic {self.traffic:g}", self.where, "give 1.3, say, up to 1000")
        if not 0 < self.pool_ratio <= 64:
            raise BadInput(
                f"--pool-ratio {self.pool_ratio:g}", self.where, "give up to 64, above 0"
            )

    def _check_kv_types(self) -> None:
        known = (*HEAD_TYPES, ROWS, "auto")
        if unknown := [one for one in self.kv_dtypes if one not in known]:
            raise BadInput(
                f"unknown type of KV {unknown[0]!r}",
                "--kv-dtype",
                f"choose one of {', '.join(known)}",
            )
        if ("auto" in self.kv_dtypes) != (self.max_kl is not None):
            raise BadInput(
                "--kv-dtype auto and --max-kl go together",
                self.where,
                "give both, or neither",
            )
        if self.max_kl is not None and not 0 < self.max_kl < math.inf:
            raise BadInput(f"--max-kl {self.max_kl:g}", self.where, "give nats a token, above 0")

    def arrays(self) -> Arrays:
        """What holds the HBM pool: the kernel's library on the device. As `DriveOptions.arrays`."""
        kernel(self.kernel)
        arrays = open_arrays(arrays_of(self.kernel), self.device)
        if self.kernel == "triton":
            check_device(self.device)
        return arrays


def parse_selections(text: str) -> tuple[int, ...]:
    """`16,64,all` as numbers of blocks, ALL_BLOCKS for `all`. Raises BadInput otherwise."""
    found = []
    for part in (one.strip() for one in text.split(",")):
        if part != "all" and not (part.isdecimal() and 0 < int(part) <= ALL_BLOCKS):
            raise BadInput(
                f"{part!r} is not a number of blocks",
                "--select-blocks",
                "write for example 16,64,all",
            )
        found.append(ALL_BLOCKS if part == "all" else int(part))
    return tuple(found)


def parse_lengths(text: str) -> tuple[int, ...]:
    """`2048,4096` as numbers of tokens. Raises BadInput otherwise."""
    parts = [one.strip() for one in text.split(",")]
    for part in parts:
        if not (part.isdecimal() and 0 < int(part) < 1 << 31):
            raise BadInput(
                f"{part!r} is not a number of tokens", "--context-tokens", "write for example 2048"
            )
    return tuple(dict.fromkeys(map(int, parts)))
