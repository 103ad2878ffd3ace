"""Is a preset with one part twice as fast otherwise the same, and does it decode no slower?"""

from dataclasses import replace
from pathlib import Path

import pytest
from asic_logs import recorded, written
from hypothesis import given
from hypothesis import strategies as st

from offstage.asic_model.closed import ClosedLoop
from offstage.asic_model.elsewhere import Elsewhere
from offstage.asic_model.load import Work, serve
from offstage.asic_model.parameters import names, read_preset
from offstage.asic_model.replay import closed_loop
from offstage.asic_model.trace import Trace, read_trace
from offstage.asic_model.twice import CONTROL, DEVICE, FLASH, LINK, PARTS, twice, used, used_since


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return read_trace(written(tmp_path, recorded()))


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("part", PARTS)
def test_one_part_of_a_preset_is_changed_and_no_other(name: str, part: str) -> None:
    """Every shipped preset bears it: it contradicts nothing, and no two parts share a number."""
    preset = read_preset(name)
    was = dict(preset.numbers())
    changed = {
        one: number.value / was[one].value
        for one, number in twice(preset, part).numbers()
        if number.value != was[one].value
    }
    assert changed and set(changed.values()) <= {2.0, 0.5}
    others = [dict(twice(preset, one).numbers()) for one in PARTS if one != part]
    assert all(other[one].value == was[one].value for other in others for one in changed)


@pytest.mark.parametrize("name", ["dpu_x86_measured", "bluefield3", "asic_7nm"])
@pytest.mark.parametrize(("prefetchers", "sessions"), [("window", 1), ("window+ema", 2)])
def test_twice_what_is_used_most_decodes_no_slower(
    name: str, prefetchers: str, sessions: int, tmp_path: Path
) -> None:
    """Decided again in the time of the faster device, over the same log."""
    trace = read_trace(written(tmp_path, recorded(prefetchers, sessions)))
    preset = read_preset(name)
    base = closed_loop(trace, preset)
    shares = used(base, preset, trace)
    most = max(PARTS, key=lambda part: shares[part])
    assert closed_loop(trace, twice(preset, most)).tokens_per_s >= base.tokens_per_s


@given(
    units=st.lists(st.floats(1e-6, 1e-2), min_size=1, max_size=6),
    host_s=st.floats(0.0, 0.1),
    gpus=st.integers(1, 4096),
)
def test_under_any_load_twice_what_binds_serves_no_fewer(
    units: list[float], host_s: float, gpus: int
) -> None:
    """The queueing model of many GPUs: a busiest unit of half the demand never lowers tokens/s."""
    work = Work(4.0, {str(at): one for at, one in enumerate(units)}, sum(units), host_s)
    most = max(work.units, key=lambda name: work.units[name])
    halved = {**work.units, most: work.units[most] / 2}
    faster = replace(work, units=halved, device_s=work.device_s - work.units[most] / 2)
    assert serve(faster, gpus).tokens_per_s >= serve(work, gpus).tokens_per_s * (1 - 1e-9)


def test_the_arena_and_the_host_of_a_log_can_be_others(trace: Trace) -> None:
    """Twice the slots never miss more here, a host of half the time decodes faster, and factors of
    one are the loop of the log."""
    preset = read_preset("asic_7nm")
    base = closed_loop(trace, preset)
    assert closed_loop(trace, preset, elsewhere=Elsewhere(1.0, 1.0)) == base
    larger = closed_loop(trace, preset, elsewhere=Elsewhere(arena=2.0))
    assert larger.misses < base.misses and larger.demands == base.demands
    faster = closed_loop(trace, preset, elsewhere=Elsewhere(host=0.5))
    assert 1.2 < faster.tokens_per_s / base.tokens_per_s < 2.0


def test_what_reactors_decide_is_control_and_the_rest_is_the_dpus(trace: Trace) -> None:
    """By hand, from the costs of the preset; a chip has units for both."""
    preset = read_preset("dpu_x86_measured").with_({"cores.publish": 64.0})
    base = closed_loop(trace, preset)
    cores = preset.cores
    assert cores is not None
    commands, demands = len(trace.fetches), sum(one.demands for one in trace.fetches)
    scores = sum(one.scores for one in trace.fetches)
    spent_us = 3.0 * commands + 0.1 * demands + 0.008 * scores
    shares = used(base, preset, trace)
    assert shares[CONTROL] == pytest.approx(spent_us / 1e6 / base.seconds)
    by_name = {one.name: one.utilisation for one in base.units}
    rest = by_name["reactor"] - shares[CONTROL]
    assert rest > max(by_name["ddr"], by_name["codec_core"])
    assert shares[DEVICE] == pytest.approx(rest)
    assert shares[FLASH] == by_name["drive"] and shares[LINK] >= by_name["link_out"]
    chip = read_preset("asic_7nm")
    done = closed_loop(trace, chip)
    by_name = {one.name: one.utilisation for one in done.units}
    assert used(done, chip, trace)[CONTROL] == max(
        by_name[one] for one in ("qos", "scheduler", "metadata", "metadata_update")
    )


def test_a_chip_behind_a_seam_counts_what_its_replay_counts(trace: Trace) -> None:
    """From the units of the chip alone, over the whole run: as `used` does with the log at hand. Of
    the second half of the run alone no part did more than there was time for."""
    for name in ("dpu_x86_measured", "bluefield3", "asic_7nm"):
        preset = read_preset(name)
        loop = ClosedLoop(trace, preset, "", 0, lambda count: None)
        loop.run()
        run, chip = closed_loop(trace, preset), loop.device.chip
        demands = sum(one.demands for one in trace.fetches)
        drive = preset.nvme.drive
        begin, end = loop.account.span()
        assert begin == 0
        found = used_since(chip, preset, drive, demands, 0)
        share = end / chip.now_ps
        for part, value in used(run, preset, trace).items():
            assert found[part] == pytest.approx(value * share, rel=1e-6), (name, part)
        half = used_since(chip, preset, drive, demands, chip.now_ps // 2)
        assert all(0 <= value <= 1 for value in half.values())
        assert half[FLASH] < 1.5 * found[FLASH]
        later = used_since(chip, preset, drive, demands, chip.now_ps)
        assert set(later.values()) == {0.0}
