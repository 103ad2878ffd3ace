"""Does a file of block scores return what was written, and is any invalid file refused?"""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput, Interrupted, RunFailed
from offstage.testbeds.workloads.selections.scores_file import (
    METADATA_KEY,
    Header,
    Session,
    open_capture,
)
from offstage.testbeds.workloads.selections.scores_writer import Writer

LAYERS, GROUPS, BLOCK = 2, 3, 4
CONTEXT_BLOCKS, WINDOWS, STEPS = 5, 3, 9

Scores = dict[str, npt.NDArray[np.float16]]


def header(session_count: int = 2, **changes: Any) -> Header:
    """The header of a small file; keyword arguments override its fields."""
    sessions = tuple(
        Session(
            name=f"s{i}",
            mode="generated",
            context_tokens=CONTEXT_BLOCKS * BLOCK,
            steps=STEPS,
            content=f"c{i}",
        )
        for i in range(session_count)
    )
    return Header(
        **{
            "model": "m",
            "config_sha256": "",
            "text_sha256": "",
            "tokenizer": "",
            "dtype": "float32",
            "synthetic": True,
            "block_tokens": BLOCK,
            "layer_count": LAYERS,
            "group_count": GROUPS,
            "layers": (0, 1),
            "index_source": (0, 1),
            "sessions": sessions,
            **changes,
        }
    )


def blocks_at(step: int) -> int:
    """Number of blocks recorded at a step, including the one that is being filled."""
    return CONTEXT_BLOCKS + 1 + step if step < 0 else CONTEXT_BLOCKS + step // BLOCK + 1


def scores(step: int, names: tuple[str, ...], seed: int = 0) -> Scores:
    random = np.random.default_rng([seed, step + 1000])
    shape = (LAYERS, GROUPS, blocks_at(step))
    return {name: random.random(shape).astype(np.float16) for name in names}


def write(
    path: Path, names: tuple[str, ...] = ("mass", "quest"), sessions: int = 2, limit: int = 100
) -> None:
    with Writer(path, header(sessions), names, limit) as writer:
        for session in range(sessions):
            for step in range(-WINDOWS, STEPS):
                writer.step(session, step, scores(step, names, session))


@given(
    names=st.sets(st.sampled_from(["mass", "quest", "mean_key"]), min_size=1),
    limit=st.integers(1, 20_000),
)
def test_what_is_written_is_read(
    names: set[str], limit: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """For any columns and row group size, the steps read back are identical to the bit."""
    path = tmp_path_factory.mktemp("files") / "a.parquet"
    ordered = tuple(name for name in ("mass", "quest", "mean_key") if name in names)
    write(path, ordered, limit=limit)
    capture = open_capture(path)
    assert capture.header == header()
    assert capture.scores == ordered
    assert [(one.windows, one.steps) for one in capture.sessions] == [(WINDOWS, STEPS)] * 2
    for session in range(2):
        for name in ordered:
            found = list(capture.steps(session, name, -WINDOWS, STEPS))
            assert [one.step for one in found] == list(range(-WINDOWS, STEPS))
            for one in found:
                np.testing.assert_array_equal(
                    one.scores, scores(one.step, ordered, session)[name], strict=True
                )
            part = [one.step for one in capture.steps(session, name, 2, 5)]
            assert part == [2, 3, 4]


@pytest.mark.parametrize("limit", [1, 10_000])
def test_an_interrupt_leaves_whole_steps(limit: int, tmp_path: Path) -> None:
    """Ctrl-C after four steps of the second session leaves a valid file with those steps only."""
    path = tmp_path / "a.parquet"
    names = ("mass",)
    with pytest.raises(Interrupted, match="13 "), Writer(path, header(), names, limit) as w:
        for session, last in ((0, STEPS), (1, 4)):
            for step in range(-WINDOWS, last):
                w.step(session, step, scores(step, names, session))
        raise KeyboardInterrupt
    assert [one.steps for one in open_capture(path).sessions] == [STEPS, 4]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("error", "last"), [(KeyboardInterrupt, 0), (RuntimeError, STEPS)], ids=["early", "error"]
)
def test_otherwise_nothing_is_left(error: type[BaseException], last: int, tmp_path: Path) -> None:
    """Before the first decode step, or after an error, nothing is kept. An earlier file of that
    name stays."""
    path = tmp_path / "a.parquet"
    path.write_bytes(b"before")
    with pytest.raises(error), Writer(path, header(), ("mass",), 1) as writer:
        for step in range(-WINDOWS, last):
            writer.step(0, step, scores(step, ("mass",)))
        raise error
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_session_without_steps_is_left_out(tmp_path: Path) -> None:
    """After Ctrl-C in the second session's prefill, the file holds the first session only."""
    path = tmp_path / "a.parquet"
    with pytest.raises(Interrupted), Writer(path, header(), ("mass",), 1) as writer:
        for step in range(-WINDOWS, STEPS):
            writer.step(0, step, scores(step, ("mass",)))
        writer.step(1, -WINDOWS, scores(-WINDOWS, ("mass",)))
        raise KeyboardInterrupt
    assert [one.index for one in open_capture(path).sessions] == [0]


def table(path: Path) -> pa.Table:
    write(path, ("mass",), sessions=1, limit=1 << 20)
    return pq.read_table(path)


def retyped(name: str, kind: pa.DataType) -> Callable[[pa.Table], pa.Table]:
    def change(whole: pa.Table) -> pa.Table:
        return whole.set_column(whole.schema.get_field_index(name), name, whole[name].cast(kind))

    return change


