"""Does `offstage demo`, started as by a user, report correctly what it ran?"""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from against_schema import checked
from damaged import damage_fetches
from run_keys import RUN_KEYS

from offstage.testbeds.beds import daemon
from offstage.testbeds.beds.daemon import offstage_words
from offstage.testbeds.cli import run
from offstage.testbeds.report.page.numbers import show

TINY = Path(__file__).resolve().parents[1] / "golden/data/tiny_mooncake.jsonl"
ARMS = ["none", "window", "window+ema", "window+ema+shared"]
PROCESSES = ["flexicache", "gvr-blocks", "flexicache", "flexicache"]
"""Of the demo's four layers: `published-mix` for blocks of 64 tokens."""
CURVE_TOLERANCE = 0.02
"""Hit rate of the curve's point against the run it stands for: blocks that decoding wrote are left
out of the curve, and time is modelled."""
WARM_TOLERANCE = 0.07
"""The same where it is prefetched: what a busy machine drops for its deadline is in it."""


SMALL = "demo --storage emulated --sessions 1 --steps 4 --context-tokens 4096".split()


def demo(folder: Path, *words: str) -> dict[str, Any]:
    """Run a demo as a process and return its summary; stdout has nothing but figures."""
    done = subprocess.run(
        offstage_words("demo", "--out", "out", "--format", "json", *words),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    answer = checked("demo", done.stdout)
    assert answer["report"] == "out/report.html" and "Traceback" not in done.stderr
    summary = checked("file summary", (folder / "out/summary.json").read_text())
    assert answer["sentence"] == summary["sentence"]
    shown = re.findall(r"^ +hit rate ([^,]+), ", done.stderr, re.MULTILINE)
    rates = [show("hit", one["hit"]) for one in summary["runs"]]
    assert shown[: len(rates)] == rates, "the last remark of a run is the figure of its table"
    return summary


def check_run(one: dict[str, Any]) -> None:
    """Check the properties that every run has."""
    assert RUN_KEYS <= set(one)
    assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0
    assert one["blocks_verified"] == one["demands"] == sum(one["ends"].values()) > 0
    assert one["hit"] + one["late"] + one["miss"] == pytest.approx(1.0)
    assert one["selected"] > one["demands"] and one["bytes_read"] > 0
    assert one["stall_ms_p50"] <= one["stall_ms_p99"]
    assert one["decisions_replayed"] > 0 and one["attention_checked"] > 0
    assert one["attention_error_max"] < 1e-2
    assert set(one["fates"]) <= {"window", "pattern", "shared"}
    assert bool(one["fates"]) == bool(one["prefetchers"])


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("quick")
    return folder, demo(folder, "--quick", "--seed", "7")


def test_every_run_holds_together(quick: tuple[Path, dict[str, Any]]) -> None:
    folder, summary = quick
    assert {"workload", "machine", "seed"} <= set(summary) and summary["seed"] == 7
    assert [one["name"] for one in summary["runs"]] == 2 * ARMS
    assert [one["provenance"] for one in summary["runs"]] == 4 * ["measured"] + 4 * ["emulated"]
    for one in summary["runs"]:
        check_run(one)
    assert [one["traffic_ratio"] for one in summary["runs"] if not one["prefetchers"]] == [1, 1]
    page = (folder / "out/report.html").read_text()
    assert page.startswith("<!doctype html>") and summary["sentence"].split(",")[0] in page
    assert not (folder / "out/work").exists(), "the store is the largest file by far"
    kept = sorted(one.parent.name for one in folder.glob("out/records/*/decisions.log"))
    assert kept == ["emulated-window-ema-shared", "measured-window-ema-shared"]
    compared = json.loads((folder / "out/compare.json").read_text())
    devices = [one["device"] for one in compared["columns"]]
    assert devices == ["measured DPU", "dpu_x86_measured", "bluefield3", "bluefield4", "asic_7nm"]
    assert "uncalibrated" in compared["sentence"] and (folder / "out/compare.html").is_file()


def test_baselines_and_a_layer_ahead_stand_beside_the_runs(tmp_path: Path) -> None:
    """For the same demands without a DPU, no fetch of g3 is a hit and all blocks are right. The
    page, the terminal and summary.json show these runs."""
    summary = demo(
        tmp_path,
        "--sessions",
        "2",
        "--steps",
        "10",
        "--context-tokens",
        "8192",
        "--storage",
        "emulated",
        "--time-per-token",
        "2ms",
        "--baseline",
        "g3",
        "--baseline",
        "g2",
        "--layer-ahead",
    )
    runs, beside = summary["runs"], summary["baselines"]
    assert [one["name"] for one in beside] == ["g3", "g2"]
    for one in beside:
        assert (one["demands"], one["selected"]) == (runs[0]["demands"], runs[0]["selected"])
        assert one["demands_by_step"] == runs[0]["demands_by_step"]
        assert one["blocks_verified"] == one["demands"] and one["blocks_corrupt"] == 0
        assert one["provenance"] == "emulated" and not one["prefetchers"]
    assert [one["demands"] for one in summary["ahead"]] == [runs[0]["demands"]]
    check_run(summary["ahead"][0])
    assert {span[0] for span in summary["ahead"][0]["timeline"]["spans"]} >= {"compute", "fetch"}
    assert beside[0]["hit"] == 0 < beside[1]["hit"]
    assert beside[0]["staging_bytes"] == 0 < beside[1]["staging_bytes"] == runs[0]["staging_bytes"]
    assert "Compared with a host without a DPU" in (tmp_path / "out/report.html").read_text()


@pytest.mark.slow
def test_demands_depend_on_the_seed_alone(
    quick: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """Prefetcher and storage do not change them: selection and HBM pool are the host's."""
    _, summary = quick
    again = demo(tmp_path, "--quick", "--seed", "7", "--storage", "emulated")
    seen = [
        (one["demands"], one["selected"], one["demands_by_step"])
        for one in summary["runs"] + again["runs"]
    ]
    assert len(seen) == 12 and all(one == seen[0] for one in seen)


def test_the_curve_passes_through_the_run_that_it_is_made_of(
    quick: tuple[Path, dict[str, Any]],
) -> None:
    """In virtual time the same demands give the demo's point at its buffer without prefetch. For
    prefetching arms the point at their own degree is named, and the page has both."""
    out, summary = quick
    named = [one["run"] for one in summary["curve"] if one["run"]]
    assert named == ["none", "window+ema", "window+ema+shared"]
    text = (out / "out/report.html").read_text(encoding="utf-8")
    assert text.count(" % live, ") == 6 and "same core on the same demands in virtual time" in text
    assert {point["provenance"] for point in summary["curve"]} == {"modelled"}
    point = next(one for one in summary["curve"] if one["label"] == "1x")
    assert point["traffic_ratio"] == 1.0
    live = [one["hit"] for one in summary["runs"] if one["name"] == "none"]
    assert [abs(one - point["hit"]) < CURVE_TOLERANCE for one in live] == [True, True]


def test_a_warm_start_is_that_of_virtual_time(quick: tuple[Path, dict[str, Any]]) -> None:
    """With the same guesses before the first step, live and in virtual time, the guessed blocks are
    there when demanded, with equal hits."""
    summary = quick[1]
    assert summary["workload"]["warm_up"] and summary["workload"]["processes"] == PROCESSES
    runs = {one["name"]: one for one in summary["runs"][len(ARMS) :]}
    for name in ("window+ema", "window+ema+shared"):
        assert runs[name]["ends"]["cold"] < 0.5 * runs["window"]["ends"]["cold"]
        again = next(one["hit"] for one in summary["curve"] if one["run"] == name)
        # A late block is no hit, but it was predicted; a cold start has 0.14 less.
        live = runs[name]["hit"] + runs[name]["late"]
        assert abs(live - again) < WARM_TOLERANCE


@pytest.mark.slow
def test_a_trace_gives_lengths_arrivals_and_sharing(tmp_path: Path) -> None:
    """Two of three long prompts share a prefix of 8K tokens; one prompt is cut to the cap."""
    common = list(range(16))
    rows = [
        {"timestamp": 0, "input_length": 9_000, "output_length": 5, "hash_ids": [*common, 90, 91]},
        {"timestamp": 400, "input_length": 8_500, "output_length": 5, "hash_ids": [*common, 80]},
        {
            "timestamp": 900,
            "input_length": 20_000,
            "output_length": 5,
            "hash_ids": list(range(100, 140)),
        },
    ]
    trace = tmp_path / "long.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = demo(
        tmp_path,
        "--trace",
        str(trace),
        "--sessions",
        "3",
        "--steps",
        "12",
        "--context-tokens",
        "10240",
        "--storage",
        "emulated",
        "--time-per-token",
        "2ms",
    )
    for one in summary["runs"]:
        check_run(one)
    workload = summary["workload"]
    assert workload["trace"] == "long.jsonl" and workload["session_count"] == 3
    assert workload["sharing_session_count"] == 2 and workload["requests_capped"] == [2]
    assert [one["context_tokens"] for one in workload["sessions"]] == [9_000, 8_500, 10_240]
    told = {note["code"]: note["what"] for note in summary["notes"]}
    assert "long.jsonl" in told["outputs-unused"] and "12 steps" in told["outputs-unused"]
    page = (tmp_path / "out/report.html").read_text()
    assert page.index(told["outputs-unused"]) < page.index("<table"), "beside the headline"
    shared = [one["shared_chunks"] for one in summary["runs"]]
    assert shared[:3] == [0, 0, 0] and shared[3] >= 128, "sharing is the last arm's alone"


def torn(folder: Path) -> Path:
    path = folder / "torn.jsonl"
    path.write_bytes(TINY.read_bytes()[:-30])
    return path


def under_a_file(folder: Path) -> Path:
    (folder / "file").write_text("no folder")
    return folder / "file/out"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sessions", "0"], "sessions = 0"),
        (["--steps", "0"], "steps = 0"),
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--trace", torn], "torn.jsonl:60: the last line is torn"),
        (["--out", under_a_file], "give another --out"),
    ],
    ids=["sessions", "steps", "no trace", "torn trace", "out"],
)
def test_bad_options_are_one_line(
    words: list[Any],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [str(word(tmp_path)) if callable(word) else word for word in words]
    assert run(["demo", *given]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == 1 and said in printed.err
    assert list(tmp_path.rglob("summary.json")) == []


def test_the_reactor_gets_a_core_and_the_demo_gets_it_back(tmp_path: Path) -> None:
    """A daemon inherits the cores that it may use: it must start with all of them."""
    cores = os.sched_getaffinity(0)
    if os.geteuid() != 0 or len(cores) < 2:
        pytest.skip("a core for the reactor alone takes root and two cores")
    assert run([*SMALL, "--isolate", "--out", str(tmp_path / "out")]) == 0
    assert os.sched_getaffinity(0) == cores


def test_a_corrupt_block_fails_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all runs have one, summary and page are there, and the exit code is 1 with one line."""
    damage_fetches(monkeypatch)
    out = tmp_path / "out"
    assert run([*SMALL, "--out", str(out), "--format", "json"]) == 1
    said = capsys.readouterr()
    assert "were not what prefill wrote" in said.err and ", and 3 more" in said.err
    summary = json.loads((out / "summary.json").read_text())
    assert len(checked("demo", said.out)["failed"]) == len(summary["runs"])
    assert all(one["blocks_corrupt"] > 0 for one in summary["runs"])
    assert "corrupt" in (out / "report.html").read_text()


def test_a_demo_whose_recording_lacks_something_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rings too small for the events between two polls, summary and page are there, say how
    much was lost, and the exit code is 1."""
    write = daemon.write_config

    def small(path: Path, sections: daemon.Sections) -> None:
        limits = {**sections["limits"], "records": 16}
        write(path, {**sections, "limits": limits})

    monkeypatch.setattr(daemon, "write_config", small)
    out = tmp_path / "out"
    assert run([*SMALL, "--out", str(out)]) == 1
    assert "ledger records were lost (raise limits.records)" in capsys.readouterr().err
    summary = json.loads((out / "summary.json").read_text())
    assert all(one["records_lost"] > 0 for one in summary["runs"])
    assert all(one["decisions_replayed"] > 0 for one in summary["runs"])
    assert (out / "report.html").exists()
