"""Is a comparison's page complete: all pictures, with units on their axes and provenance?"""

import re

import msgspec
import pytest
from compare_synthetic import comparison

from offstage.testbeds.report.compare.columns import UnitFigures
from offstage.testbeds.report.compare.models_shown import carried_sentence
from offstage.testbeds.report.compare.page import render
from offstage.testbeds.report.compare.style import UNITS_MAX, unit_colours

PICTURES = {
    "throughput": ("GPUs that share one device", "tokens/s of all of them", "asic_7nm"),
    "models": ("sessions that one device carries (modelled)", "large at 1M", "4, its memory"),
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


def test_models_stand_beside_each_other(page: str) -> None:
    """Does the sentence say for the largest and the smallest model what binds, and call a tie one?
    With one load there is neither sentence nor table."""
    whole = comparison()
    said = carried_sentence(whole.models)
    assert (
        "A session of large at 1M has 320 GiB: bluefield3 carries 4 (bound by its memory)" in said
    )
    assert "A session of small at 1M has 10 GiB: bluefield3 carries 10 (bound by NVMe)" in said
    assert said.count("a tie with bluefield3") == 1 and "at least 3 times bluefield3" in said
    (table,) = re.findall(r'<section id="by-model".*?</section>', page, re.DOTALL)
    assert "1,000 times" in table and "a tie" in table and "at least 3 times" in table
    assert "by-model" not in render(msgspec.structs.replace(whole, models=[]))


def test_what_is_not_as_the_run_measured_it_says_so(page: str) -> None:
    """Hits and fetches under a load are not the run's alone: a modelled column has its own. The
    measured stall is put together, and is not that of the run's report."""
    text = " ".join(page.split())
    assert "Hits and fetch times are at the recorded run&#x27;s own load, not at this one." in text
    assert "In the measured run it is put together from the log" in text


def test_no_two_units_of_a_chart_have_one_colour() -> None:
    """Of fifteen units as many as there are colours have one each, the largest; the rest is grey,
    and the legend says so."""
    whole = comparison()
    units = [UnitFigures(name=f"unit {n}", ns_p50=10.0 + n, ns_p99=20.0 + n) for n in range(15)]
    page = render(
        msgspec.structs.replace(
            whole, columns=[msgspec.structs.replace(one, units=units) for one in whole.columns]
        )
    )
    section = re.search(r'<section id="waterfall".*?</section>', page, re.DOTALL)
    assert section is not None
    shown = {f"unit {n}" for n in range(15) if f">unit {n}<" in section[0]}
    assert shown == {f"unit {n}" for n in range(15 - UNITS_MAX, 15)}
    assert ">others<" in section[0]
    assert len(set(unit_colours([one.name for one in units[:UNITS_MAX]]).values())) == UNITS_MAX
