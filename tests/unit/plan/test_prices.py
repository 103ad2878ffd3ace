"""Does every number have a unit, range, date, source and tag, and is one that lacks any refused?"""

import datetime
from pathlib import Path

import pytest

from offstage.bindings.errors import BadInput
from offstage.testbeds.prices import CLASSES, KEYS, catalog

GOOD = (
    'value = 0.2, unit = "$/GB", low = 0.1, high = 1, date = 2026-01-01, tag = "guess", '
    'source = "x"'
)


def own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_class_has_a_device_and_every_number_a_source() -> None:
    found = catalog()
    assert all(found.of_class(name) for name in CLASSES)
    rows = list(found.rows())
    assert len(rows) > 70
    for device, key, number in rows:
        assert key in KEYS and number.low <= number.value <= number.high, (device, key)
        assert number.source and number.base > 0 and number.date.year > 2000, (device, key)


def test_a_price_older_than_a_year_is_stale_and_a_rate_is_not() -> None:
    """A drive does not get slower with age, but its price changes."""
    number = catalog().numbers("tlc")
    old = number["price"].date + datetime.timedelta(days=366)
    assert catalog(today=old).is_stale("price", number["price"])
    assert not catalog(today=old).is_stale("read", number["read"])
    young = number["price"].date + datetime.timedelta(days=365)
    assert not catalog(today=young).is_stale("price", number["price"])


def test_a_users_file_takes_the_place_of_single_numbers(tmp_path: Path) -> None:
    ours = catalog()
    theirs = ours.with_file(own(tmp_path, f"[tlc]\nprice = {{ {GOOD} }}\n"))
    assert theirs.numbers("tlc")["price"].value == 0.2
    assert theirs.numbers("tlc")["read"] == ours.numbers("tlc")["read"]
    assert ours.numbers("tlc")["price"].value != 0.2


def test_units_of_one_kind_are_one_number(tmp_path: Path) -> None:
    """$200 a terabyte equals $0.2 a gigabyte."""
    text = GOOD.replace("0.2,", "200,").replace("0.1", "100").replace("high = 1", "high = 1000")
    found = catalog().with_file(own(tmp_path, f"[tlc]\nprice = {{ {text.replace('GB', 'TB')} }}"))
    assert found.numbers("tlc")["price"].base == pytest.approx(0.2)


def test_a_table_with_every_number_of_a_gpu_is_a_new_gpu(tmp_path: Path) -> None:
    """One number less, and it is an unknown table, with what it needs."""
    ours = catalog()
    rows = [
        f'{key} = {{ value = {one.value}, unit = "{one.unit}", low = {one.low}, high = {one.high}, '
        'date = 2026-01-01, tag = "cited", source = "theirs" }'
        for key, one in ours.numbers("h100").items()
    ]
    theirs = ours.with_file(own(tmp_path, "\n".join(["[mi500]", *rows])))
    assert "mi500" in theirs.of_class("gpu") and "mi500" not in ours.of_class("gpu")
    assert theirs.numbers("mi500")["hour"].value == ours.numbers("h100")["hour"].value
    with pytest.raises(BadInput, match=r"no table 'mi500'.*a GPU \(hour, memory"):
        ours.with_file(own(tmp_path, "\n".join(["[mi500]", *rows[1:]])))


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (f"[tape]\nprice = {{ {GOOD} }}", "no table 'tape'"),
        (f"[tlc]\nprize = {{ {GOOD} }}", "did you mean 'price'"),
        ("[tlc]\nprice = 0.2", "0.2"),
        (f"[tlc]\nprice = {{ {GOOD.replace('0.2,', '-0.2,')} }}", "negative"),
        (f"[tlc]\nprice = {{ {GOOD.replace('high = 1', 'high = inf')} }}", "finite"),
        (f"[tlc]\nprice = {{ {GOOD.replace('high = 1', 'high = 1e308')} }}", "too large"),
        (f"[tlc]\nprice = {{ {GOOD.replace('high = 1', 'high = 1' + '0' * 400)} }}", "too large"),
        (f"[tlc]\nprice = {{ {GOOD.replace('low = 0.1', 'low = 1e-300')} }}", "too small"),
        (f"[tlc]\nprice = {{ {GOOD.replace('$/GB', 'GB/s')} }}", "not a unit of a price"),
        (f"[tlc]\nprice = {{ {GOOD.replace('$/GB', '')} }}", "has no unit"),
        (f"[tlc]\nprice = {{ {GOOD.replace(', date = 2026-01-01', '')} }}", "has no date"),
        (f"[tlc]\nprice = {{ {GOOD.replace('2026-01-01', '2726-01-01')} }}", "2726-01-01"),
        (f"[tlc]\nprice = {{ {GOOD.replace('2026-01-01', '1')} }}", "date"),
        (f"[tlc]\nprice = {{ {GOOD.replace('low = 0.1', 'low = 0.0')} }}", "may be 0"),
        ("tlc = 1", "[tlc]"),
    ],
)
def test_values_without_a_source_are_refused(table: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=says.replace("$", r"\$")) as error:
        catalog().with_file(own(tmp_path, table))
    assert "\n" not in str(error.value) and "own.toml" in str(error.value)
