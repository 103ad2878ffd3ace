"""`offstage dpu status --watch`: a daemon over and over, as `top` shows a machine.

On a terminal a snapshot is drawn again in its place until q or Ctrl-C, and the last one stays.
Elsewhere one snapshot follows another; as JSON each is one line, of what happened since the last.
"""

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live

from offstage.bindings.errors import BadInput
from offstage.bindings.units import format_seconds, parse_time_between
from offstage.host.link.control import Control
from offstage.testbeds.cli.common import Format, emit, table
from offstage.testbeds.cli.status_shown import Reading, Span, lines
from offstage.testbeds.document import as_line

__all__ = ["drawn", "interval", "watch"]


class Interval(msgspec.Struct, kw_only=True, frozen=True):
    """One line: rates between two looks, and the gauges of the later one."""

    seconds: float
    hosts: int
    sessions: int
    demands_per_s: float
    hit: float | None
    late: float | None
    read_bytes_per_s: float
    read_amplification: float | None
    written_bytes_per_s: float
    reactor_busy_share: float
    dirty_blocks: int
    errors: int
    draining: bool

    @classmethod
    def of(cls, span: Span) -> "Interval":
        """Rates of the span; after a reset of the ledger, of the counts since."""
        ended, status = span.ended(), span.now.status
        device = status.device
        return cls(
            seconds=round(span.seconds, 3),
            hosts=device.ports,
            sessions=device.sessions,
            demands_per_s=ended.total / span.seconds,
            hit=ended.hit_rate if ended.total else None,
            late=ended.late_rate if ended.total else None,
            read_bytes_per_s=span.per_s("storage.bytes_read"),
            read_amplification=span.read_amplification,
            written_bytes_per_s=span.per_s("storage.bytes_written"),
            reactor_busy_share=span.busy,
            dirty_blocks=device.dirty_blocks,
            errors=device.check_failures + device.storage.errors + device.reads_timed_out,
            draining=status.draining,
        )


def interval(text: str, count: int) -> float:
    """Seconds of `--watch`; 0 without it. BadInput if they, or `--count`, cannot be."""
    if not text:
        if count:
            raise BadInput("--count is for --watch", "dpu status", "give --watch 1s too")
        return 0.0
    return parse_time_between(text, "--watch", "100ms", "1h") / 1e9


def drawn(now: Reading, before: Reading | None = None, *, whole: bool = False) -> RenderableType:
    """A snapshot for a person: the ten lines, or the `whole` status."""
    return table(msgspec.to_builtins(now.status) if whole else lines(now, before))


def watch(control: Control, every_s: float, count: int, form: Format, *, whole: bool) -> None:
    """Show `count` snapshots (0: until it is ended). Raises the error of a daemon's end."""
    if form is Format.text and sys.stdout.isatty() and Console().is_interactive:
        return _redraw(control, every_s, count, whole)
    for span in _spans(control, every_s, count, _sleep):
        if form is Format.json:
            typer.echo(as_line(Interval.of(span)))
        else:
            emit({}, form, Group(drawn(span.now, span.before, whole=whole), ""))


def _spans(
    control: Control, every_s: float, count: int, wait: Callable[[float], bool]
) -> Iterator[Span]:
    """The spans between two readings, the first after one interval; ends where `wait` is true."""
    before, number = Reading.of(control), 0
    while not wait(every_s):
        span = Span(Reading.of(control), before)
        yield span
        before, number = span.now, number + 1
        if number == count:
            return


def _redraw(control: Control, every_s: float, count: int, whole: bool) -> None:
    """On a terminal. The first snapshot is of the time since the daemon's start."""
    console = Console(markup=False, emoji=False)
    ends = f"every {format_seconds(every_s)}; q ends"
    last = drawn(Reading.of(control), whole=whole)
    with (
        contextlib.suppress(KeyboardInterrupt),
        _quit_key() as wait,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        live.update(Group(last, "", ends), refresh=True)
        for span in _spans(control, every_s, count, wait):
            last = drawn(span.now, span.before, whole=whole)
            live.update(Group(last, "", ends), refresh=True)
    emit({}, Format.text, last)


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


@contextlib.contextmanager
def _quit_key() -> Iterator[Callable[[float], bool]]:
    """A call that waits for seconds and is true as soon as q is typed."""
    if not sys.stdin.isatty():
        yield _sleep
        return
    keys = sys.stdin.fileno()

    def wait(seconds: float) -> bool:
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            if select.select([keys], [], [], left_s)[0] and b"q" in os.read(keys, 64).lower():
                return True
        return False

    before = termios.tcgetattr(keys)
    tty.setcbreak(keys)
    try:
        yield wait
    finally:
        termios.tcsetattr(keys, termios.TCSADRAIN, before)
