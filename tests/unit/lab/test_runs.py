"""Do the laboratory's runs have the properties that must hold for every workload?"""

import io
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.layouts import ENDS, HIT_ENDS
from offstage.testbeds.lab.results.summary import LabSummary, SeedRun
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.experiment import compute, plan
from offstage.testbeds.lab.run.plan import Task, together
from offstage.testbeds.lab.run.summarize import finish
from offstage.testbeds.lab.run.task import TaskResult, run_task, run_together
from offstage.testbeds.progress import Silent

ROOT = Path(__file__).resolve().parents[3]
TRACE = ROOT / "tests/golden/data/tiny_mooncake.jsonl"

SMALL = {
    "workload": {"context_tokens": 4096, "sessions": 2, "steps": 40},
    "geometry": {"model": "demo", "block_tokens": 64},
    "selection": {"k_blocks": 8},
    "tier": {"buffer_over_k": [4]},
}


class Runs:
    """The runs of a spec with one seed, by label; `summary` is computed on first use."""

    def __init__(self, folder: Path, *policies: str | dict[str, Any], **changes: Any) -> None:
        of_file = ("workload", "selection") if changes.get("workload__kind") == "selections" else ()
        chosen = {
            f"{table}.{key}": value
            for table, keys in SMALL.items()
            if table not in of_file
            for key, value in keys.items()
        }
        chosen |= {key.replace("__", "."): value for key, value in changes.items()}
        chosen["policy"] = [{"use": one} if isinstance(one, str) else one for one in policies]
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "e.toml").write_text("")
        self.experiment = plan(folder / "e.toml", chosen)
        compute(self.experiment, folder / "parts", Silent(), jobs=1, stop_at_failure=True)
        (variant,) = self.experiment.variants
        names = Task(variant.spec, 1, variant.points).parts(self.experiment.code)
        self.runs = {
            (point.label, point.buffer_over_k): parts.read_run(folder / f"parts/{name}.npz")
            for point, name in zip(variant.points, names, strict=True)
        }

    def __getitem__(self, label: str) -> SeedRun:
        (found,) = [run for (name, _), run in self.runs.items() if name == label]
        return found

    def summary(self) -> LabSummary:
        return finish(self.experiment, self.folder / "parts", self.folder, Silent())


@pytest.fixture
def runs(tmp_path: Path) -> Any:
    return partial(Runs, tmp_path)


def reads(run: SeedRun) -> int:
    return int((run.rows["demand_reads"].astype(int) + run.rows["prefetch_reads"]).sum())


def misses(rows: Any) -> int:
    """Return the number of demands that were not staged in time."""
    return int(rows["ends"][:, HIT_ENDS:].sum())


def serious_misses(rows: Any) -> int:
    """Return the same for non-trivial ones."""
    return int(rows["nontrivial_ends"][:, HIT_ENDS:].sum())


ALONE = {"reference__buffer_over_k": 4}
"""With another buffer the reference would be one more point."""


def test_an_hbm_pool_serves_what_would_be_demanded(tmp_path: Path) -> None:
    """Selections are the same; blocks in the pool are not demanded, and a larger pool has more."""
    found = [
        Runs(tmp_path / str(pool), "ema", tier__hbm_pool_over_k=pool, **ALONE)["ema"].rows
        for pool in (0, 1, 2)
    ]
    selected = [int(rows["selected"].sum()) for rows in found]
    demands = [int(rows["demands"].sum()) for rows in found]
    assert selected[0] == selected[1] == selected[2] == 2 * 40 * 4 * 8
    assert demands[0] == selected[0] > demands[1] > demands[2] > 0
    for rows in found:
        assert np.array_equal(rows["selected"], rows["pool_hits"] + rows["demands"])


def test_layers_of_a_group_never_wait_where_the_index_is_shared(runs: Any) -> None:
    """Given time to read, the three layers of four that share another's index set find all of it
    staged from the first step on."""
    shared = runs("lookahead-index", "none", workload__index_group=4, **ALONE)
    rows, none = shared["lookahead-index"].rows, shared["none"].rows
    assert misses(rows[rows["layer"] > 0]) == 0
    assert misses(rows[rows["layer"] == 0]) > 0 and misses(none[none["layer"] > 0]) > 0


def test_a_draft_that_is_right_leaves_nothing_to_miss(runs: Any) -> None:
    """With an agreement of 1 and enough bandwidth and time, no guessed block is missed after the
    layers that run while the draft model does; an agreement of .6 misses some."""
    settings = {"workload__draft_cost": 0.25, **ALONE}
    right = runs("lookahead-draft", workload__draft_agreement=1.0, **settings)["lookahead-draft"]
    assert serious_misses(right.rows[right.rows["layer"] > 0]) == 0
    assert serious_misses(right.rows[right.rows["layer"] == 0]) > 0
    half = runs("lookahead-draft", workload__draft_agreement=0.6, **settings)["lookahead-draft"]
    assert serious_misses(half.rows[half.rows["layer"] > 0]) > 0
    late = runs(
        "lookahead-draft", workload__draft_agreement=1.0, workload__draft_cost=0.75, **ALONE
    )["lookahead-draft"]
    assert serious_misses(late.rows[late.rows["layer"] == 2]) > 0
    assert serious_misses(late.rows[late.rows["layer"] == 3]) == 0


