"""Are cell libraries merged whole, bad ones refused, and presets held to what synthesis closed?"""

from pathlib import Path

import pytest

from offstage.asic_model.hardware import BLOCKS, RTL, synthesis
from offstage.asic_model.parameters import read_preset
from offstage.asic_model.synth import merge
from offstage.bindings.errors import BadInput
from offstage.testbeds.cli import run

GATES = """/* a { comment */ library (gates) {
  time_unit : "1ps";
  lu_table_template (t) { index_1 ("1, 2"); }
  cell ("AND") { area : 1; pin (Y) { internal_power () { rise_power (t) { values ("9"); } } } }
}
"""
FLOPS = """library (flops) {
  time_unit : "1ps";
  cell (DFF) { ff (IQ, IQN) { clocked_on : "CLK"; } area : 3; }
}
"""


def test_libraries_are_merged_without_power(tmp_path: Path) -> None:
    """One library with the cells of both and the first one's head; no power table."""
    paths = [tmp_path / "gates.lib", tmp_path / "flops.lib"]
    for path, text in zip(paths, (GATES, FLOPS), strict=True):
        path.write_text(text)
    assert merge(paths, tmp_path / "all.lib") == ["gates", "flops"]
    text = (tmp_path / "all.lib").read_text()
    for part in ('cell ("AND")', "cell (DFF)", "area : 3", "pin (Y)", "index_1"):
        assert text.count(part) == 1
    assert text.count("time_unit") == 1 and "power" not in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize(
    ("text", "says"),
    [("not one", "not a liberty file"), (GATES, "no flop"), (None, "cannot be read")],
)
def test_what_is_no_library_is_refused(text: str | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / "cells.lib"
    if text is not None:
        path.write_text(text)
    with pytest.raises(BadInput, match=says):
        merge([path], tmp_path / "all.lib")


def test_without_cells_what_is_of_a_synthesis_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for given in (["--write"], ["--node-nm", "5"]):
        assert run(["asic", "synth", *given]) == 2
        assert "no cells to synthesize with; give LIB" in capsys.readouterr().err


def test_the_table_is_of_the_verilog_that_there_is() -> None:
    """Each block is a file of its name, and rows are of known blocks and sizes."""
    for row in synthesis().rows:
        one = BLOCKS[row.block]
        sizes = [", ".join(f"{k}={v}" for k, v in s.items()) for s in (one.tested, one.larger)]
        assert row.size in sizes and row.path_ps > 0 and row.area_um2 > 0
    assert all((RTL / f"{name}.v").exists() for name in BLOCKS)
    assert "metadata_lookup" in {row.block for row in synthesis().rows}


def test_a_clock_above_synthesis_is_a_guess_or_refused(tmp_path: Path) -> None:
    """As `synthesized` it is refused; as a guess it is taken."""
    path = tmp_path / "fast.toml"
    number = '{ value = 9, unit = "GHz", low = 9, high = 9.5, tag = "TAG", source = "a test" }'
    clock = f'extends = "asic_7nm"\n[logic]\nclock = {number}\n'
    path.write_text(clock.replace("TAG", "synthesized"))
    with pytest.raises(BadInput, match="synthesis closed"):
        read_preset.__wrapped__(str(path))
    path.write_text(clock.replace("TAG", "guess"))
    assert read_preset.__wrapped__(str(path)).logic is not None
