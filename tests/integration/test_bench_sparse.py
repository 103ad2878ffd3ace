"""Does `offstage bench sparse` say what decoding from drives costs, and what a drive carries?"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from against_schema import checked

from offstage.bindings.engine import ABSENT
from offstage.host.decode.session import Context
from offstage.host.selection import select
from offstage.testbeds.bench.sparse.replay import captured, replay
from offstage.testbeds.bench.sparse.virtual import Setting, carried, decoded
from offstage.testbeds.cli import run
from offstage.testbeds.workloads.selections.captured import CapturedWorkload

SELECTIONS = Path(__file__).parents[2] / "docs/examples/offstage-selections"
CAPTURES = SELECTIONS / "offstage_selections/data"

SMALL = Setting(
    model="llama-3-8b",
    context_tokens=8_192,
    selected=16,
    device="bluefield3,cores.reactors=1",
    steps=8,
    time_per_token="4ms",
)


def bench(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert run(["bench", "sparse", *words, "--format", "json"]) == 0
    return checked("bench sparse", capsys.readouterr().out)


def test_sessions_are_added_until_tokens_wait_as_stated() -> None:
    """The number lies between the two runs around the share, what is read follows from it, and the
    first token, which finds nothing staged, waits longer than the others."""
    points, found = carried(SMALL, 0.6)
    counts, waits = [one.sessions for one in points], [one.waits for one in points]
    assert counts == [2**at for at in range(len(points))] and waits[-2] < 0.6 <= waits[-1]
    assert counts[-2] < found.sessions < counts[-1] and not found.more
    assert np.interp(found.sessions, counts, waits) == pytest.approx(0.6)
    tokens_per_s = found.sessions / 0.004 * 0.4
    assert found.drive_reads_per_s == pytest.approx(found.reads_per_token * tokens_per_s)
    last = points[-2:]
    used = {part: [one.used[part] for one in last] for part in last[0].used}
    most = {part: np.interp(found.sessions, counts[-2:], each) for part, each in used.items()}
    assert found.binds == max(most, key=lambda part: most[part]) and found.core == most["core"]
    assert all(one.first_ms > one.stall_ms_mean for one in points)
    assert points[0] == decoded(SMALL, 1)


def test_an_arena_that_sessions_fill_is_what_binds() -> None:
    """Where tokens hardly wait, the memory of the device ends the search."""
    small = "bluefield3,cores.reactors=1,ddr.capacity=1"
    setting = Setting(
        model="llama-3-8b", context_tokens=8_192, selected=32, device=small, steps=4, drives=4
    )
    points, found = carried(setting, 0.9)
    a_session = 2 * 32 * 32 * 64 * 2 * 8 * 128 * 2  # blocks, layers, and bytes of 64 tokens
    assert found.sessions == points[-1].sessions == (2 << 30) // a_session  # two channels
    assert found.binds == "arena" and not found.more


def test_a_capture_is_replayed_beside_drawn_selections(capsys: pytest.CaptureFixture[str]) -> None:
    """Its context, blocks and layers, at the pace of the model's layers; other blocks are read than
    of drawn selections, and two drives serve the same reads sooner."""
    capture = str(CAPTURES / "judge-prose-32k.parquet")
    words = f"--storage none --capture {capture} --select 16 --drives 1,2 --steps 4"
    found = bench(capsys, *words.split(), "--model", "llama-3-8b")
    one, two = found["replays"]
    assert not found["points"] and not found["carried"]
    for point in (one["point"], one["drawn"]):
        assert (point["context_tokens"], point["selected"]) == (32_640, 16)
        assert point["token_ms"] == pytest.approx(40 * 30 / 32)
    assert one["point"]["reads_per_token"] != one["drawn"]["reads_per_token"]
    assert two["point"]["reads_per_token"] == one["point"]["reads_per_token"]
    assert two["point"]["first_ms"] < one["point"]["first_ms"]


def test_what_a_host_selects_by_a_replay_is_what_the_file_selects() -> None:
    """A fork begins at the first step again, as each setting does."""
    path = CAPTURES / "judge-prose.parquet"
    setting = captured(SMALL, path)
    work = CapturedWorkload(path, 16, window_blocks=4)
    blocks = work.sessions[0].blocks
    context = Context(list(range(blocks)), np.zeros((30, blocks), np.uint64), [])
    replay(setting, context)
    slab = next(iter(work.slabs(0, 2)))
    for _ in range(2):
        own = context.fork()
        for step in range(2):
            for layer in (0, 29):
                scores = own.selectors[layer].scores(np.zeros((1, 1), np.float32))
                chosen = select(scores, 16 - 1 - 4, 1, 4, blocks)
                assert set(chosen) == set(slab.selected[step, layer]) - {ABSENT}


@pytest.mark.slow
def test_a_live_row_stands_beside_the_laboratorys(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """On this machine's disk, and on a device in the loop with two drives, whose pace this machine
    may miss: that is in the row. The report has every table."""
    page = tmp_path / "page.html"
    with tempfile.TemporaryDirectory() as short:
        words = f"--context 8192 --select 16 --drives 1,2 --dilation 20 --work {short}"
        found = bench(capsys, *words.split(), "--model", "none", "--page", str(page))
        assert not any(Path(short).iterdir())
    disk, *loop = found["pairs"]
    assert disk["lab"] is None and disk["live"]["provenance"] == "measured"
    assert disk["live"]["late"] is None and not found["carried"] and not found["points"]
    assert [one["live"]["drives"] for one in loop] == [1, 2]
    for one in loop:
        assert one["live"]["provenance"] == "emulated" and 0 <= one["live"]["late"] <= 1
        assert one["lab"]["provenance"] == "modelled"
    assert sum(disk["live"]["used"].values()) == pytest.approx(1)
    assert "gen5-tlc" in page.read_text()


@pytest.mark.slow
def test_a_daemon_serves_what_a_capture_selects(capsys: pytest.CaptureFixture[str]) -> None:
    """Through the live path, where every block is checked; the laboratory has the same beside."""
    with tempfile.TemporaryDirectory() as short:
        capture = CAPTURES / "judge-prose.parquet"
        words = f"--storage gen5-tlc --model none --capture {capture} --work {short}"
        found = bench(capsys, *words.split(), *"--select 16 --drives 1 --dilation 20".split())
    (pair,) = found["pairs"]
    assert pair["live"]["capture"] == pair["lab"]["capture"] == "judge-prose"
    assert pair["live"]["missed_per_token"] > 0 and not found["replays"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--context 1K", "--context: 1,024; give 4,096 to 1,048,576"),
        ("--capture nowhere.parquet --storage none", "nowhere.parquet"),
        ("--capture a --context 8K", "--context: a capture has its own context"),
        ("--drives 1,1", "--drives: 2 values, or one twice"),
        ("--select a", "--select: 'a' is not a list of numbers"),
        ("--waits 100", "--waits: tokens that wait 100 % of their time"),
        ("--storage floppy", "floppy"),
        ("--device abacus", "abacus"),
        ("--device asic_7nm", "--device asic_7nm: a chip has no core"),
        ("--storage none --model none", "nothing to run"),
        ("--model nobody", "nobody"),
        ("--work /no/folder", "/no/folder: is not a folder"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], words: str, says: str) -> None:
    assert run(["bench", "sparse", *words.split()]) == 2
    told = capsys.readouterr().err
    assert says in told and told.count("\n") == 1
