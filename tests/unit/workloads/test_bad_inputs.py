"""Does every reader read any input or refuse it in one line, in bounded time and memory?"""

import gzip
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from offstage.bindings.errors import BadInput
from offstage.testbeds.cli import run
from offstage.testbeds.workloads.requests import collector, containers
from offstage.testbeds.workloads.requests.formats import servegen
from offstage.testbeds.workloads.requests.importer import FORMATS, open_trace

MEMORY_BYTES = 3 << 30
GOOD: dict[str, str] = {
    "mooncake": '{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]}',
    "lmcache": '{"timestamp": 0, "input": "abc", "output": "d", "session_id": "s"}',
    "lmcache hashed": '{"timestamp": 0, "input_length": 10, "output_length": 1, "session": 1, '
    '"hash_runs": [[1, 1]]}',
    "sharegpt": '{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_runs": [[1, 1]]}',
    "weka": '{"id": "a", "block_size": 64, "requests": [{"t": 0, "in": 10, "out": 1, '
    '"hash_ids": [1]}]}',
    "offstage": '{"offstage_trace": 1, "name": "a", "format": "mooncake", "requests": 1, '
    '"block_tokens": 64}\n{"t": 0, "in": 10, "out": 1, "runs": [[1, 1]]}',
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5,10,1",
    "qwen": '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 0, "input_length": 10, '
    '"output_length": 1, "hash_ids": [1]}',
    "burstgpt": "Timestamp,Request tokens,Response tokens\n0.5,10,1",
    "mooncake session": '{"session_id": "a", "timestamp": 0, "input_length": 10, '
    '"output_length": 1, "hash_ids": [1]}',
}
"""A trace of each format with one request: 0 s, 10 tokens in, 1 out."""

LENGTHS = (
    "9" * 400,
    "9223372036854775808",
    "9223372036854775807",
    "1e308",
    "1e999",
    "-1",
    "-0.5",
    "NaN",
    "Infinity",
    "-Infinity",
    "null",
    '""',
    '"10"',
    "[]",
    "{}",
    "true",
    "0x10",
    "1_0",
    "\u0661\u0660",
    "10" + "0" * 5000,
)
PLACES = {"length": (": 10,", ",10,", ': "abc",'), "time": (": 0,", "2023-11-16 18:15:46.5", "0.5")}


def with_value(name: str, place: str, value: str) -> str:
    """Return the trace with `value` as its length or time."""
    for old in PLACES[place]:
        if old in GOOD[name]:
            return GOOD[name].replace(old, old.replace(old.strip(":, "), f" {value}".lstrip()))
    raise AssertionError(name)


WHOLE: dict[str, bytes] = {
    "empty": b"",
    "a newline": b"\n",
    "blanks": b" \t\r\n" * 100,
    "a NUL": b"\0",
    "NULs": bytes(4096),
    "no text": b"\xff\xfe\xfd\xfc" * 100,
    "half a character": b'{"timestamp": 0, "a": "\xc3',
    "a lone surrogate": b'{"timestamp": 0, "input": "\\ud800", "output": "", "session_id": "s"}\n',
    "Parquet's begin": b"PAR1" + bytes(100),
    "scores' begin": b'{"run": 1, "model": "a", "layers": 1, "prompt_tokens": 1, "steps": 1}\n',
    "a number": b"7\n",
    "a list": b"[]\n",
    "an open object": b"{" * 100_000,
    "an open list": b"[" * 100_000,
    "no objects": b'{"timestamp": 0}\n' * 3,
    "a header of Azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n",
    "quotes": b'TIMESTAMP,ContextTokens,GeneratedTokens\n"2023-11-16 18:15:46,1,1\n',
    "a long field": b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + b"1" * 200_000 + b",1,1\n",
    "a header of ours": b'{"offstage_trace": 1, "name": "a", "format": "b", "requests": 1}\n',
    "a header of many": b'{"offstage_trace": 1, "name": "a", "format": "b", "requests": '
    + b"9" * 30
    + b"}\n",
    "another version": b'{"offstage_trace": 2, "name": "a", "format": "b", "requests": 1}\n',
    "empty gzip": gzip.compress(b""),
    "the head of gzip": b"\x1f\x8b",
    "the head of Zstandard": b"\x28\xb5\x2f\xfd",
    "the head of xz": b"\xfd7zXZ\x00",
    "a torn tar": (b"a" * 100 + b"\0" * 157 + b"ustar").ljust(700, b"\0"),
    "tar's numbers": (
        b"a".ljust(100, b"\0")
        + b"zzzzzzz\0" * 3
        + b"zzzzzzzzzzz\0" * 2
        + b"        0"
        + bytes(100)
        + b"ustar\x0000"
    ).ljust(1024, b"\0"),
}


def refused(path: Path, format: str | None = None) -> str:
    """Return the error that refuses the file, "" if it is read."""
    try:
        open_trace(path, format)
    except BadInput as bad:
        assert "\n" not in str(bad) and str(path)[:50] in str(bad)
        return str(bad)
    return ""


@pytest.mark.parametrize("content", WHOLE)
def test_what_is_no_trace(content: str, tmp_path: Path) -> None:
    """It is refused with and without a named format."""
    path = tmp_path / "t"
    path.write_bytes(WHOLE[content])
    for name in (None, *FORMATS):
        assert refused(path, name), name


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("place", PLACES)
def test_every_value_in_every_format(name: str, place: str, tmp_path: Path) -> None:
    """Lengths and times: absurd, negative, not a number, of another type."""
    path = tmp_path / "t"
    path.write_text(GOOD[name] + "\n")
    assert not refused(path)
    for value in LENGTHS:
        path.write_text(with_value(name, place, value) + "\n")
        if not refused(path):  # a valid value: another time, or ten in other digits
            assert open_trace(path).input_tokens.max() in (0, 1, 10)


