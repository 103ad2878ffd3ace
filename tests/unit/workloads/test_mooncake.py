"""Does the trace reader return the file's contents, and report every defect in one line?"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests import trace as trace_module
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.trace import Request


def row(**changes: Any) -> dict[str, Any]:
    good = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
    return {key: value for key, value in (good | changes).items() if value is not None}


def load(path: Path, limit: int | None = None) -> list[Request]:
    return list(open_trace(path, "mooncake", limit=limit).requests())


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def test_plain_and_gzip_give_the_same_requests(tmp_path: Path) -> None:
    """The content is read from either container, and an extra key is ignored."""
    plain = write(tmp_path / "t.jsonl", row(), row(timestamp=3000.5, type="chat"))
    packed = tmp_path / "t.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert (
        load(plain)
        == load(packed)
        == [
            Request(0, 0.0, 600, 5, (1, 2)),
            Request(1, 3000.5, 600, 5, (1, 2)),
        ]
    )
    assert [load(plain)[0].block_tokens(0), load(plain)[0].block_tokens(1)] == [512, 88]


def test_a_last_line_without_its_end_is_complete_if_it_is_json(tmp_path: Path) -> None:
    """A file that an editor left without a final newline is read in full."""
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(row()))
    assert len(load(path)) == 1


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (row(hash_ids=None), 'only some lines have "hash_ids"'),
        (row(timestamp=None), 'only some lines have "timestamp"'),
        (row(input_length="600"), "Expected `int`, got `str`"),
        (row(input_length=600.5), "Expected `int`, got `float`"),
        (row(output_length=True), "Expected `int`, got `bool`"),
        (row(output_length=-1), "Expected `int` >= 0"),
        (row(timestamp=-3), "Expected `float` >= 0"),
        (row(hash_ids=[1, -2]), "Expected `int` >= 0"),
        (row(hash_ids=[1, 2**63]), "hash_ids"),
        (row(hash_ids=[1]), "1 hash_ids for 600 input tokens"),
        (row(hash_ids=[1, 2, 3]), "3 hash_ids for 600 input tokens"),
    ],
)
def test_a_wrong_value_is_named_with_file_and_line(
    tmp_path: Path, bad: dict[str, Any], what: str
) -> None:
    """The error for each defect of a row has cause, place and fix, in one line."""
    path = write(tmp_path / "t.jsonl", row(), bad, row())
    with pytest.raises(BadInput) as caught:
        load(path)
    assert what in caught.value.what
    assert caught.value.where == f"{path}:2"
    assert caught.value.fix and "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        (json.dumps(row()) + "\n" + json.dumps(row())[:40], 2, "the last line is torn"),
        (json.dumps(row()) + "\nhello\n", 2, "not JSON"),
        ("[1, 2]\n", 1, "Expected `object`, got `array`"),
        (json.dumps(row()) + "\n\n" + json.dumps(row()) + "\n", 2, "blank line"),
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, text: str, line: int, what: str) -> None:
    """Each kind of bad line has its own error: torn, blank, not JSON, not an object."""
    path = tmp_path / "t.jsonl"
    path.write_text(text)
    with pytest.raises(BadInput, match=what) as caught:
        load(path)
    assert caught.value.where == f"{path}:{line}"


def test_timestamps_that_go_back_are_refused(tmp_path: Path) -> None:
    """An unsorted trace is refused rather than replayed with negative gaps."""
    path = write(tmp_path / "t.jsonl", row(timestamp=10), row(timestamp=9))
    with pytest.raises(BadInput, match="is before the previous one") as caught:
        load(path)
    assert caught.value.where == f"{path}:2"


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    """Each way in which a whole file can be wrong has its own error."""
    packed = gzip.compress(
        b"".join(json.dumps(row(timestamp=n)).encode() + b"\n" for n in range(500))
    )
    damaged = bytearray(packed)
    damaged[len(packed) // 2] ^= 0xFF
    cases = {
        "empty.jsonl": (b"", "holds no request"),
        "empty.jsonl.gz": (b"", "holds no request"),
        "plain.jsonl.gz": (b"{}\n", "not a gzip file"),
        "torn.jsonl.gz": (packed[: len(packed) // 2], "torn"),
        "damaged.jsonl.gz": (bytes(damaged), "gzip stream|JSON|torn"),
    }
    for name, (content, what) in cases.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(BadInput, match=what) as caught:
            load(path)
        assert str(path) in caught.value.where
    with pytest.raises(BadInput, match="no such file"):
        load(tmp_path / "absent.jsonl")
    with pytest.raises(BadInput, match="cannot be read"):
        load(tmp_path)


def test_an_endless_line_is_refused_before_it_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded when the file has no line ends."""
    monkeypatch.setattr(trace_module, "LINE_BYTES_MAX", 64)
    path = write(tmp_path / "t.jsonl", row(note="x" * 100))
    with pytest.raises(BadInput, match="line longer than"):
        load(path)


def test_a_limit_stops_before_what_follows(tmp_path: Path) -> None:
    """The stream stops at the limit, so that the start of a long trace can be inspected."""
    path = write(tmp_path / "t.jsonl", row(), row(), row(hash_ids=[]))
    assert [request.index for request in load(path, 2)] == [0, 1]
    with pytest.raises(BadInput, match="limit of 0"):
        load(path, 0)


@given(st.binary(max_size=300))
def test_garbage_never_raises_anything_else(tmp_path_factory: Any, garbage: bytes) -> None:
    """Every byte string is a trace or a BadInput, never a traceback."""
    path = tmp_path_factory.mktemp("garbage") / "t.jsonl"
    for prefix in (b"", json.dumps(row()).encode() + b"\n", b"\x1f\x8b"):
        path.write_bytes(prefix + garbage)
        try:
            assert load(path)
        except BadInput as error:
            assert "\n" not in str(error)
