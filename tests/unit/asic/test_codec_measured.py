"""Is the table that the chip model reads the one that `offstage bench codec --table` writes?"""

from pathlib import Path

import pytest

from offstage.asic_model.codec.measured import MODEL, ratio, read_table
from offstage.asic_model.parameters import Preset, read_preset
from offstage.bindings.codec import DTYPES
from offstage.bindings.errors import BadInput
from offstage.testbeds.bench.codec import (
    HALVES,
    CodecResult,
    RateFigures,
    ratio_rows,
    synthetic_source,
)
from offstage.testbeds.bench.codec_store import store_row
from offstage.testbeds.bench.codec_table import table_text
from offstage.testbeds.machine import machine


def rate(dtype: str) -> RateFigures:
    """Return a rate in the bench's form, with arbitrary numbers."""
    return RateFigures("synthetic", dtype, 2e9, 2e9, 2e9)


def test_the_table_is_what_the_command_writes(tmp_path: Path) -> None:
    """Rows of synthetic KV, made again here, equal those of the file to the last digit; every
    origin has each dtype, keys and values; rates name a machine. The rates are not compared."""
    table = read_table()
    source = synthetic_source(1)
    result = CodecResult(
        sources=[{"label": source.label, "kind": source.kind, **source.origin}],
        ratios=list(ratio_rows(source)),
        rates=[rate(dtype) for dtype in DTYPES],
        store=[],
        lossy=[],
        machine=machine(),
    )
    (tmp_path / "again.toml").write_text(table_text(result))
    again = read_table(tmp_path / "again.toml")
    assert again.ratio == tuple(row for row in table.ratio if row.origin == "synthetic")
    assert again.origin == table.origin[:1]
    wanted = {(dtype, half) for dtype in DTYPES for half in HALVES}
    for origin in ("synthetic", MODEL):
        assert {(row.dtype, row.half) for row in table.ratio if row.origin == origin} == wanted
    assert [row.dtype for row in table.rate] == list(DTYPES) == [row.dtype for row in again.rate]
    assert all(row.source.startswith("offstage bench codec, ") for row in table.rate)


def test_a_ratio_is_asked_for_by_what_it_depends_on() -> None:
    """Keys and values of a dtype differ, a range contains its value, and a combination that was not
    measured is one error line."""
    keys, values = ratio("bfloat16", "K"), ratio("bfloat16", "V")
    assert keys.value != values.value and keys.origin == MODEL
    for row in read_table().ratio:
        assert row.low <= row.value <= row.high and len(row.layers) >= 2
        assert row.low == min(row.layers) and row.high == max(row.layers)
    with pytest.raises(BadInput, match="mla"):
        ratio("bfloat16", "K", form="mla")


def test_a_coded_store_reads_fewer_bytes() -> None:
    """The bench's store row compares the same blocks and counts the bytes that crossed to the
    drive: whole logical blocks of 4 KiB, and one for the trailer. Times are not checked."""
    blocks = [bytes([key]) * 32768 for key in range(4)]
    row = store_row("bfloat16", blocks, "gen5-tlc", 1)
    coded, plain = row.coded, row.plain
    assert row.provenance == "emulated"
    assert coded.written_bytes_per_block < 3 * 4096 <= 36_864 <= plain.written_bytes_per_block
    assert coded.read_bytes_per_block == 2 * 4096 < 36_864 <= plain.read_bytes_per_block


def preset_with(tmp_path: Path, ratio_text: str) -> Preset:
    (tmp_path / "mine.toml").write_text(f'extends = "asic_7nm"\n[codec]\nratio = {ratio_text}\n')
    read_preset.cache_clear()
    return read_preset(str(tmp_path / "mine.toml"))


def test_a_chip_takes_its_ratio_from_the_table(tmp_path: Path) -> None:
    """A dtype's ratio is the mean of keys and values, in a range that the preset can widen, not
    narrow; one that is not measured or invalid is one error line."""
    text = '{ measured = "fp8_e5m2", form = "gqa", low = 0.7, high = 1 }'
    codec = preset_with(tmp_path, text).codec
    assert codec is not None and codec.ratio.tag == "measured" and codec.ratio.high == 1
    keys, values = ratio("fp8_e5m2", "K"), ratio("fp8_e5m2", "V")
    assert codec.ratio.value == pytest.approx((keys.value + values.value) / 2, abs=1e-4)
    assert codec.ratio.low == min(keys.low, values.low, 0.7)
    shipped = read_preset("asic_7nm").codec
    assert shipped is not None and shipped.ratio.tag == "measured"
    assert shipped.ratio.value != codec.ratio.value
    for text, line in (
        ('{ measured = "int8", form = "gqa" }', r"mine.toml: .* no ratio of pycode-3m gqa int8 K"),
        ('{ measured = "bfloat16" }', "no ratio of pycode-3m bfloat16 K"),
        ('{ measured = "bfloat16", form = "gqa", low = "a" }', "'a' is no low"),
        ('{ measured = "bfloat16", value = 1 }', "value"),
    ):
        with pytest.raises(BadInput, match=line):
            preset_with(tmp_path, text)


def test_a_table_with_another_key_is_refused(tmp_path: Path) -> None:
    """An unknown key is refused, and so is a table that is not there."""
    with pytest.raises(BadInput, match="value2"):
        (tmp_path / "wrong.toml").write_text("origin = []\nrate = []\nratio = []\nvalue2 = 1\n")
        read_table(tmp_path / "wrong.toml")
    with pytest.raises(BadInput, match="give a table"):
        read_table(tmp_path / "none.toml")
