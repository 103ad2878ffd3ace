"""Is a lab's result file read back in full, and an unreadable one refused in one line?"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from against_schema import checked

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli import run as offstage
from offstage.testbeds.lab.results.summary import Interval, LabSummary
from offstage.testbeds.report.lab.sentence import lab_sentence
from offstage.testbeds.report.page.files import read_lab_summary, write_lab_summary


def test_the_file_comes_back_and_the_command_makes_its_page(
    whole: LabSummary, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`offstage report` tells a lab's folder from a demo's by its `kind`."""
    write_lab_summary(whole, tmp_path / "summary.json")
    assert read_lab_summary(tmp_path) == whole
    assert offstage(["report", str(tmp_path), "--format", "json"]) == 0
    answer = checked("report", capsys.readouterr().out)
    assert answer["sentence"] == lab_sentence(whole)
    assert 'id="pareto"' in Path(answer["report"]).read_text()
    assert offstage(["report", str(tmp_path)]) == 0
    assert "bound: clairvoyant" in capsys.readouterr().out


@pytest.mark.parametrize(
    "path, value",
    [
        (["kind"], "demo"),
        (["points", 0, "hit", "value"], 1.5),
        (["points", 0, "demands"], -1),
        (["points", 0, "hit", "low"], None),
        (["points", 0, "hit", "low"], 0.999),
        (["points", 0, "traffic_ratio", "value"], -0.1),
        (["points", 0, "fates"], {"pattern": {}}),
        (["points", 0, "ends"], {"elsewhere": 1}),
        (["points", 0, "hit_by_layer", 0], 2),
        (["points", 0, "info", "buffer_over_k"], 0),
        (["points", 0, "info"], None),
        (["points", 0, "bounds", 0, "hit", "value"], 7),
        (["points"], {}),
        (["requests", 0, "opt"], 1.01),
        (["points", 0, "first_steps", "hit", "value"], -1),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    lab: SimpleNamespace, tmp_path: Path, path: list[Any], value: object
) -> None:
    summary = lab.summary(points=lab.points(policies=("none",), buffers=(2.0,), seeds=(1,)))
    data = json.loads(msgspec.json.encode(summary))
    at = data
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    (tmp_path / "summary.json").write_text(json.dumps(data))
    with pytest.raises(BadInput) as refused:
        read_lab_summary(tmp_path)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff", b'{"kind": "lab"}', b"[" * 100_000])
def test_a_foreign_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "summary.json").write_bytes(data)
    with pytest.raises(BadInput):
        read_lab_summary(tmp_path)
    assert offstage(["report", str(tmp_path)]) == 2


def test_a_figure_that_is_no_number_is_not_written(lab: SimpleNamespace, tmp_path: Path) -> None:
    point = lab.points(policies=("none",), buffers=(2.0,), seeds=(1,))[0]
    broken = msgspec.structs.replace(point, hit=Interval(value=float("nan")))
    with pytest.raises(AssertionError, match="hit = nan"):
        write_lab_summary(lab.summary(points=[broken]), tmp_path / "summary.json")
    assert list(tmp_path.iterdir()) == []
