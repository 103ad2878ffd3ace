"""Does the whole firmware keep its invariants in virtual time, for every seed?

The program is dpu/firmware/test/simulate.c: it checks the invariants at every step (see
test/support_simulate.h), and aborts with the seed and step of a failure. This test builds it and
runs it with seeds; a seed that fails always fails.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # it builds the whole firmware again

FIRMWARE = Path(__file__).resolve().parents[2] / "dpu" / "firmware"
SEEDS = 60
STEPS = 600


@pytest.fixture(scope="module")
def program() -> Path:
    """The path of build/plain/simulate, up to date."""
    if shutil.which("make") is None or shutil.which("gcc") is None:
        pytest.skip("no C compiler; apt-get install make gcc")
    done = subprocess.run(
        ["make", "-s", "-C", str(FIRMWARE), "simulate"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return FIRMWARE / "build" / "plain" / "simulate"


def run(program: Path, seed: int, runs: int, steps: int) -> list[dict[str, str]]:
    """Return the figures of each run, by name."""
    command = [str(program), "--seed", str(seed), "--runs", str(runs), "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return [dict(zip(words[::2], words[1::2], strict=True)) for words in lines]


def test_seeds(program: Path) -> None:
    """The invariants hold, and the runs do exercise faults, losses and strict mode."""
    figures = run(program, 1, SEEDS, STEPS)
    assert len(figures) == SEEDS

    def total(name: str, strict: str) -> int:
        return sum(int(one[name]) for one in figures if one["strict"] == strict)

    assert total("lost", "1") == 0 and total("faults", "1") == 0
    assert total("faults", "0") > 100 and total("lost", "0") > 0
    for strict in "01":
        assert total("puts", strict) > 1000 and total("served", strict) > 1000
        assert total("together", strict) > 1000
        assert total("values", strict) > 20 and total("listed", strict) > 10
        assert total("raw", strict) > 20 and total("decisions", strict) > 1000


def test_one_seed_is_one_run(program: Path) -> None:
    """A seed reproduces every decision, counter and answer, and differs from other seeds."""
    first, again = (run(program, 77, 5, STEPS) for _ in range(2))
    assert first == again
    assert len({one["hash"] for one in first}) == 5
