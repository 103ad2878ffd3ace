"""What the demo runs: arms and storages beside the host's own options, and the checks of both."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from offstage.bindings.errors import BadInput
from offstage.testbeds.live.options import DriveOptions

__all__ = ["ARMS", "Arm", "DemoOptions"]


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


@dataclass(frozen=True, kw_only=True)
class DemoOptions(DriveOptions):
    """Options of one demo. `buffer_ratio` is B / k, the staging slots of a session's layer over
    the blocks it selects in a step."""

    where: ClassVar[str] = "demo"

    out: Path
    time_per_token_s: float = 0.025
    buffer_ratio: float = 4.0
    window_tokens: int = 4_096
    storages: tuple[str, ...] = ("measured", "emulated")
    nvme: str = "gen5-tlc"
    keep_store: bool = False
    arms: tuple[Arm, ...] = ARMS
    command: str = "offstage demo"

    def check(self) -> None:
        """Raises BadInput for a number out of range or two that contradict each other."""
        super().check()
        if self.buffer_ratio < 1.0:
            raise BadInput("a buffer smaller than one selection", self.where, "raise the ratio")
        known = {"measured", "emulated"}
        if not self.storages or set(self.storages) - known:
            raise BadInput(
                f"storages {', '.join(self.storages) or '(none)'}",
                self.where,
                "choose measured, emulated or both",
            )

    @property
    def slot_count(self) -> int:
        """Staging slots over all sessions and layers."""
        per_layer = round(self.buffer_ratio * self.select_blocks)
        return per_layer * self.sessions * self.geometry.layer_count
