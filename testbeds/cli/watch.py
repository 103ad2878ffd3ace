"""`offstage dpu status --watch`: one line for each interval."""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import typer

from offstage.bindings.ledger import Demands, share
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


def watch(control: Control, every_s: float, count: int, as_json: bool) -> None:
    """Print until `count` lines are out (0: until Ctrl-C). Raises the error of a daemon's end."""
    for number, row in enumerate(_intervals(control, every_s)):
        if as_json:
            typer.echo(json.dumps(row))
        else:
            if number % HEADINGS_EVERY == 0:
                typer.echo(" ".join(f"{name:>{width}}" for name, width in COLUMNS.items()))
            shown = _shown(row)
            typer.echo(" ".join(f"{shown[name]:>{width}}" for name, width in COLUMNS.items()))
        if number + 1 == count:
            return


def _intervals(control: Control, every_s: float) -> Iterator[dict[str, Any]]:
    """The changes between two readings; the first line comes after one interval."""
    before, then_s = _look(control), time.monotonic()
    while True:
        time.sleep(every_s)
        after, now_s = _look(control), time.monotonic()
        yield _between(before, after, now_s - then_s)
        before, then_s = after, now_s


def _look(control: Control) -> dict[str, Any]:
    return {"status": control.status(), "ledger": control.ledger()}


def _between(before: Mapping[str, Any], after: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Rates of an interval; after a reset of the ledger, of the counts since."""
    device, device_then = after["status"]["device"], before["status"]["device"]
    counts = zip(after["ledger"]["ends"], before["ledger"]["ends"], strict=True)
    ended = Demands.of(max(0, now - then) for now, then in counts)
    storage, storage_then = device["storage"], device_then["storage"]
    worked = {
        name: max(0, device[name] - device_then[name])
        for name in ("busy_ns", "idle_ns", "sleep_ns")
    }
    errors = device["check_failures"] + storage["errors"] + device["reads_timed_out"]
    return {
        "seconds": round(seconds, 3),
        "hosts": device["ports"],
        "sessions": device["sessions"],
        "demands_per_s": ended.total / seconds,
        "hit": ended.hit_rate if ended.total else None,
        "late": ended.late_rate if ended.total else None,
        "read_bytes_per_s": max(0, storage["bytes_read"] - storage_then["bytes_read"]) / seconds,
        "read_amplification": _amplification(before["ledger"], after["ledger"]),
        "written_bytes_per_s": max(0, storage["bytes_written"] - storage_then["bytes_written"])
        / seconds,
        "reactor_busy_share": share(worked["busy_ns"], sum(worked.values())),
        "dirty_blocks": device["dirty_blocks"],
        "errors": errors,
        "draining": after["status"]["draining"],
    }


def _amplification(before: Mapping[str, Any], after: Mapping[str, Any]) -> float | None:
    """Bytes read for demands over those of the granules that they named; None: nothing was read,
    or the daemon has no granules."""
    read, wanted = (
        max(0, after[name] - before[name]) for name in ("demand_bytes_read", "demand_bytes_wanted")
    )
    return read / wanted if wanted else None


def _shown(row: Mapping[str, Any]) -> dict[str, str]:
    def share(name: str) -> str:
        return "none" if row[name] is None else f"{row[name]:.1%}"

    over = row["read_amplification"]
    return {
        "hosts": str(row["hosts"]),
        "sessions": str(row["sessions"]),
        "demands/s": f"{row['demands_per_s']:,.0f}",
        "hits": share("hit"),
        "late": share("late"),
        "read": format_rate(row["read_bytes_per_s"]),
        "over": "none" if over is None else f"{over:.2f}",
        "written": format_rate(row["written_bytes_per_s"]),
        "reactor": share("reactor_busy_share"),
        "dirty": str(row["dirty_blocks"]),
        "errors": str(row["errors"]) + (" draining" if row["draining"] else ""),
    }
