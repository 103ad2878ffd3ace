"""Do a preset's routes cost what its units say, and can the laboratory run on it as a chip?"""

import io
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from offstage.asic_model.chip import limited, network, open_chip, open_timing
from offstage.asic_model.codec.measured import ratio
from offstage.asic_model.parameters import Preset, names, read_preset
from offstage.asic_model.tables.dram import mean_ps
from offstage.asic_model.units.codec import coded_permille
from offstage.asic_model.units.dedup import collision_share
from offstage.asic_model.units.hbm import hbm_stacks
from offstage.asic_model.units.metadata import keys_of_block, set_count
from offstage.asic_model.units.nvme import medium, striped
from offstage.bindings.core import CoreConfig
from offstage.bindings.errors import BadInput
from offstage.bindings.network import Limits
from offstage.bindings.storage import NvmeModel, preset
from offstage.bindings.timing import KINDS, Costs, Timing
from offstage.dpu.config.options import Model
from offstage.dpu.config.values import Config
from offstage.testbeds.beds.device import as_device
from offstage.testbeds.cli import run
from offstage.testbeds.lab.run.experiment import plan
from offstage.testbeds.lab.run.plan import Task
from offstage.testbeds.lab.run.task import run_task

SPEC = """
seeds = [1]
[workload]
context_tokens = 8192
sessions = 2
steps = 8
layers = 2
[selection]
k_blocks = 16
sink_blocks = 1
window_blocks = 2
[tier]
buffer_over_k = [2]
time_per_token = "1ms"
[[policy]]
use = "window+ema"
"""
BLOCK = 65536
SMALL = """
extends = "asic_7nm"
[scheduler]
candidates = { value = 100, unit = "1", low = 1, high = 100, tag = "guess", source = "a test" }
[nvme]
reads = { value = 8, unit = "1", low = 1, high = 8, tag = "guess", source = "a test" }
[hbm]
capacity = { value = 256, unit = "MiB", low = 1, high = 256, tag = "guess", source = "a test" }
"""


def took(timing: Timing, kind: str, *, count: int = 1, scores: int = 0, at_ps: int = 0) -> int:
    """Return the time of one request when nothing else is inside."""
    end = timing.ask(kind, at_ps, tag=7, count=count, score_count=scores, size_bytes=BLOCK)
    while end is None:
        next_ps = timing.next_ps()
        assert next_ps is not None
        for tag, end_ps in timing.poll(next_ps):
            assert tag == 7
            end = end_ps
    return end - at_ps


def opened(preset: Preset) -> Timing:
    return open_chip(preset, Limits(in_flight_max=256)).timing()


@pytest.mark.parametrize("name", names())
def test_every_route_of_every_preset_ends(name: str) -> None:
    timing = open_timing(name, Costs(in_flight_max=64))
    at_ps = 0
    for kind in KINDS:
        took_ps = took(timing, kind, count=2 if kind in ("hit", "command") else 1, at_ps=at_ps)
        assert took_ps > 0
        at_ps += took_ps + 1


def test_an_idle_chip_takes_the_sum_of_its_stages() -> None:
    """A command through the ASIC takes the sum of its stages: link, lookups of entries and of
    averages, 16 to a line, demands, scores."""
    whole = read_preset("asic_7nm")
    assert whole.metadata and whole.scheduler and whole.ddr
    steady = msgspec.structs.replace(whole.ddr, device="")  # its latency is one number
    chip = msgspec.structs.replace(whole, ddr=steady)
    assert chip.metadata and chip.scheduler
    link = chip.front_end
    rate = link.lane_rate.base * link.lanes.base * link.efficiency.base
    demands, scores = 16, 1000
    score_ps = round(2e12 / rate)
    interval_ps = round(chip.metadata.cycle.base / chip.metadata.banks.base)
    lines = 63  # 1000 averages of 2 B, 32 B to a line
    latency_ps = chip.metadata.latency.whole
    latency_ps += round(8e12 / chip.logic.clock.base)  # the pipeline: docs/reference/rtl.md
    lookup_ps = interval_ps * (2 + demands + lines) + 2 * latency_ps
    set_bytes = chip.metadata.entry.base * chip.metadata.ways.base
    ddr = chip.memory("ddr")
    set_ps = round(set_bytes * 1e12 / (ddr.rate.base * ddr.efficiency.base))
    line_ps = round(2 * chip.metadata.entry.base * 1e12 / (ddr.rate.base * ddr.efficiency.base))
    spill_ps = demands * set_ps + lines * line_ps + 2 * ddr.latency.whole
    own = chip.scheduler
    decide_ps = own.command.whole + demands * own.demand.whole + scores * own.score.whole
    decide_ps += 2 * own.latency.whole
    link_ps = round(64e12 / rate) + scores * score_ps + link.latency.whole
    timing = opened(chip)
    cold_ps = took(timing, "command", count=demands, scores=scores)
    assert cold_ps == link_ps + lookup_ps + spill_ps + decide_ps
    warm_ps = took(timing, "command", count=demands, scores=scores, at_ps=10**9)
    assert warm_ps == cold_ps - spill_ps


