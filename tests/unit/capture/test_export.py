"""Does a generated workload stay the same after a round trip through a file?"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from against_schema import checked

from offstage.bindings.errors import BadInput
from offstage.testbeds.capture.export import export
from offstage.testbeds.cli import run
from offstage.testbeds.workloads.selections.captured import CapturedWorkload
from offstage.testbeds.workloads.selections.generated import GeneratedOptions, GeneratedWorkload

OPTIONS = GeneratedOptions(
    layers=4,
    context_tokens=1200,
    steps=12,
    sessions=3,
    block_tokens=4,
    select_blocks=40,
    window_blocks=2,
    shared_prefix_tokens=400,
    groups=2,
    turn_steps=5,
    index_source=(0, 0, 2, 3),
    arrival_gap_s=2.0,
)


def test_a_file_replays_the_workload(tmp_path: Path) -> None:
    """Sessions, turns and sharing are kept, and selections up to what float16 distinguishes."""
    workload = GeneratedWorkload(OPTIONS)
    path = tmp_path / "a.parquet"
    export(workload, path)
    read = CapturedWorkload(path, 40, sink_blocks=1, window_blocks=2)
    assert read.describe()["synthetic"] is True
    assert read.index_source.tolist() == [0, 0, 2, 3]
    for a, b in zip(workload.sessions, read.sessions, strict=True):
        facts = (a.name, a.blocks, a.steps, a.turns, a.group, a.arrival_s)
        assert facts == (b.name, b.blocks, b.steps, b.turns, b.group, b.arrival_s)
    for one in (1, 2):
        same = [
            (one.contents == other.contents).all(axis=1)
            for one, other in (
                (workload.sessions[0], workload.sessions[one]),
                (read.sessions[0], read.sessions[one]),
            )
        ]
        assert np.array_equal(*same) and same[0].sum() == (100 if one == 2 else 0)
    for session in range(3):
        (drawn,), (replayed,) = workload.slabs(session, 12), read.slabs(session, 12)
        assert drawn.scores.shape == replayed.scores.shape
        for a, b in zip(
            drawn.selected.reshape(-1, 40), replayed.selected.reshape(-1, 40), strict=True
        ):
            assert len(np.intersect1d(a, b)) >= 39
        windows = read.prefill(session)
        assert windows is not None and windows.shape[:2] == (32, 4)
        # Scores become logarithms in float16: other numbers in the same order.
        pairs = zip(windows[-1], workload.prefill(session)[-1], strict=True)
        assert all(np.corrcoef(x[1:300], y[1:])[0, 1] > 0.999 for x, y in pairs)


def test_what_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is too large, granules, and a command without a task each give one line."""
    path = tmp_path / "a.parquet"
    with pytest.raises(BadInput, match="a file holds at most 2"):
        export(GeneratedWorkload(replace(OPTIONS, layers=80, index_source=None, steps=90000)), path)
    with pytest.raises(BadInput, match="granules"):
        export(GeneratedWorkload(replace(OPTIONS, granule_tokens=2)), path)
    capsys.readouterr()
    far = str(10**23)
    for words in (
        *(["--sessions", far], ["--layers", far], ["--context-tokens", far], ["--steps", far]),
        *(["--block-tokens", far], ["--block-tokens", "0"], ["--sessions", "65536"]),
    ):
        assert run(["trace", "generate", "--out", str(path), *words]) == 2, words
        (line,) = capsys.readouterr().err.splitlines()
        assert words[0] in line or "a file holds at most 2" in line
    where = ["trace", "generate", "--out", str(tmp_path), "--sessions", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GeneratedWorkload, "__init__", lambda *_: pytest.fail("drawn in vain"))
        assert run(where) == 2 and "Is a directory" in capsys.readouterr().err
    assert run(["trace", "generate"]) == 2
    assert "give --explain or --out FILE" in capsys.readouterr().err
    assert not path.exists()


def test_the_command_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes a file that the lab can read."""
    path = tmp_path / "a.parquet"
    words = ["trace", "generate", "--out", str(path), "--layers", "2", "--context-tokens", "640"]
    assert run([*words, "--steps", "3", "--sessions", "2", "--format", "json"]) == 0
    assert checked("trace generate", capsys.readouterr().out)["synthetic"] is True
    read = CapturedWorkload(path, 4)
    assert (read.layer_count, len(read.sessions), read.sessions[0].blocks) == (2, 2, 10)
