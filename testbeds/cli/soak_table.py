"""What `offstage bench soak` saw: the daemon over time, each host, each attack, each verdict."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from offstage.bindings.units import format_size, format_time
from offstage.testbeds.cli.pod_bench import verdict_table

__all__ = ["soak_table"]

ROWS = 12


def soak_table(result: Mapping[str, Any]) -> tuple[RenderableType, list[str]]:
    """What it says, and how it was measured."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    for number in range(6):
        table.add_column(justify="left" if number == 0 else "right")
    samples: Sequence[Mapping[str, Any]] = result["samples"]
    table.add_row(*map(_bold, ("daemon", "memory", "files", "threads", "hosts", "checked")))
    every = max(len(samples) // ROWS, 1)
    for one in [*samples[:-1:every], samples[-1]]:
        table.add_row(
            f"{one['at_s']:.0f} s",
            format_size(one["rss_bytes"]),
            str(one["descriptors"]),
            str(one["threads"]),
            str(one["hosts"]),
            f"{one['checked']:,}",
        )
    after = result["after"]
    table.add_row(
        "all gone",
        format_size(after["rss_bytes"]),
        str(after["descriptors"]),
        str(after["threads"]),
    )
    table.add_row()
    table.add_row(*map(_bold, ("host", "texts", "checked", "wrong", "lost", "refused")))
    for host in result["hosts"]:
        table.add_row(
            host["name"],
            f"{host['texts']:,}",
            f"{host['checked']:,}",
            str(host["wrong"]),
            str(host["lost"]),
            f"{sum(host['refused'].values()):,}",
        )
    table.add_row()
    table.add_row(*map(_bold, ("attack", "times")))
    for name, count in result["attacks"].items():
        if all(name != host["name"] for host in result["hosts"]):
            table.add_row(name, f"{count:,}")
    verdicts = verdict_table(result["verdicts"])
    slowest = format_time(1e9 * max(one["operator_s"] for one in samples))
    early, late = (format_size(result[f"rss_{when}_bytes"]) for when in ("early", "late"))
    return Group(table, "", verdicts), [
        f"measured on {result['storage']}, {result['seconds']:g} s, seed {result['seed']}; the "
        f"hostile host began {result['rounds']} times; most memory of the second quarter {early}, "
        f"of the last {late}; the operator's slowest login and answer {slowest}",
    ]


def _bold(text: str) -> Text:
    return Text(text, style="bold")
