"""Does a sweep run every chip of its spec once, and continue after an interruption?"""

from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from against_schema import checked
from asic_logs import recorded, written

from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.ranges import hypercube, value_at, varied
from offstage.asic_model.replay import decision_replay
from offstage.asic_model.trace import read_trace
from offstage.bindings.errors import BadInput
from offstage.testbeds.asic.spec import load, points_of
from offstage.testbeds.asic.sweep import sweep
from offstage.testbeds.cli import run
from offstage.testbeds.progress import Silent

SPEC = """
run = "run"
draws = 2
over = ["codec.ratio", "nvme.drives"]
[grid]
"codec.lanes" = [1, 32]
"""


def spec_in(tmp_path: Path, text: str = SPEC) -> Path:
    written(tmp_path, recorded())
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return path


def test_a_hypercube_covers_every_range_evenly() -> None:
    """Each parameter has one value in each equally probable stretch of its range."""
    cube = hypercube(5, 40, seed=3)
    assert cube.shape == (40, 5)
    assert (np.sort((cube * 40).astype(int), axis=0) == np.arange(40)[:, None]).all()
    for name, number in varied(read_preset("asic_7nm")).items():
        ends = [value_at(number, share) for share in (0.0, 1 - 1e-12)]
        assert ends == pytest.approx([number.low, number.high]), name


def test_points_are_the_grid_with_draws_in_each(tmp_path: Path) -> None:
    path = spec_in(tmp_path)
    points = points_of(load(path), path)
    assert [one.values["codec.lanes"] for one in points] == [1, 1, 32, 32]
    assert [one.number for one in points] == [0, 1, 2, 3]
    assert all(set(one.values) == {"codec.lanes", "codec.ratio", "nvme.drives"} for one in points)
    assert points[0].values["codec.ratio"] == points[2].values["codec.ratio"]
    everything = spec_in(tmp_path, 'run = "run"\ndraws = 3\npreset = "bluefield3"\n')
    drawn = points_of(load(everything), everything)
    assert all(len(one.values) > 10 for one in drawn) and len(drawn) <= 3