def test_what_is_predicted_of_a_drawn_workload_is_read_ahead(runs: Any) -> None:
    """Given bandwidth and time, the predicted layers miss less than without predictions, the second
    layer equally; the summary says how the predictions were drawn. Without them the policy is
    refused."""
    found = runs("ema", "ema+lookahead-query", workload__predicted="captured", **ALONE)
    plain, ahead = (found[name].rows for name in ("ema", "ema+lookahead-query"))
    for layer, share in ((0, 0.8), (2, 0.7), (3, 0.7)):
        missed = [serious_misses(rows[rows["layer"] == layer]) for rows in (ahead, plain)]
        assert missed[0] < share * missed[1], layer
    summary = found.summary()
    assert any("captures of pycode-3m" in note.what for note in summary.notes)
    (facts,) = summary.manifest.workloads.values()
    assert facts["synthetic"] and len(facts["predicted"]["agreement"]) == 4
    with pytest.raises(OffstageError, match='predicted = "captured"'):
        runs("ema+lookahead-query", **ALONE)


def test_granules_read_less_than_whole_blocks(runs: Any) -> None:
    """As many tokens are selected either way; without `granule` a block comes with all its tokens,
    so demands are fewer and bytes more. Without granule_tokens nothing differs."""
    parted = runs(
        "none",
        "granule",
        geometry__granule_tokens=16,
        tier__buffer_over_k=[8],
        reference__buffer_over_k=8,
    )
    whole, granule = parted["none"], parted["granule"]
    assert granule.rows["selected"].max() == 8 * 4 and whole.rows["selected"].max() <= 8 * 4
    assert whole.rows["demands"].sum() < granule.rows["demands"].sum()
    assert reads(granule) * 16 < reads(whole) * 64
    points = {point.info.policy: point for point in parted.summary().points}
    assert points["granule"].info.granule and not points["none"].info.granule
    assert points["granule"].info.block_bytes * 4 == points["none"].info.block_bytes
    ratio = points["granule"].traffic_ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(reads(granule) * 16 / (reads(whole) * 64))
    same = runs("none", "granule", **ALONE)
    assert np.array_equal(same["none"].rows, same["granule"].rows)


def test_sessions_take_their_turns(runs: Any) -> None:
    """Two of five sessions decode at once in an arena for two. Each decodes all its steps, and one
    at a time takes longer than two."""
    ends = {}
    for concurrent in (1, 2, 5):
        found = runs("none", workload__sessions=5, workload__concurrent=concurrent, **ALONE)
        rows = found["none"].rows
        assert np.array_equal(np.unique(rows["session"]), range(5))
        assert len(rows) == 5 * 40 * 4
        ends[concurrent] = found["none"].end_ns
        info = found.summary().points[0].info
        assert info.slot_count == 4 * 8 * 4 * concurrent
    assert ends[1] > ends[2] > ends[5]


def test_a_shared_prefix_is_staged_once(runs: Any) -> None:
    """Two groups of two: a session finds blocks of the shared prefix that the previous one staged,
    and more if members of a group follow each other. Without a common prefix nothing is shared."""
    sharing = {
        "workload__sessions": 4,
        "workload__concurrent": 1,
        "workload__groups": 2,
        "tier__buffer_over_k": [3],
        "reference__buffer_over_k": 3,
    }
    prefix = runs("shared", "shared+coschedule", workload__shared_prefix_tokens=4096, **sharing)
    shared = ENDS.index("shared")
    hits = {
        name: int(prefix[name].rows["ends"][:, shared].sum())
        for name in ("shared", "shared+coschedule")
    }
    assert hits["shared+coschedule"] > hits["shared"]
    apart = runs("shared", **sharing)["shared"].rows
    assert apart["ends"][:, shared].sum() == 0


def test_recorded_selections_run_as_they_were_recorded(runs: Any, traces: Path) -> None:
    """The published runs keep their layers, steps and blocks; a contradicting spec is refused."""
    file = traces / "attn_block_selection_qwen3-0.6b.jsonl.gz"
    found = runs(
        "window+ema",
        workload__kind="selections",
        workload__file=str(file),
        geometry__block_tokens=32,
        **ALONE,
    )
    rows = found["none"].rows
    assert np.unique(rows["layer"]).tolist() == list(range(28))
    assert len(np.unique(rows["session"])) == 13 and rows["selected"].max() == 32
    assert not any(point.weak for point in found.summary().points)
    with pytest.raises(BadInput, match="give 32"):
        runs("none", workload__kind="selections", workload__file=str(file))
    with pytest.raises(BadInput, match="steps has no effect with recorded selections"):
        runs("none", workload__kind="selections", workload__file=str(file), workload__steps=3)


