"""How a long run reports its progress to a person."""

from typing import Protocol

from offstage.bindings.units import format_share

__all__ = ["Progress", "Silent", "note_hit"]


class Progress(Protocol):
    """Contract: `start` ends the phase before; `unit` says what is counted, in the plural, empty
    for a phase that is one piece; `advance` adds to the current phase's total; `note`
    replaces the current phase's short remark. All are cheap, and called from one thread."""

    def start(self, phase: str, total: int, unit: str) -> None: ...
    def advance(self, count: int) -> None: ...
    def note(self, text: str) -> None: ...


class Silent:
    """Shows nothing."""

    def start(self, phase: str, total: int, unit: str) -> None:
        """Nothing."""

    def advance(self, count: int) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


def note_hit(progress: Progress, hit: float) -> None:
    """Show a run's hit rate as its table does: under the same name, in the same digits."""
    progress.note(f"hit rate {format_share(hit)}")