def test_a_reactor_does_one_thing_at_a_time() -> None:
    """In a DPU with one reactor, a read waits for the command before it."""
    chip = read_preset("dpu_x86_measured")
    assert chip.cores is not None
    timing = opened(chip)
    alone_ps = took(timing, "read")
    timing.reset()
    arrives_ps = chip.front_end.latency.whole + 10**6
    timing.ask("command", 0, tag=1, count=1000, size_bytes=BLOCK)
    behind_ps = took_all(timing, arrives_ps)
    decide_ps = chip.cores.command.whole + 1000 * chip.cores.demand.whole
    waited_ps = behind_ps - arrives_ps - alone_ps
    assert decide_ps - 2 * 10**6 < waited_ps < decide_ps


def took_all(timing: Timing, at_ps: int) -> int:
    """Return when a read submitted at at_ps ends, whatever other requests there are."""
    timing.ask("read", at_ps, tag=7, size_bytes=BLOCK)
    while (next_ps := timing.next_ps()) is not None:
        for tag, end_ps in timing.poll(next_ps):
            if tag == 7:
                return end_ps
    raise AssertionError("it never ended")


def lookups(preset: Preset, *commands: tuple[int, int, int]) -> list[tuple[int, int]]:
    """Return hits and misses of the table on the die after each command: a session, its layer and a
    number of blocks."""
    chip = open_chip(preset, Limits(in_flight_max=64))
    timing, found = chip.timing(), []
    for number, (session, layer, count) in enumerate(commands):
        timing.ask(
            "command",
            number * 10**9,
            tag=number,
            count=count,
            size_bytes=BLOCK,
            session=session,
            layer=layer,
        )
        chip.run(until_ps=(number + 1) * 10**9 - 1)
        stats = chip.stats()["metadata"]
        found.append((stats.hits, stats.misses))
    return found


def test_entries_are_those_of_a_session_a_layer_and_its_heads() -> None:
    """Entries are separate by session and layer. One entry for each head makes eight times as many,
    which fill the table eight times as fast."""
    chip = read_preset("asic_7nm")
    commands = ((0, 0, 4), (0, 0, 4), (0, 1, 4), (1, 0, 4), (0, 0, 6))
    assert lookups(chip, *commands) == [(0, 4), (4, 4), (4, 8), (4, 12), (8, 14)]
    each = chip.with_({"metadata.heads_per_entry": 1})
    assert lookups(each, *commands)[-1] == (8 * 8, 8 * 14)
    three = chip.with_({"metadata.heads_per_entry": 3}).metadata
    assert three is not None and keys_of_block(three) == 3
    small = {"metadata.sram": 1 / 64, "metadata.banks": 1, "metadata.ways": 4}  # 512 entries
    half = ((0, 0, 128), (0, 0, 128))
    assert lookups(chip.with_(small), *half)[-1][0] > 110  # of the 128: sets fill unevenly
    assert lookups(each.with_(small), *half)[-1][0] < 64


def test_a_block_has_the_ratio_of_its_layer_and_a_piece_that_of_its_head() -> None:
    """Ratios are in the order of the codec's table, keys before values. A ratio that is set keeps
    their spread, and one that was not measured is a single number."""
    codec = read_preset("asic_7nm").codec
    assert codec is not None
    rows = coded_permille(codec)
    halves = [ratio("bfloat16", half) for half in ("K", "V")]
    for layer, row in enumerate(rows):
        heads = [*halves[0].heads[layer], *halves[1].heads[layer]]
        assert row == tuple(round(1000 * head) for head in heads)
    moved = []
    for layer in (0, 1):
        chip = open_chip(read_preset("asic_7nm"), Limits(in_flight_max=64))
        chip.timing().ask("read", 0, size_bytes=BLOCK, layer=layer)
        chip.run()
        moved.append((chip.stats()["drive"].bytes, chip.stats()["dma_in"].bytes))
        assert moved[-1][0] == moved[-1][1] == BLOCK // len(rows[0]) * sum(rows[layer]) // 1000
    assert moved[0] != moved[1]
    half = coded_permille(msgspec.structs.replace(codec, ratio=codec.ratio.set(0.35)))
    assert sum(half[0]) / sum(rows[0]) == pytest.approx(0.35 / codec.ratio.value, rel=0.01)
    flat = msgspec.structs.replace(codec.ratio, spread=())
    assert coded_permille(msgspec.structs.replace(codec, ratio=flat)) == (
        (round(1000 * codec.ratio.value),),
    )


