"""Does a load generator get the requests of the trace, no more shared and no less?"""

import json
from pathlib import Path
from typing import Any

import pytest
from against_schema import checked
from hypothesis import given
from hypothesis import strategies as st

from offstage.testbeds.cli import run
from offstage.testbeds.progress import Silent
from offstage.testbeds.workloads.requests.collector import Columns, runs_of
from offstage.testbeds.workloads.requests.columns import Origin, Trace
from offstage.testbeds.workloads.requests.exporter import FORMS, export_trace
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.in_blocks import requests_in_blocks


def written(trace: Trace, path: Path, form: str) -> list[dict[str, Any]]:
    export_trace(trace, path, form, Silent())
    return [json.loads(line) for line in path.read_text().splitlines()]


def made(rows: list[dict[str, Any]], block_tokens: int | None = 64) -> Trace:
    """Build a trace of keyword arguments of `Columns.add`, with 100 and 5 tokens unless given."""
    columns = Columns(block_tokens, ordered=True)
    for row in rows:
        columns.add("here", **({"arrival_s": 0.0, "input_tokens": 100, "output_tokens": 5} | row))
    return columns.finish(Origin("some", "test"))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Draw sessions whose prompts share prefixes, in blocks, or lengths alone."""
    block_tokens = draw(st.sampled_from([None, 16, 64, 512]))
    grouped = draw(st.booleans())
    columns = Columns(block_tokens, ordered=False)
    turns: dict[int, int] = {}
    last_ms: dict[int, int] = {}
    by_delay: dict[int, bool] = {}
    now_ms = 0
    for _ in range(draw(st.integers(1, 12))):
        session = draw(st.integers(0, 3))
        tokens = draw(st.integers(0, 2000))
        think_ms = draw(st.none() | st.integers(0, 10**7))
        follows = False
        if grouped and session in turns:
            follows = by_delay.setdefault(session, draw(st.booleans()))
        now_ms += draw(st.integers(0, 10**6))
        at_ms = (
            last_ms[session] + (think_ms or 0) if follows else max(now_ms, last_ms.get(session, 0))
        )
        now_ms = max(now_ms, 0 if follows else at_ms)
        ids = []
        if block_tokens:
            count, shared = -(-tokens // block_tokens), draw(st.integers(0, 3))
            own = 1000 * draw(st.integers(1, 4))
            ids = [*range(shared), *range(own, own + count)][:count]
        columns.add(
            "drawn",
            at_ms / 1e3,
            tokens,
            draw(st.integers(0, 500)),
            runs_of(ids),
            session=f"s{session}" if grouped else None,
            think_s=None if think_ms is None or not grouped else think_ms / 1e3,
            follows=follows,
        )
        turns[session] = turns.get(session, 0) + 1
        last_ms[session] = at_ms
    return columns.finish(Origin("drawn", "test"))


def prompts(trace: Trace) -> list[tuple[int, ...]]:
    """Ids of each prompt, numbered by first appearance."""
    numbers: dict[int, int] = {}
    return [
        tuple(numbers.setdefault(one, len(numbers)) for one in trace.block_ids(n).tolist())
        for n in range(len(trace))
    ]


def names(trace: Trace) -> list[str | None]:
    return [trace.session_names[one] if one >= 0 else None for one in trace.session.tolist()]


@given(trace=traces(), form=st.sampled_from(sorted(FORMS)))
def test_what_is_exported_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace, form: str
) -> None:
    """Arrivals, lengths and shared prefixes; in AIPerf's form sessions and delays too."""
    path = tmp_path_factory.mktemp("export") / "t.jsonl"
    done = export_trace(trace, path, form, Silent())
    again = open_trace(path, "mooncake", block_tokens=done.block_tokens or None)
    begin_s = trace.arrival_s - trace.arrival_s[0]
    assert again.arrival_s == pytest.approx(begin_s, abs=1e-9)
    assert again.input_tokens.tolist() == trace.input_tokens.tolist()
    assert again.output_tokens.tolist() == trace.output_tokens.tolist()
    assert again.block_tokens == done.block_tokens
    if form == "aiperf":
        assert names(again) == names(trace)
        assert again.follows.tolist() == trace.follows.tolist()
        assert again.think_s == pytest.approx(trace.think_s, abs=1e-9, nan_ok=True)
    else:
        assert not again.has_sessions and not again.follows.any()
    if trace.block_tokens == done.block_tokens:
        assert prompts(again) == prompts(trace)
    elif again.block_tokens:
        numbers: dict[int, int] = {}
        assert prompts(again) == [
            tuple(numbers.setdefault(id, len(numbers)) for id in one.block_ids)
            for one in requests_in_blocks(trace)
        ]


def test_nothing_is_shared_that_the_trace_does_not_share(tmp_path: Path) -> None:
    """Requests without blocks get ids of their own where a form needs some, and none elsewhere."""
    trace = made([{"arrival_s": float(n), "input_tokens": 700} for n in range(3)], None)
    for form in ("mooncake", "vllm"):
        ids = [id for row in written(trace, tmp_path / form, form) for id in row["hash_ids"]]
        assert len(ids) == len(set(ids)) == 6
        assert (
            "6 blocks without an id"
            in export_trace(trace, tmp_path / form, form, Silent()).notes[0]
        )
    assert all("hash_ids" not in row for row in written(trace, tmp_path / "a", "aiperf"))


