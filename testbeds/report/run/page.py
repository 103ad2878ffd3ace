"""The report of a run: one HTML file that needs nothing else, made from a Summary."""

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from offstage.testbeds.live.results import Summary
from offstage.testbeds.report.page.files import write_text
from offstage.testbeds.report.page.markup import facts, page, tile
from offstage.testbeds.report.page.numbers import count, milliseconds, percent, ratio, size
from offstage.testbeds.report.page.svg import tag
from offstage.testbeds.report.run.definitions import DEFINITIONS
from offstage.testbeds.report.run.figures import curve_figure, fates_figure, served_figure
from offstage.testbeds.report.run.plots import hit_rate_figure, lead_figure, stall_figure
from offstage.testbeds.report.run.runs import Group, baseline, groups, label, set_colours, subject
from offstage.testbeds.report.run.stages import stages_figure
from offstage.testbeds.report.run.table import glossary, runs_section

__all__ = ["render", "setup_line", "write_report"]


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
            stages_figure(found),
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


def _title(summary: Summary) -> str:
    sets = dict.fromkeys(label(run) for run in summary.runs)
    return ", ".join(sets) or "no runs"


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


# What was run and on what, in one line under the sentence.


def setup_line(summary: Summary) -> str:
    """Workload, geometry, machine, seed and provenance; what the summary lacks is left out."""
    parts = [_text(summary.workload, "sentence"), _geometry(summary.workload)]
    parts.append(_machine(summary.machine))
    storages = ", ".join(group.where for group in groups(summary.runs))
    parts.append(f"storage: {storages}" if storages else "")
    parts.append(f"seed {summary.seed}")
    return ". ".join(_capital(part.rstrip(".")) for part in parts if part) + "."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return value if isinstance(value, str) else ""


def _geometry(workload: Mapping[str, Any]) -> str:
    name, note = _text(workload, "geometry"), _text(workload, "geometry_note")
    text = ", ".join(part for part in (name, note) if part)
    return f"model geometry {text}" if text else ""


def _machine(machine: Mapping[str, Any]) -> str:
    parts = [_text(machine, "processor")]
    cores = machine.get("core_count")
    if isinstance(cores, int):
        parts.append(f"{cores} cores")
    memory = machine.get("memory_bytes")
    if isinstance(memory, int):
        parts.append(f"{size(memory)} of memory")
    kernel = _text(machine, "kernel")
    parts.append(f"kernel {kernel}" if kernel else "")
    return ", ".join(part for part in parts if part)
