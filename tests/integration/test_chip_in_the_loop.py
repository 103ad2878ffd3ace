"""Does a daemon serve a real host at the pace of a modelled chip, in dilated time, without a wrong
byte? Does a run report that it missed the pace, and else agree with virtual time?"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from against_schema import checked

from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.replay import closed_loop, decision_replay
from offstage.asic_model.result import ChipRun
from offstage.asic_model.timed import as_hosts_saw
from offstage.asic_model.trace import Trace, read_trace
from offstage.bindings.errors import BadInput
from offstage.testbeds.beds.daemon import Daemon, serve
from offstage.testbeds.beds.status import device_status
from offstage.testbeds.cli import run
from offstage.testbeds.live import checks, host_run
from offstage.testbeds.report.compare.recorded import read_run

DILATION = 20
TIMED = "OFFSTAGE_TEST_TIMING" in os.environ
"""Whether this machine has nothing else to do, so that its times may be judged."""
AGREED_DILATION, AGREED_STEPS = (4000, 40) if TIMED else (1000, 20)
WORDS = [
    *"--tenant lab --geometry tiny --sessions 2".split(),
    *"--context-tokens 4096 --time-per-token 1ms --steps 20".split(),
]
AGREED_WORDS = [*WORDS[:-3], "300us", "--steps", str(AGREED_STEPS)]


def configured(folder: Path, dilation: int) -> AbstractContextManager[Daemon]:
    """A daemon that emulates a chip and records into `folder/record`."""
    sections = {
        "arena": {"size": "3MiB", "payload": "4KiB", "layers": 2, "block_tokens": 16},
        # As in the presets: storage in memory ignores the path.
        "storage": {"backend": "emulated", "path": str(folder / "store.ofs"), "size": "64MiB"},
        "model": {"device": "asic_7nm", "dilation": dilation},
        "store": {"segment": "256KiB"},
        "limits": {"sessions": 4, "context_tokens": 8192},
        "tenant": [{"name": "lab"}],
    }
    return serve(sections, folder, record=folder / "record")


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("chip")
    with configured(folder, DILATION) as one:
        yield one


def test_a_host_decodes_against_a_chip(
    tier: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block has prefill's bytes, every command and answer is paced, and times are in the
    chip's time. Whether this machine kept the pace is not asserted."""
    monkeypatch.setattr(checks, "OVERRUNS_MAX", 1.0)
    runtime_dir = str(tier.runtime_dir)
    words = ["host", "run", "--endpoint", tier.endpoint, "--runtime-dir", runtime_dir, *WORDS]
    assert run([*words, "--out", str(tmp_path / "out")]) == 0
    (one,) = json.loads((tmp_path / "out" / "summary.json").read_text())["runs"]
    assert one["provenance"] == "emulated"
    assert one["storage"] == f"asic_7nm, {DILATION} times slower"
    assert one["blocks_corrupt"] == one["blocks_recomputed"] == 0
    assert one["blocks_verified"] == one["demands"] > 0 and one["attention_checked"] > 0
    status = device_status(tier.at())
    steps = 2 * 20 * 2  # sessions, steps, layers: a command each, and blocks delivered
    assert steps < status.paced <= steps + one["demands"]
    assert status.storage.reads > 0
    assert not (tier.runtime_dir.parent / "store.ofs").exists()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that kept the pace, host and daemon in one folder. If the machine is too slow or busy,
    the run is void by its own rule, and the test skips."""
    folder = tmp_path_factory.mktemp("loop")
    with configured(folder, AGREED_DILATION) as one:
        words = ["--endpoint", one.endpoint, "--runtime-dir", str(one.runtime_dir)]
        kept = run(["host", "run", *words, *AGREED_WORDS, "--out", str(folder / "out")]) == 0
    if not kept:
        pytest.skip(
            f"a run at dilation {AGREED_DILATION} is void: more than 1 % overruns; run it "
            "on a machine with less else to do"
        )
    shutil.copy(folder / "out/summary.json", folder / "record")
    return folder / "record"


def test_the_log_of_a_loop_is_replayed(recorded: Path) -> None:
    """Replayed with its own decisions through the same preset in virtual time, every demand has a
    time and ends as the host saw it."""
    trace, record = read_trace(recorded), read_run(recorded)
    assert record.device == "asic_7nm" and record.provenance == "emulated"
    seen = as_hosts_saw(trace, record.stages)
    found = decision_replay(trace, read_preset("asic_7nm"))
    assert (found.hits, found.late, found.misses) == (seen.hits, seen.late, seen.misses)
    assert found.demands == seen.hits + seen.late + seen.misses > 300
    assert 0 < found.fetch_ns.mean <= found.fetch_ns.p99


@pytest.mark.skipif(
    not TIMED,
    reason="judges this machine's times: with nothing else running, "
    "OFFSTAGE_TEST_TIMING=1 pytest tests/integration/test_chip_in_the_loop.py",
)
@pytest.mark.parametrize("replay", [decision_replay, closed_loop])
def test_the_loop_agrees_with_virtual_time(
    recorded: Path, replay: Callable[[Trace, Preset], ChipRun]
) -> None:
    """In virtual time, with the log's decisions and in closed loop, the same run on the same preset
    has the same shares of hit, late and miss, and the same fetch times, within the tolerances of a
    calibration."""
    trace, record = read_trace(recorded), read_run(recorded)
    seen, found = as_hosts_saw(trace, record.stages), replay(trace, read_preset("asic_7nm"))
    for name in ("hits", "late", "misses"):
        assert getattr(found, name) == pytest.approx(getattr(seen, name), abs=0.01 * found.demands)
    assert found.fetch_ns.mean == pytest.approx(seen.fetch_ns.mean, rel=0.10)
    assert found.fetch_ns.p99 == pytest.approx(seen.fetch_ns.p99, rel=0.20)


def test_a_comparison_takes_the_loop(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first column is the chip in the loop, emulated; the second its own model, unfitted."""
    words = ["compare", str(recorded), "--asic", "asic_7nm", "--asic", "asic_5nm_hbm4"]
    capsys.readouterr()
    assert run([*words, "--quick", "--out", str(tmp_path / "page"), "--format", "json"]) == 0
    assert len(checked("compare", capsys.readouterr().out)["runs"]) == 1
    found = checked("file compare", next(tmp_path.glob("page/**/compare.json")).read_text())
    assert [one["device"] for one in found["columns"]] == [
        "asic_7nm in the loop",
        "asic_7nm",
        "bluefield3",
        "bluefield4",
        "asic_5nm_hbm4",
    ]
    assert found["columns"][0]["provenance"] == "emulated"
    assert "asic_5nm_hbm4 (modelled, uncalibrated)" in found["sentence"]
    assert "the same model of the asic_7nm in the loop predicts" in found["sentence"]


