"""Do tenants of one daemon keep to their shares of the drive, and does each get its own blocks?

`offstage bench tenants` reports times; this test checks order and bytes. In virtual time
dpu/firmware/test/test_device_tenants.c shows that a flood leaves a victim its turns.
"""

from pathlib import Path

import pytest

from offstage.testbeds.bench import tenants
from offstage.testbeds.bench.tenants import bench_tenants
from offstage.testbeds.cli import run


def test_a_tenant_among_floods_gets_its_blocks(tmp_path: Path) -> None:
    """A victim among floods of every kind gets each of its blocks, with as many hits as alone. It
    has its own slots, and is never told to retry."""
    found = bench_tenants(seconds=0.1, folder=tmp_path)
    hits = {name: phase.hit_percent for name, phase in found.phases.items()}
    assert len(set(hits.values())) == 1 and set(hits) == {
        "alone",
        "compute",
        "demands",
        "all ways",
        "alone again",
    }
    assert all(moved > 0 for moved in found.shares.bytes)
    for phase in found.phases.values():
        assert phase.steps.count >= phase.fetches and phase.taken_in_ns_mean > 0
        assert all(one > 0 for one in phase.steps.slowest_percent.values())
    (table,) = found.own_tables()
    names = [table.cells(row)[0].text for row in table.parts[0].rows]
    assert "slowest 1 %: until its turn" in names


def test_a_missed_aim_decides_where_that_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an unreachable aim and the strict option the file is there, and the exit code is 1."""
    monkeypatch.setattr(tenants, "WEIGHT_ERROR_MAX", -1.0)
    words = ["bench", "tenants", "--seconds", "0.1", "--folder", str(tmp_path)]
    assert run([*words, "--out", str(tmp_path / "found.json"), "--strict"]) == 1
    said = capsys.readouterr()
    assert "missed: " in said.err and "flood: bytes, weight 1 <= -100.0 % off" in said.err
    assert "where steps' time went" in said.out and (tmp_path / "found.json").exists()
