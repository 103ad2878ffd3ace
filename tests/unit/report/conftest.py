"""Shared by the tests of the report: synthetic runs and summaries, see `synthetic.py`."""

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
    """`lab.points(...)` and `lab.summary(...)`: synthetic too, of a lab; see `lab_synthetic.py`."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("lab_synthetic.py"))))


@pytest.fixture(scope="session")
def whole(lab: SimpleNamespace) -> LabSummary:
    """A lab's summary with every kind of row."""
    summary: LabSummary = lab.summary()
    return summary
