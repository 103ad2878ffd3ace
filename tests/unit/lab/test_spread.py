"""Is every part computed once, whichever worker takes it, and does a dead process end the run?"""

import math
import os
from collections.abc import Callable
from typing import Any

import pytest

from offstage.bindings.errors import RunFailed
from offstage.testbeds.lab.run.spread import spread


def computed(work: Callable[[Any], Any], pieces: list[int], jobs: int) -> dict[int, Any]:
    found = list(
        spread(
            pieces,
            work,
            there=work,
            jobs=jobs,
            cluster="",
            command="lab pod",
            fix="start it again",
        )
    )
    assert len(found) == len(pieces)
    return dict(found)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_each_piece_with_its_own_result(jobs: int, count: int) -> None:
    pieces = list(range(count))
    assert computed(math.sqrt, pieces, jobs) == {one: math.sqrt(one) for one in pieces}


def test_what_the_work_raises_comes_through() -> None:
    with pytest.raises(ValueError, match="math domain"):
        computed(math.sqrt, [1, -1], 2)


def test_a_process_that_dies_is_one_line() -> None:
    with pytest.raises(RunFailed) as died:
        computed(os._exit, [1, 2], 2)
    assert str(died.value) == (
        "lab pod: a worker process died; give it more memory; start it again"
    )