def test_a_smaller_ratio_makes_reads_shorter_and_a_slow_codec_longer() -> None:
    chip = read_preset("asic_7nm")
    raw, coded = (took(opened(chip.with_({"codec.ratio": ratio})), "read") for ratio in (1, 0.4))
    slow = took(opened(chip.with_({"codec.ratio": 0.4, "codec.decode_rate": 0.1})), "read")
    assert coded < raw < slow


def test_the_bounded_table_is_a_limit_of_the_core() -> None:
    chip = read_preset("asic_7nm").with_({"scheduler.candidates": 100, "nvme.reads": 8})
    config = CoreConfig(slot_count=64, chunk_max=64, session_chunk_max=64, queue_max=512)
    assert limited(chip, config) == replace(config, queue_max=100, io_max=8)
    assert limited(read_preset("ideal"), config) == config


def test_the_staging_memory_bounds_the_arena() -> None:
    """Two stacks hold twice the blocks of one; fewer than a fetch needs is refused."""
    config = CoreConfig(
        slot_count=64, chunk_max=64, session_chunk_max=64, demand_max=40, block_size_bytes=BLOCK
    )
    gib = BLOCK / (1 << 30)
    chip = read_preset("asic_7nm").with_({"hbm.channels": 2, "hbm.capacity": 24.5 * gib})
    assert limited(chip, config) == replace(config, slot_count=49)
    with pytest.raises(BadInput, match=r"hbm holds 39 blocks .* asks for up to 40"):
        limited(chip.with_({"hbm.capacity": 19.5 * gib}), config)


def test_a_daemon_is_bounded_by_its_chip(tmp_path: Path) -> None:
    """The same three bounds hold in the daemon's configuration."""
    file = tmp_path / "small.toml"
    file.write_text(SMALL, encoding="utf-8")
    config = Config(model=Model(device=str(file)))
    config = msgspec.structs.replace(
        config, arena=msgspec.structs.replace(config.arena, size_bytes=1 << 30)
    )
    bounded, timing = as_device(config)
    assert timing is not None
    assert (bounded.limits.queue, bounded.limits.reads) == (100, 8)
    assert bounded.arena.size_bytes == 2 * 256 * (1 << 20)
    assert as_device(Config()) == (Config(), None)


def test_several_drives_are_one_with_more_of_everything() -> None:
    """Eight drives read eight times as fast as one, and a single block as fast as one."""
    drive = preset("gen5-tlc").params
    seconds = []
    for count in (1, 8):
        model = NvmeModel(striped(drive, count))
        ends = [model.submit(0, BLOCK * number, BLOCK) for number in range(4096)]
        seconds.append(max(ends))
        assert ends[0] < 10**8
    assert 6 < seconds[0] / seconds[1] < 10


def test_more_drives_than_the_model_stripes_are_refused_by_their_number() -> None:
    chip = read_preset("asic_7nm")
    for drive, count, most in (("hbf", 4, 2), ("gen5-tlc", 17, 16)):
        with pytest.raises(BadInput, match=f"give {most} at most") as caught:
            medium(chip.with_({"nvme.drives": count}), drive)
        assert caught.value.where == "preset asic_7nm: nvme.drives"
        medium(chip.with_({"nvme.drives": most}), drive)


def test_a_memory_has_the_spread_of_its_table() -> None:
    """The table is shifted so that its mean at a middle load is the preset's latency. Refreshes are
    pauses; the rate between them is raised to the preset's efficiency."""
    hbm = read_preset("asic_7nm").memory("hbm")
    (unit,) = hbm_stacks(hbm)
    middle = min(unit.load_rows, key=lambda row: abs(row.load_permille - 400))
    assert mean_ps(middle) == pytest.approx(hbm.latency.whole, rel=0.05)
    assert unit.load_rows[-1].p99_ps > middle.p99_ps
    between = (1 << 20) * 1e12 / unit.mib_ps
    left = between * (1 - unit.pause_ps / unit.pause_every_ps)
    assert left == pytest.approx(hbm.rate.base * hbm.efficiency.base, rel=1e-4)
    twice = read_preset("asic_7nm").with_({"hbm.latency": 2 * hbm.latency.value}).memory("hbm")
    (slow,) = hbm_stacks(twice)
    for row, other in zip(unit.load_rows, slow.load_rows, strict=True):
        assert other.p99_ps == pytest.approx(row.p99_ps + hbm.latency.whole, abs=2)
    (plain,) = hbm_stacks(msgspec.structs.replace(hbm, device=""))
    assert plain.load_rows == () and plain.latency_ps == hbm.latency.whole
    with pytest.raises(BadInput, match="no DRAM 'hbm9'"):
        hbm_stacks(msgspec.structs.replace(hbm, device="hbm9"))


