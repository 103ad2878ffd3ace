"""What the demo runs: sizes, arms and storages, and the checks that hold between them."""

from dataclasses import dataclass, field
from pathlib import Path

from offstage.bindings.errors import BadInput
from offstage.host.geometry import KvGeometry
from offstage.host.models import geometry

__all__ = ["ARMS", "Arm", "DemoOptions"]

CONTEXT_TOKENS_MAX = 131_072
STORE_BYTES_MAX = 1 << 30
"""Most bytes of KV that the demo writes: it shall run where 4 GiB of memory is all there is."""


@dataclass(frozen=True)
class Arm:
    """One set of prefetchers with the eviction that suits it; all arms have the same buffer."""

    name: str
    prefetchers: tuple[str, ...]
    eviction: str


ARMS = (
    Arm("none", (), "lru"),
    Arm("window", ("window",), "lru"),
    Arm("window+ema", ("window", "ema"), "score"),
    Arm("window+ema+shared", ("window", "ema", "shared"), "score"),
)


@dataclass(frozen=True)
class DemoOptions:
    """Options of one demo. Blocks are of one layer; `buffer_ratio` is B / k, the staging slots of
    a session's layer over the blocks it selects in a step."""

    out: Path
    trace: Path | None = None
    seed: int = 1
    sessions: int = 4
    context_tokens: int = CONTEXT_TOKENS_MAX
    shared_prefix_tokens: int = 32_768
    steps: int = 300
    time_per_token_s: float = 0.025
    select_blocks: int = 32
    sink_blocks: int = 1
    window_blocks: int = 4
    buffer_ratio: float = 4.0
    pool_ratio: float = 1.5
    """Blocks of the HBM pool per (session, layer) over the blocks selected."""
    window_tokens: int = 4_096
    selector: str = "quest"
    kernel: str = "numpy"
    storages: tuple[str, ...] = ("measured", "emulated")
    nvme: str = "gen5-tlc"
    keep_store: bool = False
    arms: tuple[Arm, ...] = ARMS
    command: str = "offstage demo"
    geometry: KvGeometry = field(default_factory=lambda: geometry("demo"))

    def check(self) -> None:
        """Raises BadInput for a number out of range or two that contradict each other."""
        where = "demo"
        _within("sessions", self.sessions, 1, 64)
        _within("steps", self.steps, 1, 100_000)
        _within("context tokens", self.context_tokens, 4_096, CONTEXT_TOKENS_MAX)
        _within("seed", self.seed, 0, 2**63 - 1)
        if not 0.0 <= self.time_per_token_s <= 10.0:
            raise BadInput(
                f"a time per token of {self.time_per_token_s:g} s", where, "give 0 to 10 s"
            )
        if self.shared_prefix_tokens > self.context_tokens:
            raise BadInput(
                f"a shared prefix of {self.shared_prefix_tokens} tokens is longer than the "
                f"context of {self.context_tokens}",
                where,
                "shorten the prefix or lengthen the context",
            )
        if self.select_blocks <= self.sink_blocks + self.window_blocks:
            raise BadInput(
                f"k = {self.select_blocks} leaves nothing beside sinks and window",
                where,
                f"select more than {self.sink_blocks + self.window_blocks} blocks",
            )
        if self.buffer_ratio < 1.0 or self.pool_ratio < 1.0 + 1.0 / self.select_blocks:
            raise BadInput(
                "a buffer or an HBM pool smaller than one selection", where, "raise the ratio"
            )
        known = {"measured", "emulated"}
        if not self.storages or set(self.storages) - known:
            raise BadInput(
                f"storages {', '.join(self.storages) or '(none)'}",
                where,
                "choose measured, emulated or both",
            )

    @property
    def slot_count(self) -> int:
        """Staging slots over all sessions and layers."""
        per_layer = round(self.buffer_ratio * self.select_blocks)
        return per_layer * self.sessions * self.geometry.layer_count

    @property
    def pool_blocks(self) -> int:
        """Blocks of the HBM pool over all sessions and layers."""
        per_layer = round(self.pool_ratio * self.select_blocks)
        return per_layer * self.sessions * self.geometry.layer_count


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadInput(f"{name} = {value:,}", "demo", f"give {low:,} to {high:,}")
