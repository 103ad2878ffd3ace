"""What a reader must know before quoting a result: an input that had no effect, or a figure that
means less than it seems to.

There is one type for all of them, whatever found it: a trace's reader, a run, a model, a report. It
stands directly under the headline, in the terminal and on a page, and as `notes` in every JSON.
"""

from collections.abc import Iterable

import msgspec

__all__ = ["Note", "note_lines"]


class Note(msgspec.Struct, frozen=True):
    """`code` names the kind and does not change with the words; `what` is a sentence without its
    full stop; `mend` says what to do about it, where there is something."""

    code: str
    what: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.what}; {self.mend}" if self.mend else self.what


def note_lines(notes: Iterable[Note]) -> list[str]:
    """Each once, as a line of the terminal."""
    return [f"note: {note}" for note in dict.fromkeys(notes)]
