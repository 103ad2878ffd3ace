"""The page, and the HTML around a plot: figure, panels, legend, chips. Text is escaped here.

A page is one HTML file that needs nothing else: style and script are files beside this one and are
put into it. The page's own policy forbids every request and every script but that one, so that it
can neither phone home nor run what a run's name or a warning may hold.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from string import Template
from typing import Any

from offstage.bindings.notes import Note
from offstage.testbeds.report.page.numbers import show
from offstage.testbeds.report.page.tags import attributes, escape, tag

__all__ = [
    "Segment",
    "bar",
    "chip",
    "facts",
    "figure",
    "key",
    "legend",
    "page",
    "panel",
    "panels",
    "swatch",
    "tile",
]


PACKAGE = "offstage.testbeds.report.page"


@dataclass(frozen=True)
class Segment:
    """One segment of a stacked bar: its share of the bar, its colour, what hovering says."""

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
    """Panels side by side, one below the other where the page is narrow."""
    return tag("div", "".join(pieces), class_="panels")


def bar(segments: Sequence[Segment], provenance: str, summary: str) -> str:
    """A stacked bar; segments of no width are left out."""
    pieces = [
        tag("span", "", style=f"flex:{piece.share:.6f} 0 0;--c:{piece.colour}", data_tip=piece.tip)
        for piece in segments
        if piece.share > 0
    ]
    return tag("div", "".join(pieces), class_=f"bar {provenance}", role="img", aria_label=summary)


def figure(name: str, title: str, body: str, caption: str, keys: str = "") -> str:
    """A titled figure with its one-sentence caption."""
    head = f'<h2 id="{name}-title">{escape(title)}</h2>'
    foot = tag("figcaption", escape(caption))
    content = head + tag("figure", keys + body + foot)
    return tag("section", content, id=name, aria_labelledby=f"{name}-title")


def tile(name: str, value: str, under: str, kind: str = "") -> str:
    """One of the figures under the sentence."""
    pieces = f"<dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(under)}</small></dd>"
    return tag("div", pieces, class_=kind)


def facts(title: str, values: Mapping[str, Any]) -> str:
    """A mapping as a folded table, nested keys joined with a dot."""
    rows = "".join(
        f'<tr><th scope="row">{escape(key)}</th><td>{escape(text)}</td></tr>'
        for key, text in _flat(values)
    )
    if not rows:
        return ""
    return (
        f"<details><summary>{escape(title)}</summary>"
        f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div></details>'
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        elif isinstance(value, list | tuple):
            plain = [item for item in value if not isinstance(item, Mapping | list | tuple)]
            if plain:
                yield key, ", ".join(show(str(name), item) for item in plain)
            for number, item in enumerate(value):
                if isinstance(item, Mapping):
                    yield from _flat(item, f"{key}[{number}].")
        else:
            yield key, show(str(name), value)


def page(
    *,
    title: str,
    sentence: str,
    setup: str,
    tiles: str,
    sections: Sequence[str],
    foot: str,
    version: str,
    kind: str = "prefetch report",
    notes: Mapping[Note, str] | None = None,
) -> str:
    """A whole page; `tiles`, `sections` and `foot` are markup, the rest is text. `kind` of report
    stands beside the name, and `notes` under the sentence, each with what it is true of."""
    script = _packaged("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return Template(_packaged("page.html")).substitute(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        title=escape(title),
        kind=escape(kind),
        style=_packaged("page.css"),
        script=script,
        sentence=_sentence(sentence),
        notes=_notes(notes or {}),
        setup=escape(setup),
        tiles=tiles,
        sections="\n".join(sections),
        foot=foot,
        version=escape(version),
    )


def _notes(found: Mapping[Note, str]) -> str:
    """What to know before quoting the figures; nothing where there is nothing."""
    if not found:
        return ""
    items = "".join(
        tag("li", escape(str(note)) + (f" <small>{escape(where)}</small>" if where else ""))
        for note, where in found.items()
    )
    return tag(
        "section",
        tag("ul", items, class_="notes"),
        id="notes",
        aria_label="what to know before quoting these figures",
    )


def _packaged(name: str) -> str:
    return files(PACKAGE).joinpath(name).read_text(encoding="utf-8")


def _sentence(text: str) -> str:
    """The finding, then what else is to be said of it more quietly."""
    finding, semicolon, rest = text.partition("; ")
    quietly = f". <span>{escape(rest[:1].upper() + rest[1:])}</span>" if semicolon else ""
    return escape(finding) + quietly
