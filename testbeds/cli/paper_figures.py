"""The figures of a page from the file of its data, whose content tells which page it is.

A run of a demo or of the lab has a summary.json, a comparison of devices a compare.json, a plan
a plan.json, and `bench engine --out` writes a separate file.
"""

from collections.abc import Sequence
from pathlib import Path

from offstage.bindings.errors import BadInput
from offstage.testbeds.report.page.files import (
    SUMMARY_NAME,
    holds_lab_summary,
    read_lab_summary,
    read_struct,
    read_summary,
)
from offstage.testbeds.report.page.plot import Figure

__all__ = ["figures_of_file", "files_of"]

FIX = "name the folder of a run, a comparison or a plan, or a JSON file of `bench engine --out`"


def files_of(run: Path) -> list[Path]:
    """The data files in a folder, or the file itself. BadInput if there is none."""
    from offstage.testbeds.plan.page import JSON_NAME as PLAN
    from offstage.testbeds.report.compare.page import JSON_NAME as COMPARE

    if not run.is_dir():
        return [run]
    found = [run / name for name in (SUMMARY_NAME, COMPARE, PLAN) if (run / name).is_file()]
    if not found:
        raise BadInput("nothing that figures are made of", str(run), FIX)
    return found


def figures_of_file(path: Path) -> Sequence[object]:
    """The figures of the page that was made from the file; BadInput if it is not such a file."""
    from offstage.testbeds.plan.page import JSON_NAME as PLAN
    from offstage.testbeds.report.compare.page import JSON_NAME as COMPARE

    if path.name == COMPARE:
        from offstage.testbeds.report.compare import columns, page

        return page.figures_of(read_struct(path, columns.Comparison, FIX))
    if path.name == PLAN:
        from offstage.testbeds.plan import page as plan_page
        from offstage.testbeds.plan.result import Plan

        return plan_page.figures_of(read_struct(path, Plan, FIX))
    if path.name == SUMMARY_NAME:
        return _of_summary(path)
    return _of_engine(path)


def _of_summary(path: Path) -> Sequence[object]:
    if holds_lab_summary(path):
        from offstage.testbeds.report.lab import page as lab_page

        return lab_page.figures_of(read_lab_summary(path))
    from offstage.testbeds.report.run import page as run_page

    return run_page.figures_of(read_summary(path))


def _of_engine(path: Path) -> list[Figure]:
    from offstage.testbeds.bench.engines.result import EngineResult
    from offstage.testbeds.report.engine import figures_of

    return figures_of(read_struct(path, EngineResult, FIX))
