"""Does `offstage lab` give the same bytes however it is run, and compute only missing parts?"""

import os
import random
import shutil
import signal
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from against_schema import checked
from lab_runs import LAB, SPEC, WAIT_S, here, ledger, shell, wait_for

from offstage.bindings.layouts import ENDS, HIT_ENDS
from offstage.testbeds.report.page.files import read_lab_summary

REFERENCE = Path(__file__).resolve().parents[1] / "reference"


def test_two_processes_write_the_same_bytes(lab_whole: Path, lab_folder: Path) -> None:
    done = shell("run", "e.toml", "--out", "out", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert ledger(lab_folder / "out") == ledger(lab_whole)


@pytest.mark.parametrize("steps", [1, 7, 1000])
def test_slabs_of_any_length_give_the_same_bytes(
    steps: int, lab_whole: Path, lab_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slabs are shorter than a session, no divisor of it, or longer."""
    monkeypatch.setattr("offstage.testbeds.lab.run.feed.SLAB_STEPS_MAX", steps)
    assert here("run", "e.toml", "--out", "out") == 0
    assert ledger(lab_folder / "out") == ledger(lab_whole)


@pytest.mark.parametrize(
    ("jobs", "end"), [("1", signal.SIGINT), ("2", signal.SIGINT), ("2", signal.SIGTERM)]
)
def test_an_interrupted_run_goes_on_where_it_was(
    jobs: str, end: signal.Signals, lab_folder: Path
) -> None:
    """Ctrl-C or SIGTERM in the second seed gives one line and exit code 130; the rest then gives
    what a whole run gives, and the first seed's result is reused."""
    text = SPEC.replace("lab_policies:Silent", "lab_policies:SecondWaits")
    (lab_folder / "e.toml").write_text(text)
    words = ["run", "e.toml", "--out", "out", "--jobs", jobs]
    begun = subprocess.Popen(
        [*LAB, *words], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_for((lab_folder / "mark.reached").exists)
    wait_for(lambda: any((lab_folder / "out/parts").glob("*.npz")))
    # A terminal interrupts the whole group; an orchestrator ends the process that it started.
    (os.killpg if end is signal.SIGINT else os.kill)(begun.pid, end)
    _, output = begun.communicate(timeout=WAIT_S)
    assert begun.returncode == 130, output
    assert "the same command goes on from there" in output and "Traceback" not in output
    kept = {path: path.stat().st_mtime_ns for path in (lab_folder / "out/parts").iterdir()}
    assert kept and all(path.suffix == ".npz" for path in kept)
    (lab_folder / "mark").touch()
    assert here("run", "e.toml", "--out", "out") == 0
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items()), "computed again"
    assert here("run", "e.toml", "--out", "at-once") == 0
    assert ledger(lab_folder / "out") == ledger(lab_folder / "at-once")


def test_parts_that_are_lost_or_torn_are_made_again(lab_whole: Path, lab_folder: Path) -> None:
    """One is missing, one truncated, one empty, one has a wrong byte; all others are reused."""
    shutil.copytree(lab_whole, lab_folder / "out")
    parts = sorted((lab_folder / "out/parts").iterdir())
    assert len(parts) == 2 * 5, "two seeds of four points and the bounds"
    gone, cut, empty, wrong = random.Random(1).sample(parts, 4)
    gone.unlink()
    cut.write_bytes(cut.read_bytes()[:-30])
    empty.write_bytes(b"")
    data = bytearray(wrong.read_bytes())
    data[len(data) // 2] ^= 0xFF
    wrong.write_bytes(data)
    others = {path: path.stat().st_mtime_ns for path in parts if path not in (gone, cut, empty)}
    before = others.pop(wrong)
    assert here("run", "e.toml", "--out", "out") == 0
    assert ledger(lab_folder / "out") == ledger(lab_whole)
    assert sorted((lab_folder / "out/parts").iterdir()) == parts
    assert all(path.stat().st_mtime_ns == at for path, at in others.items())
    assert wrong.stat().st_mtime_ns != before


@pytest.mark.parametrize(
    ("change", "made"),
    [
        ((), 0),
        (('use = "window+ema"', 'use = "window+ema"\nlabel = "ours"'), 0),
        (("[tier]", '[reference]\neviction = "sieve"\n[tier]'), 2),
        (("seeds = [1, 2]", "seeds = [2]"), 0),
        (("seeds = [1, 2]", "seeds = [2, 3]"), 5),
        (('use = "warmup+arc"', 'use = "warmup+sieve"'), 2),
        (("buffer_over_k = [2]", "buffer_over_k = [2, 4]"), 2 * 4 + 2),
        (("buffer_over_k = [2]", 'buffer_over_k = [2]\nbandwidth = ["1GB/s"]'), 2 * 3 + 2),
        (("steps = 24", "steps = 25"), 10),
    ],
    ids=[
        "nothing",
        "label",
        "reference",
        "fewer seeds",
        "a seed",
        "a policy",
        "a buffer",
        "a cap",
        "the workload",
    ],
)
def test_a_changed_spec_computes_what_changed(
    change: tuple[str, str], made: int, lab_whole: Path, lab_folder: Path
) -> None:
    """`made` parts are added to those of two seeds of four points with bounds. (The cap applies to
    the three policies that prefetch, and has its own bounds.)"""
    shutil.copytree(lab_whole, lab_folder / "out")
    before = {path: path.stat().st_mtime_ns for path in (lab_folder / "out/parts").iterdir()}
    text = SPEC.replace(*change) if change else SPEC
    assert not change or text != SPEC
    (lab_folder / "e.toml").write_text(text)
    assert here("run", "e.toml", "--out", "out") == 0
    after = {path: path.stat().st_mtime_ns for path in (lab_folder / "out/parts").iterdir()}
    assert {path: after[path] for path in before} == before
    assert len(after) - len(before) == made


@pytest.mark.slow
def test_an_edited_policy_is_run_again(lab_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the edited policy's points are run."""
    text = (REFERENCE / "lab_policies.py").read_text()
    (lab_folder / "edited.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{lab_folder}:{os.environ['PYTHONPATH']}")
    (lab_folder / "e.toml").write_text(SPEC.replace("lab_policies:", "edited:"))
    assert shell("run", "e.toml", "--out", "out", "--jobs", "1").returncode == 0
    before = set((lab_folder / "out/parts").iterdir())
    (lab_folder / "edited.py").write_text(text + "\n# edited\n")
    assert shell("run", "e.toml", "--out", "out", "--jobs", "1").returncode == 0
    assert len(set((lab_folder / "out/parts").iterdir()) - before) == 2


def test_figures_are_those_of_the_ledger(lab_whole: Path) -> None:
    """A slow loop over the file's rows gives the summary's hits, non-trivial hits and traffic."""
    summary = read_lab_summary(lab_whole)
    page = (lab_whole / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>") and "warmup+arc" in page
    rows = pq.read_table(lab_whole / "ledger.parquet").to_pylist()
    assert len(rows) == 4 * 2 * 3 * 24 * 2, "points, seeds, sessions, steps, layers"
    read = {}
    for number, point in enumerate(summary.points):
        mine = [row for row in rows if row["point"] == number]
        demands = sum(row["demands"] for row in mine)
        nontrivial = sum(row["nontrivial"] for row in mine)
        hits = sum(row[f"end_{end}"] for row in mine for end in ENDS[:HIT_ENDS])
        for row in mine:
            assert row["selected"] == row["pool_hits"] + row["demands"]
            assert row["demands"] == sum(row[f"end_{end}"] for end in ENDS)
        serious = sum(row[f"nontrivial_end_{end}"] for row in mine for end in ENDS[:HIT_ENDS])
        read[number] = sum(row["demand_reads"] + row["prefetch_reads"] for row in mine)
        assert (point.demands, point.nontrivial, point.reads) == (demands, nontrivial, read[number])
        assert point.hit is not None and point.nontrivial_hit is not None
        assert point.hit.value == pytest.approx(hits / demands)
        assert point.nontrivial_hit.value == pytest.approx(serious / nontrivial)
        assert point.traffic_ratio is not None
        assert point.traffic_ratio.value == pytest.approx(read[number] / read[0])
    silent = [point for point in summary.points if point.info.policy == "lab_policies:Silent"]
    assert silent[0].hit == summary.points[0].hit, "who guesses nothing is none"


def test_bounds_are_taken_from_where_they_were_made(
    lab_whole: Path, lab_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`lab bounds` of a spec that was run computes nothing, and no policy beats a bound."""
    shutil.copytree(lab_whole, lab_folder / "out")
    parts = set((lab_folder / "out/parts").iterdir())
    capsys.readouterr()
    assert here("bounds", "e.toml", "--out", "out", "--format", "json") == 0
    rows = checked("lab bounds", capsys.readouterr().out)["bounds"]
    assert set((lab_folder / "out/parts").iterdir()) == parts
    best = {row["bound"]: row for row in rows}
    points = read_lab_summary(lab_whole).points
    reached = max(point.hit.value for point in points if point.hit is not None)
    assert best["clairvoyant"]["hit"] >= reached
    assert best["belady"]["reads"] <= points[0].reads
