"""Does `offstage results` list the runs below a folder, choose and order them, and name what it
cannot read?"""

import csv
import io
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from against_schema import checked

from offstage.bindings.durable import write_text
from offstage.testbeds.cli import run
from offstage.testbeds.document import as_json
from offstage.testbeds.lab.results.summary import LabSummary
from offstage.testbeds.report import write_summary
from offstage.testbeds.report.page.files import write_lab_summary

CAPPED = "invented, 2 k, cap 2 GB/s"
Told = tuple[list[dict[str, Any]], list[str]]


@pytest.fixture
def folder(made: SimpleNamespace, whole: LabSummary, tmp_path: Path) -> Path:
    """A demo's run with a baseline, and a lab's below it."""
    runs = made.summary()
    (first, *_) = runs.runs
    runs.baselines = [first]
    write_summary(runs, tmp_path / "demo/summary.json")
    write_lab_summary(whole, tmp_path / "lab/first/summary.json")
    os.utime(tmp_path / "demo/summary.json", (0, 0))
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> Told:
    assert run(["results", str(folder), *words, "--format", "json"]) == 0
    found = checked("results", capsys.readouterr().out)
    return found["rows"], found["skipped"]


def test_what_runs_leave_is_what_their_schemas_say(folder: Path, whole: LabSummary) -> None:
    """Also with every kind of row."""
    checked("file summary", (folder / "demo/summary.json").read_bytes())
    checked("file lab-summary", (folder / "lab/first/summary.json").read_bytes())
    checked("file lab-manifest", as_json(whole.manifest))


