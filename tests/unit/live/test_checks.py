"""Is each counter that fails a run in its result and on its page, and does it decide the exit
code?"""

from pathlib import Path

import pytest

from offstage.bindings.errors import RunFailed
from offstage.dpu.watch.recorder import Lost
from offstage.testbeds.live.checks import CHECKS, Check, found, refuse
from offstage.testbeds.live.model_results import ModelPass
from offstage.testbeds.live.pod_figures import PodResult
from offstage.testbeds.live.results import RunResult

PAGE = Path(__file__).resolve().parents[3] / "docs/reference/checks.md"
RESULTS = {
    "demo": RunResult,
    "host run": RunResult,
    "testbed run": RunResult,
    "host run --model": ModelPass,
    "pod run": PodResult,
    "dpu serve --record": Lost,
}
BAD = {"bit_equal": False, "pace_overruns": 0.011}
GOOD = {"bit_equal": True, "log_diverged_at": -1, "pace_overruns": 0.01}


class Result:
    """A result that has a single counter."""

    def __init__(self, field: str, value: object) -> None:
        setattr(self, field, value)


@pytest.mark.parametrize("check", CHECKS, ids=lambda one: one.field)
def test_every_row_decides(check: Check) -> None:
    """A bad value fails the run with one line, a good one does not."""
    (told,) = found(Result(check.field, BAD.get(check.field, 1_480)), "all on disk")
    assert told.startswith("all on disk: ") and "{" not in told
    with pytest.raises(RunFailed, match="do not use the figures") as caught:
        refuse([told, told], "summary.json")
    assert "and 1 more" in str(caught.value) and caught.value.exit_code == 1
    for good in (GOOD.get(check.field, 0), None):
        assert found(Result(check.field, good)) == []


@pytest.mark.parametrize("check", CHECKS, ids=lambda one: one.field)
def test_every_row_is_a_field_of_its_results_and_on_the_page(check: Check) -> None:
    """Otherwise a renamed counter would never fail a run."""
    for command in check.commands:
        assert check.field in RESULTS[command].__struct_fields__, command
    commands = ", ".join(f"`{one}`" for one in check.commands)
    assert f"| `{check.field}` | {commands} |" in PAGE.read_text()
