"""One page: head, tiles, sections, and at the foot how to make it again.

A page is one HTML file that needs nothing else: style and script are files beside this one and are
put into it. The page's own policy forbids every request and every script but that one, so that it
can neither phone home nor run what a run's name or a warning may hold.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from string import Template

from offstage.bindings.notes import Note
from offstage.testbeds.report.page.tags import escape, tag

__all__ = ["Page", "Tile"]

PACKAGE = "offstage.testbeds.report.page"


@dataclass(frozen=True)
class Tile:
    """One of the figures under the sentence. `kind`: "bad" for what must not be."""

    name: str
    value: str
    under: str = ""
    kind: str = ""

    def __str__(self) -> str:
        pieces = f"<dt>{escape(self.name)}</dt><dd>{escape(self.value)}"
        return tag("div", f"{pieces}<small>{escape(self.under)}</small></dd>", class_=self.kind)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A whole page; `str` is its markup. `sections`, `again` and `foot` are markup, the rest is
    text. `kind` of report stands beside the name."""

    title: str
    sentence: str
    setup: str
    sections: Sequence[object]
    version: str
    kind: str = "prefetch report"
    notes: Mapping[Note, str] = field(default_factory=dict)
    """Under the sentence, each with what it is true of."""
    tiles: Sequence[Tile] = ()
    tiles_of: str = ""
    """What the tiles are of."""
    command: str = ""
    again: str = ""
    """What fixes the figures when the command is run again."""
    foot: Sequence[str] = ()

    def __str__(self) -> str:
        script = _packaged("page.js")
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        return Template(_packaged("page.html")).substitute(
            policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
            title=escape(self.title),
            kind=escape(self.kind),
            style=_packaged("page.css"),
            script=script,
            sentence=_sentence(self.sentence),
            notes=_notes(self.notes),
            setup=escape(self.setup),
            tiles=self._tiles(),
            sections="\n".join(filter(None, map(str, self.sections))),
            foot="\n".join(filter(None, [self._reproduce(), *self.foot])),
            version=escape(self.version),
        )

    def _tiles(self) -> str:
        if not self.tiles:
            return ""
        note = tag("p", escape(self.tiles_of), class_="tiles-note") if self.tiles_of else ""
        shown = "".join(map(str, self.tiles))
        return tag("dl", shown, class_="tiles", aria_label=self.tiles_of) + note

    def _reproduce(self) -> str:
        if not self.command:
            return ""
        told = tag("p", self.again) if self.again else ""
        command = f"<pre><code>{escape(self.command)}</code></pre>"
        return tag("section", f"<h2>How to reproduce this</h2>{told}{command}", id="reproduce")


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
