"""Every figure of every page: its name, its drawing function, and its place.

A `Plot` is one picture: a name, a summary in words, and a function that draws it with matplotlib
from its data. The page shows it as SVG in the reader's theme; `files` writes it as SVG, PDF and
PNG at the size of a paper. A `Figure` is a section of a page with its plots. A plot made of
markup on the page, such as bars that wrap with the text, has it as `by_hand`, and is drawn for
paper all the same (docs/decisions/laboratory.md).
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from offstage.testbeds.report.page.markup import figure, panels
from offstage.testbeds.report.page.pictures import COLUMN_INCHES, Picture, for_paper, picture
from offstage.testbeds.report.page.tags import tag

__all__ = ["PAGE_INCHES", "Figure", "Plot", "write_figures"]

WIDE_INCHES, PANEL_INCHES, NARROW_INCHES = 11.2, 4.8, 3.7
"""Alone on a page, next to others, alone on a narrow page."""
PAGE_INCHES = 7.0
"""Both columns of a paper."""
NAME_MAX = 60


@dataclass(frozen=True)
class Plot:
    """One picture. Heights are in inches, without the legend that a narrow one has below."""

    name: str
    said: str
    """A description for readers who cannot see the picture."""
    draw: Callable[[Picture], None]
    height: float = 3.3
    heading: str = ""
    """Markup above it on the page."""
    below: str = ""
    """Markup under it."""
    by_hand: str = ""
    """The markup that the page shows in its place."""
    paper_inches: float = COLUMN_INCHES
    paper_height: float = 0.0
    """0: as on the page, but no higher than three quarters of the width."""
    legend_rows: int = 0
    """Rows of a drawn legend, which needs room below the picture."""
    scroll: bool = False
    """Its text has no room on a narrow page: there it scrolls, and in a paper it takes both
    columns."""

    def html(self, alone: bool) -> str:
        """The markup: in its panel, or over the whole width and once more for narrow pages."""
        content = self.heading + (self.by_hand or self._pictures(alone)) + self.below
        return content if alone else tag("div", content, class_="panel")

    def _pictures(self, alone: bool) -> str:
        if self.scroll:
            wide = self._svg(WIDE_INCHES, self.height)
            drawn = self._svg(PAGE_INCHES, self.height)
            narrow = tag(
                "div", drawn, class_="scroll", tabindex=0, role="region", aria_label=self.said
            )
        elif not alone:
            return self._svg(PANEL_INCHES, self.height + self._legend())
        else:
            wide = self._svg(WIDE_INCHES, max(self.height, min(4.2, 1.2 * self.height)))
            narrow = self._svg(NARROW_INCHES, self.height + self._legend())
        return tag("div", wide, class_="wide") + tag("div", narrow, class_="narrow")

    def _legend(self) -> float:
        return 0.18 * self.legend_rows

    def _svg(self, width: float, height: float) -> str:
        with picture(width, height) as drawn:
            self.draw(drawn)
            return drawn.svg(self.said, self.scroll and width < WIDE_INCHES)

    def files(self, folder: Path, name: str) -> dict[str, Path]:
        """NAME.svg, .pdf and .png in `folder`; their paths by kind."""
        inches = PAGE_INCHES if self.scroll else self.paper_inches
        lower = self.height if self.scroll else min(self.height, 0.75 * inches)
        with for_paper(inches, self.paper_height or lower) as drawn:
            self.draw(drawn)
            return dict(drawn.files(folder, name))


@dataclass(frozen=True)
class Figure:
    """A section of a page: title, legend, plots, caption. `str` is its markup."""

    name: str
    title: str
    plots: Sequence[Plot]
    caption: str
    keys: str = ""
    after: str = field(default="")
    """Markup between plots and caption."""

    def __str__(self) -> str:
        alone = len(self.plots) == 1
        shown = [one.html(alone) for one in self.plots]
        wide = alone or any(one.scroll for one in self.plots)
        body = "".join(shown) if wide else panels(shown)
        return figure(self.name, self.title, body + self.after, self.caption, self.keys)


def write_figures(sections: Iterable[object], folder: Path) -> dict[str, Path]:
    """Each plot of the sections that are figures, as SVG, PDF and PNG; paths by `name.kind`.
    RunFailed if writing fails, BadInput if the path is not a folder."""
    paths: dict[str, Path] = {}
    taken: set[str] = set()
    for one in sections:
        for plot in one.plots if isinstance(one, Figure) else ():
            name = _free(_file_name(plot.name), taken)
            paths |= {f"{name}.{kind}": path for kind, path in plot.files(folder, name).items()}
    return paths


def _file_name(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:NAME_MAX].strip("-") or "figure"


def _free(name: str, taken: set[str]) -> str:
    """The name, with a number if another plot has it."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    taken.add(found)
    return found
