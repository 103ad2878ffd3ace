"""The report: one HTML file that needs nothing else, made from a Summary.

Style and script are files of `report/page` and are put into the page. The page's own policy forbids
every request and every script but that one, so that it can neither phone home nor run what a run's
name or a warning may hold.
"""

import base64
import hashlib
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from offstage.testbeds.live.results import Summary
from offstage.testbeds.report.page.files import write_text
from offstage.testbeds.report.page.markup import facts, tile
from offstage.testbeds.report.page.numbers import count, milliseconds, percent, ratio, size
from offstage.testbeds.report.page.svg import tag
from offstage.testbeds.report.run.bars import fates_figure, served_figure
from offstage.testbeds.report.run.curve import curve_figure
from offstage.testbeds.report.run.definitions import DEFINITIONS
from offstage.testbeds.report.run.plots import hit_rate_figure, lead_figure, stall_figure
from offstage.testbeds.report.run.runs import Group, baseline, groups, label, set_colours
from offstage.testbeds.report.run.sentence import subject
from offstage.testbeds.report.run.setup import setup_line
from offstage.testbeds.report.run.table import glossary, runs_section

__all__ = ["page", "render", "write_report"]

PACKAGE = "offstage.testbeds.report.page"


def write_report(summary: Summary, path: str | Path) -> None:
    """Writes the report; RunFailed where the file cannot be written."""
    write_text(Path(path), render(summary))


def render(summary: Summary) -> str:
    """The page as text."""
    found = groups(summary.runs)
    colours = set_colours(summary.runs)
    sections = []
    if found:
        sections = [
            runs_section(found, colours),
            hit_rate_figure(found, colours),
            served_figure(found, colours),
            lead_figure(found, colours),
            stall_figure(found, colours),
            curve_figure(found, summary.curve, colours),
            fates_figure(found, colours),
        ]
    return page(
        title=f"Offstage: {_title(summary)}",
        sentence=summary.sentence,
        setup=setup_line(summary),
        tiles=_tiles(found[0]) if found else "",
        sections=sections,
        foot=_foot(summary),
        version=summary.version,
    )


def page(
    *, title: str, sentence: str, setup: str, tiles: str, sections: Sequence[str], foot: str,
    version: str,
) -> str:  # fmt: skip
    """A whole page; `tiles`, `sections` and `foot` are markup, the rest is text."""
    script = _part("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_part("page.html")).substitute(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        title=escape(title),
        style=_part("page.css"),
        script=script,
        sentence=_sentence(sentence),
        setup=escape(setup),
        tiles=tiles,
        sections="\n".join(sections),
        foot=foot,
        version=escape(version),
    )


def _part(name: str) -> str:
    return files(PACKAGE).joinpath(name).read_text(encoding="utf-8")


def _title(summary: Summary) -> str:
    sets = dict.fromkeys(label(run) for run in summary.runs)
    return ", ".join(sets) or "no runs"


def _sentence(text: str) -> str:
    """The finding, then what else is to be said of it more quietly."""
    finding, semicolon, rest = text.partition("; ")
    return escape(finding) + (f"; <span>{escape(rest)}</span>" if semicolon else "")


def _tiles(group: Group) -> str:
    """The four figures to look at first, of the leading group's fullest set of prefetchers."""
    run, without = subject(group), baseline(group)
    rows = [
        ("hit rate", percent(run.hit_rate), "{} without prefetch", "hit_rate", percent),
        ("bytes read", ratio(run.traffic_ratio), "{} without prefetch", "bytes_read", size),
        ("stall p99", milliseconds(run.stall_ms_p99), "{} without prefetch", "stall_ms_p99",
         milliseconds),
    ]  # fmt: skip
    cells = []
    for name, value, note, key, form in rows:
        if key == "bytes_read":
            under = size(run.bytes_read)
            if without is not None:
                under = f"{under}, {note.format(size(without.bytes_read))}"
        else:
            under = note.format(form(getattr(without, key))) if without is not None else ""
        cells.append(tile(name, value, under))
    corrupt = f"{count(run.blocks_corrupt)} corrupt"
    cells.append(tile("blocks compared", count(run.blocks_verified), corrupt,
                       "bad" if run.blocks_corrupt else ""))  # fmt: skip
    note = f"{label(run)} on {group.where}"
    return tag("dl", "".join(cells), class_="tiles", aria_label=note) + tag(
        "p", escape(note), class_="tiles-note"
    )


def _foot(summary: Summary) -> str:
    parts = [_warnings(summary), _reproduce(summary)]
    parts.append(facts("The workload, in full", summary.workload))
    parts.append(facts("The machine", summary.machine))
    keys = [entry.key for entry in DEFINITIONS]
    parts.append(glossary(keys, "Every figure of summary.json"))
    return "\n".join(part for part in parts if part)


def _warnings(summary: Summary) -> str:
    found: dict[str, list[str]] = {}
    for run in summary.runs:
        for warning in run.warnings:
            found.setdefault(warning, []).append(f"{label(run)} on {run.storage}")
    if not found:
        body = "<p>No run gave a warning.</p>"
    else:
        items = []
        for text, names in found.items():
            where = "every run" if len(names) == len(summary.runs) > 1 else "; ".join(names)
            items.append(f"<li>{escape(text)} <small>{escape(where)}</small></li>")
        body = f'<ul class="warnings">{"".join(items)}</ul>'
    return f'<section id="warnings"><h2>What to know before quoting these figures</h2>{body}'\
        "</section>"  # fmt: skip


def _reproduce(summary: Summary) -> str:
    return (
        '<section id="reproduce"><h2>How to reproduce this</h2>'
        f"<p>Offstage {escape(summary.version)}, seed {summary.seed}. The seed fixes the workload; "
        "times are of this machine and of this moment.</p>"
        f"<pre><code>{escape(summary.command)}</code></pre></section>"
    )
