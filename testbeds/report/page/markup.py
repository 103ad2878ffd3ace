"""The HTML around a plot: section, figure, panels, legend, chips. Text is escaped here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from offstage.testbeds.report.page.numbers import show
from offstage.testbeds.report.page.tags import attributes, escape, tag

__all__ = [
    "Segment",
    "bar",
    "bar_row",
    "chip",
    "facts",
    "figure",
    "folded",
    "key",
    "legend",
    "panel",
    "panels",
    "section",
    "swatch",
]


@dataclass(frozen=True)
class Segment:
    """One segment of a stacked bar: its share of the bar, its colour, its tip."""

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


def panel(title: str, provenance: str, body: str) -> str:
    """One storage's panel of a figure, under its name and provenance."""
    head = f"<h3>{escape(title)} {chip(provenance)}</h3>"
    return tag("div", head + body, class_=f"panel {provenance}")


def panels(pieces: Sequence[str]) -> str:
    """Panels side by side, one below the other on a narrow page."""
    return tag("div", "".join(pieces), class_="panels")


def bar(segments: Sequence[Segment], provenance: str, summary: str) -> str:
    """A stacked bar; segments of no width are left out."""
    pieces = [
        tag("span", "", style=f"flex:{piece.share:.6f} 0 0;--c:{piece.colour}", data_tip=piece.tip)
        for piece in segments
        if piece.share > 0
    ]
    return tag("div", "".join(pieces), class_=f"bar {provenance}", role="img", aria_label=summary)


def bar_row(head: str, note: str, bars: str) -> str:
    """Bars, which are markup as `head` is, below their name; `note` at the end of its line."""
    told = tag("span", escape(note), class_="note") if note else ""
    return tag("div", tag("p", head + told, class_="bar-label") + bars, class_="bar-row")


def section(name: str, title: str, body: str, caption: str = "", after: str = "") -> str:
    """A part of a page under its heading; `body` and `after` are markup."""
    head = f'<h2 id="{name}-title">{escape(title)}</h2>'
    under = tag("p", escape(caption), class_="caption") if caption else ""
    content = head + body + under + after
    return tag("section", content, id=name, aria_labelledby=f"{name}-title")


def figure(name: str, title: str, body: str, caption: str, keys: str = "") -> str:
    """A titled figure with its one-sentence caption."""
    return section(name, title, tag("figure", keys + body + tag("figcaption", escape(caption))))


def folded(title: str, body: str) -> str:
    """Markup behind a line that opens it."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def facts(title: str, values: Mapping[str, Any] | msgspec.Struct) -> str:
    """A mapping or a struct as a folded table, nested keys joined with a dot."""
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(text)}</td></tr>'
        for key, text in _flat(msgspec.to_builtins(values))
    )
    if not rows:
        return ""
    table = f'<table class="facts"><tbody>{rows}</tbody></table>'
    return folded(title, tag("div", table, class_="scroll"))


def _flat(values: Mapping[str, Any], prefix: str = "", of: str = "") -> Iterable[tuple[str, str]]:
    """`of`: the key whose unit the numbers have, where it is not that of their own names."""
    for own, value in values.items():
        key = f"{prefix}{own}"
        name = of or own
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.", own if own.endswith("_bytes") else "")
        elif isinstance(value, list | tuple):
            plain = [item for item in value if not isinstance(item, Mapping | list | tuple)]
            if plain:
                yield key, ", ".join(show(str(name), item) for item in plain)
            for number, item in enumerate(value):
                if isinstance(item, Mapping):
                    yield from _flat(item, f"{key}[{number}].")
        else:
            yield key, show(str(name), value)
