"""Does a comparison's headline say the effect, and no more than its ranges allow?"""

import msgspec
import pytest
from compare_synthetic import comparison, load_at

from offstage.bindings.errors import BadInput
from offstage.testbeds.report.compare.columns import Column, Range
from offstage.testbeds.report.compare.effect import Load, parse_load, spread_of
from offstage.testbeds.report.compare.sentence import answer, is_close, tiles
from offstage.testbeds.report.compare.table import console_table


def columns(chip: Range, base: Range, busiest: float = 0.5) -> list[Column]:
    found = comparison().columns
    for one in found[1:]:
        tokens = chip if one.device == "asic_7nm" else base
        one.load = load_at(tokens, 64.0, busiest)
    return found


def test_what_overlaps_is_a_tie() -> None:
    """Whatever the middle says: a tie in words, until the ranges part."""
    tie = answer(columns(Range(900, 700, 1000), Range(500, 400, 701)), "64 GPUs")
    assert tie.startswith("At 64 GPUs, asic_7nm (modelled, uncalibrated) would serve 900 (700 to")
    assert "a tie with bluefield3" in tie and "times" not in tie.split(";")[0]
    more = answer(columns(Range(900, 800, 1000), Range(300, 200, 400)), "64 GPUs")
    assert "at least 2 times bluefield3" in more and "tie" not in more
    less = answer(columns(Range(200, 100, 300), Range(900, 800, 1000)), "64 GPUs")
    assert "less than bluefield3" in less


def test_the_stand_in_is_a_check_and_no_baseline() -> None:
    """The model of the measured machine is named for its error only; its tokens are nowhere."""
    found = columns(Range(900, 800, 1000), Range(300, 200, 400))
    found[1].load = load_at(Range(12345, 12345, 12345), 1.0)
    text = answer(found, "64 GPUs")
    assert "as a check" in text and "dpu_x86_measured" not in text
    assert "12,345" not in text + "".join(map(str, tiles(found)))


def test_a_model_that_is_off_names_its_stage() -> None:
    """Within 15 % in mean and 30 % in p99 there is none to name."""
    found = columns(Range(900, 800, 1000), Range(300, 200, 400))
    measured = found[0].fetch_ns
    near = msgspec.structs.replace(measured, mean=1.14 * measured.mean, p99=0.71 * measured.p99)
    assert is_close(near, measured)
    assert not is_close(msgspec.structs.replace(near, mean=0.84 * measured.mean), measured)
    assert not is_close(msgspec.structs.replace(near, p99=1.31 * measured.p99), measured)
    assert not answer(found, "64 GPUs").endswith("2 us")
    found[1].off = "the stage that is furthest off is read service, 1 us in the run and 2 us"
    assert "; the stage that is furthest off is read service" in answer(found, "64 GPUs")


def test_nothing_binds_on_an_idle_device() -> None:
    """A load that no device reaches is one line, and names no unit."""
    text = answer(columns(Range(9, 8, 10), Range(9, 8, 10), busiest=0.001), "64 GPUs")
    assert "saturates no device: no unit is more than 0.1 % busy" in text
    assert "NVMe" not in text
    assert "NVMe on asic_7nm (50.0 %)" in answer(columns(Range(9, 8, 9), Range(9, 8, 9)), "64 GPUs")


def test_tiles_and_table_begin_with_the_effect() -> None:
    """Tokens, time, dollars, joules; latency after them, and no ratio of it."""
    found = comparison().columns
    names = [one.name for one in tiles(found)]
    assert names[0].startswith("tokens/s") and names[-1].startswith("mean fetch")
    assert [name.split(",")[0] for name in names[2:4]] == [
        "$ per 1M decoded tokens",
        "Wh per 1M decoded tokens",
    ]
    chip = next(one.load for one in found if one.device == "asic_7nm")
    assert chip is not None and chip.joule.value == 4e6
    (energy,) = (one.value for one in tiles(found) if one.name.startswith("Wh"))
    assert energy == "1,111", "J over 3,600, as in the table"
    rows = [str(row[0].text) for row in console_table(found).parts[0].rows]
    assert rows[0] == "tokens/s" and not any("faster" in row for row in rows)
    assert rows.index("fetch mean") > rows.index("Wh per 1M decoded tokens")


def test_a_load_is_read_or_refused_in_one_line() -> None:
    found = parse_load("gpus=64, sessions=8,model=llama-3-70b,pace=25ms,tenants=4")
    assert found == Load(64, 8, 4, "llama-3-70b", 0.025) and parse_load("") == Load()
    for text, what in (
        ("gpu=3", "gpu"),
        ("gpus=0", "gpus=0"),
        ("gpus=-3", "gpus=-3"),
        ("gpus", "gpus"),
        ("gpus=1,gpus=2", "gpus=2"),
        ("tenants=65", "tenants=65"),
        ("model=llama-9", "llama-9"),
        ("pace=fast", "fast"),
        ("pace=0", "a token in no time"),
        ("pace=0ms", "a token in no time"),
    ):
        with pytest.raises(BadInput, match=what) as caught:
            parse_load(text)
        assert caught.value.fix


def test_ranges_survive_the_file() -> None:
    """compare.json is read again by the plan and by the figures of papers."""
    found = comparison()
    assert msgspec.json.decode(msgspec.json.encode(found), type=type(found)) == found
    assert spread_of([]) == (1.0, 1.0) and spread_of([0.5, 2.0]) == (0.5, 2.0)
