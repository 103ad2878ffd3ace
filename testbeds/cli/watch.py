"""`offstage dpu status --watch`: one line for each interval."""

import json
import time
from collections.abc import Iterator

import msgspec
import typer

from offstage.bindings.ledger import Demands, Ledger, share
from offstage.bindings.units import format_rate
from offstage.host.link.control import Control

__all__ = ["watch"]

HEADINGS_EVERY = 20
COLUMNS = {
    "hosts": 5,
    "sessions": 8,
    "demands/s": 9,
    "hits": 7,
    "late": 7,
    "read": 11,
    "over": 6,
    "written": 11,
    "reactor": 7,
    "dirty": 6,
    "errors": 6,
}


class Look(msgspec.Struct, kw_only=True, frozen=True):
    """What is read of the daemon at one time; all but the gauges counts up from its start."""

    hosts: int
    sessions: int
    ledger: Ledger
    bytes_read: int
    bytes_written: int
    busy_ns: int
    idle_ns: int
    sleep_ns: int
    dirty_blocks: int
    errors: int
    draining: bool


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


def watch(control: Control, every_s: float, count: int, as_json: bool) -> None:
    """Print until `count` lines are out (0: until Ctrl-C). Raises the error of a daemon's end."""
    for number, row in enumerate(_intervals(control, every_s)):
        if as_json:
            typer.echo(json.dumps(msgspec.structs.asdict(row)))
        else:
            if number % HEADINGS_EVERY == 0:
                typer.echo(" ".join(f"{name:>{width}}" for name, width in COLUMNS.items()))
            shown = _shown(row)
            typer.echo(" ".join(f"{shown[name]:>{width}}" for name, width in COLUMNS.items()))
        if number + 1 == count:
            return


def _intervals(control: Control, every_s: float) -> Iterator[Interval]:
    """The changes between two readings; the first line comes after one interval."""
    before, then_s = _look(control), time.monotonic()
    while True:
        time.sleep(every_s)
        after, now_s = _look(control), time.monotonic()
        yield _between(before, after, now_s - then_s)
        before, then_s = after, now_s


def _look(control: Control) -> Look:
    status = control.status()
    device = status["device"]
    storage = device["storage"]
    return Look(
        hosts=device["ports"],
        sessions=device["sessions"],
        ledger=Ledger.of(control.ledger()),
        bytes_read=storage["bytes_read"],
        bytes_written=storage["bytes_written"],
        busy_ns=device["busy_ns"],
        idle_ns=device["idle_ns"],
        sleep_ns=device["sleep_ns"],
        dirty_blocks=device["dirty_blocks"],
        errors=device["check_failures"] + storage["errors"] + device["reads_timed_out"],
        draining=status["draining"],
    )


def _between(before: Look, after: Look, seconds: float) -> Interval:
    """Rates of an interval; after a reset of the ledger, of the counts since."""
    counts = zip(after.ledger.ends, before.ledger.ends, strict=True)
    ended = Demands.of(max(0, now - then) for now, then in counts)
    busy_ns = max(0, after.busy_ns - before.busy_ns)
    idle_ns = max(0, after.idle_ns - before.idle_ns)
    sleep_ns = max(0, after.sleep_ns - before.sleep_ns)
    return Interval(
        seconds=round(seconds, 3),
        hosts=after.hosts,
        sessions=after.sessions,
        demands_per_s=ended.total / seconds,
        hit=ended.hit_rate if ended.total else None,
        late=ended.late_rate if ended.total else None,
        read_bytes_per_s=max(0, after.bytes_read - before.bytes_read) / seconds,
        read_amplification=_amplification(before.ledger, after.ledger),
        written_bytes_per_s=max(0, after.bytes_written - before.bytes_written) / seconds,
        reactor_busy_share=share(busy_ns, busy_ns + idle_ns + sleep_ns),
        dirty_blocks=after.dirty_blocks,
        errors=after.errors,
        draining=after.draining,
    )


def _amplification(before: Ledger, after: Ledger) -> float | None:
    """Bytes read for demands over those of the granules that they named; None: nothing was read,
    or the daemon has no granules."""
    read = max(0, after.demand_bytes_read - before.demand_bytes_read)
    wanted = max(0, after.demand_bytes_wanted - before.demand_bytes_wanted)
    return read / wanted if wanted else None


def _shown(row: Interval) -> dict[str, str]:
    def share(value: float | None) -> str:
        return "none" if value is None else f"{value:.1%}"

    over = row.read_amplification
    return {
        "hosts": str(row.hosts),
        "sessions": str(row.sessions),
        "demands/s": f"{row.demands_per_s:,.0f}",
        "hits": share(row.hit),
        "late": share(row.late),
        "read": format_rate(row.read_bytes_per_s),
        "over": "none" if over is None else f"{over:.2f}",
        "written": format_rate(row.written_bytes_per_s),
        "reactor": share(row.reactor_busy_share),
        "dirty": str(row.dirty_blocks),
        "errors": str(row.errors) + (" draining" if row.draining else ""),
    }
