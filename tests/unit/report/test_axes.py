"""Does every axis have numbers, however narrow its span is?

All pictures that tests of this folder draw are checked too (`conftest.py`).
"""

from pathlib import Path

import pytest
from axis_numbers import numbers, unnumbered

from offstage.testbeds.report.page.pictures import for_paper, picture, plain_logs

SPANS = [
    *((45.0, 444.0), (2.0, 9.0), (0.12, 0.9), (101.0, 999.0), (0.99, 1.01), (3.0, 30.0)),
    *((1.0, 10.0), (0.5, 20.0), (1.0, 1e9), (3e-4, 0.7)),
]


@pytest.mark.parametrize("span", SPANS, ids=str)
def test_a_logarithmic_axis_has_numbers(span: tuple[float, float]) -> None:
    """On a wide page, on a narrow one and in a paper; between them as few as fit."""
    for drawing, inches in ((picture, 11.2), (picture, 3.7), (for_paper, 3.4)):
        with drawing(inches, 3.0) as drawn:
            axes = drawn.axes()
            plain_logs(axes, x="number", y="percent")
            axes.plot(span, span)
            axes.set(xlim=span, ylim=span)
            drawn.svg(f"from {span[0]} to {span[1]}")
            for axis in (axes.xaxis, axes.yaxis):
                shown = list(numbers(axis))
                assert 2 <= len(shown) <= 10 and len(set(shown)) == len(shown), shown


def test_an_axis_without_numbers_is_noticed(tmp_path: Path) -> None:
    """By its page and by its files."""
    with for_paper() as drawn:
        axes = drawn.axes()
        axes.set_xticks([1, 2], ["", ""])
        axes.set_yticks([0.5], ["a row"])
        assert len(unnumbered(drawn.figure)) == 1
        for draw in (lambda: drawn.svg("nothing"), lambda: list(drawn.files(tmp_path, "x"))):
            with pytest.raises(AssertionError, match="axes 0: x has 0 numbers"):
                draw()
