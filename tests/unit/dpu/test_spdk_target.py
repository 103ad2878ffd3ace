"""Is a target that is unavailable, does not start or refuses reported in one line, and cleaned up?

The programs are scripts, and their client is a stand-in: tests/integration/test_spdk_faults.py
tests a real target.
"""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from offstage.bindings.errors import BadInput, Missing, OffstageError, RunFailed
from offstage.dpu.storage import spdk_target
from offstage.dpu.storage.spdk_target import Target

REFUSAL = """request:
{ "filename": "blocks", "method": "bdev_aio_create" }
Got JSON-RPC error response
response: { "code": -2, "message": "No such file or directory" }"""


class Refused(Exception):
    """The client's JSONRPCException."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Client:
    """Connects where the program has made its socket, and refuses requests for a drive."""

    def __init__(self, path: str, timeout: float) -> None:
        if not Path(path).exists():
            raise ConnectionError("nobody listens")

    def call(self, method: str, params: Any) -> None:
        if method.startswith("bdev"):
            raise Refused(REFUSAL)

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    module = ModuleType("spdk.rpc.client")
    vars(module).update(JSONRPCClient=Client, JSONRPCException=Refused)
    for name in ("spdk", "spdk.rpc"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "spdk.rpc.client", module)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert not list(tmp_path.glob(f"{spdk_target.FOLDER}*"))


def program(folder: Path, script: str) -> str:
    """Write a program that does this, whatever its arguments."""
    file = folder / "nvmf_tgt"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def refusal(path: str) -> OffstageError:
    with pytest.raises(OffstageError) as caught:
        Target(path)
    assert "\n" not in str(caught.value) and caught.value.fix
    return caught.value


def test_no_program_and_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong path and a missing extra each have their own fix."""
    assert isinstance(refusal(str(tmp_path / "nowhere")), BadInput)
    monkeypatch.setitem(sys.modules, "spdk.rpc.client", None)
    missing = refusal(program(tmp_path, "exit 0"))
    assert isinstance(missing, Missing) and "pip install '.[spdk]'" in str(missing)


def test_a_program_that_ends_is_told_by_its_last_words(tmp_path: Path) -> None:
    """The line has the program's last output."""
    ends = program(tmp_path, "echo no memory >&2; exit 1")
    assert "did not start: no memory" in str(refusal(ends))


def test_a_program_that_never_answers_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends, and the program with it."""
    monkeypatch.setattr(spdk_target, "START_TIMEOUT_S", 0.3)
    written = tmp_path / "pid"
    hangs = program(tmp_path, f"echo $$ > {written}; exec sleep 600")
    assert "did not start" in str(refusal(hangs))
    assert not written.exists() or not Path(f"/proc/{written.read_text().strip()}").exists()


def test_a_refusal_has_the_reason_and_not_the_request(tmp_path: Path) -> None:
    """The client's text has request and response, over many lines."""
    with (
        Target(program(tmp_path, "touch rpc.sock; exec sleep 600")) as target,
        pytest.raises(RunFailed) as caught,
    ):
        target.file_drive("store", tmp_path / "blocks", 4096)
    assert "refuses bdev_aio_create: No such file or directory" in str(caught.value)
    assert "\n" not in str(caught.value)
