"""Does one page say how to reproduce each committed result, with commands that exist?"""

import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reference/reproduce.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and "`" in line
]
COMMANDS = [row[1].strip("`") for row in ROWS]
MEASURED = re.compile(r"^`offstage bench \w+`|Measured with|[Mm]easured on two", re.MULTILINE)
"""How a page begins to tell of what was measured by a command of ours."""


def targets() -> set[Path]:
    """Return the files that the page's rows link to."""
    found = re.findall(r"\]\(([^)#]+)", TEXT)
    return {(PAGE.parent / target).resolve() for target in found}


def test_no_committed_result_is_missing() -> None:
    results = {path for path in (ROOT / "docs/results").iterdir() if path.suffix == ".json"}
    assert results and results <= targets()


def test_no_page_that_tells_of_a_measurement_is_missing() -> None:
    pages = {
        page
        for page in (ROOT / "docs").rglob("*.md")
        if MEASURED.search(page.read_text(encoding="utf-8"))
        and page != PAGE
        and page.parent.name != "decisions"
        and page.name != "cli.md"
    }
    assert pages, "the pattern finds no page"
    assert sorted(str(page) for page in pages - targets()) == []


def test_every_row_has_a_command_and_says_what_it_takes() -> None:
    """A row has five cells; core time and memory are as measured, or a dash."""
    for row in ROWS:
        assert len(row) == 5, row
        assert re.fullmatch(r"–|[\d,.]+ (s|min)( \S.*)?", row[2]), row
        assert re.fullmatch(r"–|[\d,.]+ [MG]iB( \S.*)?", row[3]), row
        assert (row[2] == "–") == (row[3] == "–"), row


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command is `offstage` with its options, a target of the Makefile, or a script of ours."""
    words = shlex.split(command)
    if words[0] == "offstage":
        from offstage.testbeds.cli import run

        code = run([*words[1:], "--help"])
        printed = capsys.readouterr()
        assert code == 0 and "Usage:" in printed.out, printed.err
    elif words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE)
    else:
        assert words[0] == "python" and (ROOT / words[1]).is_file()
