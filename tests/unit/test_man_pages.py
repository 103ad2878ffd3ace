"""Does every command have a manual page that says what its help says, and that `man` can show?"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from offstage.testbeds.cli import run
from offstage.testbeds.cli.described import Described, Parameter, described
from offstage.testbeds.cli.man_pages import page, write_pages

UNDATED = "missing date"
CHECKERS = {
    "man": ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"],
    "groff": ["groff", "-man", "-ww", "-K", "utf8", "-Tutf8", "-z"],
    "mandoc": ["mandoc", "-Tlint", "-Wwarning"],
}
"""How each program shows a page, or only checks it, and prints what is wrong with it."""
PLAIN = {**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "78", "MANPAGER": "cat", "TERM": "dumb"}


def needs(program: str) -> None:
    if shutil.which(program) is None:
        package = {"man": "man-db"}.get(program, program)
        pytest.skip(f"{program} is not installed: apt-get install {package}")


def shown(text: str) -> str:
    """A page's text without marks of roff, on one line."""
    plain = re.sub(r"\\f[BIR]|\\&", "", text).replace("\\-", "-").replace("\\e", "\\")
    return " ".join(plain.split())


def test_every_command_and_group_has_a_page_with_its_whole_help(tmp_path: Path) -> None:
    """Each option and argument by its name, every sentence, values as they are typed (`h100`, not
    `H100`), and the pages above it."""
    found = {path.stem: path for path in write_pages(tmp_path)}
    every = list(described().all())
    assert len(every) > 75 and len(found) == len(every)
    for one in every:
        text = shown(found[one.name.replace(" ", "-")].read_text(encoding="utf-8"))
        for said in one.text:
            assert said.replace("`", "") in text
        for each in one.parameters:
            assert ", ".join(each.names) in text and each.word in text
            assert each.meaning.replace("`", "") in text, (one.name, each.meaning)
        assert "[[" not in text and "...]..." not in text
        above = ["-".join(one.words[:at]) for at in range(1, len(one.words))]
        assert all(f"{name}(1)" in text.partition("SEE ALSO")[2] for name in above)
    assert "lab run" in shown(found["offstage"].read_text(encoding="utf-8"))


@pytest.mark.parametrize("program", CHECKERS)
def test_no_page_has_what_a_formatter_warns_of(program: str, tmp_path: Path) -> None:
    needs(program)
    done = subprocess.run(
        [*CHECKERS[program], *map(str, write_pages(tmp_path))],
        stdout=subprocess.PIPE if program == "mandoc" else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
        env=PLAIN,
    )
    said = (done.stdout or "") + done.stderr
    assert [line for line in said.splitlines() if UNDATED not in line] == []


def test_signs_of_the_formatter_in_a_help_are_text() -> None:
    """A backslash, and a dot or an apostrophe that begins a paragraph."""
    needs("man")
    odd = (".so /etc/passwd is no request.", "'nor is this', and C:\\fB is no font.")
    option = Parameter(("--path",), "C:\\n", "\\", False, ".5 or 'x'")
    done = subprocess.run(
        ["man", "-l", "-"],
        input=page(Described(("offstage", "odd"), odd, (option,), {})),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env=PLAIN,
    )
    text = " ".join(done.stdout.split())
    for said in (*odd, "--path C:\\n", ".5 or 'x' (default: \\)."):
        assert said in text


def test_man_finds_a_page_by_its_words_beside_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --out pages go to the environment's share/man, where man looks for what is in its
    bin."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert run(["man"]) == 0
    assert f"pages in {tmp_path}/share/man/man1" in " ".join(capsys.readouterr().out.split())
    needs("man")
    (tmp_path / "bin").mkdir()
    paths = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    for words in (["offstage-lab-run"], ["offstage", "lab"]):
        done = subprocess.run(
            ["man", *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
            env=PLAIN | paths,
        )
        assert f"{'-'.join(words)} - " in " ".join(done.stdout.split())


def test_a_folder_that_is_none_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["man", "--out", str(tmp_path / "file")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("offstage: ") and said.count("\n") == 1
