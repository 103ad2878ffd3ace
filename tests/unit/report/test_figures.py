"""Does one command write every figure of every page as a file of a paper's size, reproducibly?"""

import json
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from against_schema import checked
from compare_synthetic import comparison

from offstage.bindings.durable import write_text
from offstage.bindings.stages import StageTimes
from offstage.testbeds.cli import run as offstage
from offstage.testbeds.cli.paper_figures import figures_of_file
from offstage.testbeds.document import as_json
from offstage.testbeds.lab.results.paired import Difference
from offstage.testbeds.lab.results.summary import Interval
from offstage.testbeds.live.results import ShownTick
from offstage.testbeds.report import write_summary
from offstage.testbeds.report.compare.page import figures_of as figures_of_comparison
from offstage.testbeds.report.lab.differences_page import write_differences
from offstage.testbeds.report.lab.pareto import Spot, curves, pareto_figure
from offstage.testbeds.report.lab.series import Look, view_of
from offstage.testbeds.report.page.files import write_lab_summary
from offstage.testbeds.report.page.pictures import COLUMN_INCHES, PAPER_DOTS_PER_INCH
from offstage.testbeds.report.page.plot import PAGE_INCHES, Figure, Plot, write_figures

ENGINE = {
    "arms": {"without": {"first_s": [0.1, 0.4, 0.2]}, "tier": {"first_s": [0.05, 0.2, 0.1]}},
    "tokens": [10, 20],
    "requests": 3,
    "trace": "t",
    "rounds": 1,
    "scale": 1.0,
    "hurry": 2.0,
    "reuse": 0.5,
    "storage": "emulated",
    "provenance": "emulated",
}


def widths_inches(folder: Path) -> set[float]:
    """Return the PNG files' widths by their headers."""
    found = set()
    for path in folder.glob("*.png"):
        width, _ = struct.unpack(">II", path.read_bytes()[16:24])
        found.add(round(width / PAPER_DOTS_PER_INCH, 1))
    return found


def difference(value: Interval | None, **own: Any) -> Difference:
    row: dict[str, Any] = {
        "figure": "nontrivial_hit",
        "workload": "generated",
        "buffer_over_k": 1.0,
        "hbm_pool_over_k": 0.0,
        "first_run": "a",
        "first": "none",
        "second_run": "a",
        "second": "ema",
        "requests": 6,
        "weak": False,
        "first_value": value,
        "second_value": value,
        "difference": value,
    }
    return Difference(**(row | own))


def names_of(sections: Sequence[object]) -> list[str]:
    return [one.name for one in sections if isinstance(one, Figure)]


