"""Does the GPU run say of every check whether it ran, failed or was skipped, and why?"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent
RUN_SECONDS_MAX = 400


def run(out: Path, *options: str, folder: Path = FOLDER) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the file of a run that does not inherit PYTHONPATH."""
    bare = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, str(folder / "run_all.py"), "--out", str(out), *options],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS_MAX,
        env={**bare, "CUDA_VISIBLE_DEVICES": ""},
    )
    assert out.is_file(), done.stderr
    content: dict[str, Any] = json.loads(out.read_text())
    return done.returncode, content


def outcomes(content: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["outcome"] for one in content["checks"]}


def reasons(content: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["reason"] for one in content["checks"]}


def test_without_a_device_every_check_of_it_is_skipped_with_the_reason(tmp_path: Path) -> None:
    """All files of checks load, and none needs a device to load."""
    code, content = run(tmp_path / "gpu.json")
    assert code == 0, [one for one in content["checks"] if one["outcome"] == "failed"]
    assert content["counts"]["failed"] == 0 and content["counts"]["skipped"] > 0
    assert content["machine"]["no_device"].startswith("no CUDA device: ")
    for one in content["checks"]:
        assert (one["outcome"] == "ran") == (one["reason"] == ""), one
        assert one["question"].endswith("?"), one["name"]
    assert reasons(content)["copy_bandwidth"] == content["machine"]["no_device"]