def test_every_arm_and_every_point_is_a_row(
    folder: Path, made: SimpleNamespace, whole: LabSummary, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures are those of the files, also of an interval; a baseline says that it is one."""
    rows, skipped = told(capsys, folder)
    runs = made.summary().runs
    assert skipped == [] and len(rows) == len(runs) + 1 + len(whole.points)
    demo, lab = rows[: len(runs)], rows[len(runs) + 1 :]
    assert {row["run"] for row in demo} == {"demo"} and {row["run"] for row in lab} == {"lab/first"}
    assert [row["nontrivial_hit"] for row in demo] == [one.nontrivial_hit for one in runs]
    assert [row["arm"] for row in lab] == [one.info.policy for one in whole.points]
    assert CAPPED in {row["setting"] for row in lab}, "points of two caps would look alike"
    for row, point in zip(lab, whole.points, strict=True):
        assert row["hit"] == (None if point.hit is None else point.hit.value)
    assert rows[0]["date"] == "1970-01-01 00:00"
    assert rows[len(runs)]["setting"] == f"{runs[0].storage}, no DPU"


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        (["kind=lab"], lambda row: row["kind"] == "lab"),
        (["kind!=lab"], lambda row: row["kind"] == "run"),
        (["hit>0.9"], lambda row: row["hit"] > 0.9),
        (["hit <= 0.9", "kind=run"], lambda row: row["hit"] <= 0.9 and row["kind"] == "run"),
        (["buffer_over_k=2"], lambda row: row["buffer_over_k"] == 2),
        (["granule=no"], lambda row: row["granule"] is False),
        (["granule=False"], lambda row: row["granule"] is False),
        ([f"setting={CAPPED}"], lambda row: row["setting"] == CAPPED),
        (["hit>2"], lambda row: False),
    ],
)
def test_a_condition_keeps_the_rows_that_meet_it(
    conditions: list[str], holds: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows that are left out do not meet it, or lack the figure."""
    keys = ["--columns", "run,arm,setting,kind,hit,buffer_over_k,granule"]
    rows, _ = told(capsys, folder, *keys)
    words = [word for one in conditions for word in ("--where", one)]
    kept, _ = told(capsys, folder, *keys, *words)
    assert all(holds(row) for row in kept)
    there = [row for row in rows if None not in (row["hit"], row["buffer_over_k"])]
    assert [row for row in there if holds(row)] == [row for row in there if row in kept]


def test_the_best_is_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Hits downwards, traffic upwards, words by the alphabet; what has no such figure is last."""
    for key, downwards in (("hit", True), ("traffic_ratio", False), ("arm", False)):
        rows, _ = told(capsys, folder, "--sort", key)
        found = [row[key] for row in rows]
        there = [one for one in found if one is not None]
        assert there == sorted(there, reverse=downwards) and found[: len(there)] == there
    rows, _ = told(capsys, folder, "--sort", "buffer_over_k", "--columns", "kind,buffer_over_k")
    assert rows[0]["kind"] == "lab" and rows[-1] == {"kind": "run", "buffer_over_k": None}


def test_a_spreadsheet_and_a_terminal_have_the_same_rows(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """CSV has full precision; the terminal has units."""
    words = ["results", str(folder), "--columns", "run,arm,hit", "--where", "kind=run"]
    rows, _ = told(capsys, folder, *words[2:])
    assert run([*words, "--format", "csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(one["hit"]) for one in lines] == [row["hit"] for row in rows]
    assert run(words) == 0
    text = capsys.readouterr().out
    assert f"{100 * rows[0]['hit']:.1f} %" in text and f"{len(rows)} of " in text


def test_traffic_has_one_name_and_one_unit(
    folder: Path, whole: LabSummary, capsys: pytest.CaptureFixture[str]
) -> None:
    """Does the list call the figures of a lab run as the run's own table does, in its digits?"""
    assert run(["results", str(folder), "--where", "kind=lab"]) == 0
    text = capsys.readouterr().out
    heads = text.split("128k")[0].split()
    point = next(one for one in whole.points if one.traffic_vs_reference)
    assert point.traffic_vs_reference is not None
    assert f"{point.traffic_vs_reference.value:.2f}×" in text
    assert {"non-trivial", "traffic", "reference"} <= set(heads)


def test_a_bad_file_is_a_line_and_no_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One is torn, one of another kind, one of a later version; the rest is listed."""
    (folder / "bad").mkdir()
    (folder / "bad/summary.json").write_text('{"runs": [')
    write_text(folder / "other/summary.json", as_json({"kind": "pod"}))
    later = json.loads((folder / "demo/summary.json").read_text()) | {"schema_version": 2}
    write_text(folder / "later/summary.json", json.dumps(later))
    rows, skipped = told(capsys, folder)
    assert {row["run"] for row in rows} == {"demo", "lab/first"}
    assert [line.split(":")[0] for line in skipped] == [
        str(folder / name / "summary.json") for name in ("bad", "later", "other")
    ]
    assert "has schema_version 2" in skipped[1]
    for form, stream in (("text", "out"), ("csv", "err")):
        assert run(["results", str(folder), "--format", form]) == 0
        assert getattr(capsys.readouterr(), stream).count("skipped: ") == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "no such folder"),
        (["bad/summary.json"], "is not a folder; name a folder that"),
        (["empty"], "has no run; name a folder that `offstage demo --out`"),
        (["bad"], "no run can be read (bad/summary.json"),
        (["demo", "--where", "hits>0.9"], "unknown figure 'hits'"),
        (["demo", "--where", "hit"], "not a condition; write KEY=VALUE"),
        (["demo", "--where", "hit>much"], "'much' is not a number"),
        (["demo", "--where", "hit>nan"], "'nan' is not a number"),
        (["lab", "--where", "granule=perhaps"], "'perhaps' is neither yes nor no; give one"),
        (["lab", "--where", "policy=none"], "'none' is not a number; did you mean arm=none?"),
        (["demo", "--where", "hit=high"], "'high' is not a number; give a number"),
        (["demo", "--where", "date>2026"], "date is no number; use = or !="),
        (["demo", "--sort", "best"], "unknown figure 'best'"),
        (["demo", "--columns", "run,best"], "unknown figure 'best'"),
        (["demo", "--where", "hit>2", "--sort", "best"], "unknown figure 'best'"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_listed_is_one_line(
    words: list[str],
    said: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    (folder / "empty").mkdir()
    write_text(folder / "bad/summary.json", "no JSON")
    assert run(["results", *words]) == 2
    output = capsys.readouterr()
    assert output.out == "" and len(output.err.splitlines()) == 1 and said in output.err
