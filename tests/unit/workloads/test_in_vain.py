"""Is every trace property that a run of decode sessions ignores noted where it applies?"""

import json
from pathlib import Path
from typing import Any

import pytest

from offstage.testbeds.bench.engines.arrivals import arrivals_of
from offstage.testbeds.bench.pod.asks import of_trace
from offstage.testbeds.lab.pod.requests import trace_notes
from offstage.testbeds.lab.pod.spec import load_spec
from offstage.testbeds.workloads.requests.collector import Columns
from offstage.testbeds.workloads.requests.columns import Origin, Trace
from offstage.testbeds.workloads.requests.importer import open_trace, write_trace
from offstage.testbeds.workloads.requests.in_vain import unused


def trace_of(*, sessions: bool = False, think_s: float | None = None) -> Trace:
    columns = Columns(64, ordered=True)
    for number in range(4):
        columns.add(
            "here",
            float(number),
            640,
            8,
            [(0, 10)],
            session=f"s{number % 2}" if sessions else None,
            think_s=think_s,
        )
    return columns.finish(Origin("some", "test"))


def codes(trace: Trace, contexts: list[int], steps: list[int], outputs: bool = True) -> set[str]:
    found = unused(
        trace, contexts, steps, context_tokens_max=512, steps_max=8, lengths_of_outputs=outputs
    )
    assert all("some" in note.what for note in found)
    return {note.code for note in found}


def test_lengths_that_are_cut_alike() -> None:
    assert codes(trace_of(), [512, 512], [8, 3]) == {"cut-alike"}
    assert codes(trace_of(), [512, 448], [8, 8]) == {"outputs-cut-alike"}
    assert codes(trace_of(), [512, 448], [8, 3]) == set()
    assert codes(trace_of(), [512], [8]) == set(), "one request is no pattern"


def test_outputs_that_a_fixed_number_of_steps_replaces() -> None:
    assert codes(trace_of(), [512, 448], [8, 8], outputs=False) == {"outputs-unused"}


def test_unused_sessions_and_think_times() -> None:
    assert codes(trace_of(sessions=True), [512, 448], [8, 3]) == {"sessions-unused"}
    assert codes(trace_of(sessions=True, think_s=2.0), [512, 448], [8, 3]) == {
        "sessions-unused",
        "think-unused",
    }


HASHED = {"timestamp": 5, "input_length": 32, "output_length": 7, "hash_runs": [[4, 2]]}
MOONCAKE = {"timestamp": 5, "input_length": 1024, "output_length": 7, "hash_ids": [4, 5]}
CALL = {"timestamp": 5_000_000, "input": "x" * 300, "output": "y", "session_id": "s"}
ASKED = {"t": 0.0, "in": 64, "out": 5, "hash_ids": [1]}
ROWS: dict[str, list[dict[str, Any]]] = {
    "mooncake": [
        MOONCAKE | {"group_id": "a", "priority": 3},
        MOONCAKE | {"chat_id": 7, "priority": 1},
    ],
    "sharegpt": [
        HASHED | {"priority": 3, "chat_id": 1},
        HASHED | {"priority": 1, "session_id": "a"},
    ],
    "lmcache": [CALL | {"priority": 3, "chat_id": 1}, CALL | {"priority": 1, "turn": [{"a": [1]}]}],
    "weka": [
        {
            "id": "a",
            "block_size": 64,
            "chat_id": 2,
            "requests": [
                ASKED | {"priority": 1},
                {"t": 1.0, "requests": [ASKED | {"priority": 2, "model": "m"}]},
            ],
        }
    ],
    "offstage": [
        {"offstage_trace": 1, "name": "n", "format": "f", "requests": 2, "chat_id": 3},
        {"t": 0, "in": 64, "out": 1, "priority": 4},
        {"t": 1, "in": 64, "out": 1, "priority": 5, "x": 0},
    ],
}
UNREAD = {
    "mooncake": ("chat_id", "group_id"),
    "sharegpt": ("chat_id", "session_id"),
    "lmcache": ("chat_id", "turn"),
    "weka": ("chat_id", "model"),
    "offstage": ("chat_id", "x"),
}


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", ROWS)
def test_keys_that_a_format_does_not_read_are_named_with_their_counts(
    name: str, tmp_path: Path
) -> None:
    """Keys are found at every depth, and an import keeps the note."""
    trace = open_trace(written(tmp_path / "t", ROWS[name]))
    assert trace.origin.format == name or name == "offstage"
    rest = ", ".join(f"{key} (once)" for key in UNREAD[name])
    told = f"keys that format {name} does not read have no effect: priority (2 times), {rest}"
    assert told in trace.origin.notes
    write_trace(trace, tmp_path / "o")
    assert told in [note.what for note in open_trace(tmp_path / "o").notes]


def test_many_keys_are_counted_and_the_most_frequent_named(tmp_path: Path) -> None:
    many = {f"k{number:04}": 0 for number in range(400)}
    rows = [MOONCAKE | {"often": 0, "\x1b[2J" + "y" * 60: 0}, MOONCAKE | {"often": 1} | many]
    (note,) = open_trace(written(tmp_path / "t", rows)).origin.notes
    assert ": any other (146 times), often (2 times), " in note
    assert note.endswith("and 245 more") and note.isprintable() and len(note) < 500


def test_what_a_trace_says_in_vain_is_told_wherever_one_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path / "t", ROWS["mooncake"])
    notes = open_trace(path).notes
    made = arrivals_of(
        path, count=2, context_tokens=512, vocabulary=99, seconds=1.0, outputs=4, seed=1
    )
    assert made.notes == of_trace(path, begin_s=0, span_s=9, seconds=1).notes == notes
    assert tuple(trace_notes(load_spec(None, {"trace": str(path)}))) == notes
