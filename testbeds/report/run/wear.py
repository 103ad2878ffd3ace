"""The runs' cost to the drive, as a table; empty if no daemon reported it to its operator."""

from collections.abc import Mapping, Sequence
from typing import Any

from offstage.testbeds.report.page.markup import section
from offstage.testbeds.report.page.numbers import ratio, show
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.report.run.plots import Colours
from offstage.testbeds.report.run.runs import Group
from offstage.testbeds.report.run.table import run_cell
from offstage.testbeds.table import Column, Part, Table

__all__ = ["wear_section"]

COLUMNS = (
    (
        "prefill_bytes",
        "by prefill",
        "Bytes that prefill wrote to the drive; in a demo one daemon does so for all runs.",
    ),
    ("decode_bytes", "by decode", "Bytes that the run's decoding wrote to the drive."),
    (
        "written_per_hit_bytes",
        "for a hit",
        "Bytes written to the drive, by prefill and decode, "
        "over demands on time. In a short run few hits share all of prefill.",
    ),
    (
        "amplification",
        "amplification",
        "Bytes written to the drive over the records that the host "
        "wrote: headers, the cleaner's copies, wipes.",
    ),
    (
        "drive_writes_per_day",
        "DWPD",
        "How often per day the whole store would be written at the "
        "daemon's mean rate since its start.",
    ),
    (
        "life_years",
        "years",
        "Until storage.endurance is used up at that rate; a dash where it is not configured.",
    ),
)
CAPTION = (
    "The cost of writing, per hit: blocks that are written and never read raise it. The write "
    "amplification inside the drive is not visible here."
)


def _cell(name: str, wear: Mapping[str, Any]) -> str:
    value = wear.get(name)
    if value is None:
        return "–"
    if name == "amplification":
        return ratio(value)
    return show(name, value) if name.endswith("bytes") else f"{value:,.3g}"


def wear_section(found: Sequence[Group], colours: Colours) -> str:
    """The table of the page."""
    if not any(run.wear for group in found for run in group.runs):
        return ""
    columns = [Column("run", left=True)]
    columns += [Column(name, tip=text) for _, name, text in COLUMNS]
    parts = [
        Part(
            [
                [run_cell(group, at, colours), *(_cell(key, run.wear) for key, _, _ in COLUMNS)]
                for at, run in enumerate(group.runs)
            ],
            group.title,
            group.provenance,
        )
        for group in found
    ]
    table = as_html(Table(columns, parts), "table of bytes written")
    return section("wear", "Drive wear", table, CAPTION)
