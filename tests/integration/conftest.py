"""Fixtures: small experiments of the laboratory, with policies that fail; a Python with vLLM and a
model for it; object servers."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_runs import SPEC, here
from swift_server import ACCESS, BUCKET, MISSING, SECRET, Swift
from tiny_s3 import TinyS3
from vllm_bed import FIX

from offstage.dpu.archive.s3 import Bucket
from offstage.dpu.config.options import Archive

REFERENCE = str(Path(__file__).resolve().parents[1] / "reference")


@pytest.fixture
def lab_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the spec `e.toml`. Its policies are `lab_policies:Class`, also in
    processes started there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{REFERENCE}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("LAB_MARK", str(tmp_path / "mark"))
    (tmp_path / "e.toml").write_text(SPEC)
    return tmp_path


@pytest.fixture(scope="session")
def lab_whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of `SPEC`, run by one process from start to end."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "e.toml").write_text(SPEC)
    assert here("run", str(folder / "e.toml"), "--out", str(folder / "out")) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def python() -> Path:
    """The Python of the environment that has vLLM."""
    program = Path(os.environ.get("OFFSTAGE_VLLM", "")) / "bin/python"
    if not program.is_file():
        pytest.skip(f"needs {FIX}")
    return program


@pytest.fixture(scope="module")
def model() -> Path:
    """A small trained model."""
    beside = Path(__file__).resolve().parents[3] / "shared/models"
    folder = Path(os.environ.get("OFFSTAGE_MODELS", beside))
    if not (folder / "pycode-3m").is_dir():
        pytest.skip(f"no pycode-3m in {folder}; set OFFSTAGE_MODELS to a folder that holds it")
    return folder / "pycode-3m"


@pytest.fixture(scope="module")
def swift(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Swift]:
    if MISSING:
        pytest.skip(MISSING)
    pytest.importorskip("botocore")
    server = Swift(tmp_path_factory.mktemp("swift"))
    try:
        server.start()
        keys = tmp_path_factory.mktemp("keys") / "s3.keys"
        keys.write_text(f"{ACCESS}\n{SECRET}\n")
        keys.chmod(0o600)
        bucket = Bucket(Archive(bucket=BUCKET, endpoint=server.endpoint, key_file=str(keys)), "")
        bucket._call("create_bucket")
        server.bucket = bucket
        yield server
    finally:
        server.stop()


@pytest.fixture
def tiny() -> Iterator[TinyS3]:
    pytest.importorskip("botocore")
    with TinyS3() as server:
        yield server
