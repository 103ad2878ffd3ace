"""What the scheduler's side of vLLM's connector keeps of a request, and of its load."""

from dataclasses import dataclass, field
from threading import Event
from typing import Any

from offstage.host.connectors.choice import Decision
from offstage.host.connectors.vllm.hints import Hints
from offstage.host.model.identity import Weights

__all__ = ["Kept", "Landing"]


@dataclass
class Landing:
    """An asynchronous load, and the number of workers whose part is in flight."""

    decision: Decision
    workers: int
    loaded_bytes: int = 0
    took_s: float = 0.0
    alone_s: float = 0.0


@dataclass
class Kept:
    """One request: what its keys begin with, and those of its full blocks; how many the tier had
    (None: not known yet), how many need no saving, and the tokens that vLLM has."""

    request: Any
    adapter: Weights | None
    salt: bytes
    keys: list[bytes]
    hints: Hints
    until_s: float = 0.0  # what another engine prefills is waited for
    looked_s: float = 0.0
    within_s: float = 0.0  # that look may take
    window: int = 1  # blocks that are looked for next, of those that another engine prefills
    found: int | None = None
    answered: Event = field(default_factory=Event)  # the last look has been
    saved: int = 0
    there: list[list[bool]] = field(default_factory=list)
    """Of each group of layers, which units the tier had."""
    computed: int = 0
    decision: Decision | None = None
    asked: int = 0
    begun: bool = False
    apart: bool = False
