"""Does a chip replay a log with its decisions, and decide again in a closed loop?"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from against_schema import checked
from asic_logs import STEPS, WIDTH, recorded, written
from core_logs import HEADER_BYTES, boundaries, restamped

from offstage.asic_model import account
from offstage.asic_model.parameters import read_preset
from offstage.asic_model.ranges import varied
from offstage.asic_model.replay import closed_loop, decision_replay, own_times
from offstage.asic_model.result import ChipRun, times_of
from offstage.asic_model.trace import START, Trace, read_trace
from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.errors import BadInput
from offstage.bindings.layouts import HIT_ENDS
from offstage.testbeds.cli import run

STEP_TYPE = 15


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return read_trace(written(tmp_path, recorded()))


def test_a_trace_has_what_the_core_decided(trace: Trace) -> None:
    """Demands, reads and their dependencies are those of the log."""
    assert len(trace.fetches) == 96 and trace.ends.sum() == 96 * WIDTH
    assert all(one.demands == WIDTH and one.scores == 64 for one in trace.fetches)
    assert sum(one.hits for one in trace.fetches) == trace.ends[:HIT_ENDS].sum()
    waits = [wait for one in trace.fetches for wait in one.waits]
    assert len(waits) == trace.ends[HIT_ENDS:].sum() > 50 and START not in waits
    for one in trace.fetches:
        assert all(trace.reads[wait].ended_ns <= one.answered_ns for wait in one.waits)
        before = [trace.fetches[after].answered_ns for after in one.after]
        assert not before or max(before) + one.lag_ns == one.at_ns
    assert {one.session for one in trace.fetches} == {0, 1} and trace.session_ns[0] == 300_000


def test_decision_replay_keeps_every_decision_and_changes_times(trace: Trace) -> None:
    """Golden counts: a change of the model or of the core would change them."""
    runs = {
        name: decision_replay(trace, read_preset(name))
        for name in ("dpu_x86_measured", "asic_7nm", "ideal")
    }
    for one in runs.values():
        assert (one.demands, one.hits, one.late, one.misses) == (768, 637, 21, 110)
        assert one.reads == len(trace.reads) == 486 and sum(one.ends.values()) == 768
        assert one.fetch_ns.count == 96 and one.tokens == 48 and one.diverged == {}
        assert one.bytes_to_hosts == 768 * 65536 and one.provenance == "modelled"
    means = [one.fetch_ns.mean for one in runs.values()]
    assert means == sorted(means, reverse=True)
    assert runs["ideal"].deadlines_missed < runs["dpu_x86_measured"].deadlines_missed == 47
    again = decision_replay(trace, read_preset("asic_7nm"))
    assert again == runs["asic_7nm"] and again.hash != runs["ideal"].hash
    assert msgspec.json.decode(msgspec.json.encode(again), type=ChipRun) == again


@pytest.mark.parametrize("replay", [decision_replay, closed_loop])
def test_sessions_add_up_to_the_run(trace: Trace, replay: Any) -> None:
    """Each has its fetches, stall, reads and grants; they add up to those of the run. A DPU has no
    arbiter that could count grants."""
    one = replay(trace, read_preset("asic_7nm"))
    rows = one.by_session
    assert [row.session for row in rows] == [0, 1]
    assert [row.tokens for row in rows] == [STEPS, STEPS]
    assert sum(row.fetches for row in rows) == one.fetch_ns.count == 96
    assert sum(row.reads for row in rows) == one.reads
    assert sum(row.bytes_read for row in rows) == one.bytes_read
    assert sum(row.deadlines_missed for row in rows) == one.deadlines_missed
    assert sum(row.stall_ns for row in rows) == pytest.approx(one.stall_ns.mean * one.tokens)
    qos = next(unit for unit in one.units if unit.name == "qos")
    assert sum(row.granted for row in rows) == qos.arrivals == one.reads
    assert sum(row.granted_bytes for row in rows) == qos.bytes > 0
    assert all(0 <= row.wait_ns_mean <= row.wait_ns_max for row in rows)
    assert rows[0].reads != rows[1].reads and rows[0].wait_ns_max > 0
    dpu = replay(trace, read_preset("bluefield3")).by_session
    assert [row.granted for row in dpu] == [0, 0] and all(row.reads for row in dpu)
    few = replay(trace, read_preset("asic_7nm").with_({"qos.sessions": 1})).by_session
    assert [row.session for row in few] == [0, 1, None]
    assert (few[1].granted, few[2].granted) == (0, few[1].reads)


@pytest.mark.parametrize("replay", [decision_replay, closed_loop])
def test_hosts_of_a_dpu_read_what_is_staged_themselves(trace: Trace, replay: Any) -> None:
    """Staged blocks wait for no command: only a chip, which sends them, adds time to a hit."""
    for name, waits in (("dpu_x86_measured", False), ("asic_7nm", True)):
        preset = read_preset(name)
        slow = preset.with_({"front_end.latency": preset.front_end.latency.value * 50})
        least = [replay(trace, one).fetch_ns.curve[0] for one in (preset, slow)]
        assert (least[1] > 2 * least[0]) is waits, name


def test_what_lies_damaged_by_a_log_is_refused_and_not_taken_for_absent(tmp_path: Path) -> None:
    """With defaults in its place figures would be others; what a folder further up holds is no part
    of the run."""
    folder = written(tmp_path, recorded())
    (tmp_path / "summary.json").write_text("of something else")
    read_trace(folder)
    for name in ("summary.json", "record.json"):
        kept = (folder / name).read_text() if (folder / name).exists() else "{}"
        for damaged in ("{", "", "[]"):
            (folder / name).write_text(damaged)
            with pytest.raises(BadInput) as caught:
                read_trace(folder)
            assert caught.value.where.startswith(str(folder / name))
        (folder / name).write_text(kept)
    (folder / "record.json").unlink()
    read_trace(folder)


def test_blocks_have_the_heads_of_the_run(
    tmp_path: Path, trace: Trace, capsys: pytest.CaptureFixture[str]
) -> None:
    """The host's summary next to the log, or next to the demo's records, has the number of heads.
    One entry for each head multiplies lookups of blocks by it, not those of the averages of 16
    scores each. A number that is set overrides it."""
    lines = sum(-(-one.scores // 16) for one in trace.fetches)
    each = read_preset("asic_7nm").with_({"metadata.heads_per_entry": 1})
    assert trace.heads == 0 and each.for_heads(0) is each
    records = tmp_path / "demo/records/measured"
    (tmp_path / "demo/records").mkdir(parents=True)
    (tmp_path / "run").rename(records)
    looked_up = {}
    for heads in (2, 4):
        (tmp_path / "demo/summary.json").write_text(json.dumps({"workload": {"kv_heads": heads}}))
        said = read_trace(records)
        chip = each.for_heads(said.heads)
        assert said.heads == heads and "metadata.heads" not in varied(chip)
        units = {unit.name: unit for unit in decision_replay(said, chip).units}
        looked_up[heads] = units["metadata"].hits + units["metadata"].misses
    assert looked_up[4] - lines == 2 * (looked_up[2] - lines) > 0
    command = ["asic", "run", str(records), "--set", "metadata.heads_per_entry=1"]
    for more, heads in (([], 4), (["--set", "metadata.heads=2"], 2)):
        assert run([*command, *more, "--format", "json"]) == 0
        found = {one["name"]: one for one in checked("asic run", capsys.readouterr().out)["units"]}
        assert found["metadata"]["hits"] + found["metadata"]["misses"] == looked_up[heads]
    assert read_preset("bluefield3").for_heads(4) is read_preset("bluefield3")


def test_the_shares_of_units_are_the_fetch(trace: Trace) -> None:
    """The waterfall adds up, and no unit is busy for longer than the run."""
    one = decision_replay(trace, read_preset("asic_7nm"))
    for name in ("share_p50", "share_p99"):
        assert 0.98 < sum(getattr(unit, name) for unit in one.units) <= 1.0 + 1e-9
    drive = next(unit for unit in one.units if unit.name == "drive")
    assert drive.share_p99 > 0.5 and drive.arrivals == one.reads
    assert all(0 <= unit.utilisation <= 1 for unit in one.units)
    most = max(one.units, key=lambda unit: unit.utilisation)
    assert most.utilisation > 0.2 and one.binds_first == most.name
    for unit in one.units:  # the bins average to the utilisation of the whole run
        if unit.busy and unit.kind in ("drive", "link"):
            assert np.mean(unit.busy) == pytest.approx(unit.utilisation, rel=0.2), unit.name


def test_what_the_log_says_of_itself(trace: Trace) -> None:
    """`logged` equals a count by hand: decision to answer, and stall of fetches that waited."""
    logged = decision_replay(trace, read_preset("ideal")).logged
    assert logged is not None and logged.provenance == "emulated"
    spans = [one.answered_ns - one.at_ns for one in trace.fetches]
    assert logged.fetch_ns == times_of(spans)
    stall = np.zeros((2, STEPS), np.int64)
    for one, span in zip(trace.fetches, spans, strict=True):
        stall[one.session, one.step] += span if one.waits else 0
    assert logged.stall_ns == times_of(stall.ravel())
    assert (logged.hits, logged.late, logged.misses) == (637, 21, 110)


def test_a_host_goes_on_when_all_it_waited_for_is_there(trace: Trace) -> None:
    """Doubling the host's own time makes the run longer by exactly that, on one session."""
    one = [fetch for fetch in trace.fetches if fetch.session == 0]
    chain = [
        replace(fetch, after=(number - 1,) if number else (), waits=[], lag_ns=10_000)
        for number, fetch in enumerate(one)
    ]
    alone = replace(trace, fetches=chain, reads=[])
    slow = replace(alone, fetches=[replace(f, lag_ns=20_000) for f in alone.fetches])
    chip = read_preset("asic_7nm")  # without refreshes, which are periodic in absolute time
    chip = msgspec.structs.replace(
        chip,
        **{name: msgspec.structs.replace(chip.memory(name), device="") for name in ("hbm", "ddr")},
    )
    seconds = [decision_replay(each, chip).seconds for each in (alone, slow)]
    assert seconds[1] - seconds[0] == pytest.approx((len(one) - 1) * 10e-6, rel=1e-6)


