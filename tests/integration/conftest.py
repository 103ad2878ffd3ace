"""Experiments of the laboratory in small: a folder with a spec, and policies that go wrong; and
what tests of vLLM run."""

import os
from pathlib import Path

import pytest
from lab_runs import SPEC, here
from vllm_bed import MEND

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


@pytest.fixture(scope="module")
def python() -> Path:
    """Of the environment that has vLLM."""
    program = Path(os.environ.get("OFFSTAGE_VLLM", "")) / "bin/python"
    if not program.is_file():
        pytest.skip(f"needs {MEND}")
    return program


@pytest.fixture(scope="module")
def model() -> Path:
    """A small model that was trained."""
    beside = Path(__file__).resolve().parents[3] / "shared/models"
    folder = Path(os.environ.get("OFFSTAGE_MODELS", beside))
    if not (folder / "pycode-3m").is_dir():
        pytest.skip(f"no pycode-3m in {folder}; set OFFSTAGE_MODELS to a folder that holds it")
    return folder / "pycode-3m"
