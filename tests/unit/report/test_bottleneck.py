"""Does the tree name what binds, by figures and by a re-run, and say what it cannot know?"""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from against_schema import checked

from offstage.asic_model.twice import CONTROL, DEVICE, FLASH, LINK
from offstage.testbeds.cli import run
from offstage.testbeds.lab.results.summary import Interval, LabSummary
from offstage.testbeds.report import write_summary
from offstage.testbeds.report.bottleneck.figures import (
    compute_share,
    figures_of_point,
    figures_of_run,
)
from offstage.testbeds.report.bottleneck.section import bottleneck_section, bottleneck_table
from offstage.testbeds.report.bottleneck.tree import (
    ARENA,
    COMPUTE,
    HBM,
    NOTHING,
    STEPS,
    Figure,
    Outcome,
    Rerun,
    by_figures,
    check,
    unchecked,
)
from offstage.testbeds.report.lab.page import render_lab
from offstage.testbeds.report.run.page import render


def figures(**values: float | None) -> dict[str, Figure]:
    """Figures of a run that waits and uses nothing, with these changed."""
    keys = {"compute": COMPUTE, "hbm": HBM, "arena": ARENA, "link": LINK}
    keys |= {"dpu": DEVICE, "flash": FLASH, "control": CONTROL}
    found = dict.fromkeys(STEPS, Figure(0.01))
    for key, value in values.items():
        found[keys[key]] = Figure(value, absent="" if value is not None else "not kept")
    return found


def rerun(base: float, gains: dict[tuple[str, ...], float]) -> Rerun:
    """Each change gives its gain over `base`; one that is named None cannot be run."""

    def outcomes(rows: Sequence[tuple[str, ...]]) -> list[Outcome | str]:
        return [
            "no pool" if HBM in row else Outcome(base * (1.0 + gains.get(row, 0.0)), 2.0)
            for row in rows
        ]

    return outcomes


@pytest.mark.parametrize(
    ("values", "binds"),
    [
        ({"compute": 0.80, "flash": 0.99}, COMPUTE),
        ({"compute": 0.79, "flash": 0.30, "link": 0.29}, FLASH),
        ({"link": 0.20}, LINK),
        ({"dpu": 0.50, "flash": 0.49, "arena": 0.9}, DEVICE),
        ({"control": 0.21, "hbm": 0.9}, CONTROL),
        ({"flash": 0.19, "arena": 0.20, "hbm": 0.9}, ARENA),
        ({"arena": 0.19, "hbm": 0.20}, HBM),
        ({"arena": 0.19, "hbm": 0.19, "flash": 0.19, "compute": 0.79}, NOTHING),
        ({"compute": None, "flash": 0.9}, None),
        ({"link": None, "flash": 0.9}, None),
        ({"arena": None}, None),
        ({"compute": 0.9, "link": None, "arena": None}, COMPUTE),
    ],
)
def test_each_step_binds_when_its_figure_says_so(
    values: dict[str, float | None], binds: str | None
) -> None:
    """From its limit on; and a figure that decides and is absent decides nothing."""
    assert by_figures(figures(**values)) == binds


def test_what_gains_most_binds_and_what_gains_then_is_next() -> None:
    """A re-run that confirms the figures: the answer names both limits, each by how much."""
    gains = {(FLASH,): 0.5, (LINK,): 0.2, (FLASH, LINK): 0.8, (FLASH, FLASH): 0.6}
    found = check("run", "arm", figures(flash=0.9), rerun(100.0, gains))
    assert (found.binds, found.by_figures, found.gain) == (FLASH, FLASH, pytest.approx(0.5))
    assert found.next == LINK and found.next_gain == pytest.approx(1.8 / 1.5 - 1)
    assert found.sentence == (
        "Flash binds: flash twice as fast would give +50.0 % tokens/s (150 instead of 100, "
        "modelled); then link binds (+20.0 %)."
    )
    assert found.reading == "The figures say so too: the flash is used 90.0 %."
    steps = {one.name: one for one in found.steps}
    assert list(steps) == list(STEPS) and steps[FLASH].gain_then == pytest.approx(1.6 / 1.5 - 1)
    assert steps[HBM].gain is None and steps[HBM].rerun_absent == "no pool"


def test_a_rerun_that_refutes_the_figures_is_the_answer() -> None:
    """And says so; where compute binds, it says what of the tier would gain most."""
    gains = {(COMPUTE,): 0.9, (COMPUTE, COMPUTE): 2.6, (LINK,): 0.03}
    found = check("run", "arm", figures(flash=0.9), rerun(100.0, gains))
    assert found.binds == COMPUTE and found.next == COMPUTE and found.tier == LINK
    assert found.sentence.endswith("then compute binds again (+89.5 %).")
    assert "it would be flash, as the flash is used 90.0 %" in found.reading
    assert "Of the tier, a link of twice the rate gives most: +3.0 %." in found.reading


def test_a_change_that_gains_less_than_a_hundredth_relieves_nothing() -> None:
    """Nothing binds then, though the best of the changes is named."""
    found = check("run", "arm", figures(), rerun(100.0, {(ARENA,): 0.009, (LINK,): -0.5}))
    assert found.binds == NOTHING == found.by_figures and found.next is None
    assert "the most is +0.9 %, with twice the arena" in found.sentence
    assert found.reading == "No figure reaches its limit either."


