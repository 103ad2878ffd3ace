"""What the runs cost the drive, as a table; nothing where no daemon told its operator."""

from collections.abc import Mapping, Sequence
from typing import Any

from offstage.testbeds.report.page.markup import chip, swatch
from offstage.testbeds.report.page.numbers import ratio, show
from offstage.testbeds.report.page.tags import escape, tag
from offstage.testbeds.report.run.plots import Colours
from offstage.testbeds.report.run.runs import Group, labels

__all__ = ["wear_section"]

COLUMNS = (
    (
        "prefill_bytes",
        "by prefill",
        "Bytes that prefill had written to the drive: of a demo by one daemon for all runs.",
    ),
    ("decode_bytes", "by decode", "Bytes that the run's own decoding had written to the drive."),
    (
        "written_per_hit_bytes",
        "for a hit",
        "Bytes written to the drive, by prefill and decode, "
        "over demands on time. Over a short run few hits have to carry all of prefill.",
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
        "How often a day all of the store would be written at the "
        "daemon's mean rate since its start.",
    ),
    (
        "life_years",
        "years",
        "Until storage.endurance is used up at that rate; a dash where it is not configured.",
    ),
)
CAPTION = (
    "What writing cost, beside what it gave: blocks that are written and never read make every hit "
    "dearer. What the drive itself writes more than it is told is not seen here."
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
    head = tag("th", "run", scope="col") + "".join(
        tag(
            "th",
            tag("abbr", escape(label), tabindex=0, data_tip=text),
            scope="col",
            class_="number",
        )
        for _, label, text in COLUMNS
    )
    bodies = []
    for group in found:
        title = f"<span>{escape(group.title)} {chip(group.provenance)}</span>"
        rows = [
            tag("tr", tag("th", title, colspan=len(COLUMNS) + 1, scope="rowgroup"), class_="group")
        ]
        for run, name in zip(group.runs, labels(group), strict=True):
            mark = swatch(colours[tuple(sorted(run.prefetchers))], group.provenance)
            cells = [
                tag("td", escape(_cell(key, run.wear)), class_="number") for key, _, _ in COLUMNS
            ]
            rows.append(tag("tr", tag("th", mark + escape(name), scope="row") + "".join(cells)))
        bodies.append(tag("tbody", "".join(rows)))
    table = f"<table><thead><tr>{head}</tr></thead>{''.join(bodies)}</table>"
    scroll = tag(
        "div",
        table,
        class_="scroll",
        tabindex=0,
        role="region",
        aria_label="table of what was written",
    )
    return tag(
        "section",
        f'<h2 id="wear-title">What it cost the drive</h2>{scroll}'
        f'<p class="caption">{escape(CAPTION)}</p>',
        id="wear",
        aria_labelledby="wear-title",
    )
