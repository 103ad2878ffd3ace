"""Is a command or an option that is none answered with what was meant, and with nothing else?"""

import pytest
import typer

from offstage.bindings.near import like
from offstage.testbeds.cli import COMMANDS, build, run
from offstage.testbeds.cli.described import described


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("plam", ["plan"]),
        ("paln", ["plan"]),
        ("lan", ["lab", "plan"]),
        ("pland", ["plan"]),
        ("comp", ["compare"]),
        ("resluts", ["results"]),
        ("reprot", ["report"]),
        ("dpo", ["dpu"]),
        ("cmopaer", ["compare"]),
        ("cmpae", []),
        # Alike for difflib, and not what anybody meant.
        ("store", []),
        ("clean", []),
        ("plot", []),
        ("demand", []),
        ("xyzzy", []),
        ("x", []),
        ("-x", []),
        ("d", []),
        ("", []),
    ],
)
def test_what_is_suggested_is_a_slip_away(typed: str, meant: list[str]) -> None:
    """One slip, another for each three letters, or the rest left out."""
    known = ["plan", "lab", "dpu", "demo", "compare", "report", "results", "trace", "-h"]
    assert like(typed, known) == meant


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plam"], "offstage: no command 'plam'; did you mean 'plan'?; see --help\n"),
        (["store"], "offstage: no command 'store'; see --help\n"),
        (["dpu", "statsu"], "offstage: dpu: no command 'statsu'; did you mean 'status'?; see"),
        (["dpu", "policy", "sho"], "offstage: dpu policy: no command 'sho'; did you mean 'show'"),
        (["demo", "--ou", "x"], "No such option: --ou (Possible options: --out); see --help"),
        (["plan", "--cont", "1"], "No such option: --cont (Possible options: --context); see"),
        (["plan", "--xyzzy"], "No such option: --xyzzy; see --help"),
        (["lab", "-x"], "No such option: -x; see --help"),
    ],
)
def test_a_mistyped_word_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    line = capsys.readouterr().err
    assert said in line and line.count("\n") == 1


def test_every_command_and_group_takes_h_and_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each prints its own usage, in a terminal of the usual width no word of it is cut, no bracket
    stands twice, and it ends well."""
    monkeypatch.setenv("COLUMNS", "80")
    whole = typer.main.get_command(build(list(COMMANDS)))
    every = list(described().all())
    assert len(every) > 75
    for one in every:
        shown = []
        for option in ("-h", "--help"):
            code = whole([*one.words[1:], option], prog_name="offstage", standalone_mode=False)
            assert code in (0, None)
            shown.append(" ".join(capsys.readouterr().out.split()))
        assert shown[0] == shown[1] and f"Usage: {one.name} [OPTIONS]" in shown[0]
        assert "…" not in shown[0] and "[[" not in shown[0] and "...}" not in shown[0]


def test_a_paragraph_of_help_ends_where_the_terminal_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where the docstring's lines end."""
    monkeypatch.setenv("COLUMNS", "60")
    assert run(["dpu", "status", "-h"]) == 0
    lines = capsys.readouterr().out.splitlines()
    begin = next(at for at, line in enumerate(lines) if "With --watch" in line)
    end = next(at for at, line in enumerate(lines) if at > begin and not line.strip())
    assert end - begin > 2 and all(len(line.rstrip()) > 40 for line in lines[begin : end - 1])
