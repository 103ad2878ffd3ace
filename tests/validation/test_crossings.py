"""Do blocks cross memory and link as often as the design says, and in the time that this takes?

Bytes are compared with the closed form, whole. A write crosses the memory that holds the arena
twice, in from the link and out towards the drive; a read of the drive once more, in; a hit once,
out. Times of an idle device are sums of its stages, to the picosecond.
"""

import msgspec
import numpy as np
import numpy.typing as npt
import pytest

from offstage.asic_model.chip import DPU_PIECE_BYTES, network, open_chip
from offstage.asic_model.parameters import Preset, names, read_preset
from offstage.bindings.chip import REQUEST, Chip, Limits

BLOCK = 65536
COUNT = 500


def steady(name: str) -> Preset:
    """The preset with memories of one latency, and nothing drawn."""
    preset = read_preset(name)
    flat = {
        memory: msgspec.structs.replace(preset.memory(memory), device="")
        for memory in {preset.staging, preset.spill} - {""}
    }
    return msgspec.structs.replace(preset, **flat)


def requests(preset: Preset, route: str, at_ps: npt.ArrayLike) -> npt.NDArray[np.void]:
    """One block each, at these times."""
    found = np.zeros(np.size(at_ps), REQUEST)
    found["at_ps"], found["tag"] = at_ps, np.arange(len(found))
    found["route"] = network(preset).route(route)
    found["size_bytes"], found["count"] = BLOCK, 1
    found["offset_bytes"] = found["tag"] * BLOCK
    found["priority"] = 3 if route == "write" else 0
    return found


def ran(preset: Preset, trace: npt.NDArray[np.void]) -> tuple[Chip, npt.NDArray[np.int64]]:
    """The chip after the requests, and how long each took, by tag."""
    chip = open_chip(preset, Limits(in_flight_max=1 << 13, piece_max=1 << 16))
    done = chip.run(trace)
    took = np.empty(len(done), np.int64)
    took[done["tag"]] = done["end_ps"] - done["at_ps"]
    return chip, took


def crossing_ps(preset: Preset, size_bytes: int = BLOCK) -> int:
    """One block through one channel of the staging memory."""
    memory = preset.memory(preset.staging)
    return round(size_bytes * 1e12 / (memory.rate.base * memory.efficiency.base))


@pytest.mark.parametrize("name", names())
def test_a_write_crosses_the_memory_twice_and_every_other_way_once(name: str) -> None:
    """In and out for a write, in for a read, out for a hit: bytes, and the channels' time."""
    preset = steady(name)
    for route, crossings in (("write", 2), ("read", 1), ("hit", 1)):
        chip, _ = ran(preset, requests(preset, route, [0] * COUNT))
        arena = chip.stats()[preset.staging]
        assert arena.bytes == crossings * COUNT * BLOCK, route
        whole_ps = crossings * COUNT * crossing_ps(preset)
        assert arena.busy_ps == pytest.approx(whole_ps, rel=1e-3), route


def test_a_block_that_was_coded_leaves_a_dpu_s_memory_coded() -> None:
    """The drive of a DPU fetches what the cores coded; into the memory it came whole."""
    preset = steady("bluefield3").with_({"cores.ratio": 0.5})
    chip, _ = ran(preset, requests(preset, "write", [0] * COUNT))
    assert chip.stats()["ddr"].bytes == COUNT * BLOCK * 3 // 2


@pytest.mark.parametrize("name", ["bluefield3", "asic_7nm"])
def test_a_hit_beside_puts_waits_for_the_crossing_that_has_begun(name: str) -> None:
    """One channel, slower by far than the link, loaded by writes alone: a hit overtakes those that
    wait, so its mean wait is the load times half a crossing (Cobham). Without writes it is none."""
    memory = read_preset(name).staging
    one = {f"{memory}.channels": 1, f"{memory}.rate": 20, "front_end.lane_rate": 1000}
    preset = steady(name).with_(one)
    load, service_ps, waits = 0.3, crossing_ps(preset), []
    for seed in range(3):
        gaps = np.random.default_rng(seed).exponential(2 * service_ps / load, 4000)
        writes = requests(preset, "write", np.cumsum(gaps).astype(np.uint64))
        hits = requests(preset, "hit", np.arange(1, 1001) * int(writes["at_ps"][-1]) // 1002)
        both = np.concatenate([writes, hits])
        both = both[np.argsort(both["at_ps"], kind="stable")]
        both["tag"] = np.arange(len(both))
        beside = ran(preset, both)[1][both["route"] == network(preset).route("hit")]
        alone = ran(preset, hits)[1]
        assert np.ptp(alone[1:]) <= 1
        waits.append(float(beside.mean() - alone.mean()))
    assert np.mean(waits) == pytest.approx(load * service_ps / 2, rel=0.1)


@pytest.mark.parametrize("count", [1, 3])
def test_a_one_sided_read_is_a_round_trip(count: int) -> None:
    """An idle DPU: the requests' way with one latency, the first piece's crossing of the memory,
    then all pieces on the link, which is slower, and one latency more."""
    preset = steady("bluefield3").with_({"ddr.channels": 1, "ddr.rate": 80})
    link, memory = preset.front_end, preset.memory("ddr")
    trace = requests(preset, "hit", [0])
    trace["count"], trace["size_bytes"] = count, count * BLOCK
    rate = link.lane_rate.base * link.lanes.base * link.efficiency.base
    asked_ps = count * 74 * 1e12 / rate + link.latency.base
    sent_ps = count * BLOCK * 1e12 / rate + link.latency.base
    first_ps = crossing_ps(preset, DPU_PIECE_BYTES) + memory.latency.base
    (took_ps,) = ran(preset, trace)[1]
    assert took_ps == pytest.approx(asked_ps + first_ps + sent_ps, abs=30 * count)


def test_a_host_that_shares_the_memory_sends_no_request() -> None:
    """Its copy takes the memory's and its own time, and no latency of a link."""
    preset = steady("dpu_x86_measured")
    slow = preset.with_({"front_end.latency": 10 * preset.front_end.latency.value})
    one, other = (ran(each, requests(each, "hit", [0]))[1] for each in (preset, slow))
    assert one == other
