"""Does `--strict` make a missed aim the exit code, in whatever form a bench has its aims, and do
notes stand above the table?"""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from offstage.bindings.notes import Note
from offstage.testbeds.cli import run
from offstage.testbeds.cli.bench import missed_aims
from offstage.testbeds.cli.bench_tables import TABLES

RESULTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "of all": ({"aims": {"a": True, "b >= 2": False}}, ["b >= 2"]),
    "of rows": ({"rows": [{"name": "4 KiB", "aims": {"ratio": False}}, {"aims": {"x": True}}],
                 "aims_met": False}, ["4 KiB: ratio"]),
    "of both": ({"aims": {"a": False}, "rows": [{"name": "r", "aims": {"b": False}}, 7]},
                ["a", "r: b"]),
    "of one number": ({"aim": 1.5, "aim_reached": False}, ["1.5 times of files"]),
    "reached": ({"aims": {"a": True}, "aim": 1.5, "aim_reached": True}, []),
    "none": ({"verdicts_met": True}, []),
}  # fmt: skip
BENCHES = {
    "core": ("core", "bench_core"), "qos": ("qos", "bench_qos"), "asic": ("asic", "bench_asic"),
    "fabric": ("fabric", "bench_fabric"),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_missed_aims_are_found_in_every_form(name: str) -> None:
    result, missed = RESULTS[name]
    assert missed_aims(result) == missed


@pytest.mark.parametrize("name", BENCHES)
def test_strict_decides_after_the_file_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without it a missed aim is a word in the table; with it the exit code, and the file stays."""
    module, function = BENCHES[name]
    found = {"aims": {"as fast as memcpy": False}}
    owner = importlib.import_module(f"offstage.testbeds.bench.{module}")
    monkeypatch.setattr(owner, function, lambda **_: found)
    monkeypatch.setitem(TABLES, name, lambda _: ("", []))
    words = ["bench", name, "--out", str(tmp_path / "found.json")]
    assert run(words) == 0
    (tmp_path / "found.json").unlink()
    assert run([*words, "--strict"]) == 1
    assert "missed: as fast as memcpy" in capsys.readouterr().err
    assert (tmp_path / "found.json").exists()


def test_notes_stand_above_the_table_and_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    owner = importlib.import_module("offstage.testbeds.bench.core")
    found = {"notes": [Note("trace", "keys [x] have no effect")]}
    monkeypatch.setattr(owner, "bench_core", lambda **_: found)
    monkeypatch.setitem(TABLES, "core", lambda _: ("the table", []))
    assert run(["bench", "core", "--out", str(tmp_path / "found.json")]) == 0
    assert capsys.readouterr().out.split("\n")[:2] == [
        "note: keys [x] have no effect", "the table",
    ]  # fmt: skip
    (note,) = json.loads((tmp_path / "found.json").read_text())["notes"]
    assert note["what"] == "keys [x] have no effect"