def test_closed_loop_decides_by_the_chips_time(trace: Trace) -> None:
    """Every demand is submitted once; counts of those that end differently add up."""
    names = ("dpu_x86_measured", "ideal")
    found = {name: closed_loop(trace, read_preset(name)) for name in names}
    for one in found.values():
        assert one.demands == 768 == one.hits + one.late + one.misses and one.diverged
        became = {"hit": 0, "late": 0, "miss": 0}
        for kind, count in one.diverged.items():
            before, word, after = kind.partition(" became ")
            if word:
                became[before] -= count
                became[after] += count
        assert [one.hits - 637, one.late - 21, one.misses - 110] == list(became.values())
        assert not any(kind.startswith("refused") for kind in one.diverged)
    assert found["ideal"].late < 21 and found["ideal"].hits > 637
    assert closed_loop(trace, read_preset("ideal")) == found["ideal"]


def test_without_timing_in_a_decision_nothing_diverges(tmp_path: Path) -> None:
    """With demands only and one session, the core decides as in the log at any chip speed."""
    plain = read_trace(written(tmp_path, recorded("none", 1)))
    for name in ("dpu_x86_measured", "asic_5nm_hbm4"):
        one = closed_loop(plain, read_preset(name))
        assert one.diverged == {} and one.late == 0
        assert one.hits == int(plain.ends[:HIT_ENDS].sum())