def test_the_arbiter_serves_tenants_by_weight_and_deadline() -> None:
    """Two tenants that overload the drives get three to one. Within a tenant the most urgent read
    is first, even if it arrives late, because reads wait at the arbiter."""
    chip = open_chip(
        read_preset("asic_7nm").with_({"nvme.drives": 1, "nvme.queue": 1}),
        Limits(in_flight_max=1024),
        weights=(3, 1),
    )
    timing, order = chip.timing(), []
    for number in range(200):
        timing.ask(
            "read",
            0,
            tag=2 * number,
            size_bytes=BLOCK,
            tenant=0,
            cause=3,
            deadline_ps=10**12 - number,
            offset_bytes=number * BLOCK,
        )
        timing.ask(
            "read",
            0,
            tag=2 * number + 1,
            size_bytes=BLOCK,
            tenant=1,
            cause=3,
            deadline_ps=10**12,
            offset_bytes=(500 + number) * BLOCK,
        )
    while len(order) < 100:
        order += [tag for tag, _ in chip.next_ends()]
    timing.ask(
        "read",
        chip.now_ps,
        tag=999,
        size_bytes=BLOCK,
        tenant=0,
        cause=3,
        deadline_ps=chip.now_ps + 10**6,
        offset_bytes=999 * BLOCK,
    )
    behind: list[int] = []
    while 999 not in behind:
        behind += [tag for tag, _ in chip.next_ends()]
    assert len(behind) <= 8
    first = [tag for tag in order if tag % 2 == 0]
    assert 70 <= len(first) <= 80
    assert first[5:] == sorted(first[5:], reverse=True)  # the last submitted is needed first


def test_collisions_and_sets_follow_from_their_numbers() -> None:
    chip = read_preset("asic_7nm")
    assert chip.dedup and chip.metadata
    assert collision_share(chip.dedup) < 1e-30
    short = chip.with_({"dedup.key_bits": 16, "dedup.entries": 1 << 15}).dedup
    assert short is not None and collision_share(short) == 0.5
    assert set_count(chip.metadata) == 1 << 16


def test_every_unit_of_a_network_is_on_a_route() -> None:
    """A unit that no route visits would always show as idle; only `codec_core` may be one."""
    for name in names():
        found = network(read_preset(name))
        visited = {stage.unit for stages in found.routes.values() for stage in stages}
        unused = {unit.name for unit in found.units} - visited
        assert unused <= {"codec_core"}, name


def computed(spec: Path, device: str) -> dict[str, bytes]:
    """Return the rows of each part of the spec's points, by the part's name."""
    changes = {"tier.device": device} if device else {}
    found = plan(spec, changes)
    task = Task(found.spec, 1, found.variants[0].points)
    result = run_task(task, "code", lambda steps: None)
    assert not result.failures
    return {name: part_rows(part) for name, part in result.parts.items()}


def part_rows(part: bytes) -> bytes:
    with np.load(io.BytesIO(part), allow_pickle=False) as archive:
        return bytes(archive["rows"].tobytes())


def test_a_lab_runs_on_a_chip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every device gives its rows under its name, repeatably; with a device the command line shows
    tokens per second."""
    spec = tmp_path / "small.toml"
    spec.write_text(SPEC)
    devices = ("", "asic_7nm", "dpu_x86_measured")
    found = {device: computed(spec, device) for device in devices}
    assert len({name for parts in found.values() for name in parts}) == 3 * len(found[""])
    rows = [set(parts.values()) for parts in found.values()]
    assert not rows[0] & rows[1] and not rows[1] & rows[2]
    assert computed(spec, "asic_7nm") == found["asic_7nm"]
    command = ["lab", "run", str(spec), "--out", str(tmp_path / "out"), "--jobs", "1"]
    assert run([*command, "--device", "asic_7nm"]) == 0
    assert "tokens/s" in capsys.readouterr().out


def test_a_device_that_cannot_hold_the_arena_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "small.toml"
    spec.write_text(SPEC)
    base = ["lab", "run", str(spec), "--out", str(tmp_path / "out")]
    assert run([*base, "--device", "asic_8nm"]) == 2
    assert "no preset 'asic_8nm'" in capsys.readouterr().err
    small = tmp_path / "small_hbm.toml"
    number = '{ value = 1, unit = "MiB", low = 1, high = 1, tag = "guess", source = "a test" }'
    small.write_text(f'extends = "asic_7nm"\n[hbm]\ncapacity = {number}\n')
    assert run([*base, "--device", str(small)]) == 2
    line = capsys.readouterr().err
    assert "the arena needs" in line and "of hbm" in line and line.count("\n") == 1
    with pytest.raises(BadInput, match="no NVMe preset 'floppy'"):
        network(read_preset("asic_7nm"), drive="floppy")
    assert np.isfinite(read_preset("asic_7nm").nvme.drives.value)
