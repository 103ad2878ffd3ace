"""Are recorded selections read exactly as written, and refused if damaged?"""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offstage.bindings.engine import ABSENT
from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.policies.base import Averages
from offstage.testbeds.workloads.selections.recorded import PRESENT, SelectionWorkload
from offstage.testbeds.workloads.selections.structure import RECORDED, as_recorded

NAME = "attn_block_selection_qwen3-0.6b.jsonl.gz"


def a_run(**change: Any) -> dict[str, Any]:
    """Two layers, three steps, blocks of 2 tokens; a third block is written before the last."""
    rows = [[1, 0, [0, 1]], [1, 1, [0]], [2, 0, [0, 1]], [2, 1, [1]], [3, 0, [0, 2]], [3, 1, [2]]]
    return {
        "run": "r",
        "model": "m",
        "layers": 2,
        "prompt_tokens": 5,
        "block_tokens": 2,
        "steps": [[*row, []] for row in rows],
        **change,
    }


def written(path: Path, *runs: Any) -> Path:
    path.write_text("".join(json.dumps(run) + "\n" for run in runs), encoding="utf-8")
    return path


def test_the_published_runs_have_their_published_overlap(traces: Path) -> None:
    """The share of a selection that the previous step also had is the authors' figure."""
    path = traces / NAME
    if not path.is_file():
        pytest.skip(f"no {NAME} in {traces}")
    workload = SelectionWorkload(path)
    with gzip.open(path, "rt") as file:
        runs = [json.loads(line) for line in file]
    assert workload.layer_count == 28 and workload.block_tokens == 32 and len(runs) == 13
    for index, run in enumerate(runs):
        slabs = list(workload.slabs(index, 4))
        selected = np.concatenate([slab.selected for slab in slabs])
        scores = np.concatenate([slab.scores for slab in slabs])
        assert int((scores == PRESENT).sum()) == int((selected != ABSENT).sum())
        held = hits = 0
        for before, now in itertools.pairwise(selected):
            for x, y in zip(before, now, strict=True):
                real = y[y != ABSENT]
                hits += len(np.intersect1d(x, real))
                held += len(real)
        assert hits / held == pytest.approx(run["history_block_hit_rate"], abs=1e-9)


def test_what_generated_layers_are_held_against_is_counted_on_the_recorded_ones(
    traces: Path,
) -> None:
    path = traces / NAME
    if not path.exists():
        pytest.skip(f"no {NAME} in {traces}")
    workload = SelectionWorkload(path)
    (number,) = [at for at, one in enumerate(workload.sessions) if one.blocks == 128]
    (slab,) = workload.slabs(number, 64)
    assert as_recorded(slab.selected, 128) == pytest.approx(RECORDED, abs=0.0005)


def test_a_file_becomes_sessions(tmp_path: Path) -> None:
    """Blocks, steps, forced blocks and scores are those of the file, in slabs of any size."""
    workload = SelectionWorkload(written(tmp_path / "a", a_run(), a_run(run="s")))
    assert [session.name for session in workload.sessions] == ["r", "s"]
    assert workload.sessions[0].blocks == 2 and workload.sessions[0].steps == 3
    assert (workload.select_blocks, workload.sink_blocks, workload.window_blocks) == (2, 0, 0)
    for steps in (1, 2, 5):
        slabs = list(workload.slabs(1, steps))
        selected = np.concatenate([slab.selected for slab in slabs])
        absent = int(ABSENT)
        assert selected[:, 1].tolist() == [[0, absent], [1, absent], [2, absent]]
        scores = np.concatenate([slab.scores for slab in slabs])
        assert (scores[:, 0] / PRESENT).tolist() == [[1, 1, 0], [1, 1, 0], [1, 0, 1]]
    assert workload.prefill(0) is None
    described = workload.describe()
    assert described["synthetic"] is False and len(str(described["sha256"])) == 64
    contents = [session.contents for session in workload.sessions]
    assert not (contents[0] == contents[1]).all(axis=1).any()


def test_what_every_selection_holds_is_counted(tmp_path: Path) -> None:
    """Sinks and window are the blocks common to all selections of all runs."""
    steps = [[token, 0, [0, 1, 3, 4], []] for token in (1, 2)]
    run = a_run(layers=1, prompt_tokens=10, steps=steps)
    workload = SelectionWorkload(written(tmp_path / "a", run))
    assert (workload.sink_blocks, workload.window_blocks) == (2, 2)
    fewer = {**run, "steps": [[1, 0, [0, 2, 3, 4], []]]}
    workload = SelectionWorkload(written(tmp_path / "a", run, fewer))
    assert (workload.sink_blocks, workload.window_blocks) == (1, 2)


def rows(*changed: list[Any]) -> dict[str, Any]:
    return {"steps": [[*row, []] for row in changed]}


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"layers": "two"}, "is not a recorded run"),
        ({"layers": 0}, "without layers"),
        ({"layers": 10**11}, "100,000,000,000 layers and a prompt of"),
        ({"prompt_tokens": 2**31}, "tokens; record at most 4,096 layers and 1,073,741,824 tokens"),
        ({"steps": []}, "without layers, tokens of a block or steps"),
        ({"prompt_tokens": 1}, "a prompt of 1 tokens"),
        (rows([1, 0, [0]]), "1 rows for 2 layers"),
        (rows([1, 1, [0]], [1, 0, [0]]), "token 1, layer 1 where token 1, layer 0"),
        (rows([2, 0, [0]], [2, 1, [0]]), "token 2, layer 0 where token 1, layer 0"),
        (rows([1, 0, [2]], [1, 1, [0]]), "selects outside 0 to 1"),
        (rows([1, 0, [-1]], [1, 1, [0]]), "selects outside 0 to 1"),
        (rows([1, 0, [1, 0]], [1, 1, [0]]), "do not ascend"),
        ({"model": "n"}, "keep one model to a file"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, change: dict[str, Any], what: str) -> None:
    """Each fault names the file, the line and the fix."""
    path = written(tmp_path / "a.jsonl", a_run(), a_run(**change))
    with pytest.raises(BadInput, match=what) as raised:
        SelectionWorkload(path)
    assert raised.value.where == f"{path}:2" and raised.value.fix


def test_what_is_no_file_of_runs_is_refused(tmp_path: Path) -> None:
    """An empty, a torn and a foreign file each have their own error."""
    with pytest.raises(BadInput, match="holds no run"):
        SelectionWorkload(written(tmp_path / "empty"))
    (tmp_path / "text").write_text("hello\n", encoding="utf-8")
    with pytest.raises(BadInput, match="is not a recorded run"):
        SelectionWorkload(tmp_path / "text")
    whole = gzip.compress(json.dumps(a_run()).encode())
    (tmp_path / "torn.gz").write_bytes(whole[:-9])
    with pytest.raises(BadInput, match="torn"):
        SelectionWorkload(tmp_path / "torn.gz")


@pytest.mark.parametrize("shift", range(1, 9))
def test_an_average_of_presence_tells_often_from_once(tmp_path: Path, shift: int) -> None:
    """Block 0 is selected in each step, block 1 only in the first: under any policy's average the
    first stays and the second fades. A low score would be shifted to nothing, and both would stay
    alike."""
    steps = [[token, 0, [0, 1] if token == 1 else [0], []] for token in range(1, 33)]
    workload = SelectionWorkload(written(tmp_path / "a", a_run(layers=1, steps=steps)))
    averages = Averages(shift)
    for slab in workload.slabs(0):
        for scores in slab.scores:
            found = averages.take(scores)[0]
    assert found[0] > 1.1 * found[1] and found[0] > PRESENT / 2
