"""Do the commands answer, and refuse bad input in one line with the right exit code?"""

import io
import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from offstage.testbeds.cli import run
from offstage.testbeds.cli.common import table
from offstage.testbeds.cli.described import described
from offstage.testbeds.cli.progress import Plain
from offstage.testbeds.progress import note_hit
from offstage.testbeds.report import read_summary, write_summary

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "tests/golden/data/tiny_mooncake.jsonl"


def test_report_makes_the_page_again(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_summary(made.summary(), tmp_path / "summary.json")
    assert run(["report", str(tmp_path), "--format", "json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["sentence"] == read_summary(tmp_path).sentence
    assert "<!doctype html>" in Path(output["report"]).read_text()


def test_trace_info_as_json_holds_the_definitions(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trace", "info", str(TINY), "--format", "json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["request_count"] == 60 and "ideal_block_hit_rate" in output["definitions"]


def test_values_are_shown_as_people_write_them() -> None:
    """A table of names and values shows no tuple, no None and no False."""
    shown = table({"one": (682,), "off": False, "none": None, "empty": [], "names": ["a", "b"]})
    assert [list(column.cells) for column in shown.columns][1] == [
        "682",
        "no",
        "none",
        "none",
        "a, b",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ["report", "nowhere"],
        ["trace", "info", "nowhere.jsonl"],
        ["trace", "info", str(TINY), "--limit", "0"],
        ["demo", "--sessions", "0"],
        ["demo", "--steps", "many"],
        ["demo", "--context-tokens", "12"],
        ["demo", "--seed", "-1"],
        ["demo", "--time-per-token", "11 parsecs"],
        ["demo", "--time-per-token", "1h"],
        ["demo", "--storage", "floppy"],
        ["demo", "--trace", "nowhere.jsonl"],
        ["doctor", "--out", "nowhere"],
        ["bench", "storage", "--scale", "0"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(words) == 2
    output = capsys.readouterr()
    assert output.out == "" and len(output.err.splitlines()) == 1
    assert output.err.startswith("offstage: ") and "Traceback" not in output.err
    assert list(tmp_path.rglob("*.json")) == []


def test_a_damaged_log_and_a_page_without_a_path_are_bad_input(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors that the user can fix are reported as bad input, not as a failed run."""
    (tmp_path / "garbage").write_bytes(bytes(range(256)))
    write_summary(made.summary(), tmp_path / "summary.json")
    for words in (
        ["dpu", "replay", str(tmp_path / "garbage")],
        ["report", str(tmp_path), "--out", str(tmp_path)],
    ):
        assert run(words) == 2
        output = capsys.readouterr()
        assert output.out == "" and len(output.err.splitlines()) == 1
        assert output.err.startswith(f"offstage: {tmp_path}")


@pytest.mark.parametrize("words", [[], ["dpu"], ["dpu", "policy"], ["bench"]], ids=" ".join)
def test_no_command_prints_the_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 0
    output = capsys.readouterr()
    assert "Usage: offstage" in output.out and output.err == ""


def test_an_interrupted_demo_says_what_it_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C gives one line that names the files, exit code 130, and no traceback."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("offstage.testbeds.live.demo.run", interrupted)
    assert run(["demo", "--out", str(tmp_path)]) == 130
    line = capsys.readouterr().err.strip()
    assert line.startswith(f"offstage: {tmp_path / 'work'}: interrupted; ")
    assert len(line.splitlines()) == 1
    monkeypatch.setattr("offstage.testbeds.workloads.requests.formats.mooncake.lines", interrupted)
    assert run(["trace", "info", str(TINY)]) == 130
    assert capsys.readouterr().err.strip() == "offstage: interrupted"


def test_plain_progress_tells_each_phase_and_its_last_remark() -> None:
    out = io.StringIO()
    progress = Plain(2, out)
    progress.start("prefill", 1_000, "tokens")
    progress.advance(1_000)
    progress.start("window, disk", 40, "steps")
    note_hit(progress, 0.8)
    note_hit(progress, 0.9)
    progress.finish()
    lines = out.getvalue().splitlines()
    assert lines[0] == "[1/2] prefill: 1,000 tokens"
    assert lines[2] == "[2/2] window, disk: 40 steps"
    assert lines[3].strip().startswith("hit rate 90.0 %, ") and len(lines) == 4


def test_plain_progress_says_once_a_minute_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last remark, which may be an estimate of the time left."""
    now, out = [100.0], io.StringIO()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = Plain(1, out)
    progress.start("prefill", 200, "tokens")
    for _ in range(4):
        now[0] += 31
        progress.note("about 9 s left")
        progress.advance(25)
    assert out.getvalue().splitlines()[1:] == [
        "      25%, about 9 s left",
        "      50%, about 9 s left",
    ]


def test_every_seed_has_the_same_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    """One that a C integer cannot hold is refused by name, by every command that takes a seed."""
    taken = [
        one.words[1:]
        for one in described().all()
        if any("--seed" in given.names for given in one.parameters)
    ]
    assert len(taken) > 15
    for words in taken:
        for seed in ("-1", "9" * 23):
            assert run([*words, "--seed", seed]) == 2, words
            said = capsys.readouterr().err.splitlines()
            assert len(said) == 1 and "Invalid value for '--seed'" in said[0], said
