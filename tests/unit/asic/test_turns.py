"""Does the model decide and submit in turns, as a reactor does, and is a recording read so?"""

from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from asic_logs import recorded, written

from offstage.asic_model.account import Device
from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.replay import closed_loop
from offstage.asic_model.samples import samples_of
from offstage.asic_model.trace import Trace, read_trace
from offstage.bindings.moments import MOMENT, Moments

DEMAND, WINDOW = 1, 3
MS = 10**9  # in ps


def own() -> Preset:
    return read_preset("dpu_x86_measured")


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    return read_trace(written(tmp_path, recorded()))


def test_reads_of_a_turn_are_known_by_the_last_of_them() -> None:
    """Session 1 decides two demands and a prefetch at once; the second waits for the system call
    that the first needs. Session 2 decides one later, with the prefetch in flight. What is held is
    the time to the last submission of the turn, and beside are those in flight then. A command's
    own time is what it spent before its first read and after its last; one that waited for a
    block of somebody else has none."""
    rows = np.zeros(7, MOMENT)
    rows["kind"] = [0, 0, 0, 0, 1, 1, 1]
    rows["session"] = [1, 1, 1, 2, 1, 2, 2]
    rows["cause"][:4] = [DEMAND, DEMAND, WINDOW, DEMAND]
    rows["begun"] = [0, 1, 2, 1, 2, 1, 1]
    stations = (  # decided, submitted, polled, reaped, taken, published, answered
        (1_004, 1_010, 1_010, 1_300, 1_302, 1_303, 1_304),
        (1_005, 1_070, 1_070, 1_300, 1_305, 1_306, 1_320),
        (1_006, 1_071, 1_071, 1_900, 1_901, 1_902, 1_902),
        (1_500, 1_520, 1_520, 1_800, 1_801, 1_802, 1_807),
        (0, 990, 1_000, 1_320, 0, 0, 0),
        (0, 1_480, 1_490, 1_807, 0, 0, 0),
        (0, 1_810, 1_820, 1_902, 0, 0, 0),
    )
    rows["at_ns"] = np.array(stations) * 1000
    found = samples_of(Moments(rows[[1, 3, 0, 2, 4, 5, 6]]))
    assert (found.held // 1000).tolist() == [1, 0, 61, 0]
    assert found.beside.tolist() == [2, 1, 2, 2]
    assert (found.service - found.held).tolist() == [229_000, 280_000, 229_000, 829_000]
    assert (found.around // 1000).tolist() == [10 + 20, 30 + 7]
    assert found.awaited.tolist() == [2, 1]


def drawn(preset: Preset, service_us: float) -> Preset:
    """The preset with a drive whose reads all take that long, whatever is beside them."""
    disk = preset.disk
    assert disk is not None
    service = disk.service.set(service_us / 1000)
    even = msgspec.structs.replace(service, spread=((0.0, 1e9, *[1.0] * 200),))
    return msgspec.structs.replace(preset, disk=msgspec.structs.replace(disk, service=even))


def test_a_batch_ends_after_its_last_read_was_submitted(trace: Trace) -> None:
    """On a drive that takes 300 us, where a read costs 3 us to submit and 4 to publish, and an idle
    drive 30 us to start, 25 more after a rest: all of a batch end 300 us after the last of them
    was submitted, which waited for the start; they are published one by one, demands first. The
    start of a lone read is within its service. The last find the drive idle for less than 1 ms."""
    costs = {"read": 3.0, "publish": 4.0, "start": 30.0, "wake": 25.0}
    preset = drawn(own(), 300).with_({f"cores.{name}": cost for name, cost in costs.items()})
    assert preset.ddr is not None
    device, found = Device(preset, trace, drive="", seed=0), list[tuple[int, float]]()
    landing_us = preset.ddr.latency.base / 1e6

    def read(causes: tuple[int, ...], now_ps: int) -> None:
        for cause in causes:
            done = partial(ended, cause, now_ps)
            device.ask("read", now_ps, done, cause=cause, deadline_ps=1 << 60)

    def ended(cause: int, began_ps: int, now_ps: int) -> None:
        found.append((cause, (now_ps - began_ps) / 1e6 - landing_us))

    first, second, third = 5 * MS, 10 * MS, 10 * MS + 390 * MS // 1000
    device.at(first, partial(read, (DEMAND,)))
    device.at(second, partial(read, (WINDOW, DEMAND, DEMAND)))
    device.at(third, partial(read, (DEMAND, DEMAND)))
    device.run()
    whole, joined = 3 * 3 + 30 + 25 + 300, 2 * 3 + 30 + 300
    assert [cause for cause, _ in found] == [DEMAND, DEMAND, DEMAND, WINDOW, DEMAND, DEMAND]
    assert [us for _, us in found] == pytest.approx(
        [3 + 300 + 4, whole + 4, whole + 8, whole + 12, joined + 4, joined + 8]
    )


def test_commands_that_wake_a_reactor_are_decided_in_one_turn(trace: Trace) -> None:
    """Each takes 45 us to arrive and 10 us to decide, and then reads a block. The second is sent
    while the reactor wakes up for the first: the first is decided when the second has arrived, and
    both reads are submitted together, so they end together. The third, sent while the reactor is
    awake, has a turn of its own, whatever is sent behind it."""
    costs = {"command": 10.0, "demand": 0.0, "score": 0.0, "read": 0.0, "publish": 0.0}
    preset = drawn(own(), 300).with_(
        {f"cores.{name}": cost for name, cost in (costs | {"start": 0.0, "wake": 0.0}).items()}
    )
    device, found = Device(preset, trace, drive="", seed=0), list[tuple[str, int]]()
    at_us = {"a": 5_000, "b": 5_030, "c": 5_150, "d": 5_190}

    def send(name: str, now_ps: int) -> None:
        device.ask("command", now_ps, partial(decided, name), score_count=0)

    def decided(name: str, now_ps: int) -> None:
        found.append((f"{name} decided", round(now_ps / 1e6) - at_us["a"]))
        device.ask("read", now_ps, partial(ended, name), cause=DEMAND, deadline_ps=1 << 60)

    def ended(name: str, now_ps: int) -> None:
        found.append((f"{name} read", round(now_ps / 1e6) - at_us["a"]))

    for name, us in at_us.items():
        device.at(us * MS // 1000, partial(send, name))
    device.run()
    assert found == [
        ("a decided", 75),
        ("b decided", 85),
        ("c decided", 205),
        ("d decided", 245),
        ("a read", 385),
        ("b read", 385),
        ("c read", 505),
        ("d read", 545),
    ]


def test_a_command_that_waits_is_longer_by_its_own_time(trace: Trace) -> None:
    """And one whose blocks are all staged is not."""
    plain, longer = (
        closed_loop(trace, own().with_({"cores.answer": us})).device_ns for us in (0.0, 90.0)
    )
    assert longer.p99 - plain.p99 == pytest.approx(90_000, abs=1)
    waited = (longer.mean - plain.mean) / 90_000 * plain.count
    assert 0 < round(waited) < plain.count and waited == pytest.approx(round(waited), abs=0.01)