def test_the_command_writes_every_figure_of_a_demo(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures have the page's names, bars of markup included, each as SVG, PDF and PNG."""
    stage = StageTimes(
        count=70, ns_mean=5e4, ns_p50=1023, ns_p90=90_000, ns_p99=120_000, ns_max=130_000
    )
    spans = (("fetch", 0, 0.0, 900.0), ("stall", 0, 50.0, 900.0), ("compute", 1, 900.0, 1_400.0))
    full = {"stages": {"copy": stage}, "timeline": ShownTick(7, "x", spans)}
    summary = made.summary(runs=[made.run((), hit=0.8), made.run(("window",), **full)])
    write_summary(summary, tmp_path / "summary.json")
    out = tmp_path / "figures"
    assert offstage(["report", str(tmp_path), "--figures", str(out), "--format", "json"]) == 0
    files = checked("report", capsys.readouterr().out)["files"]
    sections = {name.partition(".")[0].partition("-synthetic")[0] for name in files}
    assert sections == {
        "steps",
        "served",
        "lead",
        "stall",
        "hits-over-traffic",
        "fates",
        "timeline",
        "stages",
    }
    assert sorted(out.iterdir()) == sorted(Path(one) for one in files.values())
    assert len(files) == 3 * len(sections) and widths_inches(out) == {COLUMN_INCHES, PAGE_INCHES}
    texts = [path.read_text(encoding="utf-8") for path in out.glob("*.svg")]
    assert all("<text" in text and "var(--" not in text for text in texts), "text, and for print"
    assert not (tmp_path / "report.html").exists(), "figures are all that was asked for"


def test_a_lab_run_and_a_comparison_have_theirs(lab: SimpleNamespace, tmp_path: Path) -> None:
    """Every section of the page that is a picture is written, and none twice."""
    write_lab_summary(lab.summary(), tmp_path / "summary.json")
    names = names_of(figures_of_file(tmp_path / "summary.json"))
    assert names == ["pareto", "buffer", "hints", "misses", "layers", "lead", "requests"]
    found = comparison()
    write_text(tmp_path / "compare.json", as_json(found))
    checked("file compare", (tmp_path / "compare.json").read_text(encoding="utf-8"))
    again = names_of(figures_of_file(tmp_path / "compare.json"))
    assert again == names_of(figures_of_comparison(found)) and len(again) == 9


def test_an_engines_file_has_its_own_and_another_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench = tmp_path / "engine.json"
    bench.write_text(json.dumps(ENGINE))
    assert offstage(["report", str(bench), "--figures", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "first-token.svg",
        "first-token.pdf",
        "first-token.png",
    }
    for text, given in (
        ('{"arms": 7}', bench),
        ('{"arms": {"a": {"first_s": []}}}', bench),
        ("", tmp_path / "out"),
        ("", tmp_path / "nowhere"),
    ):
        bench.write_text(text)
        capsys.readouterr()
        assert offstage(["report", str(given), "--figures", str(tmp_path / "more")]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_same_figure_gives_the_same_bytes(lab: SimpleNamespace, tmp_path: Path) -> None:
    """Without dates and random names, pages and their files can be compared byte by byte."""
    summary = lab.summary(points=lab.points(policies=("none", "ema"), buffers=(1.0, 2.0)))
    path = tmp_path / "summary.json"
    write_lab_summary(summary, path)
    pages = [str(figures_of_file(path)[0]) for _ in range(2)]
    assert pages[0] == pages[1]
    written = [write_figures(figures_of_file(path)[:1], tmp_path / name) for name in "ab"]
    for kind in ("svg", "pdf", "png"):
        one, other = (paths[f"hits-over-traffic.{kind}"].read_bytes() for paths in written)
        assert one == other and len(one) > 1_000


def test_differences_without_values_are_a_page_too(tmp_path: Path) -> None:
    """Neither side may have a figure, such as hits of demands without non-trivial ones."""
    paths = write_differences([difference(None)], tmp_path, "1")
    checked("file differences", paths["json"].read_text(encoding="utf-8"))
    assert set(paths) == {"html", "csv", "tex", "json"}


def test_rows_of_two_workloads_and_pools_have_labels_of_their_own(tmp_path: Path) -> None:
    value = Interval(value=0.1, low=0.0, high=0.2)
    rows = [
        difference(value, workload=workload, hbm_pool_over_k=pool)
        for workload in ("gvr", "hisparse")
        for pool in (0.0, 1.0)
    ]
    page = write_differences(rows, tmp_path, "1")["html"].read_text()
    for workload in ("gvr", "hisparse"):
        for pool in (0, 1):
            assert f"{workload}, HBM pool {pool}\u00a0k" in page


def test_names_of_plots_are_file_names_and_no_two_are_one(tmp_path: Path) -> None:
    plots = [Plot(name, "", lambda drawn: None) for name in ("../a b", "a/B", "é" * 200, "x" * 99)]
    paths = write_figures([Figure("f", "t", plots, ""), "a section of markup"], tmp_path)
    assert {"a-b.svg", "a-b-2.svg", "figure.svg"} <= set(paths)
    assert all(path.parent == tmp_path and len(path.name) < 80 for path in paths.values())


def test_a_page_shows_what_the_files_hold(lab: SimpleNamespace) -> None:
    """A single picture is drawn wide and once more for phones, one of several only once. No two
    names in a page are the same."""
    few: dict[str, Any] = {"policies": ("none", "ema"), "buffers": (1.0, 2.0), "seeds": (1,)}
    alone = lab.points(**few)
    beside = alone + lab.points(**few, hbm_pool_over_k=2.0)
    for points, wide in ((alone, 1), (beside, 0)):
        text = str(pareto_figure(view_of(points)))
        assert text.count("<svg") == 2 and text.count('class="wide"') == wide
        names = re.findall(r'\bid="([^"]+)"', text)
        assert len(names) == len(set(names))


def test_settings_of_one_parameter_are_a_curve(lab: SimpleNamespace) -> None:
    """In the order of the parameter, and only where nothing else differs."""

    def spots(parameters: list[dict[str, int]]) -> list[Spot]:
        few: dict[str, Any] = {"policies": ("ema",), "buffers": (2.0,), "seeds": (1,)}
        return [
            Spot(Look("", "", ""), point, Interval(value=0.9), Interval(value=1.0))
            for own in parameters
            for point in lab.points(**few, parameters=own)
        ]

    budgets = [{"traffic": traffic, "degree": 1} for traffic in (1500, 1100, 1300)]
    (curve,) = curves(spots(budgets))
    assert [one.point.info.parameters["traffic"] for one in curve] == [1100, 1300, 1500]
    assert curves(spots([{"traffic": 1100, "degree": 1}, {"traffic": 1300, "degree": 2}])) == []
    assert curves(spots([{"traffic": 1100}, {}])) == []
