"""Does `offstage lab` continue after failures, and report each in one line?"""

import json
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from lab_runs import LAB, SPEC, here, shell, wait_for

from offstage.testbeds.cli import run
from offstage.testbeds.report.page.files import read_lab_summary


def test_workers_end_with_the_process_that_began_them(lab_folder: Path) -> None:
    """No worker outlives a kill -9 of the command."""
    (lab_folder / "e.toml").write_text(SPEC.replace("lab_policies:Silent", "lab_policies:Waits"))
    begun = subprocess.Popen(
        [*LAB, "run", "e.toml", "--out", "out", "--jobs", "2"], stderr=subprocess.DEVNULL
    )
    wait_for((lab_folder / "mark.reached").exists)
    wait_for(lambda: (lab_folder / "mark.reached").read_text() != "")
    worker = Path("/proc") / (lab_folder / "mark.reached").read_text()
    assert worker.exists() and worker.name != str(begun.pid)
    begun.kill()
    begun.wait()
    wait_for(lambda: not worker.exists())


def test_a_sweep_goes_on_past_what_fails(
    lab_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A policy that raises, one that answers out of range, and a combination that contradicts
    itself are listed. All other results are there, with their ledger."""
    wrong = '\n[[policy]]\nuse = "lab_policies:Raises"\n[[policy]]\nuse = "lab_policies:Outside"\n'
    sweep = '\n[sweep]\n"selection.k_blocks" = [8, 2]\n'
    (lab_folder / "e.toml").write_text(SPEC + wrong + sweep)
    assert here("run", "e.toml", "--out", "out", "--format", "json") == 1
    output, error = capsys.readouterr()
    failed = {one["point"]: one["message"] for one in json.loads(output)["failed"]}
    assert "k = 2" in failed.pop("k_blocks=2")
    raised = failed.pop("k_blocks=8: lab_policies:Raises, B = 2k")
    assert raised.startswith(
        "step 5 of session 0: policy 'raises' raised ValueError: no such block ("
    )
    file, _, line = raised.partition("(")[2].partition(")")[0].rpartition(":")
    assert "raise ValueError" in Path(file).read_text().splitlines()[int(line) - 1]
    assert "guessed ordinal 64" in failed.pop("k_blocks=8: lab_policies:Outside, B = 2k")
    assert failed == {} and error.splitlines()[-1].startswith("offstage: e.toml: failed: 3;")
    policies = {point.info.policy for point in read_lab_summary(lab_folder / "out").points}
    assert policies == {"none", "window+ema", "warmup+arc", "lab_policies:Silent"}
    assert pq.read_table(lab_folder / "out/ledger.parquet", columns=["point"]).num_rows > 0


def test_bounds_of_a_sweep_that_contradicts_itself_fail(
    lab_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The bounds of all valid points are printed; the exit code is 1, with the reason for the
    invalid one."""
    (lab_folder / "e.toml").write_text(SPEC + '\n[sweep]\n"selection.k_blocks" = [8, 2]\n')
    assert here("bounds", "e.toml", "--out", "out", "--format", "json") == 1
    output, error = capsys.readouterr()
    found = json.loads(output)
    assert found["bounds"] and [one["point"] for one in found["failed"]] == ["k_blocks=2"]
    assert error.splitlines()[-1].startswith("offstage: e.toml: failed: 1; the first is k_blocks=2")


@pytest.mark.parametrize(("name", "named"), [("Raises", "raises"), ("Outside", "outside")])
def test_a_run_ends_with_the_first_failure(
    name: str, named: str, lab_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names policy, step and session; the exit code is 2, as the policy is the user's."""
    (lab_folder / "e.toml").write_text(SPEC.replace("lab_policies:Silent", f"lab_policies:{name}"))
    assert here("run", "e.toml", "--out", "out") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"policy {named!r}" in line and "step 5 of session 0" in line
    assert not (lab_folder / "out/summary.json").exists()


def test_a_worker_that_dies_costs_its_own_point_only(lab_folder: Path) -> None:
    """The policy always kills its process; points that ran in the same process are all there."""
    killer = '\n[[policy]]\nuse = "lab_policies:Kills"\n[sweep]\n"selection.k_blocks" = [8]\n'
    (lab_folder / "e.toml").write_text((SPEC + killer).replace("[1, 2]", "[1]"))
    done = shell("run", "e.toml", "--out", "out", "--jobs", "2")
    assert done.returncode == 1, done.stderr
    summary = read_lab_summary(lab_folder / "out")
    assert [one.point for one in summary.failed] == ["k_blocks=8: lab_policies:Kills, B = 2k"]
    assert "died" in summary.failed[0].message
    assert len(summary.points) == 4 and all(point.bounds for point in summary.points)


@pytest.mark.slow
def test_a_worker_that_died_once_is_forgiven(lab_folder: Path, lab_whole: Path) -> None:
    """As after a shortage of memory: when tasks run again alone, everything is there."""
    text = SPEC.replace("lab_policies:Silent", "lab_policies:KillsOnce")
    (lab_folder / "e.toml").write_text(text)
    done = shell("run", "e.toml", "--out", "out", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert (lab_folder / "mark").exists()
    own, silent = (pq.read_table(out / "ledger.parquet") for out in (lab_folder / "out", lab_whole))
    assert own.equals(silent), "else it does what Silent does; the file says another name"


@pytest.mark.parametrize(
    "words",
    [
        ["run", "nowhere"],
        ["run", "nowhere.toml"],
        ["run", "."],
        ["run", "/dev/null"],
        ["run", sys.executable],
        ["run", "e.toml", "--out", "e.toml"],
        ["run", "e.toml", "--out", "e.toml/out"],
        ["run", "e.toml", "--jobs", "-1"],
        ["run", "e.toml", "--seed", "-1"],
        ["run", "e.toml", "--seed", "x"],
        ["run", "e.toml", "--set", "workload.steps"],
        ["run", "e.toml", "--set", "workload.stepz=3"],
        ["run", "e.toml", "--set", 'policy=[{use="nope"}]'],
        ["run", "e.toml", "--set", "workload.kind=selections", "--set", "workload.file=e.toml"],
        ["run", "e.toml", "--set", "workload.kind=captured", "--set", "workload.file=e.toml"],
        ["run", "e.toml", "--set", "workload.trace=nowhere.jsonl"],
        ["run", "e.toml", "--cluster", "nonsense"],
        ["run", "e.toml", "--set", "sweep.workload.steps=[]"],
        ["bounds", "e.toml", "--out", "e.toml"],
    ],
    ids=" ".join,
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: list[str], lab_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["lab", *words]) == 2
    output = capsys.readouterr().err.splitlines()
    assert output[-1].startswith("offstage: ") and sum("offstage: " in line for line in output) == 1
    assert "Traceback" not in "".join(output)


def test_without_dask_a_cluster_is_one_line_with_the_extra(
    lab_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert run(["lab", "run", "e.toml", "--cluster", "tcp://127.0.0.1:8786"]) == 2
    assert "pip install '.[cluster]'" in capsys.readouterr().err.splitlines()[-1]


def test_a_disk_that_is_full_is_one_line(lab_folder: Path) -> None:
    """A limit of 1 KB on file size, less than a part needs, stands in for it."""
    limit = 1024
    done = shell(
        "run",
        "e.toml",
        "--out",
        "out",
        "--jobs",
        "1",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.returncode == 1
    line = done.stderr.splitlines()[-1]
    assert line.startswith("offstage: out/parts/") and "cannot be written: File too large" in line
    assert list((lab_folder / "out/parts").glob("*.tmp")) == []
