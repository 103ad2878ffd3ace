"""The HTML around a plot: figure, panels, legend, bars, chips. Every text is escaped here."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from offstage.testbeds.report.runs import Group
from offstage.testbeds.report.svg import attributes, tag

__all__ = ["Segment", "bar", "chip", "figure", "key", "legend", "panel", "panels", "swatch"]


@dataclass(frozen=True)
class Segment:
    """One part of a stacked bar: its share of the bar, its colour, what hovering says."""

    share: float
    colour: str
    tip: str


def chip(provenance: str) -> str:
    """The provenance as a small label."""
    return tag("span", escape(provenance), class_=f"chip {provenance}")


def swatch(colour: str, kind: str = "") -> str:
    """A small square (or `line`, `dot`) of one colour, for legends and tables."""
    return tag("i", "", class_=f"swatch {kind}".strip(), style=f"--c:{colour}", aria_hidden="true")


def key(colour: str, text: str, kind: str = "", tip: str = "") -> str:
    """One entry of a legend."""
    extra = attributes(data_tip=tip, tabindex=0) if tip else ""
    return f"<li{extra}>{swatch(colour, kind)}{escape(text)}</li>"


def legend(entries: Sequence[str]) -> str:
    """The entries in one row that wraps."""
    return tag("ul", "".join(entries), class_="legend")


def panel(group: Group, body: str) -> str:
    """One storage's part of a figure, under its name and provenance."""
    head = f"<h3>{escape(group.title)} {chip(group.provenance)}</h3>"
    return tag("div", head + body, class_=f"panel {group.provenance}")


def panels(parts: Sequence[str]) -> str:
    """Panels side by side, one below the other where the page is narrow."""
    return tag("div", "".join(parts), class_="panels")


def bar(segments: Sequence[Segment], provenance: str, summary: str) -> str:
    """A stacked bar; segments of no width are left out."""
    parts = [
        tag("span", "", style=f"flex:{part.share:.6f} 0 0;--c:{part.colour}", data_tip=part.tip)
        for part in segments
        if part.share > 0
    ]
    return tag("div", "".join(parts), class_=f"bar {provenance}", role="img", aria_label=summary)


def figure(name: str, title: str, body: str, caption: str, keys: str = "") -> str:
    """A titled figure with its one-sentence caption."""
    head = f'<h2 id="{name}-title">{escape(title)}</h2>'
    foot = tag("figcaption", escape(caption))
    content = head + tag("figure", keys + body + foot)
    return tag("section", content, id=name, aria_labelledby=f"{name}-title")
