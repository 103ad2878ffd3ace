"""Pictures drawn with matplotlib as inline SVG: one look, both themes, tips to hover, no request.

A picture is drawn once. While matplotlib draws, its colours are those of the page's light theme;
afterwards they become the page's CSS variables, so that the picture follows the reader's theme. Its
text stays text, in the page's font, and a tip is shown by the page's own script. For a paper the
same drawing is a file, in black on white. The same figure gives the same bytes either way. What is
drawn where and how large: `plot.py`. Why matplotlib: docs/decisions/laboratory.md.
"""

import contextlib
import functools
import hashlib
import io
import re
import warnings
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from offstage.bindings.durable import write_bytes
from offstage.testbeds.report.page.tags import escape

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.typing import LineStyleType

__all__ = [
    "COLUMN_INCHES",
    "LINE_STYLES",
    "Picture",
    "colour",
    "for_paper",
    "picture",
    "plain_logs",
    "rgb",
]

PAGE = "offstage.testbeds.report.page"
LINE_STYLES: "dict[str, LineStyleType]" = {
    "measured": "-",
    "emulated": (0, (4.5, 2.2)),
    "modelled": (0, (1.4, 1.3)),
}
"""As in the rest of a report: measured is solid, emulated dashed, modelled dotted."""

CYCLE = ("set-pattern", "set-window", "set-shared", "set-1", "set-5", "set-2", "set-4", "set-3")
"""Artists without a colour take the page's colours in turn."""

PX_PER_INCH = 100
"""On a wide page; 8.5 points are 12 pixels there."""

COLUMN_INCHES = 3.4
"""A column of a paper in two columns."""
SLIM_INCHES = 6.0
"""Narrower pictures have their legend below."""
LETTER_POINTS, KEY_POINTS = 5.0, 34.0
"""Width of a legend's entry: for each letter, and for its key."""
SLIM_TICKS = 5
PAPER_DOTS_PER_INCH = 300
UNDATED: dict[str, dict[str, None]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
PAPER: Any = {
    "figure.facecolor": "white",
    "font.size": 8,
    "legend.fontsize": 7,
    "axes.labelsize": 8,
    "pdf.fonttype": 42,
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), "black"),
}

_INDENT = re.compile(r"\n\s*")
_PART = re.compile(r'<g id="([^"]*)"')
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT = re.compile(r"font: ([^;\"]*?)([\d.]+px) [^;\"]*|font-family: [^;\"]*;? ?")
_NAMED = re.compile(r'\bid="([^"]+)"')
_NAME_USED = re.compile(r"#([mpCh][\w-]+)")
_FRACTION = re.compile(r"(?<![\w.#-])(-?\d+\.\d{2})\d+")
_VAR = re.compile(r"var\(--([\w-]+)\)")
_LEFT_OUT = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", re.DOTALL)


