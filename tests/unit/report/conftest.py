"""Synthetic runs and summaries for the tests of the report, from `synthetic.py`."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from offstage.testbeds.lab.results.summary import LabSummary


@pytest.fixture(scope="session")
def made() -> SimpleNamespace:
    """`made.run(...)` and `made.summary(...)`: synthetic, and results of nothing."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("synthetic.py"))))


@pytest.fixture(scope="session")
def lab() -> SimpleNamespace:
    """`lab.points(...)` and `lab.summary(...)`: the same for a lab, from `lab_synthetic.py`."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("lab_synthetic.py"))))


@pytest.fixture(scope="session")
def whole(lab: SimpleNamespace) -> LabSummary:
    """A lab summary with every kind of row."""
    summary: LabSummary = lab.summary()
    return summary
