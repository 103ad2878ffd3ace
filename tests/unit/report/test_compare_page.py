"""Is a comparison's page complete: all pictures, with units on their axes and provenance?"""

import re

import pytest
from compare_synthetic import comparison

from offstage.testbeds.report.compare.page import render

PICTURES = {
    "throughput": ("GPUs that share one device", "tokens/s of all of them", "asic_7nm"),
    "latency": (
        "fetch latency, µs",
        "share of fetches that took longer",
        "measured DPU (measured)",
    ),
    "waterfall": ("share of its time, %", "asic_7nm, uncalibrated", "(modelled)"),
    "utilisation": ("time in the run, s", "unit", "(modelled)"),
    "load": ("served, GB/s", "fetch latency p99, µs"),
    "tornado": ("over this device's, ×", "GB/s", "(modelled)"),
    "crossover": ("codec rate, GB/s", "of raw", "(modelled)"),
    "isolation": ("%", "fetch latency p99, µs", "(modelled)"),
}


@pytest.fixture(scope="module")
def page() -> str:
    return render(comparison())


@pytest.mark.parametrize("name", PICTURES)
def test_every_picture_has_axes_with_units_and_provenance(page: str, name: str) -> None:
    section = re.search(rf'<section id="{name}".*?</section>', page, re.DOTALL)
    assert section is not None
    assert "<svg" in section[0]
    for text in PICTURES[name]:
        assert text in section[0], text