class Picture:
    """One figure in progress. `tip` gives an artist its hover text, `svg` is the markup.
    `paper`: it is for print, without hovering and without the page's legend."""

    def __init__(self, figure: "Figure", paper: bool = False) -> None:
        self.figure = figure
        self.paper = paper
        self._marks: list[str] = []

    @property
    def slim(self) -> bool:
        """Whether there is room for one column only."""
        return self.figure.get_figwidth() < SLIM_INCHES

    def axes(self) -> "Axes":
        """The axes of a picture that has one pair."""
        return self.figure.subplots()

    def tip(self, artist: "Artist", text: str, *, spot: str = "") -> None:
        """The artist's hover text; a `spot` of that class can be reached by the keyboard too."""
        read = escape(text.replace("\n", ", "))
        reached = f'class="{spot}" tabindex="0" aria-label="{read}" ' if spot else ""
        self._mark(artist, f'{reached}data-tip="{escape(text)}"')

    def band(self, axes: "Axes", low: float, high: float, text: str) -> None:
        """An invisible column from `low` to `high` in data with a hover text."""
        if not self.paper:
            span = axes.axvspan(low, high, facecolor="none", edgecolor="none", zorder=9)
            self._mark(span, f'class="band" data-tip="{escape(text)}"')

    def crisp(self, artist: "Artist") -> None:
        """Its edges lie on whole pixels: cells that touch show no seam."""
        self._mark(artist, 'shape-rendering="crispEdges"')

    def halo(self, text: "Text") -> None:
        """A rim in the page's colour keeps the text readable over other artists."""
        self._mark(text, 'class="halo"')

    def legend(self, axes: "Axes", **options: Any) -> None:
        """The labelled lines of the axes: next to them, or below them if there is little room."""
        handles, names = axes.get_legend_handles_labels()
        self.keys(handles, names, **options)

    def keys(self, handles: Any, names: Any, **options: Any) -> None:
        """A separate legend, at the same places."""
        if not names:
            return
        if self.slim:
            longest = max(len(name) for name in names)
            room = 72.0 * self.figure.get_figwidth() / (LETTER_POINTS * longest + KEY_POINTS)
            columns = min(3, len(names), max(1, int(room)))
            options = {"loc": "outside lower left", "ncols": columns, **options}
        else:
            options = {"loc": "outside right upper", **options}
        self.figure.legend(handles, names, **options)

    def settle(self) -> None:
        """Settles the layout: from here on, the position of a point of data is known."""
        with _any_letter():
            self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")

    def _mark(self, artist: "Artist", attribute: str) -> None:
        artist.set_gid(f"mark{len(self._marks)}")
        self._marks.append(attribute)

    def svg(self, summary: str, scroll: bool = False) -> str:
        """The markup; `summary` is for readers who do not see it. `scroll`: it is never shown
        narrower than it was drawn. The picture is done."""
        out = io.BytesIO()
        with _any_letter():
            self.figure.savefig(out, format="svg", metadata={"Date": None})
        text = out.getvalue().decode()
        text = _LEFT_OUT.sub("", text[text.index("<svg") :])
        text = _PART.sub(self._part, text)
        text = _COLOUR.sub(lambda found: _variables().get(found[0], found[0]), text)
        text = _FONT.sub(
            lambda found: f"font-size: calc({found[2]}*var(--text))" if found[2] else "", text
        )
        head, _, body = text.partition(">")
        body = self._own_names(_FRACTION.sub(r"\1", body), summary)
        box = re.search(r'viewBox="[^"]*"', head)
        assert box is not None, "matplotlib writes a viewBox"
        width_px = round(self.figure.get_figwidth() * PX_PER_INCH)
        held = f' style="min-width:{width_px}px"' if scroll else ""
        return (
            f'<svg class="picture" {box[0]}{held} role="img" '
            f'aria-label="{escape(summary)}">{_INDENT.sub(chr(10), body).strip()}'
        )

    def files(self, folder: Path, name: str) -> Iterator[tuple[str, Path]]:
        """Writes NAME.svg, .pdf and .png; the kind and path of each. RunFailed if the disk
        refuses, BadInput if the path is not a folder."""
        for kind, undated in UNDATED.items():
            out = io.BytesIO()
            with _any_letter():
                self.figure.savefig(out, format=kind, metadata=undated, dpi=PAPER_DOTS_PER_INCH)
            path = folder / f"{name}.{kind}"
            write_bytes(path, out.getvalue())
            yield kind, path

    def _own_names(self, body: str, summary: str) -> str:
        """Names of paths that no other picture of the page has: short ones."""
        names = list(dict.fromkeys(_NAMED.findall(body)))
        own = hashlib.sha256(f"{summary}{body}".encode()).hexdigest()[:8]
        short = {name: f"{own}{at:x}" for at, name in enumerate(names)}
        body = _NAMED.sub(lambda found: f'id="{short[found[1]]}"', body)
        return _NAME_USED.sub(lambda found: f"#{short.get(found[1], found[1])}", body)

    def _part(self, found: re.Match[str]) -> str:
        """A group without its name, which another picture of the page has too; with its mark."""
        name = found[1]
        if name.startswith("mark") and name[4:].isdigit():
            return f"<g {self._marks[int(name[4:])]}"
        return "<g"


