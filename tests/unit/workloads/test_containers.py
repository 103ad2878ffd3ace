"""Are all containers of a trace read, and deep JSON, absurd numbers and time units handled?"""

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import threading
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.importer import open_trace, selections_kind

ROWS = b"".join(
    json.dumps(
        {"timestamp": n * 1000, "input_length": 600, "output_length": 5, "hash_ids": [n, n + 1]}
    ).encode()
    + b"\n"
    for n in range(40)
)


def packed_by(codec: str, folder: Path) -> bytes:
    import pyarrow as pa

    path = folder / f"packed.{codec}"
    with pa.OSFile(str(path), "wb") as file, pa.CompressedOutputStream(file, codec) as packed:
        packed.write(ROWS)
    return path.read_bytes()


def tar(members: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, data in members.items():
            one = tarfile.TarInfo(name)
            one.size = len(data)
            archive.addfile(one, io.BytesIO(data))
    return sink.getvalue()


@pytest.mark.parametrize(
    "how",
    ["gzip", "bz2", "xz", "zstd", "lz4", "bom", "tar", "tar.gz", "zstd in tar", "zstd in gzip"],
)
def test_a_trace_is_read_out_of_what_it_comes_in(tmp_path: Path, how: str) -> None:
    """A trace in each container equals the plain file, whatever its name."""
    packed = {
        "gzip": lambda: gzip.compress(ROWS),
        "bz2": lambda: bz2.compress(ROWS),
        "xz": lambda: lzma.compress(ROWS),
        "zstd": lambda: packed_by("zstd", tmp_path),
        "lz4": lambda: packed_by("lz4", tmp_path),
        "bom": lambda: b"\xef\xbb\xbf" + ROWS,
        "tar": lambda: tar({"a/t.jsonl": ROWS, "a/._t.jsonl": b"x"}),
        "tar.gz": lambda: gzip.compress(tar({"t.jsonl": ROWS})),
        "zstd in tar": lambda: tar({"t.zst": packed_by("zstd", tmp_path)}),
        "zstd in gzip": lambda: gzip.compress(packed_by("zstd", tmp_path)),
    }[how]()
    path = tmp_path / "trace.data"
    path.write_bytes(packed)
    trace = open_trace(path)
    assert (trace.origin.format, len(trace)) == ("mooncake", 40)
    assert trace.arrival_s.tolist() == [float(n) for n in range(40)]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (tar({"a.jsonl": ROWS, "b.jsonl": ROWS}), "tar archive of 2 files"),
        (tar({"a/._t.jsonl": b"x"}), "tar archive of 0"),
        (ROWS.decode().encode("utf-16"), "UTF-16"),
        (b"PK\x03\x04" + b"\0" * 600, "zip archive"),
        (bz2.compress(ROWS)[:60], "bzip2 stream"),
        (lzma.compress(ROWS)[:60], "xz stream"),
        (b"\x28\xb5\x2f\xfd" + b"\x07" * 600, "Zstandard"),
    ],
)
def test_a_container_that_is_not_read_is_named(tmp_path: Path, data: bytes, what: str) -> None:
    """The error names the file's type instead of saying that no format begins like it."""
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    with pytest.raises(BadInput, match=what) as caught:
        open_trace(path)
    assert str(path) in caught.value.where


def test_a_pipe_is_read_once_and_as_a_file(tmp_path: Path) -> None:
    """A trace from a pipe equals one from a file, including its checksum."""
    plain, pipe = tmp_path / "t.jsonl", tmp_path / "pipe"
    plain.write_bytes(ROWS)
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(ROWS,), daemon=True)
    writer.start()
    assert selections_kind(pipe) == ""  # what `trace info` checks first
    found, expected = open_trace(pipe), open_trace(plain)
    writer.join()
    assert found.arrival_s.tolist() == expected.arrival_s.tolist()
    assert found.origin.sha256 == expected.origin.sha256


@pytest.mark.parametrize(
    "line",
    [
        b'{"timestamp":0,"input_length":10,"output_length":1,"hash_ids":[1],"x":' + b"[" * 100_000,
        b'{"block_size":64,"id":"a","requests":' + b'[{"t":0,"requests":' * 20_000,
    ],
)
def test_json_without_bottom_is_one_error(tmp_path: Path, line: bytes) -> None:
    """Nesting beyond any bound is an error that names the file, in every format."""
    path = tmp_path / "deep.jsonl"
    path.write_bytes(line + b"\n")
    for format in (None, "mooncake", "weka", "lmcache", "sharegpt", "offstage"):
        with pytest.raises(BadInput) as caught:
            open_trace(path, format)
        assert str(path) in caught.value.where


@pytest.mark.parametrize(("block_tokens", "tokens"), [(1, 2**40), (16, 2**62)])
def test_absurd_lengths_are_refused_where_they_stand(
    tmp_path: Path, block_tokens: int, tokens: int
) -> None:
    """A prompt of 2^40 tokens is refused at its line, before an array is allocated for it."""
    path = tmp_path / "t.jsonl"
    head = {
        "offstage_trace": 1,
        "name": "x",
        "format": "x",
        "requests": 1,
        "block_tokens": block_tokens,
    }
    row = {"t": 0, "in": tokens, "out": 1, "runs": [[0, tokens // block_tokens]]}
    path.write_text(f"{json.dumps(head)}\n{json.dumps(row)}\n")
    with pytest.raises(BadInput, match=f"{tokens} input") as caught:
        open_trace(path)
    assert caught.value.where == f"{path}:2"


def times(path: Path, *stamps: float) -> Path:
    path.write_text(
        "".join(
            json.dumps({"timestamp": at, "input_length": 10, "output_length": 1, "hash_ids": [1]})
            + "\n"
            for at in stamps
        )
    )
    return path


@pytest.mark.parametrize("stamps", [(0, 1, 2, 3), (61.114, 62.5), (0.0, 30.5, 70.25)])
def test_seconds_that_are_read_as_milliseconds_are_noted(
    tmp_path: Path, stamps: tuple[float, ...]
) -> None:
    """A trace in another unit gets a note, which naming the unit removes."""
    path = times(tmp_path / "t.jsonl", *stamps)
    assert any("--time-unit" in note for note in open_trace(path).origin.notes)
    told = open_trace(path, time_unit="s")
    assert not any("--time-unit" in note for note in told.origin.notes)
    assert told.arrival_s.tolist() == list(stamps)


def test_a_plausible_trace_has_no_such_note(tmp_path: Path) -> None:
    """A trace in its format's own unit gets no note."""
    path = times(tmp_path / "t.jsonl", 0, 700, 1500, 2600)
    assert open_trace(path).origin.notes == ()


@pytest.mark.parametrize(("unit", "second"), [("s", 1), ("ms", 1e3), ("us", 1e6), ("ns", 1e9)])
def test_every_unit_is_read(tmp_path: Path, unit: str, second: float) -> None:
    """One second is one second in each unit."""
    path = times(tmp_path / "t.jsonl", 0, second)
    assert open_trace(path, time_unit=unit).arrival_s.tolist() == [0.0, 1.0]


def test_a_unit_that_is_none_or_has_no_effect_is_refused(tmp_path: Path) -> None:
    """An unknown unit is refused, and so is a unit for times that are text."""
    path = times(tmp_path / "t.jsonl", 0, 1)
    with pytest.raises(BadInput, match="times in h"):
        open_trace(path, time_unit="h")
    azure = tmp_path / "a.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,10,1\n")
    with pytest.raises(BadInput, match="not numbers"):
        open_trace(azure, time_unit="s")
