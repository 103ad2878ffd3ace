"""Is a recorded run found, and one that cannot be compared refused in one line?"""

import json
from pathlib import Path
from typing import Any

import pytest

from offstage import __version__
from offstage.bindings.errors import BadInput
from offstage.testbeds.report.compare.build import Plan
from offstage.testbeds.report.compare.effect import Load
from offstage.testbeds.report.compare.recorded import find_runs, read_run

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
    with pytest.raises(BadInput, match="did you mean asic_7nm"):
        Plan.of(["asic_7n"], samples=1, deep=False, calibration=None, command="", load=Load())


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no decision log"):
        find_runs(tmp_path)
    with pytest.raises(BadInput, match="no such folder"):
        find_runs(tmp_path / "nothing")
