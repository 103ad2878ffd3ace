"""Does a live pod agree with the laboratory's result for a schedule, with right blocks?

A short form of `offstage bench schedule`, which takes minutes. Nothing here is timed.
"""

import json
from pathlib import Path

import pytest
from against_schema import checked

from offstage.testbeds.beds.local import LocalBed
from offstage.testbeds.cli import run

KINDS = ["reuse", "least-loaded", "round-robin"]


def save(path: Path, count: int) -> Path:
    """Eight documents of three blocks in turn, each request followed by a block of its own."""
    rows = [
        {
            "timestamp": 100 * at,
            "input_length": 2048,
            "output_length": 1,
            "hash_ids": [at % 8, 10 + at % 8, 20 + at % 8, 30 + at],
            "type": "chat",
        }
        for at in range(count)
    ]
    path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return path


@pytest.mark.slow
def test_hosts_keep_what_the_laboratory_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In round robin only the order of arrival decides what a host keeps: the counts are equal to
    the token."""
    trace = save(tmp_path / "mooncake.jsonl", 60)
    words = ["--requests", "60", "--seconds", "1", "--saturated", "4", "--kept", "9"]
    before = tmp_path / "pod/work/dpus/dpu0/store.kv"  # left by an earlier run; it does no harm
    LocalBed(tmp_path / "pod").take()
    before.parent.mkdir(parents=True)
    before.write_bytes(bytes(1 << 20))
    assert (
        run(
            [
                "bench",
                "schedule",
                "--trace",
                str(trace),
                *words,
                "--folder",
                str(tmp_path / "pod"),
                "--format",
                "json",
            ]
        )
        == 0
    )
    found = checked("bench schedule", capsys.readouterr().out)
    assert found["verdicts_met"] is True and [one["schedule"] for one in found["arms"]] == KINDS * 2
    assert "type (60 times)" in found["notes"][0]["what"]
    for arm in found["arms"]:
        if arm["schedule"] == "round-robin":
            assert arm["live"]["pool_hit"] == arm["lab"]["pool_hit"] > 0
        assert arm["live"]["requests"] == 60 and arm["live"]["refused"] == 0
        # The first request of each document finds nothing, and the one right after it may miss too.
        assert 0.4 < arm["live"]["hit"] <= 0.75 * 52 / 60


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--requests", "1"], "--requests"),
        (["--seconds", "0"], "--seconds"),
        (["--saturated", "0.5"], "--saturated"),
        (["--trace", "nothing.jsonl"], "nothing.jsonl"),
    ],
)
def test_what_cannot_be_is_one_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = save(tmp_path / "mooncake.jsonl", 4)
    assert (
        run(["bench", "schedule", "--folder", str(tmp_path / "pod"), "--trace", str(trace), *words])
        == 2
    )
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


def test_requests_that_come_all_at_once_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal arrival times give no rate."""
    trace = save(tmp_path / "mooncake.jsonl", 1)
    assert run(["bench", "schedule", "--folder", str(tmp_path / "pod"), "--trace", str(trace)]) == 2
    assert "give a longer trace" in capsys.readouterr().err
