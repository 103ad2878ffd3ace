"""Is the difference of two points that of their ledgers, with a paired interval?"""

import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import ENDS, HIT_ENDS
from offstage.testbeds.lab.results.ledger_file import Described, LedgerFile
from offstage.testbeds.lab.results.paired import FIGURES, Side, difference, pairs, sides_of
from offstage.testbeds.lab.results.summary import SeedRun

UNIT = Path(__file__).resolve().parents[1]
LAB = SimpleNamespace(**runpy.run_path(str(UNIT / "report/lab_synthetic.py")))

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, runs: dict[str, list[SeedRun]], **changes: object) -> Path:
        folder = tmp_path / name
        recurring = bool(changes.pop("recurring", False))
        said = {
            number: Described(LAB.info(policy=policy, **changes), recurring)
            for number, policy in enumerate(runs)
        }
        with LedgerFile(folder / "ledger.parquet", said) as ledger:
            for number, each in enumerate(runs.values()):
                for run in each:
                    ledger.add(number, run.seed, run.rows)
        return folder

    return written


def invented(policy: str, seeds: tuple[int, ...] = (1, 2), **changes: int) -> list[SeedRun]:
    return [LAB.run(policy, 2.0, seed, **changes) for seed in seeds]


def test_what_is_no_run_of_the_laboratory_is_named_itself(write: Write, tmp_path: Path) -> None:
    """A demo's folder, a file beside a run, and nothing: not the ledger that they lack."""
    beside = write("a", {"none": invented("none")}) / "other.json"
    beside.write_text("{}")
    for given, what in (
        (tmp_path, "only runs of the laboratory can be compared"),
        (beside, "not a run"),
        (tmp_path / "nosuch", "no such file or folder"),
    ):
        with pytest.raises(BadInput, match=what) as caught:
            sides_of(given)
        assert caught.value.where == str(given)
    assert sides_of(beside.with_name("ledger.parquet"))


def test_a_difference_is_that_of_the_sums(write: Write) -> None:
    """It equals a plain sum over all rows of both sides."""
    runs = {policy: invented(policy) for policy in ("none", "ema")}
    sides = sides_of(write("a", runs, bandwidth_bytes_per_s=0))
    found = {one.figure: one for one in difference(*sides, tuple(FIGURES))}
    rates, reads, waits = [], [], []
    for each in runs.values():
        rows = np.concatenate([run.rows for run in each])
        rates.append(rows["nontrivial_ends"][:, :HIT_ENDS].sum() / rows["nontrivial"].sum())
        reads.append(
            (rows["demand_reads"].sum() + rows["prefetch_reads"].sum()) / rows["demands"].sum()
        )
        waits.append(rows["stall_ns"].sum() / 1e6 / (len(rows) / 6))
    for figure, (none, ema) in (
        ("nontrivial_hit", rates),
        ("reads_per_demand", reads),
        ("stall_ms_mean", waits),
    ):
        one = found[figure]
        assert one.first_value is not None and one.difference is not None
        assert one.first_value.value == pytest.approx(none)
        assert one.difference.value == pytest.approx(ema - none)
    assert found["hit"].requests == 8 and not found["hit"].weak
    assert found["hit"].first == "none" and found["hit"].second == "ema"


def test_what_is_hard_for_both_sides_cancels(write: Write) -> None:
    """One side is the other with one hit in ten made a miss, over requests of very different hit
    rates: the interval of the difference is far narrower than those of its sides."""
    easy, hard = invented("ema", (1,))[0], invented("none", (2,))[0]
    shift = [HIT_ENDS, *range(HIT_ENDS)]
    for name in ("ends", "nontrivial_ends"):
        hard.rows[name][:, : HIT_ENDS + 1] = hard.rows[name][:, shift]
    worse = []
    for run in (easy, hard):
        rows = run.rows.copy()
        for name in ("ends", "nontrivial_ends"):
            lost = rows[name][:, 0] // 10
            rows[name][:, 0] -= lost
            rows[name][:, ENDS.index("capacity")] += lost
        worse.append(replace(run, rows=rows))
    sides = sides_of(write("a", {"none": [easy, hard], "ema": worse}))
    (one,) = difference(*sides, ["hit"])

    def width(interval: object) -> float:
        return float(getattr(interval, "high") - getattr(interval, "low"))  # noqa: B009

    assert width(one.difference) < 0.5 * min(width(one.first_value), width(one.second_value))


