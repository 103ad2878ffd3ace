"""Do the benches' tables say "reached" and "missed" where the figures do, and fit a terminal?"""

import io
import re

import pytest
from bench_results import POD, RESULTS
from rich.console import Console

from offstage.testbeds.bench.rows import BenchResult, Row, aimed
from offstage.testbeds.cli.folded import folded
from offstage.testbeds.report.page.tables import as_html
from offstage.testbeds.table import Table

WIDTH = 80


def printed(table: Table) -> list[str]:
    """Return the lines a command prints in 80 columns."""
    out = io.StringIO()
    Console(file=out, width=WIDTH, soft_wrap=True, color_system=None).print(folded(table.drawn()))
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("name", RESULTS)
def test_every_table_fits_80_columns(name: str) -> None:
    """Every cell is whole and apart from its neighbours, and every share is 0 to 100 %."""
    for table in RESULTS[name].tables():
        lines = printed(table)
        text = "\n".join(lines)
        assert max(map(len, lines)) <= WIDTH and "…" not in text, text
        for part in table.parts:
            for row in part.rows:
                for cell in filter(None, (one.text for one in table.cells(row))):
                    alone = rf"(^|\s){re.escape(cell)}(\s|$)"
                    assert re.search(alone, text, re.MULTILINE), (cell, text)
        for share in re.findall(r"([\d.,]+) ?%", text):
            assert 0 <= float(share.replace(",", "")) <= 100, text


def test_of_nothing_there_is_no_hit_rate() -> None:
    """Without known blocks the hit rate is a dash, not the number of hits in percent."""
    (line,) = [one for one in printed(POD.own_tables()[0]) if one.startswith("no fault ")][:1]
    assert line.split() == ["no", "fault", "12,854", "–"]


@pytest.mark.parametrize(
    ("name", "reached", "missed"),
    [
        ("fabric", ["64 KiB hit, checksum included"], ["command round trip p50, C"]),
        ("links", ["nixl 64 KiB one read"], ["nixl 64 KiB 32 together"]),
        ("storage", ["64 KiB depth 32 bandwidth"], ["64 KiB depth 1, huge latency p50"]),
        ("core", ["lru on zipf", "decode, ema, 64 of 2048"], ["lru on other"]),
        ("qos", [], ["Jain's index of bytes by weight"]),
        ("tenants", ["demands, p99"], ["all ways, p99", "heavy: bytes, weight 3"]),
        ("pod", [], ["death dpu1: a connection waited", "death dpu1: hits back"]),
    ],
)
def test_aims_stand_at_their_rows(name: str, reached: list[str], missed: list[str]) -> None:
    """A page has the same cells in the same order as the terminal."""
    result = RESULTS[name]
    table = result.tables()[0]
    lines, page = printed(table), as_html(table)
    assert result.about() and "seed 1" in "".join(result.about())
    for word, names in (("reached", reached), ("missed", missed)):
        found = [line for line in lines if line.endswith(word)]
        assert all(any(line.startswith(one) for line in found) for one in names)
        assert page.count(f"<td>{word}</td>") == len(found)
    assert result.document()["aims_met"] is not bool(missed)


def test_loads_past_the_page_cache_are_held_to_fio() -> None:
    """A load is held to fio's reads, and not to LMCache's files, which are slower."""
    aims = {row.name: row.aim for row in RESULTS["l2"].rows if row.name.startswith("direct")}
    met = {name: aim.met for name, aim in aims.items() if aim is not None}
    assert met == {
        "direct, load: plugin to fio": True,
        "direct, load: native_plugin to fio": False,
    }


def test_an_aim_is_judged_by_values() -> None:
    """An aim is judged at its bound, beyond it, and without a value."""
    assert [aimed(one, "<=", 1.5).met for one in (1.5, 1.6, None)] == [True, False, False]
    assert [aimed(one, ">=", 1.5).met for one in (1.5, 1.4)] == [True, False]
    assert not aimed(60, "<", 60, "s").met
    result = BenchResult(
        rows=[Row("a", "ns", 3.0, aim=aimed(3.0, "<=", 2.0, "ns")), Row("b", "ns")]
    )
    assert result.missed == ["a <= 2 ns"]
