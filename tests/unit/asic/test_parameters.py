"""Are presets complete and documented, and is every wrong number refused in one line?"""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from offstage.asic_model import parameters
from offstage.asic_model.blocks import BLOCKS, TAGS, Number
from offstage.asic_model.codec.measured import block_ratio
from offstage.asic_model.commands import COMMANDS
from offstage.asic_model.parameters import Preset, names, read_preset
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import numbered
from offstage.bindings.settings import declared
from offstage.testbeds.cli import run

ROOT = Path(__file__).resolve().parents[3]
NAMED = [
    "dpu_x86_measured",
    "bluefield3",
    "bluefield4",
    "host_cxl",
    "gh200",
    "asic_7nm",
    "asic_7nm_pcie4",
    "asic_7nm_pcie6",
    "asic_7nm_cxl",
    "asic_7nm_hbm3e",
    "asic_5nm_hbm4",
    "asic_5nm_c2c",
    "ideal",
]


def number(value: Any = 8, **changes: Any) -> dict[str, Any]:
    """Return a number as a preset file has it."""
    return {
        "value": value,
        "unit": "1",
        "low": 1,
        "high": 64,
        "source": "a test",
        "tag": "guess",
        **changes,
    }


def written(tmp_path: Path, text: str) -> str:
    """Write a preset that extends asic_7nm; return its path."""
    path = tmp_path / "mine.toml"
    path.write_text(f'extends = "asic_7nm"\n{text}')
    return str(path)


def inline(table: dict[str, Any]) -> str:
    shown = ((key, f'"{one}"' if isinstance(one, str) else str(one)) for key, one in table.items())
    return "{ " + ", ".join(f"{key} = {one}" for key, one in shown) + " }"


def test_every_preset_that_the_page_promises_is_there() -> None:
    """Every number has a source and a range of error."""
    assert names() == NAMED
    for name in names():
        preset = read_preset(name)
        found = dict(preset.numbers())
        assert len(found) > 20 and not preset.calibrated
        for key, one in found.items():
            assert one.low <= one.value <= one.high and one.source and one.tag in TAGS, key
            if one.tag == "guess":
                assert one.low < one.high or name == "ideal", f"{name}: {key}: a sure guess"


def test_a_file_holds_nothing_that_is_not_read() -> None:
    """Each number of each file is a parameter, with the value that the file gives."""
    for name in names():
        raw = tomllib.loads((parameters.FOLDER / f"{name}.toml").read_text())
        found = dict(read_preset(name).numbers())
        for block, table in raw.items():
            for key, value in table.items() if isinstance(table, dict) else ():
                if isinstance(value, dict):
                    read = value["value"] if "value" in value else block_ratio(value, name).value
                    assert found[f"{block}.{key}"].value == read