CHECKS_OF_THE_TEST = '''
"""Checks that behave in every way that one can."""

import os
import time

from gpu_checks import Run, check


@check(point=1, device="cpu")
def runs(run: Run) -> dict[str, object]:
    """Does it run?"""
    run.aim("share", 0.5, at_least=0.8)
    run.aim("cost", 0.5, at_most=0.8)
    return {"figure": 3, "folder": len(list(run.folder.iterdir()))}


@check(point=1, device="cpu")
def fails(run: Run) -> dict[str, object]:
    """Does it fail?"""
    assert 1 == 2, "one is not two"
    return {}


@check(point=2, device="cpu")
def dies(run: Run) -> dict[str, object]:
    """Does it die?"""
    os._exit(7)


@check(point=2, device="cpu", limit_s=1)
def hangs(run: Run) -> dict[str, object]:
    """Does it hang?"""
    time.sleep(1000)
    return {}


@check(point=2, device="cpu", needs=("no_such_module",))
def lacks(run: Run) -> dict[str, object]:
    """Does it lack a library?"""
    return {}


@check(point=2, device="cpu", needs=("model",))
def wants_a_model(run: Run) -> dict[str, object]:
    """Is there a model?"""
    return {}


@check(point=2, device="cpu")
def gives_up(run: Run) -> dict[str, object]:
    """Does it give up?"""
    run.skip("the moon is full")
    return {}


@check(point=3, device="cpu")
def comes_last(run: Run) -> dict[str, object]:
    """Does a check after all these run?"""
    return {}
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The run, with this test's own checks."""
    own = tmp_path / "a/b"
    own.mkdir(parents=True)
    for name in ("run_all.py", "gpu_checks.py", "gpu_machine.py"):
        (own / name).write_bytes((FOLDER / name).read_bytes())
    (own / "checks_here.py").write_text(CHECKS_OF_THE_TEST)
    return own


def test_a_check_that_ends_badly_ends_no_other(folder: Path) -> None:
    """Each way to end has its own outcome and reason, and the exit code says that one failed."""
    code, content = run(folder / "gpu.json", folder=folder)
    assert code == 1 and content["counts"] == {"ran": 2, "failed": 3, "skipped": 3}
    said = reasons(content)
    assert outcomes(content)["runs"] == outcomes(content)["comes_last"] == "ran"
    assert said["fails"].startswith("AssertionError: one is not two")
    assert said["dies"].startswith("its process ended with 7")
    assert said["hangs"].startswith("took more than 1 s")
    assert said["lacks"] == "no_such_module is not installed"
    assert said["wants_a_model"] == "no model: give --model DIR"
    assert said["gives_up"] == "the moon is full"
    first = content["checks"][0]
    assert first["figures"] == {"figure": 3, "folder": 0}
    assert [aim["met"] for aim in first["aims"]] == [False, True]


def test_a_check_that_hangs_leaves_time_for_the_others() -> None:
    """This holds for any limit; with time for all, each has its own."""
    sys.path.insert(0, str(FOLDER))
    from run_all import allowed

    assert [allowed(30, later, 100) for later in (0, 70, 1000)] == [30, 30, 30]
    left = 460.0
    for behind in range(4, -1, -1):
        took = allowed(1000, 1000 * behind, left)
        assert 14 < took <= (left / 2 if behind else left)
        left -= took
    assert left == 0


def test_a_run_that_is_ended_has_a_file_of_what_it_did(folder: Path) -> None:
    """If the run is killed in the middle of a check, the file still names every check."""
    (folder / "checks_here.py").write_text(CHECKS_OF_THE_TEST.replace("limit_s=1)", "limit_s=99)"))
    out = folder / "gpu.json"
    process = subprocess.Popen(
        [sys.executable, str(folder / "run_all.py"), "--out", str(out), "--only", "runs,hangs,2"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith("failed"):  # `dies` comes before `hangs`
        assert process.poll() is None
    process.kill()
    process.wait(RUN_SECONDS_MAX)
    content = json.loads(out.read_text())
    assert outcomes(content)["runs"] == "ran" and outcomes(content)["dies"] == "failed"
    for name in ("hangs", "lacks", "gives_up"):
        assert reasons(content)[name] == "the run was ended before it"


def test_a_run_that_is_out_of_time_skips_the_rest(folder: Path) -> None:
    """Nothing starts after the end, and only the requested checks are named."""
    code, content = run(folder / "gpu.json", "--seconds", "0", "--only", "3,runs", folder=folder)
    assert code == 0 and outcomes(content) == {"runs": "skipped", "comes_last": "skipped"}
    assert set(reasons(content).values()) == {"the run's 0 s are over"}


@pytest.mark.slow
def test_the_interpreter_runs_the_checks_of_kernels(tmp_path: Path) -> None:
    """`--interpret` runs kernels on the CPU, and no check that needs a device."""
    for name in ("torch", "triton"):
        pytest.importorskip(name, reason="pip install '.[triton]'")
    entries = ["fp8_rows_with_scales_are_right", "a_window_beside_compressed_entries_is_right"]
    wanted = "--only", ",".join(["selection_is_right", "attention_bandwidth_float8", *entries])
    code, content = run(tmp_path / "gpu.json", "--interpret", *wanted)
    assert code == 0, content["checks"]
    assert outcomes(content) == {
        "selection_is_right": "ran",
        "attention_bandwidth_float8": "skipped",
        **dict.fromkeys(entries, "ran"),
    }
    figures = {one["name"]: one["figures"] for one in content["checks"]}
    assert 0 < figures["selection_is_right"]["error_scores"] < 1e-4
    assert figures[entries[1]].keys() == {"seed", "error_csa", "error_hca"}


@pytest.mark.slow
def test_the_interpreter_runs_the_checks_of_whole_models(tmp_path: Path) -> None:
    """Small ones of random weights, from a daemon of the checkout."""
    for name in ("torch", "triton", "transformers"):
        pytest.importorskip(name, reason="pip install '.[capture,triton]'")
    models = "the_largest_model_decodes_from_the_tier,recurrent_hybrids_decode_from_the_tier"
    code, content = run(tmp_path / "gpu.json", "--interpret", "--only", models)
    assert code == 0, content["checks"]
    assert set(outcomes(content).values()) == {"ran"}
    assert all(aim["met"] for one in content["checks"] for aim in one["aims"])