@pytest.mark.parametrize("name", GOOD)
def test_lines_end_as_windows_ends_them(name: str, tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes((GOOD[name] + "\n").replace("\n", "\r\n").encode())
    assert open_trace(path).input_tokens.tolist() == [1 if name == "lmcache" else 10]


def test_what_is_no_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(tmp_path / "socket"))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (
        tmp_path,
        tmp_path / "none",
        tmp_path / "socket",
        loop,
        Path("x" * 300),
        Path("/dev/null"),
    ):
        for name in (None, *FORMATS):
            assert refused(path, name), name
    bound.close()
    assert run(["trace", "info", str(tmp_path)]) == 2
    assert capfd.readouterr().err.count("\n") == 1


def test_a_pipe_without_a_writer_is_no_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe with a slow writer is read."""
    monkeypatch.setattr(containers, "PIPE_WAIT_S", 0.2)
    os.mkfifo(tmp_path / "nobody")
    assert "a pipe" in refused(tmp_path / "nobody")
    os.mkfifo(tmp_path / "slow")

    def write() -> None:
        with (tmp_path / "slow").open("w") as pipe:
            time.sleep(1.0)
            pipe.write(GOOD["mooncake"])

    thread = threading.Thread(target=write)
    thread.start()
    assert refused(tmp_path / "slow") == ""
    thread.join()


ENDLESS: dict[str, Callable[[Any], object]] = {
    "a line": lambda file: [file.write(b"x" * (1 << 20)) for _ in range(1 << 10)],
    "a line of JSON": lambda file: [
        file.write(b'{"timestamp": "' if not i else b"x" * (1 << 20)) for i in range(1 << 10)
    ],
    "an indented object": lambda file: [
        file.write(b"{\n" if not i else b" " * (1 << 20)) for i in range(1 << 10)
    ],
    "a name in a tar": lambda file: [
        file.write(long_name(1 << 30) if not i else b"x" * (1 << 20)) for i in range(1 << 10)
    ],
}


def long_name(size: int) -> bytes:
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, size
    return header.tobuf(tarfile.GNU_FORMAT)


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]),) * 2)
from pathlib import Path
from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.importer import open_trace
for name in sys.argv[2].split(","):
    try:
        open_trace(Path(sys.argv[1]), name or None)
        raise AssertionError(name)
    except BadInput:
        pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("content", ENDLESS)
def test_what_has_no_end_is_not_held(content: str, tmp_path: Path) -> None:
    """A file of 1 MB that unpacks to 1 GiB needs at most 3 GiB of address space."""
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb", 1) as file:
        ENDLESS[content](file)
    names = ",".join(["", *(name for name in FORMATS if name not in ("offstage", "sharegpt"))])
    words = [sys.executable, "-c", LIMITED, str(path), names, str(MEMORY_BYTES)]
    done = subprocess.run(words, check=False, stderr=subprocess.PIPE, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""


def test_requests_without_end_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Valid lines are bounded, and so are unpacked bytes."""
    path = tmp_path / "t"
    path.write_text((GOOD["mooncake"] + "\n") * 300)
    monkeypatch.setattr(collector, "REQUESTS_MAX", 200)
    with pytest.raises(BadInput, match="more than 200 requests"):
        open_trace(path)
    assert len(open_trace(path, limit=200)) == 200
    (tmp_path / "t.gz").write_bytes(gzip.compress(path.read_bytes()))
    monkeypatch.setattr(containers, "UNPACKED_BYTES_MAX", 4096)
    with pytest.raises(BadInput, match="unpacks to more than 4,096 bytes"):
        open_trace(tmp_path / "t.gz")


RATES = {
    "a rate": "0,1e5,1,Gamma,1,1",
    "a tiny Weibull": "0,1,1,Weibull,0.001,1",
    "a Weibull that never ends": "0,1,1,Weibull,0.012,1",
    "NaN": "nan,1,1,Gamma,1,1",
    "infinity": "inf,1,1,Gamma,1,1",
    "no scale": "0,1,1,Gamma,1,nan",
    "another family": "0,1,1,Cauchy,1,1",
    "negative": "0,-1,1,Gamma,1,1",
    "six commas": ",,,,,",
    "none": "",
}


@pytest.mark.parametrize("rate", RATES)
def test_rates(rate: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of draws from a ServeGen archive is bounded."""
    monkeypatch.setattr(servegen, "_REQUESTS_MAX", 1 << 16)
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        member = tarfile.TarInfo("a/chunk-1-trace.csv")
        member.size = len(RATES[rate])
        tar.addfile(member, io.BytesIO(RATES[rate].encode()))
    assert refused(tmp_path / "t.tar")


def test_the_rates_of_an_archive_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servegen, "_ARCHIVE_BYTES_MAX", 100)
    text = b"0,1,1,Gamma,1,1\n" * 5
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        for number in range(2):
            member = tarfile.TarInfo(f"a/chunk-{number}-trace.csv")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
    assert "MiB of rates" in refused(tmp_path / "t.tar")


def test_the_good_ones_are_good() -> None:
    """The table above covers every format, and its JSON is valid."""
    assert {name.split()[0] for name in GOOD} == FORMATS.keys() - {"servegen"}
    for text in GOOD.values():
        if text.startswith("{"):
            [json.loads(line) for line in text.splitlines()]
