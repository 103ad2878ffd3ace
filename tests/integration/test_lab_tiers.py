"""Do the tiers of a lab run agree with its ledger, to the block and the ns, however it is run?"""

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from lab_runs import here, ledger
from rich.console import Console

from offstage.bindings.layouts import ENDS, HIT_ENDS
from offstage.testbeds.lab.run.experiment import compute, plan
from offstage.testbeds.lab.run.summarize import finish
from offstage.testbeds.progress import Silent
from offstage.testbeds.report.lab.series import view_of
from offstage.testbeds.report.lab.tier_table import tiers_section, tiers_table
from offstage.testbeds.report.lab.tiers import tiers_figures
from offstage.testbeds.report.page.files import read_lab_summary, write_lab_summary

DATA = Path(__file__).resolve().parents[1] / "golden/data/tiers.json"
SPEC = """
seeds = [1, 2]
[workload]
context_tokens = 8192
sessions = 3
concurrent = 2
steps = 24
layers = 3
shared_prefix_tokens = 2048
[selection]
k_blocks = 12
[tier]
buffer_over_k = [2]
hbm_pool_over_k = 1
time_per_token = "2ms"
{tier}
[[tier.below]]
use = "host-dram"
capacity = "8MiB"
[[tier.below]]
use = "cxl"
capacity = "24MiB"
promote_within = "20ms"
[[tier.below]]
use = "dpu"
capacity = "64MiB"
[[tier.below]]
use = "object"
capacity = "1GiB"
[[policy]]
use = "window+ema"
"""
WAYS = {
    "inclusive": "",
    "exclusive": 'copies = "exclusive"',
    "last": 'place = "last"\ncopies = "exclusive"',
}


def computed(folder: Path, name: str, jobs: int = 1) -> Path:
    """Compute one way, without a page; returns its folder."""
    path, out = folder / f"{name}.toml", folder / name
    path.write_text(SPEC.format(tier=WAYS[name]))
    experiment, progress = plan(path, {}), Silent()
    compute(experiment, out / "parts", progress, jobs=jobs, stop_at_failure=True)
    write_lab_summary(finish(experiment, out / "parts", out, progress), out / "summary.json")
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folders of all ways, run in this process."""
    folder = tmp_path_factory.mktemp("tiers")
    return {name: computed(folder, name) for name in WAYS}


def points(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "summary.json").read_text())["points"]
    return found


def test_every_read_every_hit_and_every_wait_is_some_tiers(runs: dict[str, Path]) -> None:
    """The tiers' counts add up to those of the ledger, which does not know tiers."""
    for folder in runs.values():
        table = pq.read_table(folder / "ledger.parquet").to_pylist()
        for number, point in enumerate(points(folder)):
            rows = [row for row in table if row["point"] == number]
            total = {
                name: sum(row[name] for row in rows)
                for name in ("selected", "pool_hits", "demand_reads", "prefetch_reads", "stall_ns")
            }
            on_time = sum(row[f"end_{end}"] for row in rows for end in ENDS[:HIT_ENDS])
            pool, arena, *below = point["tiers"]
            assert [pool["served"], arena["served"]] == [total["pool_hits"], on_time]
            assert sum(one["served"] for one in below) == point["reads"]
            assert point["reads"] == total["demand_reads"] + total["prefetch_reads"]
            assert sum(one["on_demand"] for one in below) == total["demand_reads"]
            tokens = len({(row["seed"], row["session"], row["step"]) for row in rows})
            waited = sum(one["stall_ms_per_token"] for one in point["tiers"])
            assert waited == pytest.approx(total["stall_ns"] / 1e6 / tokens, rel=1e-9)
            block = point["info"]["block_bytes"]
            assert arena["written_bytes"] == point["reads"] * block
            for one in below:
                came = one["placed"] + one["promoted"] + one["demoted"]
                assert one["resident"] == came - one["gone"]
                assert one["read_bytes"] >= one["served"] * block


def test_exclusive_copies_hold_more_and_move_more(runs: dict[str, Path]) -> None:
    """At equal capacities exclusive tiers hold distinct blocks, so less is read from the store;
    evicted blocks are copied down."""
    inclusive, exclusive = (points(runs[name])[0]["tiers"] for name in ("inclusive", "exclusive"))
    assert exclusive[-1]["served"] < inclusive[-1]["served"]
    assert sum(one["demoted"] or 0 for one in inclusive) == 0
    assert sum(one["demoted"] or 0 for one in exclusive) > 0
    assert exclusive[-1]["resident"] < inclusive[-1]["resident"]


def test_the_counts_are_those_that_were_committed(runs: dict[str, Path]) -> None:
    """A golden test: an intended change of behaviour replaces `golden/data/tiers.json` with this
    output, and the commit says why."""
    found = {name: [_counts(point) for point in points(folder)] for name, folder in runs.items()}
    assert found == json.loads(DATA.read_text()), json.dumps(found)


def _counts(point: dict[str, Any]) -> dict[str, Any]:
    names = ("served", "on_demand", "promoted", "demoted", "resident", "promote_within")
    label = f"{point['info']['policy']} {point['info']['eviction']}"
    return {label: {one["name"]: [one[name] for name in names] for one in point["tiers"]}}


def test_two_processes_and_short_slabs_give_the_same(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = runs["exclusive"]
    two = computed(tmp_path, "exclusive", jobs=2)
    assert (ledger(two), points(two)) == (ledger(first), points(first))
    monkeypatch.setattr("offstage.testbeds.lab.run.feed.SLAB_STEPS_MAX", 3)
    shutil.rmtree(two)
    short = computed(tmp_path, "exclusive")
    assert (ledger(short), points(short)) == (ledger(first), points(first))


def test_pictures_and_tables_show_every_tier_of_every_way(runs: dict[str, Path]) -> None:
    """Hierarchies differ in the lower tiers, so each has its own panel that names its tiers."""
    summaries = [read_lab_summary(folder / "summary.json") for folder in runs.values()]
    view = view_of([point for one in summaries for point in one.points])
    assert len(view.facets) == len(WAYS)
    reads, waits = tiers_figures(view)
    assert len(reads.plots) == len(waits.plots) == len(WAYS)
    for markup in (str(reads), str(waits), tiers_section(view)):
        for way in ("(inclusive)", "(exclusive)", "(exclusive, new blocks last)"):
            assert way in markup
    assert all(f"{name}: " in str(waits) for name in ("host-dram", "cxl", "dpu", "object"))
    console = Console(width=160, file=io.StringIO())
    console.print(tiers_table(view))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    served = summaries[0].points[0].tiers[-1].served
    assert "HBM pool (G1)" in text and f"{served:,}" in text and "9.24 s" in text
    assert tiers_figures(view_of([])) == [] and tiers_table(view_of([])) is None


def test_a_bad_tier_ends_with_2_and_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(SPEC.format(tier="").replace('"8MiB"', '"800MiB"'))
    assert here("run", str(path), "--out", str(tmp_path / "out")) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and "host-dram of 800MiB is above cxl" in error
