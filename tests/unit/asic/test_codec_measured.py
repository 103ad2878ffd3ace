"""Is the table that the chip model reads what `offstage bench codec --table` writes?"""

from pathlib import Path
from typing import Any

import pytest

from offstage.asic_model.codec.measured import MODEL, ratio, read_table
from offstage.bindings.codec import DTYPES
from offstage.bindings.errors import BadInput
from offstage.testbeds.bench.codec import HALVES, ratio_rows, synthetic_source
from offstage.testbeds.bench.codec_table import table_text


def rate(dtype: str) -> dict[str, Any]:
    """A rate as the bench has it; its numbers are any."""
    names = ("encode", "decode", "memcpy")
    return {"source": "synthetic", "dtype": dtype, **{f"{one}_bytes_per_s": 2e9 for one in names}}


def test_the_table_is_what_the_command_writes(tmp_path: Path) -> None:
    """The rows of synthetic KV, made again here, are those of the file to the last digit; every
    origin has each dtype, keys and values; the rates name a machine. Rates themselves are not
    compared."""
    table = read_table()
    source = synthetic_source(1)
    result = {
        "sources": [{"label": source.label, "kind": source.kind, **source.origin}],
        "ratios": list(ratio_rows(source)),
        "rates": [rate(dtype) for dtype in DTYPES],
        "machine": {"processor": "any"},
    }
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
    """Keys and values of a dtype differ, a range holds its value, and what was not measured is
    one line."""
    keys, values = ratio("bfloat16", "K"), ratio("bfloat16", "V")
    assert keys.value != values.value and keys.origin == MODEL
    for row in read_table().ratio:
        assert row.low <= row.value <= row.high and len(row.layers) >= 2
        assert row.low == min(row.layers) and row.high == max(row.layers)
    with pytest.raises(BadInput, match="mla"):
        ratio("bfloat16", "K", form="mla")


def test_a_table_with_another_key_is_refused(tmp_path: Path) -> None:
    """A number without its tag must not slip in."""
    with pytest.raises(BadInput, match="value2"):
        (tmp_path / "wrong.toml").write_text("origin = []\nrate = []\nratio = []\nvalue2 = 1\n")
        read_table(tmp_path / "wrong.toml")
    with pytest.raises(BadInput, match="give a table"):
        read_table(tmp_path / "none.toml")