def test_a_run_that_cannot_run_again_has_its_figures_and_the_reason() -> None:
    """No gain is 0 that was not run."""
    found = check("run", "arm", figures(flash=0.4), lambda rows: ["no log"] * len(rows))
    assert found == unchecked("run", "arm", figures(flash=0.4), "no log")
    assert found.binds is None and found.by_figures == FLASH
    assert found.sentence == "By its figures flash binds: the flash is used 40.0 %."
    assert found.reading == "Not checked by a re-run: no log."
    busy = unchecked("run", "arm", figures(compute=0.9), "no log")
    assert busy.sentence.endswith("90.0 % of a token's time is not spent waiting for blocks.")
    assert all(one.gain is None and one.tokens_per_s is None for one in found.steps)
    lost = unchecked("run", "arm", figures(link=None, dpu=None), "no log")
    assert lost.sentence.endswith("without those of link and DPU.")
    assert [one.figure_absent for one in lost.steps if one.figure is None] == ["not kept"] * 2


def test_figures_of_a_run_are_its_summarys(made: SimpleNamespace) -> None:
    """By hand: of 40 ms a token 10 are a wait, however many sessions decode at once."""
    one = msgspec.structs.replace(
        made.summary().runs[0],
        token_ms_mean=40.0,
        tokens_per_s=20.0,
        stall_ms_by_token=[0.0, 10.0, 20.0],
        selected=1000,
        demands=100,
        ends={"retained": 70, "capacity": 20, "policy": 5, "cold": 5},
    )
    found = figures_of_run(one)
    values = [found[name].value for name in (COMPUTE, HBM, ARENA)]
    assert values == [pytest.approx(0.75), pytest.approx(0.1), pytest.approx(0.25)]
    assert found[COMPUTE].provenance == one.provenance
    assert all(found[name].value is None and found[name].absent for name in (LINK, FLASH))
    blank = msgspec.structs.replace(one, selected=0, demands=0, ends={}, stall_ms_by_token=[])
    lost = figures_of_run(blank)
    assert all(each.value is None and each.absent for each in lost.values())
    assert compute_share(1.0, 0.0).value is None and compute_share(-1.0, 5.0).value == 1.0


def test_a_point_has_its_share_of_compute_where_a_device_timed_it(whole: LabSummary) -> None:
    """Of 80 ms a token 40 are the GPU's, however many sessions decode at once."""
    spec = {"name": "e", "workload": {"sessions": 4}, "tier": {"time_per_token": "40ms"}}
    summary = msgspec.structs.replace(whole, spec=spec)
    point = msgspec.structs.replace(whole.points[0], token_ms_mean=Interval(value=80.0))
    assert figures_of_point(point, summary)[COMPUTE].value == pytest.approx(0.5)
    assert figures_of_point(point, summary)[LINK].absent
    timed = msgspec.structs.replace(point, used={"link": 0.4, "flash": 0.1})
    assert figures_of_point(timed, summary)[LINK].value == 0.4
    without = msgspec.structs.replace(point, token_ms_mean=None)
    assert "no device" in figures_of_point(without, summary)[COMPUTE].absent
    other = msgspec.structs.replace(summary, spec={"names": 1})
    assert "none of this release" in figures_of_point(point, other)[COMPUTE].absent


def test_every_page_says_what_binds(made: SimpleNamespace, whole: LabSummary) -> None:
    """By figures alone, with the command that checks it; checked, with the gains instead."""
    summary = made.summary()
    for page in (render(summary), render_lab(whole)):
        assert page.count('id="bottleneck"') == 1
        assert "<code>offstage report --bottleneck RUN</code> makes one" in page
    found = check("run", "arm", figures(flash=0.9), rerun(100.0, {(FLASH,): 0.5}))
    for page in (render(summary, found), render_lab(whole, found)):
        assert "Flash binds: flash twice as fast" in page and "+50.0 %" in page
        assert "offstage report --bottleneck" not in page


def test_names_in_a_section_are_text() -> None:
    """A run's name cannot be markup."""
    found = unchecked("run", "<b>arm</b>", figures(), "`<i>`")
    text = bottleneck_section(found)
    assert "<b>" not in text and "<i>" not in text and "<code>&lt;i&gt;</code>" in text
    assert [column.title for column in bottleneck_table(found).columns][:2] == ["step", "figure"]


def test_a_run_without_a_log_has_its_figures(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as one of a testbed: the reason stands for every gain, and an arm may be named."""
    write_summary(made.summary(), tmp_path / "summary.json")
    assert run(["bottleneck", str(tmp_path), "--format", "json"]) == 0
    found = checked("bottleneck", capsys.readouterr().out)
    assert found["binds"] is None and "no decision log" in found["rerun_absent"]
    assert all("no decision log" in one["rerun_absent"] for one in found["steps"])
    arm = made.summary().runs[1].name
    assert run(["bottleneck", str(tmp_path), "--policy", arm, "--format", "json"]) == 0
    assert checked("bottleneck", capsys.readouterr().out)["subject"].startswith(f"{arm} on ")
    assert run(["bottleneck", str(tmp_path), "--policy", "nothing"]) == 2
    assert "no run with the policy 'nothing'" in capsys.readouterr().err
