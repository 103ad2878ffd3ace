"""How a long run reports its progress to a person."""

from typing import Protocol

__all__ = ["Progress", "Silent"]


class Progress(Protocol):
    """Contract: `start` ends the phase before; `advance` adds to the current phase's total; `note`
    replaces the current phase's short remark. All are cheap, and called from one thread."""

    def start(self, phase: str, total: int) -> None: ...
    def advance(self, count: int) -> None: ...
    def note(self, text: str) -> None: ...


class Silent:
    """Shows nothing."""

    def start(self, phase: str, total: int) -> None:
        """Nothing."""

    def advance(self, count: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""
