"""What a reader must know before quoting a result: an input that had no effect, or a figure that
means less than it seems to.

All sources use this one type: a trace's reader, a run, a model, a report. Notes appear directly
under the headline, in the terminal and on a page, and as `notes` in every JSON.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

__all__ = ["Note", "gathered", "note_lines"]


class Note(msgspec.Struct, frozen=True):
    """`code` names the kind and does not change with the words; `what` is a sentence without its
    full stop; `fix` says what to do about it, where there is something; `figures` are those of one
    run, where several have the note with others."""

    code: str
    what: str
    fix: str = ""
    figures: str = ""

    def __str__(self) -> str:
        return f"{self.what}; {self.fix}" if self.fix else self.what


def gathered(of_all: Iterable[Note], runs: Sequence[tuple[str, Iterable[Note]]]) -> dict[Note, str]:
    """Every note once, with the runs by name that it is true of and their figures; nothing beside
    it where it is true of all and has none."""
    found: dict[Note, list[str]] = {}
    for name, notes in runs:
        for note in notes:
            of = f"{name}{f': {note.figures}' if note.figures else ''}"
            found.setdefault(msgspec.structs.replace(note, figures=""), []).append(of)
    told = {
        note: ""
        if len(names) == len(runs) and ": " not in names[0]
        else "; ".join(dict.fromkeys(names))
        for note, names in found.items()
    }
    return dict.fromkeys(of_all, "") | told


def note_lines(notes: Iterable[Note] | Mapping[Note, str]) -> list[str]:
    """Each once, as a line of the terminal, with what a mapping says that it is true of."""
    told = notes if isinstance(notes, Mapping) else dict.fromkeys(notes, "")
    return [f"note: {note}{f' ({of})' if of else ''}" for note, of in told.items()]