def test_only_shared_memory_goes_by_its_clock(tier: Daemon) -> None:
    """A host over messages would wait by the machine's clock; it is refused, with the fix."""
    with pytest.raises(BadInput, match="attach over shm"), tier.at(fabric="zmq").attached():
        pass


def test_a_run_too_late_is_void(
    tier: Daemon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """If two of 101 reads, writes, commands and answers are too late, the files are there and the
    exit code is 1."""
    late = {"reads": 40, "writes": 20, "paced": 41, "emulation_late": 1, "paced_late": 1}
    monkeypatch.setattr(host_run, "counters_since", lambda before, after: {**after, **late})
    runtime_dir = str(tier.runtime_dir)
    words = ["host", "run", "--endpoint", tier.endpoint, "--runtime-dir", runtime_dir, *WORDS]
    assert run([*words, "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr().err
    assert "2.0% of all requests ended later" in told and "larger --dilation" in told
    (one,) = json.loads((tmp_path / "out/summary.json").read_text())["runs"]
    assert one["pace_overruns"] == pytest.approx(2 / 101)
    assert (tmp_path / "out/report.html").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--device", "asic_6nm"], "asic_7nm"),
        (["--device", "asic_7nm", "--set", "storage.backend=posix"], "emulated"),
        (["--dilation", "0"], "1 to 100000"),
    ],
)
def test_what_cannot_be_served(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another preset, a disk with its own timing, or frozen time gives one line and exit code 2."""
    assert run(["dpu", "serve", *more]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and said in error
