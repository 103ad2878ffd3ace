"""Do the rows of tests/mutants fit the code, and does their runner detect survivors?"""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/mutants"))

import modules  # noqa: E402
import run as mutants  # noqa: E402

ROWS_MAX = 60


def row(**changes: str) -> mutants.Mutant:
    fields = {
        "id": "host-one",
        "file": "a.py",
        "old": "x = 1",
        "new": "x = 2",
        "test": "tests/test_a.py",
        "why": "it would be wrong",
    }
    return mutants.Mutant(**{**fields, **changes})


def test_every_row_names_one_line_and_a_test() -> None:
    """If such a line changed, fix its row; if it is gone, choose another mutant."""
    rows = mutants.load()
    mutants.check_table(rows)
    assert len(rows) <= ROWS_MAX and {one.area for one in rows} == set(mutants.AREAS)


def test_a_module_and_its_tests_are_there() -> None:
    """After a move, correct tests/mutants/modules.toml."""
    for module in modules.load():
        missing = [
            one for one in (module.file, *module.tests.split()) if not (ROOT / one).is_file()
        ]
        assert not missing and 0 < module.killed_percent_min <= 100


def test_a_row_that_does_not_fit_says_so() -> None:
    text = "def f():\n    x = 1\n\ndef g():\n    x = 1\n"
    with pytest.raises(mutants.BadTable, match="2 lines of"):
        mutants.mutate(text, row())
    with pytest.raises(mutants.BadTable, match="0 lines of"):
        mutants.mutate(text, row(old="x = 3"))
    assert mutants.mutate(text, row(after="def g():")) == text[: text.rindex("1")] + "2\n"


def test_a_survivor_is_told_and_the_line_stands_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test notices one of two mutants of a function; none counts as killed if the test fails
    without a mutant."""
    (tmp_path / "a.py").write_text("def f(n):\n    x = 1\n    return n * x\n")
    (tmp_path / "tests").mkdir()
    source = "from a import f\n\ndef test_f():\n    assert not f(0)\n"
    (tmp_path / "tests/test_a.py").write_text(source)

    class PlainTree(mutants.Tree):
        def build(self) -> None:
            pass

        def rebuild(self, test: str, file: str) -> bool:
            return True

        def test(self, test: str, limit_s: float) -> tuple[int, str]:
            assert limit_s >= mutants.TEST_SECONDS
            script = "import sys; sys.path.insert(0, 'tests'); import test_a; test_a.test_f()"
            command = [sys.executable, "-B", "-c", script]
            return subprocess.run(command, cwd=self.root, capture_output=True).returncode, ""

    rows = [row(), row(id="host-two", old="return n * x", new="return 1")]
    wrong = mutants.run(rows, PlainTree(tmp_path))
    assert len(wrong) == 1 and wrong[0].startswith("host-one: survived")
    assert "x = 1" in (tmp_path / "a.py").read_text()
    assert "1 of 2 mutants killed" in capsys.readouterr().out
    (tmp_path / "a.py").write_text("def f(n):\n    x = 1\n    return n + x\n")
    assert "fails without a mutant" in mutants.run(rows, PlainTree(tmp_path))[0]
    assert capsys.readouterr().out == "none of 2 mutants was tried\n"
