"""The output of `offstage report A B`: page, tables, and the picture at the size of a paper."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from offstage.bindings.durable import write_text
from offstage.testbeds.document import as_json
from offstage.testbeds.lab.results.paired import Difference
from offstage.testbeds.report.lab.differences import (
    NAMES,
    as_csv,
    as_latex,
    cells_of,
    differences_sentence,
    differences_table,
    scale_of,
    unit_of,
)
from offstage.testbeds.report.lab.series import over_k, workload_words
from offstage.testbeds.report.page.markup import section
from offstage.testbeds.report.page.page import Page
from offstage.testbeds.report.page.pictures import Picture, colour, for_paper
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tables import as_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

__all__ = ["by_figure", "differences_html", "draw_for_paper", "write_differences"]

ROW_INCHES = 0.24


def write_differences(rows: Sequence[Difference], out: Path, version: str) -> dict[str, Path]:
    """Writes differences.html, .csv, .tex and .json, and one picture a figure as SVG, PDF and
    PNG at the width of a column. Returns the paths by kind."""
    paths = {kind: out / f"differences.{kind}" for kind in ("html", "csv", "tex", "json")}
    write_text(paths["html"], _page(rows, version))
    write_text(paths["csv"], as_csv(rows))
    write_text(paths["tex"], as_latex(rows))
    write_text(paths["json"], as_json({"rows": rows}))
    for name, own in by_figure(rows).items():
        written = _plot(own).files(out, name.replace("_", "-"))
        paths |= {f"{name}.{kind}": path for kind, path in written.items()}
    return paths


def draw_for_paper(rows: Sequence[Difference], width: float) -> "Drawing":
    """One figure's rows as a matplotlib figure of `width` inches."""
    with for_paper(width, _height(rows)) as drawn:
        _draw(drawn, rows)
    return drawn.figure


def by_figure(rows: Sequence[Difference]) -> dict[str, list[Difference]]:
    """The rows that have a value, by figure, in their order."""
    found: dict[str, list[Difference]] = {}
    for row in rows:
        if row.difference is not None:
            found.setdefault(row.figure, []).append(row)
    return found


def _plot(rows: Sequence[Difference]) -> Plot:
    """One figure's rows."""
    height, name = _height(rows), rows[0].figure
    labelled = zip(_labels(rows), rows, strict=True)
    said = "; ".join(f"{label}: {cells_of(row)[-1]}" for label, row in labelled)
    return Plot(
        name,
        f"Differences of {NAMES[name]}. {said}",
        lambda drawn: _draw(drawn, rows),
        height=height,
        paper_height=height,
    )


def _height(rows: Sequence[Difference]) -> float:
    return 0.9 + ROW_INCHES * len(rows)


def _draw(drawn: Picture, rows: Sequence[Difference]) -> None:
    """One figure's differences as marks with their intervals, 0 marked; rows from the top."""
    axes = drawn.axes()
    name = rows[0].figure
    scale, ink = scale_of(name), colour("set-pattern")
    axes.axvline(0.0, color=colour("muted"), linewidth=1.0)
    labels = _labels(rows)
    for at, row in enumerate(rows):
        found = row.difference
        assert found is not None, "rows without a value are left out"
        low = found.value if found.low is None else found.low
        high = found.value if found.high is None else found.high
        axes.plot([low * scale, high * scale], [at, at], color=ink, linewidth=2.0)
        (mark,) = axes.plot([found.value * scale], [at], "o", color=ink, markersize=4.5)
        drawn.tip(mark, f"{found.value * scale:+.2f}{unit_of(name)}, {labels[at]}")
    axes.set_yticks(range(len(rows)), labels)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_title(NAMES[name])
    axes.set_xlabel(f"second − first,{unit_of(name) or ' reads'}")


def _labels(rows: Sequence[Difference]) -> list[str]:
    """The parts that distinguish a row: its point, and, if rows differ in them, workload and
    pool."""
    kinds = len({row.workload for row in rows})
    pools = len({row.hbm_pool_over_k for row in rows})
    labels = []
    for row in rows:
        run = "" if row.first_run == row.second_run else f"{row.second_run}: "
        words = [f"{run}{row.second}", over_k(row.buffer_over_k)]
        words += [workload_words(row.workload)] * (kinds > 1)
        words += [f"HBM pool {over_k(row.hbm_pool_over_k)}"] * (pools > 1)
        labels.append(", ".join(words))
    return labels


def _page(rows: Sequence[Difference], version: str) -> str:
    first, *_ = rows
    plots = [_plot(own) for own in by_figure(rows).values()]
    caption = (
        "The second point less the first, over the same requests: mark and 95 % interval. "
        "Variation between requests cancels. An interval that includes 0 shows no difference. It "
        "does not correct for choosing the best of several policies."
    )
    weak = " Fewer than five requests: the intervals are weak." if first.weak else ""
    page = Page(
        title="Offstage: paired differences",
        sentence=differences_sentence(rows),
        setup=f"Drawn over {first.requests} requests, each a session under a seed.{weak}",
        sections=[
            Figure("differences", "What differs", plots, caption),
            section("table", "In numbers", differences_html(rows)),
        ],
        version=version,
        kind="paired differences",
    )
    return str(page)


def differences_html(rows: Sequence[Difference]) -> str:
    """The rows as a table, as a page and a notebook show it."""
    return as_html(differences_table(rows), "table of differences")
