"""Does the table mark the best value, and fit a terminal?"""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from offstage.bindings.notes import Note
from offstage.testbeds.report.run.runs import groups, in_order, set_colours
from offstage.testbeds.report.run.table import best, cell, console_table


def test_best_is_by_direction_and_by_storage(made: SimpleNamespace) -> None:
    first, second = groups(made.summary().runs)
    assert best(first, "hit") == {3} and best(second, "hit") == {3}
    assert best(first, "traffic_ratio") == {0} and best(first, "stall_ms_p99") == {3}


def test_what_reads_the_same_is_marked_the_same(made: SimpleNamespace) -> None:
    rates = (0.8, 0.90001, 0.90002)
    runs = [made.run(p, hit=r) for p, r in zip(made.SETS, rates, strict=False)]
    for run, rate in zip(runs, rates, strict=True):
        run.hit = rate
    (group,) = groups(runs)
    assert best(group, "hit") == {1, 2}
    assert best(group, "blocks_corrupt") == set() and best(group, "hbm_share") == set()


def test_what_has_no_meaning_is_a_dash(made: SimpleNamespace) -> None:
    assert cell(made.run(()), "accuracy") == "–" and cell(made.run(), "accuracy") != "–"


def test_measured_comes_first_and_orders_of_a_set_are_one(made: SimpleNamespace) -> None:
    runs = [made.run(storage="b", provenance=p) for p in ("modelled", "emulated", "measured")]
    assert [run.provenance for run in in_order(runs)] == ["measured", "emulated", "modelled"]
    colours = set_colours([made.run(("ema", "window")), made.run(("window", "ema"))])
    assert len(colours) == 1


def test_the_console_table_fits_100_columns_and_is_whole(made: SimpleNamespace) -> None:
    out = io.StringIO()
    Console(file=out, width=100).print(console_table(made.summary()))
    lines = out.getvalue().splitlines()
    noted = [at for at, line in enumerate(lines) if line.startswith("† ")]
    assert noted == [2 + 2 * 5 + 1] and "…" not in out.getvalue()
    assert sum("96.2 %" in line for line in lines) == 1


def test_a_note_keeps_what_stands_in_brackets(
    made: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fix that names an extra is text, not terminal markup."""
    from offstage.testbeds.cli.common import Format
    from offstage.testbeds.cli.summary import print_summary

    run = made.run(notes=[Note("one", "pip install '.[gpu-cuda12]'")])
    print_summary(made.summary(runs=[run], curve=[]), None, Format.text)
    assert "note: pip install '.[gpu-cuda12]'" in capsys.readouterr().out
