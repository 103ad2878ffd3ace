"""Without the extra `parquet`, is what needs it refused before it computes, in one line?"""

import sys
from pathlib import Path

import pytest

from offstage.bindings.errors import Missing
from offstage.testbeds.cli import run
from offstage.testbeds.lab.results.ledger_file import describe, ledger_rows
from offstage.testbeds.workloads.requests.containers import opened
from offstage.testbeds.workloads.selections.scores_file import open_capture

FIX = "pip install '.[parquet]'"
LAB = """
[workload]
context_tokens = 8192
steps = 16
[geometry]
model = "demo"
[selection]
k_blocks = 16
"""
POD = "daemons = [2]\nseeds = [1]\n"


@pytest.fixture(autouse=True)
def no_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)


@pytest.mark.parametrize(("command", "spec"), [("run", LAB), ("pod", POD)])
def test_a_run_that_writes_parquet_does_not_begin(
    command: str, spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A lab run ends with exit code 2 and no parts, not after hours with a traceback."""
    out = tmp_path / "out"
    (tmp_path / "spec.toml").write_text(spec, encoding="utf-8")
    assert run(["lab", command, str(tmp_path / "spec.toml"), "--out", str(out)]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "pyarrow is not installed" in line and FIX in line
    assert not out.exists()


@pytest.mark.parametrize(
    "read",
    [open_capture, describe, lambda path: ledger_rows(path, 0)],
    ids=["scores", "points", "ledger"],
)
def test_a_file_of_parquet_names_the_extra(read: object, tmp_path: Path) -> None:
    """What reads such a file says what brings the reader."""
    assert callable(read)
    with pytest.raises(Missing, match=r"pyarrow is not installed.*\[parquet\]"):
        read(tmp_path / "some.parquet")


def test_a_trace_packed_with_zstandard_names_the_extra(tmp_path: Path) -> None:
    """A packed trace is refused when it is opened."""
    path = tmp_path / "trace.jsonl.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(16))
    with pytest.raises(Missing, match=r"pyarrow is not installed.*\[parquet\]"), opened(path):
        pass
