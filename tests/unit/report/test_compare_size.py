"""Is the chip of `asic size` large enough, no larger, and one that cannot be refused early?"""

from dataclasses import replace

import pytest
from against_schema import checked
from asic_logs import recorded, written

from offstage.asic_model.parameters import read_preset
from offstage.asic_model.trace import Trace, read_trace
from offstage.bindings.errors import BadInput
from offstage.testbeds.cli import run
from offstage.testbeds.document import as_line
from offstage.testbeds.progress import Silent
from offstage.testbeds.report.compare import size as sizes
from offstage.testbeds.report.compare.effect import Load
from offstage.testbeds.report.compare.size import size

LOAD = Load(gpus=64, pace_s=0.002)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return read_trace(written(tmp_path_factory.mktemp("log"), recorded()))


def test_the_chip_serves_what_was_asked_and_no_unit_could_be_halved(trace: Trace) -> None:
    """At 40,000 tokens/s, which the whole preset passes: fewer lanes, as full as allowed."""
    found = size(trace, LOAD, read_preset("asic_7nm"), 40_000, Silent())
    parts = {one.parameter: one for one in found.parts}
    assert found.tokens_per_s >= 40_000 and found.tokens_per_s_max >= found.tokens_per_s
    assert found.next_used <= 0.9 and found.next_used == max(one.used or 0 for one in found.parts)
    for one in parts.values():
        assert one.value <= one.family or one.parameter == "front_end.lanes", one.parameter
    assert parts["codec.lanes"].value < 32 and parts["metadata.sram"].value < 16
    drives, link = parts["nvme.drives"], parts["front_end.lanes"]
    assert drives.used and link.used and max(drives.used, link.used) > 0.4
    assert 0 < found.area_mm2.low < found.area_mm2.value < found.area_mm2.high
    assert found.dollars is not None and found.dollars.low > 0 and found.watt.low > 0
    checked("asic size", as_line(found))


def test_longer_contexts_take_more_sram_for_their_averages(trace: Trace) -> None:
    """A thousand times the blocks are scored, as many are demanded: 2 bytes for each."""
    longer = [replace(one, scores=1000 * max(1, one.demands)) for one in trace.fetches]
    sized = [
        size(replace(trace, fetches=fetches), LOAD, read_preset("asic_7nm"), 1000, Silent())
        for fetches in (trace.fetches, longer)
    ]
    short, long = ({one.parameter: one.value for one in found.parts} for found in sized)
    assert short["metadata.sram"] < long["metadata.sram"]


def test_what_no_chip_of_the_family_does_is_refused(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its units, by the GPUs themselves; for its metadata before anything is replayed."""
    chip = read_preset("asic_7nm")
    with pytest.raises(BadInput, match=r"needs .* at most") as caught:
        size(trace, replace(LOAD, gpus=1000), chip, 400_000, Silent())
    assert "several chips" in (caught.value.fix or "")
    with pytest.raises(BadInput, match=r"GPUs \(1\) compute"):
        size(trace, replace(LOAD, gpus=1), chip, 40_000, Silent())
    slow = replace(LOAD, gpus=1, pace_s=300.0)
    with pytest.raises(BadInput, match=r"GPUs \(1\) compute 0\.\d*[1-9]\d* tokens/s"):
        size(trace, slow, chip, 40_000, Silent())
    with pytest.raises(BadInput, match="bought whole"):
        size(trace, LOAD, read_preset("bluefield3"), 1000, Silent())
    monkeypatch.setattr(sizes, "decision_replay", None)
    with pytest.raises(BadInput, match=r"of one step need .* MiB of SRAM"):
        size(trace, replace(LOAD, gpus=100_000, sessions=100), chip, 1000, Silent())


def test_a_bad_load_names_the_command_and_not_an_option_of_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for given, said in (
        (["--gpus", "9000000"], "asic size: gpus=9000000; give a whole number"),
        (["--gpus", "8", "--sessions", "20000"], "asic size: sessions=20000; give"),
        (["--gpus", "8", "--pace", "0"], "asic size pace: a token in no time; give one such as"),
    ):
        assert run(["asic", "size", "nowhere", "--tokens-per-s", "4", *given]) == 2
        assert capsys.readouterr().err.startswith(f"offstage: {said}")


def test_a_bad_rate_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is read."""
    for rate in ("0", "-5", "nan", "inf", "1e18"):
        command = ["asic", "size", "nowhere", "--gpus", "64", "--tokens-per-s", rate]
        assert run(command) == 2
        said = capsys.readouterr().err
        assert "give a rate above 0 and below 1e12" in said and said.count("\n") == 1
