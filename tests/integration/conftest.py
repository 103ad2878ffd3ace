"""Experiments of the laboratory in small: a folder with a spec, and policies that go wrong."""

import os
from pathlib import Path

import pytest
from lab_runs import SPEC, here

REFERENCE = str(Path(__file__).resolve().parents[1] / "reference")


@pytest.fixture
def lab_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the spec `e.toml`; policies as `lab_policies:Class`, also in
    processes begun there."""
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