def test_a_time_is_picoseconds_whatever_its_unit(tmp_path: Path) -> None:
    for unit, scale in (("ns", 10**3), ("us", 10**6), ("ms", 10**9)):
        text = f"[dma]\nsetup = {inline(number(3, unit=unit))}"
        found = read_preset.__wrapped__(written(tmp_path, text)).dma
        assert found is not None and found.setup.whole == 3 * scale


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[dma]\nengine = 3", "unknown parameter 'engine'; did you mean 'engines'?"),
        ("[dmas]\nengines = 3", "unknown table or key 'dmas'; did you mean 'dma'?"),
        ("[dma]\nengines = 3", "[dma] engines: 3 "),
        (f"[dma]\nengines = {inline(number(tag=''))}", "has no tag; choose one of measured"),
        (f"[dma]\nengines = {inline(number(source=''))}", "has no source; say where it is from"),
        (f"[dma]\nengines = {inline(number(tag='sure'))}", "[dma] engines: 'sure' "),
        (f"[dma]\nengines = {inline(number(unit='ns'))}", "[dma] engines: 'ns' "),
        (f"[dma]\nsetup = {inline(number(unit='GB/s'))}", "[dma] setup: 'GB/s' "),
        (f"[dma]\nengines = {inline(number(-1, low=-2))}", "-1 is negative; give 0 or more"),
        (f"[dma]\nengines = {inline(number(65))}", "65 is not between low = 1 and high = 64"),
        (f"[dma]\nengines = {inline(number(1.5))}", "[dma] engines: 1.5 "),
        (f"[dma]\nqueue = {inline(number(0, low=0))}", "is 0; give 1 or more"),
        (f"[front_end]\nlanes = {inline(number(32))}", "[front_end] lanes: 32 lanes"),
        (f"[codec]\nratio = {inline(number(2))}", "2 is out of range; give 1 at most"),
        (f"[metadata]\nsram = {inline(number(1, unit='KiB'))}", "[metadata] sram: "),
        (f"[metadata]\nlatency = {inline(number(1, unit='ns', high=2))}", "[metadata] latency: "),
        ('staging = "ram"', "name one of hbm, ddr, cxl"),
        ('[nvme]\ndrive = "floppy"', "no drive 'floppy'; choose one of disk, compressing-tlc"),
        ('[nvme]\ndrive = "disk"', "[disk]"),
        (f"[cores]\ncores = {inline(number())}", "give value, unit, range, source"),
        ('kind = "dpu"', "cores is missing; add it"),
        ('kind = "fpga"', "kind = 'fpga'; choose one of asic, dpu"),
        ("calibrated = 1", "calibrated: 1 "),
        ("staging = 'hbm", "is not TOML"),
    ],
)
def test_what_is_wrong_is_one_line(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown, untagged, unsourced, wrong unit, negative or contradictory: each exits with 2."""
    assert run(["asic", "presets", written(tmp_path, text)]) == 2
    line = capsys.readouterr().err
    assert said in line and "mine.toml" in line and line.count("\n") == 1


def test_a_circle_of_presets_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "asic_7nm.toml"
    path.write_text('extends = "asic_7nm"')
    with pytest.raises(BadInput, match="extends = 'asic_7nm'"):
        read_preset.__wrapped__(str(path))
    for name, other in (("one", "two"), ("two", "one"), ("self", "self")):
        (tmp_path / f"{name}.toml").write_text(f'extends = "{other}.toml"')
    for name in ("one", "self"):
        with pytest.raises(BadInput, match="without a cycle"):
            read_preset.__wrapped__(str(tmp_path / f"{name}.toml"))
    with pytest.raises(BadInput, match=r"no preset 'asic_9nm'; choose one of dpu_x86_measured"):
        read_preset("asic_9nm")


def test_a_file_extends_one_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the command runs."""
    (tmp_path / "base.toml").write_text('extends = "asic_7nm"\ntitle = "base"')
    (tmp_path / "mine.toml").write_text('extends = "base.toml"')
    monkeypatch.chdir("/")
    assert read_preset.__wrapped__(str(tmp_path / "mine.toml")).title == "base"


def test_a_number_of_a_memory_in_which_nothing_lies_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would change no figure; where something lies in it, it does."""
    changed = "cxl.latency=600"
    for given in (["--set", changed], ["--preset", f"asic_7nm,{changed}"]):
        assert run(["asic", "run", str(tmp_path), *given]) == 2
        said = capsys.readouterr().err
        assert "cxl.latency has no effect: asic_7nm keeps nothing in its cxl; change hbm" in said
    assert read_preset("host_cxl,cxl.latency=600").memory("cxl").latency.value == 600
    read_preset("asic_7nm,ddr.latency=60,hbm.latency=60")


def test_a_change_widens_the_range_and_is_checked() -> None:
    """A sweep and `--set` change a preset in this way."""
    preset = read_preset("asic_7nm")
    changed = dict(preset.with_({"codec.decode_rate": 500, "codec.lanes": 4}).numbers())
    assert changed["codec.decode_rate"].high == 500 and changed["codec.lanes"].value == 4
    assert changed["codec.lanes"].low == 4
    for changes, said in (
        ({"codec.lane": 1.0}, "unknown parameter 'codec.lane'; did you mean 'codec.lanes'"),
        ({"codec.lanes": 1.5}, "1.5"),
        ({"front_end.lanes": 17}, "17 lanes"),
        ({"front_end.lanes": -1}, "negative"),
    ):
        with pytest.raises(BadInput, match=said):
            preset.with_(changes)


def test_a_name_may_carry_values() -> None:
    """Wherever a preset is named; what is set wrongly is refused."""
    found = read_preset("asic_7nm,scheduler.candidates=64,nvme.drives=2")
    assert (
        found.scheduler and found.scheduler.candidates.value == 64 and found.nvme.drives.value == 2
    )
    assert found.name == "asic_7nm,scheduler.candidates=64,nvme.drives=2"
    for text, said in (
        ("asic_7nm,scheduler.candidates", "sets no number"),
        ("asic_7nm,scheduler.candidate=64", "did you mean 'scheduler.candidates'"),
        ("asic_9nm,codec.lanes=2", "no preset 'asic_9nm'"),
    ):
        with pytest.raises(BadInput, match=said):
            read_preset(text)


def test_every_parameter_has_a_dimension_and_a_sentence() -> None:
    for block, kind in BLOCKS.items():
        for key, one in declared(kind).items():
            if one.kind is Number:
                assert one.unit in parameters.DIMENSIONS and one.help, f"{block}.{key}"
    assert isinstance(read_preset("ideal"), Preset)


def test_no_command_of_today_is_missing() -> None:
    """Every operation of the rings and every event of the core is part of one command."""
    for enum, prefix, of in (
        ("enum ofs_op", "OFS_OP_", "ring"),
        ("enum ofs_event_type", "OFS_EVENT_", "calls"),
    ):
        mapped = [name for one in COMMANDS for name in getattr(one, of)]
        assert sorted(mapped) == sorted(numbered(enum, prefix).values())
    fields = {field for one in COMMANDS for field in one.fields}
    assert fields == {"session", "prefix", "layer", "head", "intent", "priority", "lease"}