def test_points_of_two_runs_meet_at_their_setting(write: Write) -> None:
    """The same policies are paired, or each policy of the second with one of the first."""
    runs = {policy: invented(policy) for policy in ("none", "ema", "window")}
    a = sides_of(write("a", runs))
    b = sides_of(write("b", {policy: runs[policy] for policy in ("ema", "none")}))
    assert names(pairs(a, b, "")) == [("a ema", "b ema"), ("a none", "b none")]
    assert names(pairs(a, b, "none")) == [("a none", "b ema"), ("a none", "b none")]
    assert names(pairs(a, a, "none")) == [("a none", "a ema"), ("a none", "a window")]
    other = sides_of(write("c", runs, buffer_over_k=4.0))
    for second, against in ((other, ""), (b, "belady")):
        with pytest.raises(BadInput, match="choose one of ema, none, window"):
            pairs(a, second, against)


def names(found: list[tuple[Side, Side]]) -> list[tuple[str, ...]]:
    return [tuple(f"{side.run} {side.info.policy}" for side in pair) for pair in found]


def test_a_policy_is_compared_under_its_own_cap(write: Write) -> None:
    """Is a difference that of the policies, and not that of the caps? Each side names its cap."""

    def side(policy: str, cap: int) -> Side:
        info = LAB.info(policy=policy, eviction="lru", bandwidth_bytes_per_s=cap)
        return Side("a", Path("a"), 0, info, False)

    none, *others = (
        side(policy, cap)
        for policy, cap in (
            ("none", 0),
            ("ema", 0),
            ("ema", 10**6),
            ("window", 0),
            ("window", 10**6),
            ("window", 4 * 10**9),
        )
    )
    named = [(one.name, two.name) for one, two in pairs([none, *others], [none, *others], "ema")]
    assert named == [
        ("ema", "none"),
        ("ema", "window"),
        ("ema, cap 1 MB/s", "window, cap 1 MB/s"),
        ("ema", "window, cap 4 GB/s"),
    ]
    assert {one.name for one, _ in pairs([none, *others], others, "none")} == {"none"}


def test_other_requests_are_refused(write: Write) -> None:
    """Other seeds, more sessions or other selections would compare workloads."""
    own = invented("ema")
    other = [replace(run, rows=run.rows.copy()) for run in own]
    other[1].rows["selected"][5] += 1
    a = sides_of(write("a", {"ema": own}))
    for name, runs in (
        ("seeds", invented("ema", (1, 3))),
        ("more", invented("ema", sessions=5)),
        ("other", other),
    ):
        b = sides_of(write(name, {"ema": runs}))
        with pytest.raises(BadInput, match="different requests"):
            difference(a[0], b[0], ["hit"])
    lost = sides_of(write("lost", {"ema": []}))
    with pytest.raises(BadInput, match="no row of ema"):
        difference(a[0], lost[0], ["hit"])


def test_a_recurring_request_counts_once(write: Write) -> None:
    sides = sides_of(write("a", {name: invented(name) for name in ("none", "ema")}, recurring=True))
    (one,) = difference(*sides, ["stall_ms_mean"])
    assert one.requests == 4 and one.weak
    assert one.first_value is not None
    rows = np.concatenate([run.rows for run in invented("none")])
    assert one.first_value.value == pytest.approx(rows["stall_ns"].sum() / 1e6 / (len(rows) / 6))
