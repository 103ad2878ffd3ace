"""What does a capacity gain on a trace: hits, writes and years, and nothing without a prefix?"""

import json
from pathlib import Path

import pytest

from offstage.bindings import tradeoffs as at
from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.bounds.prefix import PrefixOptions, PrefixTrace, simulate
from offstage.testbeds.plan import curves as plan_curves
from offstage.testbeds.plan.curves import Curves, from_trace, measured_workload
from offstage.testbeds.progress import Silent
from offstage.testbeds.workloads.requests.importer import open_trace

TRACE = Path(__file__).resolve().parents[2] / "golden/data/tiny_mooncake.jsonl"
V = {
    "model.kv": 1e3,
    "tlc.endurance": 2e15,
    "tlc.capacity": 1e12,
    "wear.roomy": 1.0,
    "wear.full": 4.0,
    "wear.rated": 1.0,
}


@pytest.fixture(scope="module")
def tiny() -> Curves:
    return from_trace(TRACE, None, None, V, Silent())[0]


def test_lru_is_that_of_the_simulation_and_opt_is_above_all(tiny: Curves) -> None:
    """Stack distances and the decision core agree to the block; nothing beats OPT."""
    prepared = PrefixTrace(open_trace(TRACE))
    block = V["model.kv"] * 512
    for point in tiny.kept["lru"][::8]:
        blocks = round(point.capacity_bytes / block)
        done = simulate(prepared, PrefixOptions(blocks))
        assert point.hit_rate == pytest.approx(done.hit_rates.block)
        hits = done.hit_rates.block * prepared.runs.access_count
        if hits:
            assert point.written_per_hit == pytest.approx(done.admitted / hits)
    best = {one.capacity_bytes: one.hit_rate for one in tiny.kept["opt"]}
    for name, points in tiny.kept.items():
        for one in points:
            if one.capacity_bytes in best:
                assert one.hit_rate <= best[one.capacity_bytes] + 1e-12, name
    assert tiny.ideal_hit_rate == pytest.approx(max(best.values()))


def test_the_needed_capacity_has_nine_tenths_of_the_hits(tiny: Curves) -> None:
    assert tiny.needed_bytes is not None and tiny.ideal_hit_rate is not None
    below = [one for one in tiny.kept["lru"] if one.capacity_bytes < tiny.needed_bytes]
    above = [one for one in tiny.kept["lru"] if one.capacity_bytes >= tiny.needed_bytes]
    assert all(one.hit_rate < 0.9 * tiny.ideal_hit_rate for one in below)
    assert all(one.hit_rate >= 0.9 * tiny.ideal_hit_rate - 1e-12 for one in above)


def test_years_are_those_of_as_much_flash(tiny: Curves) -> None:
    """That much flash lasts its write endurance over a year's writes."""
    one = tiny.kept["lru"][-1]
    assert one.written_bytes_per_day is not None and one.life_years is not None
    endurance = one.capacity_bytes * 2e15 / 1e12
    years = endurance / (one.written_bytes_per_day * at.YEAR_DAYS)
    assert one.life_years == pytest.approx(years)


def test_second_touch_writes_less_and_reuse_ends_at_one(tiny: Curves) -> None:
    lru, second = (
        {one.capacity_bytes: one for one in tiny.kept[name]} for name in ("lru", "second touch")
    )
    for size, one in second.items():
        if one.written_bytes_per_day is not None:
            assert one.written_bytes_per_day < (lru[size].written_bytes_per_day or 0)
    shares = [share for _, share in tiny.reuse]
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1.0)


def azure(path: Path, times: list[str]) -> Path:
    rows = [f"2023-11-16 18:15:{second}.0,100,10" for second in times]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    return path


def test_a_trace_without_prefixes_gives_lengths_and_says_so(tmp_path: Path) -> None:
    found, trace = from_trace(azure(tmp_path / "a.csv", ["10", "11"]), None, None, V, Silent())
    assert not found.kept and found.ideal_hit_rate is None
    assert any("no hit rate" in note.what for note in found.notes)
    assert list(measured_workload(trace, found)) == ["workload.answer"]


def test_a_trace_without_times_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="one arrival time"):
        from_trace(azure(tmp_path / "a.csv", ["10", "10"]), None, None, V, Silent())


def test_of_a_long_trace_lru_alone_is_walked_and_that_is_said(
    tiny: Curves, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_curves, "ACCESSES_MAX", 10)
    long, _ = from_trace(TRACE, None, None, V, Silent())
    assert list(long.kept) == ["lru"] and long.kept["lru"] == tiny.kept["lru"]
    assert any("LRU only" in note.what for note in long.notes)
    all_ways, _ = from_trace(TRACE, None, None, V, Silent(), whole=True)
    assert all_ways.kept == tiny.kept


def test_class_aware_admission_needs_sessions(tmp_path: Path, tiny: Curves) -> None:
    """It admits blocks that a session requests again, not those requested once."""
    rows = [
        {
            "id": f"s{n}",
            "block_size": 64,
            "requests": [
                {"t": float(t), "in": 64 * 4, "out": 5, "hash_ids": list(range(4))}
                for t in range(3)
            ],
        }
        for n in range(8)
    ]
    path = tmp_path / "w.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    found, _ = from_trace(path, None, None, V, Silent())
    assert "class-aware" in found.kept and "class-aware" not in tiny.kept
    assert found.kept["class-aware"][-1].hit_rate == pytest.approx(1 / 3)
    assert found.kept["lru"][-1].hit_rate == pytest.approx(2 / 3)
