"""Does `asic validate` record what it needs by itself, judge all of it, and refuse half of it?"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from against_schema import checked

from offstage.asic_model.judge import FIGURES
from offstage.asic_model.samples import read_samples
from offstage.dpu.storage.alone import REACTOR
from offstage.testbeds.beds.daemon import Daemon
from offstage.testbeds.cli import run
from offstage.testbeds.live import arm_bed, demo
from offstage.testbeds.report.compare import recordings, validate
from offstage.testbeds.report.compare.validate import read_measured


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's."""
    with tempfile.TemporaryDirectory(prefix="ofs-") as folder:
        yield Path(folder)


def test_the_command_records_fits_and_predicts(
    short: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small runs of a daemon here: every figure of the workload held out is judged, over all its
    repeats; those to fit run in every second round, each over a store that is filled once; and the
    order of events is that of the log to the nanosecond. Whether times are met is the machine's
    matter, and so is the exit code. The reactor and the host share no core."""
    cores, began, filled = os.sched_getaffinity(0), arm_bed.serve, demo.prefill
    pids, fills = [], []

    @contextmanager
    def serve(*words: Any, **more: Any) -> Iterator[Daemon]:
        with began(*words, **more) as tier:
            pids.append(tier.process.pid)
            yield tier

    def prefill(*words: Any) -> Any:
        tasks = Path(f"/proc/{pids[-1]}/task").iterdir()
        (reactor,) = (one for one in tasks if (one / "comm").read_text().strip() == REACTOR)
        taken = os.sched_getaffinity(int(reactor.name))
        assert len(cores) == 1 or (len(taken) == 1 and os.sched_getaffinity(0) == cores - taken)
        fills.append(pids[-1])
        return filled(*words)

    monkeypatch.setattr(arm_bed, "serve", serve)
    monkeypatch.setattr(demo, "prefill", prefill)
    monkeypatch.setattr(recordings, "FITTED", ((1, 32_768), (1, 65_536)))
    monkeypatch.setattr(recordings, "PREDICTED", ((2, 32_768),))
    monkeypatch.setattr(recordings, "STEPS", 80)
    monkeypatch.setattr(validate, "LEAST", 10)  # beside other tests few turns are undisturbed
    out = short / "runs"
    words = ["asic", "validate", "--record", str(out), "--repeats", "2", "--busy"]
    words += ["--format", "json"]
    code = run(words)
    told = capsys.readouterr()
    assert code in (0, 1) and told.out, told.err
    found = checked("asic validate", told.out)
    assert {path.name for path in out.iterdir()} == {*("1x32k-1", "1x64k-1", "2x32k-1", "2x32k-2")}
    assert len(fills) == 3
    judged = [one for one in found["judged"] if not one["figure"].startswith("structure")]
    assert [one["figure"] for one in judged] == [figure.text for figure in FIGURES]
    assert {(one["run"], one["repeats"]) for one in judged} == {("2x32k-1 and 1 more", 2)}
    exact = [one for one in found["judged"] if one["figure"].startswith("structure")]
    assert len(exact) == 2 * 3 and {one["error"] for one in exact} == {0.0}
    assert {"cores.command", "cores.read", "cores.start"} & set(found["fitted"])
    recorded = read_measured(out / "2x32k-1", busy=True)
    work = read_samples(recorded.path).work
    assert work["starts"] >= work["wakes"] and work["begun"] >= work["starts"]
    assert min(work["rests"], work["cold_scores"]) > 0
    if recorded.record.storage == "io_uring":
        assert work["wakes"] > 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["--calibrate", "a"], "no runs to fit to, or none to predict"),
        (["--record", "new", "--predict", "a"], "--record makes the runs"),
        (["--calibrate", "a", "--predict", "b", "--isolate"], "--isolate is for runs"),
        (["--calibrate", "a", "--predict", "b", "--repeats", "4"], "--repeats is for runs"),
    ],
)
def test_half_of_what_it_needs_is_refused(
    words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["asic", "validate", *words]) == 2
    assert what in capsys.readouterr().err