def edited(**fields: object) -> Callable[[pa.Table], pa.Table]:
    """Replace fields of the header, past the checks of its types."""

    def change(whole: pa.Table) -> pa.Table:
        raw = msgspec.json.decode(whole.schema.metadata[METADATA_KEY])
        raw.update(fields)
        return whole.replace_schema_metadata({METADATA_KEY: msgspec.json.encode(raw)})

    return change


def value(row: int, made: float) -> Callable[[pa.Table], pa.Table]:
    """Replace the first score of a row."""

    def change(whole: pa.Table) -> pa.Table:
        lists = whole["mass"].combine_chunks()
        flat = lists.flatten().to_numpy().copy()
        flat[lists.offsets[row].as_py()] = made
        array = pa.ListArray.from_arrays(lists.offsets, pa.array(flat))
        return whole.set_column(5, "mass", array)

    return change


def shorter(whole: pa.Table) -> pa.Table:
    """Drop the last score of every list, but keep the number of blocks."""
    lists = [row[:-1] for row in whole["mass"].to_pylist()]
    return whole.set_column(5, "mass", pa.array(lists, pa.list_(pa.float16())))


WRONG: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "no column step": (lambda whole: whole.drop_columns(["step"]), "column 'step' is missing"),
    "no scores": (lambda whole: whole.drop_columns(["mass"]), "none of the columns mass, quest"),
    "type of step": (retyped("step", pa.int64()), "column 'step' is int64 and not int32"),
    "type of mass": (retyped("mass", pa.list_(pa.float32())), "not list<halffloat>"),
    "no header": (lambda whole: whole.replace_schema_metadata(None), "header"),
    "no JSON": (
        lambda whole: whole.replace_schema_metadata({METADATA_KEY: b"{"}),
        "header cannot be read",
    ),
    "version": (edited(version=2), "format version 2; this release reads version 1"),
    "header field": (edited(block_tokens="many"), "block_tokens"),
    "layers": (edited(layers=[0]), "1 numbers of 2 layers"),
    "index": (edited(index_source=[1, 1]), "an index source"),
    "blocks of context": (edited(block_tokens=3), "whole number of blocks"),
    "sessions": (edited(sessions=[]), "no session"),
    "row order": (lambda whole: whole.take([1, 0, *range(2, len(whole))]), "out of order"),
    "a row missing": (lambda whole: whole.slice(1), "whole steps of"),
    "a step missing": (
        lambda whole: whole.take([*range(60), *range(66, len(whole))]),
        "out of order",
    ),
    "begins late": (lambda whole: whole.slice(24), "begins with step 1"),
    "empty": (lambda whole: whole.slice(0, 0), "no decode step"),
    "prefill only": (lambda whole: whole.slice(0, 18), "no decode step"),
    "more groups": (edited(group_count=4), "row"),
    "too many steps": (
        edited(sessions=[{**msgspec.to_builtins(header(1).sessions[0]), "steps": 2}]),
        "more steps than its header says",
    ),
    "blocks": (
        edited(sessions=[{**msgspec.to_builtins(header(1).sessions[0]), "context_tokens": 28}]),
        "step 0 of session 0 has 6 blocks",
    ),
    "NaN": (value(40, np.nan), "mass has a value that is not finite"),
    "negative": (value(40, -1.0), "mass has a value below 0"),
    "list length": (shorter, "mass has not one value for each block"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named(what: str, tmp_path: Path) -> None:
    """One line names the file and the defect, at open or when the scores are read."""
    change, message = WRONG[what]
    path = tmp_path / "a.parquet"
    changed = change(table(path))
    pq.write_table(changed, path)
    with pytest.raises(BadInput) as caught:
        list(open_capture(path).steps(0, "mass", -WINDOWS, STEPS))
    assert caught.value.where == str(path)
    assert message in caught.value.what


@pytest.mark.parametrize("cut", [0, 3, 100, 0.5, 0.99])
def test_a_torn_file_is_refused(cut: float, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(cut if cut > 1 else cut * len(whole))])
    with pytest.raises(BadInput, match="not a whole Parquet file"):
        open_capture(path)


def test_damage_inside_is_found(tmp_path: Path) -> None:
    """A flipped byte is detected by its page's checksum or by an invalid value."""
    path = tmp_path / "a.parquet"
    write(path)
    whole = path.read_bytes()
    expected = [one.scores for one in open_capture(path).steps(0, "mass", -WINDOWS, STEPS)]
    refused = 0
    for at in range(4, len(whole) // 2, 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1 :])
        try:
            found = [one.scores for one in open_capture(path).steps(0, "mass", -WINDOWS, STEPS)]
        except BadInput:
            refused += 1
        else:
            for one, two in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, two)
    assert refused > 10


@pytest.mark.parametrize("name", ["missing/a.parquet", ".", "file/a.parquet", "a" * 250])
def test_a_path_that_cannot_be_is_refused_before_anything(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput):
        Writer(tmp_path / name, header())
    with pytest.raises(BadInput):
        open_capture(tmp_path / name)
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "Error writing bytes to file")

    path = tmp_path / "a.parquet"
    with pytest.raises(RunFailed, match="no space left on device"), Writer(path, header()) as w:
        monkeypatch.setattr(pq.ParquetWriter, "write_batch", full)
        for step in range(STEPS):
            w.step(0, step, scores(step, ("mass", "quest", "mean_key")))
    assert list(tmp_path.iterdir()) == []
