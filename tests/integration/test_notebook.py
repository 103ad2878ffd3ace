"""Does the notebook run unchanged in Jupyter's own kernel, and produce the figures for a paper?"""

import csv
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from against_schema import checked

import offstage
from offstage.testbeds.report.page.files import read_lab_summary

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs/examples/compare-two-policies.ipynb"
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the notebook ran in."""
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError:
        pytest.skip("no Jupyter; pip install '.[notebook]'")
    folder = tmp_path_factory.mktemp("notebook")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(ROOT / "src")
    try:
        book = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
        client = NotebookClient(
            book, timeout=TIMEOUT_S, resources={"metadata": {"path": str(folder)}}
        )
        client.execute()
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    (folder / "ran.json").write_text(json.dumps(book))
    return folder


def test_the_notebook_runs_and_leaves_figures(ran: Path) -> None:
    """Under thirty lines of code make a figure as PDF and a table as LaTeX, and show both."""
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    code = [line for cell in cells if cell["cell_type"] == "code" for line in cell["source"]]
    assert len(code) < 30
    assert (ran / "figures/nontrivial-hit.pdf").read_bytes().startswith(b"%PDF")
    assert (ran / "figures/nontrivial-hit.png").read_bytes().startswith(b"\x89PNG")
    assert r"\begin{tabular}" in (ran / "figures/differences.tex").read_text()
    shown = [
        set(output["data"])
        for cell in json.loads((ran / "ran.json").read_text())["cells"]
        for output in cell.get("outputs", ())
        if "data" in output
    ]
    assert len(shown) == 5
    assert all("text/html" in shown[at] for at in (0, 2)) and "image/png" in shown[3]


def test_the_table_is_the_summary(ran: Path) -> None:
    results = offstage.load(ran / "small")
    rows = results.table().to_pylist()
    points = read_lab_summary(ran / "small").points
    assert len(rows) == len(points) == 6
    for row, point in zip(rows, points, strict=True):
        assert point.nontrivial_hit is not None
        assert (row["policy"], row["buffer_over_k"]) == (
            point.info.policy,
            point.info.buffer_over_k,
        )
        assert row["nontrivial_hit"] == point.nontrivial_hit.value
        assert row["nontrivial_hit_low"] == point.nontrivial_hit.low


def test_rows_carry_their_policy(ran: Path) -> None:
    results = offstage.load(ran / "small")
    every, own = results.ledger(columns=["demands"]), results.ledger("score", ["demands"])
    assert isinstance(own, pa.Table) and set(own["policy"].to_pylist()) == {"score"}
    assert len(every) == 3 * len(own)
    with pytest.raises(offstage.BadInput, match="choose one of none, score"):
        results.ledger("belady")


def test_the_ledger_says_what_its_rows_are(ran: Path) -> None:
    """A reader with pyarrow alone finds policy and buffer of a point in the file's metadata, and
    the seed as a column."""
    path = ran / "small/ledger.parquet"
    said = json.loads(pq.read_schema(path).metadata[b"offstage.points"])
    table = pq.read_table(path, columns=["point", "seed"])
    assert set(table["seed"].to_pylist()) == {1, 2, 3}
    assert {str(at) for at in table["point"].to_pylist()} == said.keys()
    points = [(one["info"]["policy"], one["info"]["buffer_over_k"]) for one in said.values()]
    assert sorted(points) == sorted(
        (policy, buffer) for policy in ("none", "score", "window+ema") for buffer in (2.0, 4.0)
    )


@pytest.mark.slow
def test_the_figures_of_the_report_are_those_of_the_command(
    ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from offstage.testbeds.cli import run

    paths = offstage.load(ran / "small").save_figures(tmp_path / "api")
    assert run(["report", str(ran / "small"), "--figures", str(tmp_path / "command")]) == 0
    assert len(capsys.readouterr().out.split()) == len(paths) and "misses.pdf" in paths
    for path in paths.values():
        assert path.read_bytes() == (tmp_path / "command" / path.name).read_bytes()


def test_the_command_line_says_the_same(
    ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`offstage report` gives the notebook's difference to the last digit, and the same bytes
    twice."""
    from offstage.testbeds.cli import run

    def report(*more: str) -> Any:
        capsys.readouterr()
        assert (
            run(["report", str(ran / "small"), "--against", "none", "--format", "json", *more]) == 0
        )
        return checked("report", capsys.readouterr().out)

    found = report("--out", str(tmp_path / "a"), "--figure", "nontrivial_hit")
    assert report("--out", str(tmp_path / "b"), "--figure", "nontrivial_hit")["files"].keys() == (
        found["files"].keys()
    )
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    gain = offstage.load(ran / "small").difference()
    assert [row["second"] for row in found["differences"]] == [row.second for row in gain.rows]
    with (tmp_path / "a/differences.csv").open() as lines:
        written = [float(row["difference_value"]) for row in csv.DictReader(lines)]
    assert written == [row.difference.value for row in gain.rows if row.difference is not None]
    assert found["sentence"] == str(gain) and " on generated sessions, paired" in str(gain)
    assert "non-trivial hits" in (tmp_path / "a/differences.html").read_text()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "name a second run, or --against POLICY"),
        (["--against", "belady"], "choose one of none, score"),
        (["--figure", "hits", "--against", "none"], "no figure 'hits'"),
        (["nowhere"], "nowhere: no such file or folder"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    ran: Path, words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from offstage.testbeds.cli import run

    given = [str(ran / "small"), *words] if words else [str(ran / "small"), "--figure", "hit"]
    assert run(["report", *given]) == 2
    said = capsys.readouterr().err
    assert line in said and said.count("\n") == 1


def test_an_import_alone_loads_nothing() -> None:
    """`import offstage` is cheap, and an unknown name is refused as any module's is."""
    import subprocess
    import sys

    code = "import sys, offstage; print('numpy' in sys.modules, sorted(dir(offstage))[:2])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == "False ['BadInput', 'Comparison']\n"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        offstage.nothing  # noqa: B018
