"""Does `offstage bench asic` hold both engines to theory, and do its figures fit its table?"""

import pytest

from offstage.bindings.errors import RunFailed
from offstage.testbeds.bench import asic
from offstage.testbeds.cli import run


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SIMPY", 4000), ("OUR", 50_000), ("CHIP", 2000)):
        monkeypatch.setattr(asic, f"{name}_REQUESTS", value)
    monkeypatch.setattr(asic, "MEAN_ERROR", 0.3)  # with so few requests


def test_every_figure_stands_in_the_table(small: None) -> None:
    pytest.importorskip("simpy", reason="no simpy: pip install '.[test]'")
    result = asic.bench_asic(requests=3 * asic.BATCH, rounds=1)
    assert result.long.requests == 3 * asic.BATCH and result.stages.ratio > 0
    assert result.chips[0].events_per_request < result.chips[1].events_per_request
    assert [str(row.aim) for row in result.rows if row.aim] == [
        ">= 25x",
        ">= 1 M/s",
        ">= 1 M/s",
        "< 16 MiB",
    ]


def test_an_engine_that_misses_theory_is_no_reference(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("simpy", reason="no simpy: pip install '.[test]'")
    monkeypatch.setattr(asic, "MEAN", 12.0)
    monkeypatch.setattr(asic, "MEAN_ERROR", 0.05)
    with pytest.raises(RunFailed, match="theory gives 12"):
        asic.bench_asic(requests=1000, rounds=1)


@pytest.mark.parametrize("option", ["--requests", "--rounds"])
def test_a_bench_without_end_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "asic", option, str(10**23)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert option in line and "less than or equal to" in line