def test_sessions_of_other_lengths_end_when_theirs_is_over(runs: Any) -> None:
    """A trace's sessions differ in steps and blocks, and each has its own number of rows."""
    found = runs(
        "window+ema",
        "shared+coschedule",
        workload__trace=str(TRACE),
        workload__context_tokens=8192,
        workload__context_tokens_min=1024,
        workload__sessions=4,
        workload__concurrent=2,
        workload__steps=150,
        **ALONE,
    )
    steps = {}
    for run in found.runs.values():
        for session in range(4):
            mine = run.rows[run.rows["session"] == session]
            steps.setdefault(session, set()).add(len(mine) // 4)
            assert np.array_equal(mine["step"], np.repeat(np.arange(len(mine) // 4), 4))
    assert all(len(each) == 1 for each in steps.values())
    assert len(set.union(*steps.values())) > 1, "the trace's sessions are alike"


def test_one_step_is_a_session(runs: Any) -> None:
    found = runs(
        "window+ema+warmup+lookahead", workload__steps=1, workload__draft_agreement=1.0, **ALONE
    )
    for run in found.runs.values():
        assert len(run.rows) == 2 * 4 and set(run.rows["step"]) == {0}
    assert all(point.hit is not None for point in found.summary().points)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"tier__buffer_over_k": [1], "geometry__model": "tiny"}, r"\[tier\] buffer_over_k"),
        ({"tier__hbm_pool_over_k": 1, "tier__buffer_over_k": [16]}, r"\[tier\] hbm_pool_over_k"),
    ],
)
def test_a_selection_of_whole_blocks_that_does_not_fit_is_one_line(
    changes: dict[str, Any], key: str, runs: Any
) -> None:
    """Granules of 4 tokens touch most blocks, and a layer whose demands exceed its session's slots
    would retry forever."""
    with pytest.raises(OffstageError, match=key) as caught:
        runs("none", geometry__granule_tokens=4, **changes)
    assert caught.value.exit_code == 2 and "\n" not in str(caught.value)


def test_a_million_tokens_fit_into_little_memory(tmp_path: Path) -> None:
    """16,384 blocks of four layers with two policies take less than 1 GiB, measured by the process
    itself: a child's `ru_maxrss` would begin at its parent's."""
    (tmp_path / "e.toml").write_text(
        "[workload]\ncontext_tokens = 1048576\nsessions = 1\nsteps = 20\n"
        '[geometry]\nmodel = "demo"\n[selection]\nk_blocks = 128\n[tier]\nbuffer_over_k = [2]\n'
        '[[policy]]\nuse = "window+ema"\n'
    )
    code = (
        "import sys; from offstage.testbeds.cli import run; code = run(sys.argv[1:]);"
        "print(code, open('/proc/self/status').read().partition('VmHWM:')[2].split()[0])"
    )
    words = ["lab", "run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "out"), "--jobs", "1"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=500
    )
    exit_code, peak_kib = done.stdout.splitlines()[-1].split()
    assert exit_code == "0", done.stderr
    assert int(peak_kib) < 1 << 20


def contents(result: TaskResult) -> dict[str, tuple[list[bytes], bytes]]:
    """Return each part's columns and counters; the file around them holds the time of day."""
    found = {}
    for name, part in result.parts.items():
        with np.load(io.BytesIO(part), allow_pickle=False) as archive:
            rows = archive["rows"]
            columns = [rows[column].tobytes() for column in rows.dtype.names]
            found[name] = columns, archive["meta"].tobytes()
    return found


def test_what_is_drawn_once_gives_each_point_what_it_has_alone(tmp_path: Path) -> None:
    """Every part of a sweep is the same whether selections, prefills and predictors are made once
    for pools of all sizes, for one variant, or for a single point."""
    (tmp_path / "e.toml").write_text("")
    changes: dict[str, Any] = {
        f"{table}.{key}": value for table, keys in SMALL.items() for key, value in keys.items()
    }
    changes |= {
        "workload.steps": 12,
        "workload.turn_steps": 5,
        "workload.draft_agreement": 0.8,
        "tier.buffer_over_k": [2, 4],
        "policy": [{"use": "warmup+ema+lookahead"}],
        "sweep": {"tier.hbm_pool_over_k": [0, 1, 2], "workload.profile": ["gvr", "hisparse"]},
    }
    experiment = plan(tmp_path / "e.toml", changes)
    variants, code = experiment.variants, experiment.code
    tasks = [Task(one.spec, 1, points) for one in variants for points in (one.points, ())]
    groups = together(tasks, jobs=1)
    assert sorted(len(group) for group in groups) == [6, 6]
    assert len(together(tasks, jobs=64)) == len(tasks)
    for group in groups:
        whole = run_together(group, code, lambda steps: None)
        assert not whole.failures
        shared = contents(whole)
        for task in group:
            alone = [replace(task, points=(one,)) for one in task.points[-2:]]
            for one in (task, *alone):
                for name, content in contents(run_task(one, code, lambda steps: None)).items():
                    assert shared[name] == content