def test_a_prompt_has_as_many_ids_as_blocks(tmp_path: Path) -> None:
    """A tail without an id gets one of its own; an id beyond the length is left out."""
    trace = made(
        [
            {"input_tokens": 100, "runs": [(7, 1)]},
            {"input_tokens": 64, "runs": [(7, 2)]},
        ]
    )
    first, second = written(trace, tmp_path / "t", "vllm")
    assert first["hash_ids"][0] == 7 and first["hash_ids"][1] not in (7, 8)
    assert second["hash_ids"] == [7]
    notes = export_trace(trace, tmp_path / "t", "vllm", Silent()).notes
    assert notes == (
        "1 block without an id: given one that nothing shares",
        "1 id beyond the length of a prompt left out",
    )


def test_times_count_from_the_first_arrival(tmp_path: Path) -> None:
    """Whole milliseconds are whole numbers, as Mooncake has them."""
    trace = made([{"arrival_s": 1944.5}, {"arrival_s": 1945.0}, {"arrival_s": 1945.0005}], None)
    path = tmp_path / "t"
    written(trace, path, "aiperf")
    assert '"timestamp":0,' in path.read_text().splitlines()[0]
    assert [json.loads(line)["timestamp"] for line in path.read_text().splitlines()] == [
        0,
        500,
        500.5,
    ]


def test_sessions_for_aiperf(tmp_path: Path) -> None:
    """Every prompt is whole, which AIPerf must know; a request of no session is one of its own."""
    trace = made(
        [
            {"session": "request-", "runs": [(1, 2)]},
            {
                "arrival_s": 1.0,
                "session": "request-",
                "runs": [(1, 2)],
                "think_s": 1.0,
                "follows": True,
            },
            {"arrival_s": 2.0, "runs": [(5, 2)]},
        ]
    )
    rows = written(trace, tmp_path / "t", "aiperf")
    assert [row["session_id"] for row in rows] == ["request-", "request-", "request--2"]
    assert {row["context_mode"] for row in rows} == {"message_array_with_responses"}
    assert "timestamp" not in rows[1] and rows[1]["delay"] == 1000
    done = export_trace(trace, tmp_path / "t", "aiperf", Silent())
    assert done.sessions == 2 and "newer than 0.13.0" in done.notes[0]
    left = export_trace(trace, tmp_path / "t", "mooncake", Silent()).notes
    assert left[0] == "1 session left out, with all delays: this form has none"
    assert left[1] == "1 turn without an arrival: sent as if the turns before took no time"


def test_the_command_says_what_sends_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "s.jsonl"
    source.write_text(
        '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n' * 3
    )
    out = tmp_path / "o.jsonl"

    def offstage(*words: object) -> int:
        return run(["trace", "export", str(source), *map(str, words)])

    assert offstage("--to", "vllm", "--out", out, "--format", "json") == 0
    done = checked("trace export", capsys.readouterr().out)
    assert (done["form"], done["requests"], done["sessions"], done["block_tokens"]) == (
        "vllm",
        3,
        0,
        512,
    )
    words = " ".join(done["command"])
    assert f"--dataset-path {out} --num-prompts 3 --self-timed" in words
    assert "--timed-trace-chunk-hash-size 512 --timed-trace-sec-multiplier 0.001" in words
    assert offstage("--to", "aiperf", "--out", out) == 0
    assert "--isl-block-size 512" in capsys.readouterr().out
    for bad in (("--to", "sglang", "--out", out), ("--to", "vllm", "--out", tmp_path / "o.gz")):
        assert offstage(*bad) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "choose one of mooncake, aiperf, vllm" in errors[0] and "plain .jsonl" in errors[1]


def test_ids_beyond_53_bits_are_numbered_anew(tmp_path: Path) -> None:
    """They stay equal where they were, and leave room for others."""
    far = 2**63 - 3
    trace = made([{"runs": [(far, 2)]}, {"runs": [(far, 1), (5, 1)]}, {"runs": [(far, 1)]}])
    ids = [row["hash_ids"] for row in written(trace, tmp_path / "t", "vllm")]
    assert ids == [[1, 2], [1, 0], [1, 3]]


def test_ids_of_blocks_of_two_lengths_are_counted(tmp_path: Path) -> None:
    """A part of a block is another block than the whole, or than a longer part."""
    rows: list[dict[str, Any]] = [
        {"input_tokens": 100, "runs": [(1, 2)]},
        {"input_tokens": 100, "runs": [(1, 2)]},
        {"input_tokens": 192, "runs": [(5, 3)]},
    ]
    told = "blocks of two lengths"

    def notes(*more: dict[str, Any]) -> str:
        return str(export_trace(made([*rows, *more]), tmp_path / "t", "aiperf", Silent()).notes)

    assert told not in notes()
    assert f"1 id of {told}" in notes({"input_tokens": 90, "runs": [(1, 2)]})
    assert f"1 id of {told}" in notes({"input_tokens": 70, "runs": [(5, 2)]})
    both = {"input_tokens": 90, "runs": [(1, 2)]}, {"input_tokens": 70, "runs": [(5, 2)]}
    assert f"2 ids of {told}" in notes(*both)
