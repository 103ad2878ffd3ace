"""One page: head, tiles, sections, and at the foot the command that makes it again.

A page is one self-contained HTML file: style and script are files in this folder and are put
into it. The page's content policy forbids every request and every script except that one, so
that it can neither phone home nor run code from a run's name or a warning.
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
    """One of the figures under the sentence. `kind`: "bad" for a value that must not occur,
    "void" for one that a note speaks against."""

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
    text. `kind` of report is shown next to the name."""

    title: str
    sentence: str
    setup: str
    sections: Sequence[object]
    version: str
    kind: str = "prefetch report"
    notes: Mapping[Note, str] = field(default_factory=dict)
    """Notes below the sentence, each with the runs or points that it applies to."""
    tiles: Sequence[Tile] = ()
    tiles_of: str = ""
    """The subject of the tiles."""
    command: str = ""
    again: str = ""
    """What determines the figures when the command is run again."""
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
    """The notes to read before quoting the figures; empty if there are none."""
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
    """The finding, then the rest less prominently."""
    finding, semicolon, rest = text.partition("; ")
    quietly = f". <span>{escape(rest[:1].upper() + rest[1:])}</span>" if semicolon else ""
    return escape(finding) + quietly
