"""Does a table in a narrow terminal show every column, without cutting a cell?"""

import io

import pytest
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli.common import Format, emit, one_line_errors
from offstage.testbeds.cli.common import table as of_names
from offstage.testbeds.cli.folded import folded
from offstage.testbeds.report.page.tags import escape, tag

NAMES = [f"a-long-policy-name-{at}" for at in range(3)]


def table(columns: int, title: str = "") -> Table:
    made = Table(box=None, pad_edge=False, title=title or None, caption="† of it all")
    made.add_column("policy", no_wrap=True)
    for at in range(columns):
        made.add_column(f"figure {at}", justify="right", no_wrap=True)
    for row, name in enumerate(NAMES):
        made.add_row(name, *(f"{row}{at}.5 %" for at in range(columns)))
    return made


def printed(shown: object, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None, soft_wrap=True)
    console.print(shown)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_every_cell_is_shown_once_and_whole(width: int) -> None:
    lines = printed(folded(Group(table(12, "twelve"), "after")), width)
    text = "\n".join(lines)
    assert max(len(line.rstrip()) for line in lines) <= width and "…" not in text
    for at in range(12):
        assert text.split().count(str(at)) == 1, "each head is there once"
        assert all(text.count(f" {row}{at}.5 %") == 1 for row in range(3))
    assert text.count("twelve") == 1 and lines[-1] == "after"
    assert text.count("† of it all") == 1 and lines[-2].strip() == "† of it all"
    parts = sum(line.startswith("policy") for line in lines)
    assert all(text.count(name) == parts for name in NAMES) and (parts == 1) == (width == 200)


def test_what_has_nothing_in_a_part_is_not_in_it() -> None:
    made = table(8)
    made.add_row("bound", "9.9 %", *["–"] * 7)
    text = "\n".join(printed(folded(made), 60))
    assert text.count("bound") == 1 and text.count(NAMES[0]) > 1


def test_what_fits_stays_as_it_is() -> None:
    both = Table("name", "value", box=None)
    both.add_row("x" * 30, "y " * 40)
    assert printed(folded(both), 80) == printed(both, 80)
    assert printed(folded(table(2)), 80) == printed(table(2), 80)


@pytest.mark.parametrize("sentences", [1, 2])
def test_the_longest_text_yields_before_a_word_breaks(sentences: int) -> None:
    """Does a column of sentences that has no room stand below its row, its words whole?"""
    made = table(4)
    for number in range(sentences):
        made.add_column(f"reason {number}", overflow="fold")
        words = [Text(f"whole{number}{row} words " * 12) for row in range(3)]
        made.columns[-1]._cells = list(words)
    made.columns[-1].header = "source"
    lines = printed(folded(made), 80)
    text = "\n".join(lines)
    assert max(len(line.rstrip()) for line in lines) <= 80
    for row, name in enumerate(NAMES):
        at = next(at for at, line in enumerate(lines) if line.startswith(name))
        last = f"whole{sentences - 1}{row}"
        assert text.split().count(last) == 12, "no word is broken"
        assert all(f"{row}{figure}.5 %" in lines[at] for figure in range(4))
        assert last in lines[at + 1 if sentences == 1 else at + 4]
    assert text.count("source") == (1 if sentences == 1 else 3)


HOSTILE = "a\x1b[2J\u202eb\x07\r\u2028"


@pytest.mark.parametrize("kept", ["text", "table", "error", "usage", "page"])
def test_a_name_from_outside_acts_on_no_terminal_and_no_page(
    kept: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Escapes and bidirectional controls in a name are shown as text, wherever it is printed."""
    if kept == "text":
        emit({}, Format.text, f"{HOSTILE}\nnext")
    elif kept == "table":
        emit({}, Format.text, of_names({HOSTILE: HOSTILE}, title=HOSTILE))
    elif kept == "error":
        with one_line_errors():
            raise BadInput(HOSTILE, HOSTILE, HOSTILE)
    elif kept == "usage":
        with one_line_errors():
            raise MemoryError(HOSTILE)
    else:
        print(tag("p", escape(HOSTILE), title=HOSTILE))
    shown = "".join(capsys.readouterr())
    assert "\\x1b[2J" in shown and "\\u202e" in shown
    assert not set("\x1b\u202e\x07\r\u2028") & set(shown)