def test_what_a_run_says_of_its_heads_is_not_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every point uses the run's heads, and drawing them is refused; a grid may still set them."""
    path = spec_in(tmp_path, 'run = "run"\ndraws = 2\n')
    (tmp_path / "run/summary.json").write_text('{"workload": {"kv_heads": 2}}')
    names = [
        set(one.values) for one in (*points_of(load(path), path, 2), *points_of(load(path), path))
    ]
    assert ["metadata.heads" in one for one in names] == [False, False, True, True]
    grid = '[grid]\n"metadata.heads" = [1, 2, 8]\n"metadata.heads_per_entry" = [1]\n'
    path = spec_in(tmp_path, f'run = "run"\n{grid}')
    hashes = [row["hash"] for row in sweep(path, tmp_path / "out", Silent(), jobs=1)]
    path = spec_in(tmp_path, 'run = "run"\n[grid]\n"metadata.heads_per_entry" = [1]\n')
    assert [row["hash"] for row in sweep(path, tmp_path / "said", Silent(), jobs=1)] == hashes[1:2]
    assert len(set(hashes)) == 3
    path = spec_in(tmp_path, 'run = "run"\ndraws = 1\nover = ["metadata.heads"]\n')
    assert run(["asic", "sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    assert "metadata.heads" in capsys.readouterr().err


def test_a_row_is_the_run_of_that_chip(tmp_path: Path) -> None:
    path = spec_in(tmp_path)
    rows = sweep(path, tmp_path / "out", Silent(), jobs=1)
    assert len(rows) == 4
    trace = read_trace(tmp_path / "run")
    for row in rows:
        values = {name: row[name] for name in ("codec.lanes", "codec.ratio", "nvme.drives")}
        one = decision_replay(trace, read_preset("asic_7nm").with_(values), seed=1)
        assert (row["fetch_ns_p99"], row["hits"], row["hash"]) == (
            one.fetch_ns.p99,
            one.hits,
            one.hash,
        )
    table = parquet.read_table(tmp_path / "out/sweep.parquet")
    assert table.to_pylist() == rows


def test_a_sweep_goes_on_and_many_processes_give_the_same(tmp_path: Path) -> None:
    """A stored point is not computed again, a torn one is; two processes give the same rows."""
    path = spec_in(tmp_path)
    first = sweep(path, tmp_path / "out", Silent(), jobs=1)
    points = sorted((tmp_path / "out/points").iterdir())
    before = {point.name: point.stat().st_mtime_ns for point in points}
    points[1].write_bytes(b"{")
    assert sweep(path, tmp_path / "out", Silent(), jobs=1) == first
    after = {point.name: point.stat().st_mtime_ns for point in points}
    assert [name for name in before if before[name] != after[name]] == [points[1].name]
    assert sweep(path, tmp_path / "two", Silent(), jobs=2) == first


def test_a_sweep_is_bounded_before_its_points_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what is asked: a grid times its draws."""
    monkeypatch.setattr(Preset, "with_", None)
    axes = "\n".join(f'"{name}.queue" = {[*range(1, 11)]}' for name in ("dma", "codec", "qos"))
    path = spec_in(tmp_path, f'run = "run"\ndraws = 101\n[grid]\n{axes}\n')
    with pytest.raises(BadInput, match="101,000 points, and a sweep has 100,000 at most"):
        load(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('run = "run"', "nothing varies; give draws, or axes in [grid]"),
        ('run = "run"\nover = ["codec.ratio"]\n[grid]\n"codec.lanes" = [1]', "over needs draws"),
        ('run = "run"\n[grid]\n"codec.lane" = [1]', "unknown parameter 'codec.lane'; did you mean"),
        ('run = "run"\n[grid]\n"codec.lanes" = []', "codec.lanes has no values"),
        ('run = "run"\n[grid]\n"front_end.lanes" = [32]', "32 lanes"),
        ('run = "run"\ndraws = 1\nover = ["front_end.lane_rate"]', "unknown parameter with a"),
        ('run = "run"\ndraws = -1', "draws: expected `int` >= 0"),
        ('run = "run"\ndraws = 1\nstorage = "floppy"', "no drive 'floppy'; choose one of"),
        ('run = "run"\ndraws = 1\npreset = "asic_9nm"', "no preset 'asic_9nm'"),
        ('run = "walk"\ndraws = 1', "cannot be read"),
        ('run = "run"\n[grid]\n"codec.lanes" = [4, 0]', "[grid]: codec.lanes: is 0; give 1"),
        ('run = "run"\n[grid]\n"cxl.latency" = [200, 600]', "cxl.latency has no effect"),
        ('run = "run"\ndraws = 1\nover = ["cxl.latency"]', "cxl.latency has no effect"),
        ('rum = "run"\ndraws = 1', "unknown key 'rum'; did you mean 'run'?"),
        ("draws = 1", "missing required field `run`"),
    ],
)
def test_a_bad_spec_is_one_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spec_in(tmp_path, text)
    assert run(["asic", "sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert said in line and line.startswith("offstage: "), line


def test_the_command_shows_what_came_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["asic", "sweep", str(spec_in(tmp_path)), "--out", str(tmp_path / "out")]
    assert run([*command, "--jobs", "1", "--format", "json"]) == 0
    shown = checked("asic sweep", capsys.readouterr().out)
    assert shown["points"] == 4 and Path(shown["table"]).is_file()
    assert run([*command, "--jobs", "1"]) == 0
    assert "4 chips, modelled and uncalibrated" in capsys.readouterr().out
    assert run([*command, "--jobs", "-1"]) == 2
    assert run([*command, "--cluster", "here"]) == 2
    assert "tcp://host:8786" in capsys.readouterr().err
