"""Does a live pod under load return right blocks, with a reason for every miss, under every fault?

A short form of `offstage bench pod`, which takes minutes. Nothing here is timed.
"""

import json
from pathlib import Path

import pytest
from against_schema import checked

from offstage.testbeds.cli import run

ASKED = ["bench", "pod", "--seconds", "3", "--format", "json"]


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert run([*ASKED, *words]) == 0
    return checked("bench pod", capsys.readouterr().out)


@pytest.mark.slow
def test_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A killed daemon costs hits and returns, a new member serves, and the page shows both."""
    page = tmp_path / "page.html"
    found = told(
        capsys,
        "--folder",
        str(tmp_path / "pod"),
        "--faults",
        "death,join",
        "--rate",
        "10",
        "--page",
        str(page),
    )
    phases = found["phases"]
    assert isinstance(phases, dict) and list(phases) == ["no fault", "death dpu1", "join dpu4"]
    assert found["verdicts_met"] is True
    death = phases["death dpu1"]
    assert death["hits_lost"] > 0 and death["detected_first_s"] is not None
    assert phases["join dpu4"]["in_map_s"] is not None
    assert all(name in page.read_text() for name in ("death dpu1", "every block right"))


@pytest.mark.slow
def test_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All requests of a trace are run, in less than its time, despite one random fault."""
    trace = tmp_path / "mooncake.jsonl"
    rows = [
        {
            "timestamp": 2000 * at,
            "input_length": 2048,
            "output_length": 1,
            "hash_ids": [at % 5, 10 + at % 5, 20 + at % 5, 30 + at],
            "type": "chat",
        }
        for at in range(100)
    ]
    trace.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    found = told(
        capsys,
        "--folder",
        str(tmp_path / "pod"),
        "--trace",
        str(trace),
        "--seconds",
        "40",
        "--page",
        str(tmp_path / "page.html"),
    )
    assert found["requests"] == 100 and found["asked"] == 400 and found["wrong"] == 0
    assert found["faults"] and found["verdicts_met"] is True
    (note,) = found["notes"]
    assert "type (100 times)" in note["what"]
    assert note["what"] in (tmp_path / "page.html").read_text()
    assert found["compression"] == pytest.approx(198 / float(str(found["seconds"])))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--faults", "fire"], "unknown faults: fire"),
        (["--seconds", "1"], "choose 2 s to a week"),
        (["--rate", "0"], "0 requests a second"),
        (["--fetch-deadline", "0s"], "give 1ms to 60s"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*ASKED, "--folder", str(tmp_path / "pod"), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error
