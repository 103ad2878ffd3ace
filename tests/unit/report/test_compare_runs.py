"""Is a recorded run found, and one that cannot be compared refused in one line?"""

import json
from pathlib import Path
from typing import Any

import pytest
from asic_logs import recorded as decoded
from asic_logs import written

from offstage import __version__
from offstage.asic_model.timed import as_hosts_saw
from offstage.asic_model.trace import read_trace
from offstage.bindings.errors import BadInput
from offstage.testbeds.report.compare import validate
from offstage.testbeds.report.compare.build import Plan
from offstage.testbeds.report.compare.effect import Load
from offstage.testbeds.report.compare.recorded import find_runs, read_run, with_policy

RECORD: dict[str, Any] = {
    "version": __version__,
    "stages": {},
    "closed": True,
    "log_bytes_lost": 0,
    "storage": "io_uring",
}


def recorded(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "decisions.log").write_bytes(b"log")
    (folder / "record.json").write_text(json.dumps(RECORD | changes))
    return folder


def test_a_demo_has_its_measured_run_first(tmp_path: Path) -> None:
    emulated = recorded(tmp_path / "records/emulated-window")
    measured = recorded(tmp_path / "records/measured-window")
    assert find_runs(tmp_path) == [measured, emulated]
    assert find_runs(measured) == [measured]
    run = read_run(measured)
    assert run.provenance == "measured" and run.result is None


def test_a_policy_is_named_as_the_report_names_it(tmp_path: Path) -> None:
    """In the terminal, or on its page with spaces. The measured run of it comes first; of one that
    was not run the nearest is named."""
    for name in ("emulated-window-ema", "measured-none", "measured-window-ema"):
        recorded(tmp_path / "records" / name)
    found = with_policy(find_runs(tmp_path), "window+ema")
    assert [path.name for path in found] == ["measured-window-ema", "emulated-window-ema"]
    assert with_policy(find_runs(tmp_path), "window + ema") == found
    with pytest.raises(BadInput, match="did you mean 'window-ema'"):
        with_policy(find_runs(tmp_path), "windowema")


def test_a_recording_that_stands_alone_has_no_arms(tmp_path: Path) -> None:
    """Its folder's name is no policy's, whatever it is."""
    alone = recorded(tmp_path / "monday-run")
    assert with_policy([alone], "") == [alone]
    for policy in ("run", "window+ema"):
        with pytest.raises(BadInput, match="one recording, and no arms") as caught:
            with_policy([alone], policy)
        assert caught.value.where == f"{alone}: --policy {policy}"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"version": "0.0.9"}, "version 0.0.9"),
        ({"version": None}, "version"),
        ({"log_bytes_lost": 3}, "the decision log has a hole"),
        ({"closed": False}, "SIGTERM"),
        ({"stages": None}, "record.json"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    tmp_path: Path, changes: dict[str, Any], what: str
) -> None:
    with pytest.raises(BadInput, match=what) as caught:
        read_run(recorded(tmp_path / "run", **changes))
    assert caught.value.fix and caught.value.where


def test_an_unknown_preset_is_refused_with_the_nearest() -> None:
    with pytest.raises(BadInput, match="did you mean 'asic_7nm'"):
        Plan.of(["asic_7n"], samples=1, deep=False, calibration=None, command="", load=Load())


def test_tenants_are_of_replays_that_a_quick_comparison_leaves_out() -> None:
    with pytest.raises(BadInput, match="tenants=3 of copies of the run, which --quick does not"):
        load = Load(tenants=3)
        Plan.of([], samples=1, deep=False, calibration=None, command="", load=load)


def test_a_calibration_is_the_model_of_the_measured_machine(tmp_path: Path) -> None:
    """Whatever its file is called: the sentence looks for its error by that name."""
    fitted = tmp_path / "q.toml"
    fitted.write_text('extends = "dpu_x86_measured"\ncalibrated = true\n')
    plan = Plan.of([], samples=1, deep=False, calibration=fitted, command="", load=Load())
    assert plan.calibrated and plan.own.name == "dpu_x86_measured"


@pytest.mark.parametrize("name", ["other.json", "other.toml", "asic_7nm", "none.toml"])
def test_what_is_not_a_calibration_names_its_option(name: str, tmp_path: Path) -> None:
    """A result of another command, a preset of another shape, a preset's name, no file."""
    if name.startswith("other"):
        (tmp_path / name).write_text("{}" if name.endswith("json") else "[nothing]\n")
    given = Path(name) if "." not in name else tmp_path / name
    with pytest.raises(BadInput) as caught:
        Plan.of([], samples=1, deep=False, calibration=given, command="", load=Load())
    assert caught.value.where == f"--calibration: {given}"
    assert caught.value.fix == "give what `asic validate --out` wrote"


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no decision log"):
        find_runs(tmp_path)
    with pytest.raises(BadInput, match="no such folder"):
        find_runs(tmp_path / "nothing")


@pytest.mark.parametrize(("delay_us", "refused"), [(40.0, False), (110.0, True), (None, False)])
def test_a_recording_of_a_busy_machine_is_no_measurement(
    tmp_path: Path, delay_us: float | None, refused: bool
) -> None:
    """It is refused in one line with its figures, unless asked for."""
    machine = {"reactor_delay_us": delay_us, "pressure": 0.9}
    folder = recorded(tmp_path / "run", machine=machine)
    assert validate.read_measured(folder, busy=True).path == folder
    if not refused:
        assert validate.read_measured(folder, busy=False).path == folder
        return
    with pytest.raises(BadInput, match=r"waited 110 µs for a processor each time.*pressure 90%"):
        validate.read_measured(folder, busy=False)


def test_only_held_out_workloads_are_judged(tmp_path: Path) -> None:
    """A repeat of the run of the fit, or that run, says nothing of other workloads."""
    first = read_run(recorded(tmp_path / "first"))
    other = read_run(recorded(tmp_path / "other"))
    assert list(validate.by_workload([other], [first]).values()) == [[other]]
    with pytest.raises(BadInput, match="the fit uses this workload"):
        validate.by_workload([other, first], [first])


def test_a_host_says_how_long_its_fetches_took(tmp_path: Path) -> None:
    """Its own clock goes before what a log and means can be put together to, and where no host
    said it, the run has a note."""
    trace = read_trace(written(tmp_path, decoded()))
    put_together = as_hosts_saw(trace, {}).fetch_ns
    told = as_hosts_saw(trace, {}, [0.1, 0.2, 9.25], 4_000).fetch_ns
    assert (told.count, told.max) == (4_000, 9_250_000.0) and told.max != put_together.max
    assert told.mean == pytest.approx(3_183_333.3)
    run = read_run(recorded(tmp_path / "alone"))
    assert [note.code for note in run.notes] == ["fetch-constructed"]