def test_a_bounded_table_of_candidates_decides_otherwise(trace: Trace) -> None:
    chip = read_preset("ideal")
    small = chip.with_({"scheduler.candidates": 2})
    assert closed_loop(trace, small).reads < closed_loop(trace, chip).reads


def test_a_smaller_staging_memory_hits_less(trace: Trace) -> None:
    """With a third of the log's arena, all for its tenant, nothing is refused."""
    chip = read_preset("asic_7nm").with_({"hbm.channels": 1})
    small = chip.with_({"hbm.capacity": trace.config.slot_count // 3 * 65536 / 2**30})
    runs = [closed_loop(trace, one) for one in (chip, small)]
    assert runs[1].hits < 0.8 * runs[0].hits and runs[1].demands == 768
    assert not any(kind.startswith("refused") for kind in runs[1].diverged)


@pytest.mark.parametrize("replay", [decision_replay, closed_loop])
def test_a_full_chip_makes_requests_wait(
    trace: Trace, replay: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for two requests, all end, though later; none is lost and nothing aborts."""
    whole = replay(trace, read_preset("asic_7nm"))
    monkeypatch.setattr(account, "IN_FLIGHT_MAX", 2)
    narrow = replay(trace, read_preset("asic_7nm"))
    assert narrow.demands == whole.demands and narrow.fetch_ns.count == whole.fetch_ns.count
    assert narrow.fetch_ns.mean > 1.2 * whole.fetch_ns.mean


def altered(log: bytes) -> tuple[bytes, int]:
    """Alter one end of one step and repair the checksums; return the log and where."""
    bad, begin = bytearray(log), 0
    for end in boundaries(log):
        kind = int.from_bytes(bad[begin + 4 : begin + 6], "little")
        in_bytes = int.from_bytes(bad[begin + 8 : begin + 12], "little")
        if kind == STEP_TYPE:
            bad[begin + HEADER_BYTES + (in_bytes + 7) // 8 * 8] ^= 1
            return restamped(bytes(bad)), begin
        begin = end
    raise AssertionError("no step")


def turned_back(log: bytes) -> bytes:
    """Return a log in which the core was given an earlier time, and decided on it."""
    sizes = CoreConfig(slot_count=8, chunk_max=32, session_chunk_max=16, log_size_bytes=1 << 16)
    core = Core(sizes, Policy())
    tenant = core.tenant_add(0, b"k" * 16, 8)
    session = core.session_open(5_000, SessionConfig(tenant, 4))
    core.step(4_000, session, 0, 0, [])
    return core.log()


def bad_logs(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    log = recorded()
    bad, at = altered(log)
    yield written(tmp_path, bad), f"decides otherwise at byte {at} (step)"
    yield written(tmp_path, b"not a log" * 99), "version"
    middle = boundaries(log)[40], boundaries(log)[41]
    yield written(tmp_path, log[: middle[0]] + log[middle[1] :]), "is torn or has a hole"
    yield written(tmp_path, log[:-3]), "is torn or has a hole"
    yield written(tmp_path, log, log_bytes_lost=8), "has a hole: the recorder lost events"
    yield written(tmp_path, turned_back(log)), "time goes back at byte"
    early = boundaries(log)[1]
    yield written(tmp_path, log[:early]), "holds no decode step"
    yield tmp_path / "nothing", "cannot be read"
    empty = tmp_path / "empty"
    empty.mkdir()
    yield empty, "holds no recorded run"
    for name in ("one", "two"):
        (tmp_path / "both" / name).mkdir(parents=True)
        (tmp_path / "both" / name / "decisions.log").write_bytes(log)
    yield tmp_path / "both", "holds several recorded runs; name one of one, two"


def test_a_bad_log_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another version, a hole, an altered decision, time that goes back: each exits with 2."""
    for path, said in bad_logs(tmp_path):
        for mode in ([], ["--closed-loop"]):
            assert run(["asic", "run", str(path), *mode]) == 2
            line = capsys.readouterr().err.splitlines()[-1]
            assert said in line and line.startswith("offstage: "), line
    good = written(tmp_path, recorded())
    for option, said in (
        (["--set", "codec.lane=3"], "did you mean 'codec.lanes'"),
        (["--set", "codec.lanes=many"], "'many' is not a number"),
        (["--preset", "asic_9nm"], "no preset 'asic_9nm'"),
        (["--storage", "floppy"], "no NVMe preset 'floppy'"),
    ):
        assert run(["asic", "run", str(good), *option]) == 2
        assert said in capsys.readouterr().err


def test_the_command_shows_and_keeps_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = written(tmp_path, recorded())
    command = ["asic", "run", str(good), "--preset", "bluefield3", "--out", str(tmp_path / "out")]
    assert run([*command, "--set", "cores.reactors=2", "--format", "json"]) == 0
    shown = checked("asic run", capsys.readouterr().out)
    text = (tmp_path / "out/chip-run.json").read_bytes()
    kept = msgspec.json.decode(text, type=ChipRun)
    assert shown == checked("file chip-run", text) and kept.parameters == {"cores.reactors": 2.0}
    assert run([*command, "--closed-loop"]) == 0
    text = capsys.readouterr().out
    assert "bluefield3 (uncalibrated), closed-loop" in text and "reactor" in text
    assert "tenant" in text
    assert run([*command[:-1], str(good / "decisions.log" / "no")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_a_read_that_takes_its_own_time_gives_the_logs_times(trace: Trace) -> None:
    """Is the structure right: with each read's own time every fetch takes what it took in the log,
    to the nanosecond? What is off on a chip's replay is then the fit of a stage, not the order."""
    modelled, measured = own_times(trace)
    assert modelled == measured and measured.mean > 0
    slower = replace(trace, reads=[replace(one, ended_ns=one.ended_ns + 9) for one in trace.reads])
    assert own_times(slower)[0].mean > measured.mean
