"""Is an output that cannot be written reported in one line, if possible before the work, and never
left half-written under its name?"""

import errno
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from offstage.bindings import durable
from offstage.bindings.durable import replacing, write_bytes
from offstage.bindings.errors import BadInput, RunFailed
from offstage.testbeds.cli import run
from offstage.testbeds.cli.bench import bench as benches

ROOM_BYTES = 64 << 10
ROW = '{"timestamp": 0, "input_length": 10, "output_length": 1, "hash_ids": [1]}\n'
SPEC = """
seeds = [1]
[workload]
context_tokens = 4096
sessions = 2
steps = 6
[geometry]
model = "tiny"
block_tokens = 64
[selection]
k_blocks = 8
[tier]
buffer_over_k = [2]
[[policy]]
use = "window+ema"
"""
WRITES: dict[str, list[str]] = {
    "demo": [
        *"demo --quick --steps 3 --sessions 1 --storage emulated".split(),
        *"--time-per-token 0ms --out {}".split(),
    ],
    "trace import": ["trace", "import", "{trace}", "--out", "{}/t.jsonl"],
    "trace import, packed": ["trace", "import", "{trace}", "--out", "{}/t.jsonl.gz"],
    "trace generate": ["trace", "generate", "--out", "{}/t.parquet"],
    "lab run": ["lab", "run", "{spec}", "--out", "{}", "--jobs", "1"],
    "plan": ["plan", "--out", "{}"],
    "bench qos": ["bench", "qos", "--out", "{}/qos.json"],
    "keys make": ["keys", "make", "server", "{}/keys"],
    "host calibrate": "host calibrate --batch 1 --tokens 64 --out {}/cost.json".split(),
}


@pytest.fixture
def words(tmp_path: Path) -> Callable[[str, Path], list[str]]:
    (tmp_path / "trace.jsonl").write_text(ROW)
    (tmp_path / "spec.toml").write_text(SPEC)

    def of(case: str, out: Path) -> list[str]:
        return [
            one.format(out, trace=tmp_path / "trace.jsonl", spec=tmp_path / "spec.toml")
            for one in WRITES[case]
        ]

    return of


def mounted(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"may not mount here: {done.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A small file system without free space."""
    for folder in mounted(tmp_path / "full", f"size={ROOM_BYTES}"):
        (folder / "fill").write_bytes(bytes(ROOM_BYTES))
        yield folder


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path / "read-only", "ro")


def refused(words: list[str], codes: tuple[int, ...], capfd: Any) -> str:
    """The one line of the error."""
    assert run(words) in codes
    said = [one for one in capfd.readouterr().err.splitlines() if one.startswith("offstage: ")]
    assert len(said) == 1 and "Traceback" not in said[0]
    return said[0]


@pytest.mark.parametrize("case", WRITES)
def test_no_room(case: str, words: Any, full: Path, capfd: pytest.CaptureFixture[str]) -> None:
    refused(words(case, full), (1, 2), capfd)
    left = [one for one in full.rglob("*") if one.is_file() and one.name != "fill"]
    names = {one.name for one in left}
    assert not names & {
        "t.jsonl",
        "t.jsonl.gz",
        "t.parquet",
        "plan.json",
        "qos.json",
        "cost.json",
        "summary.json",
        "server.key_secret",
        "server.key",
    }, names


@pytest.mark.parametrize("case", WRITES)
def test_a_file_system_that_is_read_only(
    case: str, words: Any, read_only: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    said = refused(words(case, read_only), (2,), capfd)
    assert str(read_only) in said and "Read-only file system" in said, said


@pytest.mark.parametrize("case", WRITES)
def test_a_file_where_a_folder_should_be(
    case: str, words: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    refused(words(case, tmp_path / "file"), (2,), capfd)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_file_on_the_way_is_named_and_is_not_a_matter_of_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a comparison, which takes minutes, says so before it reads its run."""
    (tmp_path / "file").write_text("mine")
    for words in (["plan"], ["compare", "nosuch"]):
        for out in (tmp_path / "file", tmp_path / "file/deeper"):
            assert run([*words, "--out", str(out)]) == 2
            said = capsys.readouterr().err.splitlines()[-1]
            assert said == f"offstage: {tmp_path}/file: is not a folder; name another path"


def test_every_bench_looks_at_its_outputs_before_it_runs() -> None:
    """`writable` checks every file that a bench writes."""
    import typer

    found = 0
    for command in typer.main.get_group(benches).commands.values():
        for one in command.params:
            if {"--out", "--page", "--table"} & set(one.opts):
                found += 1
                with pytest.raises(BadInput, match="Is a directory"):
                    one.callback(None, one, Path("/"))  # type: ignore[misc, arg-type]
    assert found > 10


def test_a_file_stays_as_it_was_where_the_disk_refuses(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_bytes(path, b"before")
    with pytest.raises(RunFailed, match="No space left"), replacing(path) as beside:
        beside.write_bytes(b"ha")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(ValueError, match="ours"), replacing(path) as beside:
        beside.write_bytes(b"ha")
        raise ValueError("ours")
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_a_pipe_or_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    """No file is renamed over it, not even as root."""
    device = tmp_path / "null"
    device.symlink_to("/dev/null")
    write_bytes(device, b"text")
    assert device.is_symlink() and stat.S_ISCHR(device.stat().st_mode)
    assert durable.writable(device) == device
    (tmp_path / "trace.jsonl").write_text(ROW)
    assert run(["trace", "import", str(tmp_path / "trace.jsonl"), "--out", str(device)]) == 0
    assert device.is_symlink()


def test_what_a_command_reads_is_not_its_output(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A trace, a text or a run's own file would be lost; under another name of it, too."""
    trace, link, other = (tmp_path / name for name in ("t.jsonl", "link.jsonl", "other.jsonl"))
    trace.write_text(ROW)
    link.symlink_to(trace)
    for words in (
        ["import", "--out", str(trace)],
        ["import", "--out", str(link)],
        ["export", "--to", "mooncake", "--out", str(trace)],
    ):
        assert run(["trace", words[0], str(trace), *words[1:]]) == 2
        assert "would replace what the command reads; give another path" in capfd.readouterr().err
    assert trace.read_text() == ROW
    for _ in range(2):
        assert run(["trace", "import", str(trace), "--out", str(other)]) == 0
    assert trace.read_text() == ROW


@pytest.mark.parametrize("ending", [".zst", ".xz", ".bz2", ".lz4"])
def test_a_packed_name_that_is_not_written_packed_is_refused(
    ending: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.jsonl").write_text(ROW)
    out = tmp_path / f"t{ending}"
    assert run(["trace", "import", str(tmp_path / "t.jsonl"), "--out", str(out)]) == 2
    assert f"a file named {ending}; name it .jsonl" in capfd.readouterr().err and not out.exists()
