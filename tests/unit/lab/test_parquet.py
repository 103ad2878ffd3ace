"""Does ledger.parquet have every row and field, in the same bytes for the same rows?"""

import hashlib
import runpy
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest

from offstage.bindings.errors import BadInput, RunFailed
from offstage.bindings.layouts import ENDS
from offstage.testbeds.lab.results.ledger import ROW
from offstage.testbeds.lab.results.ledger_file import (
    Described,
    LedgerFile,
    describe,
    ledger_columns,
    ledger_rows,
)

UNIT = Path(__file__).resolve().parents[1]
LAB = SimpleNamespace(**runpy.run_path(str(UNIT / "report/lab_synthetic.py")))
SAID = {number: Described(LAB.info(policy="ema"), number == 3) for number in (0, 3)}


def write_ledger(path: Path, parts: Iterable[tuple[int, int, npt.NDArray[np.void]]]) -> None:
    with LedgerFile(path, SAID) as ledger:
        for point, seed, rows in parts:
            ledger.add(point, seed, rows)


def test_every_field_comes_back(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    parts = [(point, seed, LAB.run("ema", 2.0, seed).rows) for point in (0, 3) for seed in (1, 2)]
    write_ledger(tmp_path / "new/ledger.parquet", parts)
    table = pq.read_table(tmp_path / "new/ledger.parquet")
    rows = np.concatenate([part for _, _, part in parts])
    assert table.column_names == [name for name, _ in ledger_columns()]
    assert sorted(set(zip(*(table[c].to_pylist() for c in ("point", "seed")), strict=True))) == [
        (0, 1),
        (0, 2),
        (3, 1),
        (3, 2),
    ]
    for name in ROW.names or ():
        if ROW[name].shape:
            kept = [table[f"{name.removesuffix('s')}_{end}"].to_numpy() for end in ENDS]
            assert (np.stack(kept, axis=1) == rows[name]).all()
        else:
            assert (table[name].to_numpy() == rows[name]).all()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["ledger.parquet"]


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    digests = []
    for name in ("a", "b"):
        write_ledger(tmp_path / name, [(0, 1, LAB.run("ema", 2.0, 1).rows)])
        digests.append(hashlib.sha256((tmp_path / name).read_bytes()).digest())
    assert digests[0] == digests[1]


def test_a_run_that_fails_leaves_no_ledger(tmp_path: Path) -> None:
    with pytest.raises(KeyError), LedgerFile(tmp_path / "ledger.parquet", SAID) as ledger:
        ledger.add(0, 1, LAB.run("none", 1.0, 1).rows)
        raise KeyError
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="file"):
        write_ledger(tmp_path / "file/ledger.parquet", [])


def test_a_ledger_says_what_its_points_are(tmp_path: Path) -> None:
    """A ledger is read without its summary; a file that is no ledger, or an incomplete one, is
    refused in one line."""
    import pyarrow.parquet as pq

    path = tmp_path / "ledger.parquet"
    parts = [(point, seed, LAB.run("ema", 2.0, seed).rows) for point in (0, 3) for seed in (1, 2)]
    write_ledger(path, parts)
    assert describe(path) == SAID
    found = ledger_rows(path, 3, ["seed", "demands"])
    rows = np.concatenate([rows for point, _, rows in parts if point == 3])
    assert found.column_names == ["seed", "demands"]
    assert (found["demands"].to_numpy() == rows["demands"]).all()
    pq.write_table(pq.read_table(path).replace_schema_metadata(None), tmp_path / "silent")
    (tmp_path / "text").write_text("no ledger, though longer than a footer")
    for name in ("silent", "text", "missing"):
        with pytest.raises(BadInput, match=name):
            describe(tmp_path / name)
    with pytest.raises(BadInput, match="parquet"):
        ledger_rows(path, 0, ["no_column"])