@contextlib.contextmanager
def _any_letter() -> Iterator[None]:
    """Ignore letters that matplotlib's font lacks: browsers have other fonts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        yield


@contextlib.contextmanager
def picture(width: float = 7.0, height: float = 3.6) -> Iterator[Picture]:
    """A figure of the given size in inches in the look of the page."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_style()):
        yield Picture(Figure(figsize=(width, height), layout="constrained"))


@contextlib.contextmanager
def for_paper(width: float = COLUMN_INCHES, height: float = 2.4) -> Iterator[Picture]:
    """A figure of the given size in inches for print: black text of 8 points, fonts embedded."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**_style(), **PAPER}):
        yield Picture(Figure(figsize=(width, height), layout="constrained"), paper=True)


def plain_logs(axes: "Axes", *, x: str = "", y: str = "") -> None:
    """Logarithmic axes with plain numbers; each is `number` or `percent`, or unchanged."""
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    from offstage.testbeds.report.page.ticks import NumberedLog

    forms = {
        "number": lambda value, _: f"{value:,.15g}",
        "percent": lambda value, _: f"{100 * value:.6g} %",
    }
    figure = axes.get_figure(root=True)
    slim = figure is not None and figure.get_figwidth() < SLIM_INCHES
    for axis, scale, kind in ((axes.xaxis, axes.set_xscale, x), (axes.yaxis, axes.set_yscale, y)):
        if kind:
            scale("log")
            few = slim and axis is axes.xaxis
            axis.set_major_locator(NumberedLog(numticks=SLIM_TICKS if few else None))
            axis.set_major_formatter(FuncFormatter(forms[kind]))
            axis.set_minor_formatter(NullFormatter())
            if few:
                axis.set_minor_locator(NullLocator())


def colour(name: str) -> str:
    """The CSS variable `--name`, or one in full as `var(--name)`, as matplotlib takes it."""
    return _colours()[_VAR.sub(r"\1", name)]


def rgb(name: str) -> list[float]:
    """The same as three shares, for adding an opacity."""
    text = colour(name)
    return [int(text[at : at + 2], 16) / 255 for at in (1, 3, 5)]


@functools.cache
def _colours() -> dict[str, str]:
    css = files(PAGE).joinpath("page.css").read_text(encoding="utf-8")
    light = css[css.index(":root") : css.index("}")]
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light))


@functools.cache
def _variables() -> dict[str, str]:
    """Light value -> the variable; the first of those that have the same value."""
    return {value: f"var(--{name})" for name, value in reversed(_colours().items())}


def _style() -> Any:  # the keys are literals of matplotlib's own
    from cycler import cycler

    ink, muted, grid = colour("soft"), colour("muted"), colour("grid")
    return {
        # A name is plain text: `$` begins no formula.
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "offstage",
        "font.size": 8.5,
        "text.color": ink,
        "axes.labelcolor": ink,
        "axes.labelsize": 8.5,
        "axes.titlesize": 9,
        "axes.titlecolor": ink,
        "axes.titlelocation": "left",
        "axes.edgecolor": muted,
        "axes.linewidth": 0.7,
        "axes.facecolor": "none",
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.facecolor": "none",
        "grid.color": grid,
        "grid.linewidth": 0.8,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.major.size": 3,
        "ytick.major.size": 3,
        "xtick.minor.visible": False,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "axes.prop_cycle": cycler(color=[colour(name) for name in CYCLE]),
        "lines.linewidth": 1.8,
        "lines.solid_capstyle": "round",
        "hatch.linewidth": 0.6,
    }
