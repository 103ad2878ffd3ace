"""Progress of a long command on stderr: a live bar in a terminal, plain lines elsewhere."""

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from offstage.bindings.errors import printable

if TYPE_CHECKING:
    from offstage.testbeds.progress import Progress as Contract

__all__ = ["Live", "Plain", "bars_of", "shown"]


LINE_S = 60.0
"""Seconds between two lines of `Plain` in a phase."""


class Plain:
    """One line when a phase begins, one a minute, and one when it ends: for logs."""

    def __init__(self, phase_count: int, out: TextIO) -> None:
        self.phase_count = phase_count
        self.out = out
        self.number = 0
        self.remark = ""
        self.begun = self.said = 0.0
        self.done, self.total = 0, 1

    def start(self, phase: str, total: int, unit: str) -> None:
        """Begin a phase of `total` pieces."""
        self.finish()
        self.number += 1
        self.remark = ""
        self.begun = self.said = time.monotonic()
        self.done, self.total = 0, max(1, total)
        counted = f": {total:,} {unit}" if unit else ""
        self._say(f"[{self.number}/{self.phase_count}] {phase}{counted}")

    def advance(self, count: int) -> None:
        """Say how far the phase is, if a minute has passed: a log needs no line per step."""
        self.done += count
        now = time.monotonic()
        if now - self.said >= LINE_S:
            self.said = now
            remark = f", {self.remark}" if self.remark else ""
            self._say(f"      {self.done / self.total:.0%}{remark}")

    def note(self, text: str) -> None:
        """Remember the remark for the phase's next line."""
        self.remark = text

    def finish(self) -> None:
        """End the current phase, if there is one."""
        if self.number:
            took = f"{time.monotonic() - self.begun:.1f} s"
            self._say(f"      {self.remark}, {took}" if self.remark else f"      {took}")

    def _say(self, line: str) -> None:
        print(printable(line), file=self.out, flush=True)


class Live:
    """One bar per phase; finished bars stay, with their last remark and duration."""

    def __init__(self, phase_count: int, bars: Progress) -> None:
        self.phase_count = phase_count
        self.bars = bars
        self.number = 0
        self.task: TaskID | None = None
        self.remark = ""
        self.begun = 0.0

    def start(self, phase: str, total: int, unit: str) -> None:
        """Begin a phase of `total` pieces."""
        self.finish()
        self.number += 1
        self.remark = ""
        self.begun = time.monotonic()
        number = f"{self.number}/{self.phase_count}"
        self.task = self.bars.add_task(
            printable(phase), total=max(1, total), note="", number=number
        )

    def advance(self, count: int) -> None:
        """Move the bar."""
        if self.task is not None:
            self.bars.advance(self.task, count)

    def note(self, text: str) -> None:
        """Show a remark after the bar."""
        self.remark = printable(text)
        if self.task is not None:
            self.bars.update(self.task, note=self.remark)

    def finish(self) -> None:
        """Complete the current bar, if there is one."""
        if self.task is not None:
            took = f"{time.monotonic() - self.begun:.1f} s"
            note = f"{self.remark}, {took}" if self.remark else took
            done = self.bars.tasks[self.task].total
            self.bars.update(self.task, completed=done, note=note)
            self.bars.stop_task(self.task)
            self.task = None


def bars_of(console: Console) -> Progress:
    """The bars of `Live`. Names and notes of a phase are plain text."""
    columns = (
        TextColumn("{task.fields[number]}", style="dim", markup=False),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[note]}", style="cyan", markup=False),
        TimeRemainingColumn(compact=True),
    )
    return Progress(*columns, console=console)


@contextlib.contextmanager
def shown(phase_count: int) -> Iterator["Contract"]:
    """The progress that suits stderr; after an error an unfinished bar stays as it is."""
    console = Console(stderr=True)
    if not console.is_terminal:
        plain = Plain(phase_count, sys.stderr)
        yield plain
        plain.finish()
        return
    with bars_of(console) as bars:
        live = Live(phase_count, bars)
        yield live
        live.finish()
