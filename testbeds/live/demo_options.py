"""What the demo runs: arms and storages besides the host's options, and the checks of both."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import ClassVar, Literal

from offstage.bindings.errors import BadInput
from offstage.host.baselines import KINDS
from offstage.testbeds.live.options import DriveOptions, TimePerToken

__all__ = ["ARMS", "MODEL", "MODEL_ARMS", "Arm", "Cores", "DemoOptions"]

Cores = Literal["any", "apart", "alone"]
"""Cores of the daemon's reactor and of this process: see `ArmBed`."""

MODEL = "smollm2-135m"
"""The model of a demo that names none."""

DOCUMENT = Path(str(resources.files("offstage.testbeds") / "presets" / "constitution.txt"))
"""The Constitution of the United States as signed in 1787, without amendments; public domain."""
QUESTION = "Explain step by step how a bill becomes a law."


@dataclass(frozen=True)
class Arm:
    """One set of prefetchers with the eviction that suits it; all arms have the same buffer."""

    name: str
    prefetchers: tuple[str, ...]
    eviction: str
    predicts: bool = False
    """Also hint what the next layer's predicted query selects; needs a model."""

    @property
    def sources(self) -> tuple[str, ...]:
        """What names blocks ahead of their demand: the daemon's prefetchers, then the host."""
        return (*self.prefetchers, *(("predicted",) if self.predicts else ()))

    @property
    def policy(self) -> dict[str, str | list[str]]:
        """The daemon's `[policy]` keys of this arm."""
        return {"prefetchers": list(self.prefetchers), "eviction": self.eviction}


ARMS = (
    Arm("none", (), "lru"),
    Arm("window", ("window",), "lru"),
    Arm("window+ema", ("window", "ema"), "score"),
    Arm("window+ema+shared", ("window", "ema", "shared"), "score"),
)

MODEL_ARMS = (
    *ARMS[:3],
    Arm("window+predicted", ("window",), "score", predicts=True),
)
"""The arms of a real model: one session, so that nothing is shared."""


class DemoOptions(DriveOptions, frozen=True, kw_only=True):
    """Options of one demo. `buffer_ratio` is B / k, the staging slots of a session's layer over
    the blocks it selects in a step."""

    where: ClassVar[str] = "demo"

    out: Path
    time_per_token_s: TimePerToken = 0.025
    buffer_ratio: float = 4.0
    window_tokens: int = 4_096
    storages: tuple[str, ...] = ("measured", "emulated")
    nvme: str = "gen5-tlc"
    keep_store: bool = False
    cores: Cores = "any"
    ahead: bool = False
    """Also run the fullest arm on each storage a layer ahead."""
    baselines: tuple[str, ...] = ()
    """Which of `host.baselines.KINDS` run in addition to the arms, on each storage."""
    arms: tuple[Arm, ...] = ARMS
    warm_up: bool = True
    """Arms that follow a pattern receive the selections of the prefill's last windows."""
    model: Path | None = None
    """A model that answers a question about a document with each of `MODEL_ARMS`, in place of the
    drawn sessions."""
    document: Path = DOCUMENT
    question: str = QUESTION
    command: str = "offstage demo"

    def check(self) -> None:
        """Raises BadInput for a number out of range or two that contradict each other."""
        super().check()
        if self.buffer_ratio < 1.0:
            raise BadInput("a buffer smaller than one selection", self.where, "raise the ratio")
        if unknown := set(self.baselines) - set(KINDS):
            raise BadInput(
                f"unknown baselines: {', '.join(sorted(unknown))}",
                self.where,
                f"choose {' or '.join(KINDS)}",
            )
        known = {"measured", "emulated"}
        if not self.storages or set(self.storages) - known:
            raise BadInput(
                f"storages {', '.join(self.storages) or '(none)'}",
                self.where,
                "choose measured, emulated or both",
            )

    def warms_up(self, arm: Arm) -> bool:
        """Whether sessions of this arm begin with guesses, see `live.warm_up`."""
        return self.warm_up and "ema" in arm.prefetchers

    @property
    def buffer_blocks(self) -> int:
        """Staging slots of one layer of one session: B."""
        return round(self.buffer_ratio * self.select_blocks)

    @property
    def slot_count(self) -> int:
        """Staging slots over all sessions and layers."""
        return self.buffer_blocks * self.sessions * self.geometry.layer_count
