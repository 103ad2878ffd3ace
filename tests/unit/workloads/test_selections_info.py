"""Does `trace info` describe a file of selections, and print a spec that runs it?"""

import json
import tomllib
from pathlib import Path

import pytest
from against_schema import checked

from offstage.testbeds.capture.export import export
from offstage.testbeds.cli import run
from offstage.testbeds.lab.run.experiment import plan
from offstage.testbeds.progress import Silent
from offstage.testbeds.workloads.selections.generated import GeneratedOptions, GeneratedWorkload


def recorded(path: Path) -> Path:
    """Two layers and three steps that always select block 0 and the last one."""
    steps = [[token, layer, [0, token, 7], []] for token in (1, 2, 3) for layer in (0, 1)]
    one = {
        "run": "a",
        "model": "M",
        "layers": 2,
        "prompt_tokens": 256,
        "block_tokens": 32,
        "steps": steps,
    }
    path.write_text(json.dumps(one) + "\n")
    return path


def captured(path: Path) -> Path:
    pytest.importorskip("pyarrow")
    options = GeneratedOptions(
        layers=2,
        context_tokens=1024,
        steps=3,
        block_tokens=32,
        select_blocks=1,
        sink_blocks=0,
        window_blocks=0,
    )
    export(GeneratedWorkload(options), path, Silent())
    return path


@pytest.mark.parametrize(
    ("make", "name", "kind"),
    [
        (recorded, 'a "quoted" name.jsonl', "selections"),
        (captured, "capture.parquet", "captured"),
    ],
)
def test_the_spec_that_is_printed_can_be_planned(
    make: object, name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make(tmp_path / name)  # type: ignore[operator]
    assert run(["trace", "info", str(path), "--format", "json"]) == 0
    found = checked("trace info", capsys.readouterr().out)
    assert (found["layers"], found["sessions"], found["steps"]) == (2, 1, 3)
    assert found["block_tokens"] == 32
    spec = tmp_path / "spec.toml"
    spec.write_text(found["spec"])
    assert tomllib.loads(found["spec"])["workload"] == {"kind": kind, "file": str(path)}
    (variant,) = plan(spec, {}).variants
    assert variant.spec.workload.layers == 2
    assert run(["trace", "info", str(path)]) == 0
    assert f'kind = "{kind}"' in capsys.readouterr().out


def test_where_requests_are_wanted_the_line_says_what_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = recorded(tmp_path / "r.jsonl"), str(tmp_path / "out")
    for command in (
        ["trace", "import", str(path), "--out", out],
        ["demo", "--trace", str(path), "--out", out],
    ):
        assert run(command) == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert "recorded selections, and no requests" in line and "trace info" in line


def test_a_torn_file_of_selections_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = recorded(tmp_path / "r.jsonl")
    path.write_text(path.read_text() + '{"run": "b"')
    assert run(["trace", "info", str(path)]) == 2
    assert "r.jsonl:2" in capsys.readouterr().err
