"""Is a warning that makes a figure void said beside that figure, and beside no other?"""

import dataclasses
import io
import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from compare_synthetic import comparison
from rich.console import Console

from offstage.bindings.notes import Note
from offstage.testbeds.lab.results.summary import LabSummary
from offstage.testbeds.live.results import RunResult, Summary
from offstage.testbeds.report import baselines_table, console_table
from offstage.testbeds.report.compare import table as compare
from offstage.testbeds.report.compare.page import render as render_comparison
from offstage.testbeds.report.lab.marks import interval_text
from offstage.testbeds.report.lab.page import render_lab
from offstage.testbeds.report.lab.table import lab_table
from offstage.testbeds.report.run.page import figures_of, render
from offstage.testbeds.report.run.void import HITS, TIMES, VOIDS
from offstage.testbeds.table import Table

SLOW = Note("emulation-late", "the drive was late", figures="52 % of 9")
STAGED = Note("all-staged", "the arena has room for all", "give less")
AT_NIGHT = Note("machine", "it ran at night")


def cells(table: Table) -> Iterator[tuple[str, str, str, str]]:
    """Each figure of a table: its part, row and column, and its text."""
    for part in table.parts:
        for row in part.rows:
            name, *rest = table.cells(row)
            for column, one in zip(table.columns[1:], rest, strict=True):
                yield part.title, name.text, column.title, one.terse or one.text


def noted(made: SimpleNamespace, *notes: Note) -> Summary:
    """The notes on one run of the second storage."""
    summary: Summary = made.summary()
    for run in summary.runs:
        run.notes = list(notes) if run is summary.runs[6] else []
    return summary


def section(text: str, name: str) -> str:
    """A section of a page, or all of its head."""
    if name == "header":
        return text[text.index("<header>") : text.index("</header>")]
    return text[text.index(f'<section id="{name}"') :].partition("</section>")[0]


def test_figures_that_a_note_makes_void_have_a_sign_and_no_others(made: SimpleNamespace) -> None:
    """Of that run, and those that the note is about; what it says is under the table, on the page
    and in a terminal."""
    plain, marked = made.summary(), noted(made, SLOW, AT_NIGHT)
    plain.runs[6].notes = []
    before, after = (list(cells(console_table(one))) for one in (plain, marked))
    signed = {(*a[:3],) for a, b in zip(after, before, strict=True) if a[3] == f"{b[3]}†"}
    rest = [(a, b) for a, b in zip(after, before, strict=True) if (*a[:3],) not in signed]
    assert all(a == b for a, b in rest) and {one[:2] for one in signed} == {
        ("synthetic drive", "window + ema")
    }
    columns = {column for _, _, column in signed}
    assert {"hit rate", "late", "stall p99", "tokens/s"} <= columns
    assert columns.isdisjoint({"traffic", "read", "corrupt"})
    out = io.StringIO()
    Console(file=out, width=200).print(console_table(marked))
    said = "† the drive was late (window + ema on synthetic drive (emulated)): 52 % of 9"
    assert out.getvalue().splitlines()[-1].strip() == said
    assert f'<p class="void">{said}</p>' in section(render(marked), "runs")
    assert "†" not in render(plain) and 'class="void"' not in render(plain)


@pytest.mark.parametrize("name", ["steps", "served", "lead", "stall", "curve", "fates"])
def test_a_picture_says_it_over_the_storage_that_it_is_about(
    name: str, made: SimpleNamespace
) -> None:
    """Not over the other one; a picture of both says of which run."""
    (shown,) = [one for one in figures_of(noted(made, SLOW)) if f'section id="{name}"' in str(one)]
    text = str(shown)
    told = re.findall(r'<p class="void">† the drive was late \((.*)\): 52 % of 9</p>', text)
    assert len(told) == 1
    if name == "curve":
        assert told == ["window + ema on synthetic drive (emulated)"]
    else:
        assert told == ["window + ema"]
        panels = text.split('<div class="panel">')[1:]
        assert ["late" in panel.partition("</h3>")[2][:40] for panel in panels] == [False, True]


def test_a_note_on_all_runs_stands_beside_all_of_them_without_names(made: SimpleNamespace) -> None:
    """Also beside the figures under the headline, which are of one run."""
    summary = made.summary(notes=[STAGED])
    summary.runs[6].notes = []
    table = console_table(summary)
    assert table.note == "† the arena has room for all"
    every = list(cells(table))
    assert all(text.endswith("†") for *_, column, text in every if column == "hit rate")
    assert not any("†" in text for *_, column, text in every if column.startswith("stall"))
    head = section(render(summary), "header")
    tiles = re.findall(r"<dd>([^<]*)<", head)
    assert [text.endswith("†") for text in tiles] == [True, False, False, False]
    assert head.count('<div class="void">') == 1
    assert "† the arena has room for all" in head[head.index("tiles-note") :]


