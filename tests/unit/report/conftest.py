"""Synthetic runs and summaries for the tests of the report, from `synthetic.py`."""

import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from axis_numbers import unnumbered

from offstage.testbeds.lab.results.summary import LabSummary
from offstage.testbeds.report.page.pictures import Picture


@pytest.fixture(autouse=True, scope="session")
def numbers_on_all_axes() -> Iterator[None]:
    """No test of this folder draws a picture one of whose axes has no numbers."""
    with pytest.MonkeyPatch.context() as patched:
        svg, files = Picture.svg, Picture.files

        def checked(drawn: Picture, summary: str, scroll: bool = False) -> str:
            text = svg(drawn, summary, scroll)
            assert unnumbered(drawn.figure) == [], summary
            return text

        def filed(drawn: Picture, folder: Path, name: str) -> Iterator[tuple[str, Path]]:
            yield from files(drawn, folder, name)
            assert unnumbered(drawn.figure) == [], name

        patched.setattr(Picture, "svg", checked)
        patched.setattr(Picture, "files", filed)
        yield


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
