"""The page of `offstage bench sparse`: stall against sessions, and what each setting carries."""

from pathlib import Path

from offstage.bindings.durable import write_text
from offstage.testbeds.bench.sparse.result import Point, SparseResult
from offstage.testbeds.report.page.markup import figure
from offstage.testbeds.report.page.page import Page
from offstage.testbeds.report.page.pictures import LINE_STYLES, Picture, plain_logs
from offstage.testbeds.report.page.plot import Figure, Plot
from offstage.testbeds.report.page.tables import as_html

__all__ = ["write_page"]


def write_page(found: SparseResult, path: Path, version: str) -> None:
    """Writes the page."""
    tables = [
        figure(f"table-{at}", table.title or "Live runs", as_html(table, "figures"), "")
        for at, table in enumerate(found.own_tables())
    ]
    page = Page(
        title="Offstage: sparse decode from drives",
        sentence=_sentence(found),
        setup="; ".join(found.about()),
        sections=[*([_curves(found)] if found.points else []), *tables],
        version=version,
        kind="bench report",
        notes=dict.fromkeys(found.notes, ""),
    )
    write_text(path, str(page))


def _sentence(found: SparseResult) -> str:
    if not found.carried:
        return "Decoding from drives, live."
    one = found.carried[0]
    return (
        f"{one.sessions:.1f} sessions of {one.context_tokens:,} tokens decode from "
        f"{_drives(one.drives)} and one core until tokens wait {100 * found.waits:g} % of their "
        "time (modelled)."
    )


def _drives(count: int) -> str:
    return "one drive" if count == 1 else f"{count} drives"


def _curves(found: SparseResult) -> Figure:
    """Share of time that tokens wait, against sessions; a line for each setting."""
    lines: dict[tuple[int, int, int], list[Point]] = {}
    for one in found.points:
        lines.setdefault((one.context_tokens, one.selected, one.drives), []).append(one)

    def draw(drawn: Picture) -> None:
        axes = drawn.axes()
        for (context, selected, drives), points in lines.items():
            label = f"{context:,} tokens, k {selected}, {_drives(drives)}"
            axes.plot(
                [one.sessions for one in points],
                [100 * one.waits for one in points],
                linestyle=LINE_STYLES["modelled"],
                marker="o",
                markersize=4,
                label=label,
            )
        axes.axhline(100 * found.waits, linewidth=0.8, color="0.5")
        plain_logs(axes, x="number")
        axes.set(xlabel="sessions", ylabel="share of a token's time that it waits, %")
        drawn.legend(axes)

    said = f"Share of time that tokens of {found.model} wait for blocks, against sessions"
    plot = Plot("waits", said, draw, height=3.6, legend_rows=len(lines), paper_height=3.2)
    caption = f"{found.model} on one core of {found.device}, over {found.drive} (modelled)."
    return Figure("waits", "Sessions and stall", [plot], caption)