def test_a_dash_and_a_figure_of_a_baseline(made: SimpleNamespace) -> None:
    """A dash is no figure; a baseline's own note is said beside the baseline."""
    summary = noted(made, SLOW)
    summary.runs[4].notes = [SLOW]  # without prefetch: it has no accuracy
    dashes = [text for *_, column, text in cells(console_table(summary)) if column == "accuracy"]
    assert "–" in dashes and "–†" not in dashes
    (first, *_) = summary.runs
    one = RunResult(**{name: getattr(first, name) for name in first.__struct_fields__})
    one.name, one.notes = "g3", [SLOW]
    summary.baselines = [one]
    table = baselines_table(summary)
    assert table is not None and table.note.startswith("† G3: the drive alone")
    marked = {row for _, row, column, text in cells(table) if column == "late" and "†" in text}
    assert len(marked) == 1 and marked.pop().startswith("G3")
    assert f'<p class="void">{table.note}</p>' in section(render(summary), "baselines")


def test_a_comparison_with_a_late_drive_says_it_where_it_counts() -> None:
    """In the recorded run's column, in ratios to it, and beside its pictures; a modelled device's
    own figures have no sign."""
    found = comparison()
    plain = compare.devices_table(compare.ROWS, found.columns)
    found.columns[0].notes = [SLOW]
    table = compare.devices_table(compare.ROWS, found.columns)
    pairs = zip(cells(table), cells(plain), strict=True)
    signed = {(row, column) for (_, row, column, a), (*_, b) in pairs if a == f"{b}†"}
    recorded, *others = (one.device for one in found.columns)
    assert {row for row, column in signed if column == recorded} >= {
        "fetch mean",
        "hit",
        "late",
        "miss",
    }
    ratios = {(row, column) for row, column in signed if column != recorded}
    assert ratios and {row for row, _ in ratios} <= {"mean, faster by", "p99, faster by"}
    assert {column for _, column in ratios} <= set(others)
    assert table.note.endswith("† the drive was late")
    text = render_comparison(found)
    for name, told in {"devices": 1, "latency": 1, "waterfall": 1, "load": 0}.items():
        assert section(text, name).count('<p class="void">† the drive was late</p>') == told


def test_every_figure_that_a_note_is_about_is_one() -> None:
    keys = {key for found in VOIDS.values() for key in found}
    assert keys <= set(RunResult.__struct_fields__) and set(HITS) & set(TIMES) == set()


def test_a_point_that_says_little_says_it_in_its_row(lab: SimpleNamespace) -> None:
    """And over each picture of its facet; others have no sign."""
    summary: LabSummary = lab.summary()
    plain = render_lab(summary)
    assert "†" not in plain
    small = next(one for one in summary.points if one.info.buffer_over_k > 1)
    small.info = dataclasses.replace(small.info, context_blocks=small.info.buffer_blocks)
    text = render_lab(summary)
    found = section(text, "points")
    assert 0 < found.count('</abbr><i class="sign">†</i>') < 12
    why = f"a buffer of {small.info.buffer_blocks:,} blocks holds the whole context"
    line = f"† says little about a policy: {why} of {small.info.buffer_blocks:,}"
    for name in ("points", "pareto", "buffer"):
        assert f'<p class="void">{line} (1 of ' in section(text, name)
    out = io.StringIO()
    Console(file=out, width=300).print(lab_table(summary))
    assert f"{interval_text(small.nontrivial_hit)}†" in out.getvalue() and line in out.getvalue()


def test_what_is_said_of_several_runs_is_short(made: SimpleNamespace) -> None:
    """All of a storage's runs are not named; figures that differ are in the cells' hints alone."""
    summary = noted(made)
    for at, run in enumerate(summary.runs[4:]):
        run.notes = [Note("emulation-late", "the drive was late", figures=f"{at} %")]
    text = render(summary)
    assert '</h3><p class="void">† the drive was late</p>' in section(text, "stall")
    said = "† the drive was late (all runs on synthetic drive (emulated))"
    assert f'<p class="void">{said}</p>' in section(text, "runs")
    assert 'data-tip="the drive was late: 3 %"' in section(text, "runs")
