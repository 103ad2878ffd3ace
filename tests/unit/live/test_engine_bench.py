"""Without an engine: does `offstage bench engine` take its prompts from the trace, and is its page
complete?"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from bench_results import ENGINE
from msgspec.structs import replace

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.notes import Note
from offstage.testbeds.bench.engines.arrivals import arrivals_of
from offstage.testbeds.bench.engines.bed import Bed
from offstage.testbeds.bench.engines.link import engine
from offstage.testbeds.bench.engines.lone import OUTPUTS, prompts_of
from offstage.testbeds.bench.engines.result import Arm, Decision, EngineResult, below
from offstage.testbeds.report.engine import figures_of, render


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    rows = [(0, [1, 2, 3, 4]), (1000, [1, 2, 9]), (3000, [7, 8]), (4000, list(range(1, 41)))]
    lines = [
        json.dumps(
            {"timestamp": at, "input_length": 512 * len(ids), "output_length": 5, "hash_ids": ids}
        )
        for at, ids in rows
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def arrivals(trace: Path, **more: Any) -> Any:
    usual = {
        "count": 9,
        "context_tokens": 2048,
        "vocabulary": 4096,
        "seconds": 2.0,
        "outputs": 4,
        "seed": 1,
    }
    return arrivals_of(trace, **(usual | more))


def test_prompts_share_what_the_trace_says(trace: Path) -> None:
    """The longest prompt fits, shared blocks become shared leading tokens, and prompts arrive
    within the given time."""
    made = arrivals(trace)
    first, second, third, last = (one.prompt for one in made.requests)
    each = len(first) // 4
    assert len(last) == 40 * each <= 2048 - 4 and made.scale == each / 512
    assert first[: 2 * each] == second[: 2 * each] and first[2 * each :] != second[2 * each :]
    assert not set(map(tuple, [third[:each]])) & {tuple(first[:each])}
    assert [one.at_s for one in made.requests] == [0.0, 0.5, 1.5, 2.0] and made.hurry == 2.0
    assert 0 < made.reuse < 0.2
    assert arrivals(trace, seed=2).requests[0].prompt != first
    with pytest.raises(BadInput):
        arrivals(trace, context_tokens=30)


def test_an_engine_that_does_not_come_up_is_one_error(tmp_path: Path) -> None:
    """A Python without vLLM is reported by its last line, and so is a missing Python."""
    log = tmp_path / "engine.log"
    with (
        pytest.raises(RunFailed, match=r"ended"),
        engine(Path(sys.executable), tmp_path, None, {"no": "such"}, log),
    ):
        pass
    with (
        pytest.raises(BadInput, match="no such program"),
        engine(tmp_path / "python", tmp_path, None, {}, log),
    ):
        pass


def test_page_and_table_have_every_arm() -> None:
    """Page and table show the times, hits by tier and regret of every arm."""
    made = Decision(0.5, 0.1, True)
    counters = {"objects_on_time": 7.0, "objects_late": 2.0}
    arm = Arm([0.1, 0.2, 0.9], [0], counters, [made, replace(made, took_s=-1.0)])
    found = replace(ENGINE, arms={"recompute": Arm([0.4]), "looked up <on> arrival": arm}, rows=[])
    assert arm.hits == {"on_time": 7, "late": 2, "missing": 0, "failed": 0}
    assert arm.regret.decisions == 1 and below([3.0, 1.0, 2.0], 0.5) == 2.0
    page = render(found, "1")
    assert "looked up &lt;on&gt; arrival" in page and "100 of 500 ms" in page
    assert "is 16.0 of the trace" in page and "200 ms" in page
    assert "One engine prefills" not in page
    noted = render(replace(found, notes=[Note("trace", "chat_id is not read")]), "1")
    assert "chat_id is not read" in noted and "chat_id" not in page
    assert "One engine prefills and another decodes" in render(replace(found, apart=True), "1")
    (table,) = found.own_tables()
    cells = table.cells(table.parts[0].rows[1])
    shown = {one.title: cell for one, cell in zip(table.columns, cells, strict=True)}
    assert shown["on time"].text == "7" and shown["regret"].text == "100 of 500 ms"
    assert figures_of(msgspec.convert(found.document(), EngineResult)), "read back from --out"


def test_prompts_that_are_alone_have_the_lengths_given() -> None:
    """Each length once, from the shortest; none, none above 0, or one beyond the context is one
    error."""
    bed = Bed(Path("python"), Path("model"), {"max_model_len": 512}, 4096, 1, 1, "io_uring")
    made = prompts_of([512 - OUTPUTS, 32, 32], bed, 1)
    assert [len(one.prompt) for one in made.requests] == [32, 512 - OUTPUTS]
    assert prompts_of([32], bed, 1) != prompts_of([32], bed, 2)
    for lengths in ([], [0], [32, 512]):
        with pytest.raises(BadInput, match=r"length|tokens"):
            prompts_of(lengths, bed, 1)


def test_a_length_is_judged_by_its_own_reference() -> None:
    """Medians of each length against computing that length. What decides has the aim of its length;
    the others have none."""
    arms = {
        "64 tokens, recompute": Arm([0.010, 0.010, 9.0]),
        "64 tokens, fetch": Arm([0.011, 0.011, 9.0]),
        "64 tokens, fetch or recompute": Arm([0.011, 0.011, 9.0]),
        "6,000 tokens, recompute": Arm([8.0]),
        "6,000 tokens, fetch": Arm([2.0]),
        "6,000 tokens, fetch or recompute": Arm([1.0]),
    }
    found = replace(ENGINE, arms=arms, rows=[], load_before=3.0, trace="")
    found.compare()
    rows = {one.name: (one.ratio, one.aim and (one.aim.bound, one.aim.met)) for one in found.rows}
    assert rows["64 tokens, fetch or recompute"] == (pytest.approx(1.1), (1.05, False))
    assert rows["6,000 tokens, fetch or recompute"] == (0.125, (0.125, True))
    assert rows["6,000 tokens, fetch"] == (0.25, None) and len(rows) == 4
    ranges = {one.name: one.ratio_range for one in found.rows}
    assert ranges["64 tokens, fetch or recompute"] == pytest.approx((1.0, 1.1)), "of pairs"
    assert ranges["6,000 tokens, fetch"] is None, "of one round"
    shown = found.tables()[0]
    texts = [shown.cells(row)[3].text for row in shown.parts[0].rows]
    assert texts[1] == "1.10 (1.00-1.10)" and texts[3] == "0.125"
    assert "3.0 processes ran" in found.about()[0] and "3.0 processes ran" in render(found, "1")
