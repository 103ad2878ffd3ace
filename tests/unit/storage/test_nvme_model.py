"""Does the NVMe timing model reproduce the published figures, and keep its conservation laws?

All in virtual time: the figures below are computed, not measured.
"""

import heapq
import itertools
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.bindings.storage import NvmeModel, Preset, preset, presets

S_PS = 10**12
TOLERANCE = 0.03  # of the cited figure; the presets are fitted, so more would hide a change
PAGE = 4096
AT_ONCE = [name for name in presets() if not preset(name).params["scheduled"]]
"""Drives that say at the request when it ends; of the others tests/unit/storage/test_drives.py."""

# One channel, one die, one plane, everything slow enough to see in isolation.
TINY = {
    "channel_count": 1,
    "dies_per_channel": 1,
    "planes_per_die": 1,
    "page_size_bytes": PAGE,
    "queue_depth_max": 64,
    "read_ps": 50_000_000,
    "program_ps": 500_000_000,
    "firmware_ps": 10_000_000,
    "command_interval_ps": 1,
    "channel_bytes_per_s": 10**9,
    "link_bytes_per_s": 2 * 10**9,
    "write_buffer_bytes": 16 * PAGE,
    "retry_per_million": 0,
    "retry_factor": 1,
    "write_firmware_ps": 0,
}


def closed_loop(
    params: dict[str, int], block: int, depth: int, count: int, write: bool = False, seed: int = 1
) -> tuple[list[int], int]:
    """Latencies in ps and the end of the last I/O, with `depth` random I/Os always in flight."""
    model = NvmeModel(params, seed)
    offsets = np.random.default_rng(seed).integers(0, 1 << 20, count) * block
    ends = [0] * depth
    latencies = []
    for offset in offsets.tolist():
        now = heapq.heappop(ends)
        end = model.submit(now, offset, block, write)
        latencies.append(end - now)
        heapq.heappush(ends, end)
    return latencies, max(ends)


@pytest.mark.parametrize("name", AT_ONCE)
def test_presets_come_out_at_their_cited_figures(name: str) -> None:
    """A drive's preset reproduces its five published figures."""
    drive = preset(name)
    got: dict[str, float] = {}
    got["read_latency_ps"] = statistics.median(closed_loop(drive.params, 4096, 1, 3000)[0])
    got["write_latency_ps"] = statistics.median(closed_loop(drive.params, 4096, 1, 500, True)[0])
    count = 200_000
    got["read_iops"] = count * S_PS / closed_loop(drive.params, 4096, 1024, count)[1]
    count = 20_000
    end = closed_loop(drive.params, 131_072, 64, count)[1]
    got["read_bytes_per_s"] = count * 131_072 * S_PS / end
    # Sustained rate: excludes what the write buffer absorbed at the start.
    end = closed_loop(drive.params, 131_072, 64, count, True)[1]
    written = count * 131_072 - drive.params["write_buffer_bytes"]
    got["write_bytes_per_s"] = written * S_PS / end
    for figure, cited in drive.cited.items():
        if figure in got:
            assert got[figure] == pytest.approx(cited, rel=TOLERANCE), figure


def test_a_drive_of_small_reads_has_its_ten_million() -> None:
    """Announced are 10 M reads of 512 B a second; of 4 KiB its link carries a third of that."""
    params, count = preset("xl-flash-10m").params, 60_000
    small, page = (count * S_PS / closed_loop(params, size, 1024, count)[1] for size in (512, PAGE))
    assert small == pytest.approx(10e6, rel=TOLERANCE)
    assert page == pytest.approx(params["link_bytes_per_s"] / PAGE, rel=TOLERANCE)


def test_an_unknown_preset_names_the_known() -> None:
    """A misspelt drive gives one line that helps."""
    with pytest.raises(BadInput, match="gen5-tlc"):
        preset("gen5")


@pytest.mark.parametrize(
    "wrong",
    [
        {"channel_count": 0},
        {"planes_per_die": 65},
        {"page_size_bytes": 1000},
        {"read_ps": 0},
        {"link_bytes_per_s": 0},
        {"write_buffer_bytes": 1},
        {"retry_factor": 0},
        {"retry_per_million": 1_000_001},
    ],
    ids=str,
)
def test_parameters_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    """No parameter can make the arithmetic divide by zero or overflow."""
    with pytest.raises(BadInput):
        NvmeModel(TINY | wrong)


def test_zero_load_time_is_the_sum_of_its_parts() -> None:
    """A read takes firmware + tR + channel + link to the picosecond; a write includes no tPROG."""
    model = NvmeModel(TINY)
    channel, link = PAGE * 1000, PAGE * 500
    assert model.submit(0, 0, PAGE) == 10_000_000 + 50_000_000 + channel + link
    assert model.submit(S_PS, 0, PAGE, write=True) == S_PS + 10_000_000 + link
    assert model.submit(2 * S_PS, 0, 0) == 2 * S_PS + 10_000_000


def test_a_full_write_buffer_waits_for_programs() -> None:
    """A burst runs at link speed while it fits the buffer, and then at program speed."""
    model = NvmeModel(TINY)
    ends = [model.submit(0, i * PAGE, PAGE, write=True) for i in range(64)]
    gaps = [b - a for a, b in itertools.pairwise(ends)]
    assert set(gaps[:14]) == {PAGE * 500}
    assert set(gaps[20:]) == {500_000_000}


def test_reads_take_their_die_time_from_the_programs() -> None:
    """A write behind a full buffer waits tR longer for each read that came between."""
    ends = []
    for reads in (0, 10):
        model = NvmeModel(TINY)
        for i in range(32):
            model.submit(0, i * PAGE, PAGE, write=True)
        for _ in range(reads):
            model.submit(1, 0, PAGE)
        ends.append(model.submit(2, 0, PAGE, write=True))
    assert ends[1] - ends[0] == 10 * TINY["read_ps"]


def test_a_slow_page_does_not_hold_up_those_behind_it() -> None:
    """A read on a busy die leaves the link free for the next read on an idle die."""
    model = NvmeModel(TINY | {"dies_per_channel": 2})
    last = max(model.submit(0, 0, PAGE) for _ in range(5))
    assert model.submit(0, PAGE, PAGE) < last - 3 * 50_000_000


def test_one_die_is_a_queue_of_the_textbook() -> None:
    """Under Poisson arrivals the mean wait at a die is that of M/D/1: rho s / (2 (1 - rho))."""
    params = TINY | {"channel_bytes_per_s": S_PS, "link_bytes_per_s": S_PS, "firmware_ps": 0}
    model = NvmeModel(params)
    service, load, count = params["read_ps"], 0.7, 200_000
    gaps = np.random.default_rng(7).exponential(service / load, count)
    waits = 0
    for now in np.cumsum(gaps).astype(np.int64).tolist():
        waits += model.submit(now, 0, 512) - now - service
    assert waits / count == pytest.approx(load * service / (2 * (1 - load)), rel=0.05)


IOS = st.lists(
    st.tuples(
        st.integers(0, 200_000_000),  # ps since the previous I/O
        st.booleans(),
        st.integers(0, 1 << 30).map(lambda block: block * 512),
        st.integers(1, 64).map(lambda blocks: blocks * 512),
    ),
    min_size=1,
    max_size=120,
)
DRIVES = st.sampled_from([preset(name) for name in AT_ONCE])


@given(drive=DRIVES, ios=IOS, seed=st.integers(0, 2**64 - 1))
@settings(max_examples=60, deadline=None)
def test_nothing_is_faster_than_its_parts_and_the_link_carries_no_more_than_its_rate(
    drive: Preset, ios: list[tuple[int, bool, int, int]], seed: int
) -> None:
    """The laws hold for any mix of reads and writes, and a seed repeats a run."""
    params = drive.params
    runs = []
    for _ in range(2):
        model, now, run = NvmeModel(params, seed), 0, []
        for gap, write, offset, size in ios:
            now += gap
            run.append((now, model.submit(now, offset, size, write), write, size))
        runs.append(run)
    assert runs[0] == runs[1]
    for begin, end, write, size in runs[0]:
        link = size * S_PS // params["link_bytes_per_s"]
        least = params["write_firmware_ps"] if write else params["firmware_ps"] + params["read_ps"]
        assert end - begin >= least + (link if write else 0)
    for direction in (False, True):
        chosen = [io for io in runs[0] if io[2] == direction]
        for first, (begin, *_) in enumerate(chosen):
            # An I/O submitted after `begin` crosses the link after `begin`.
            after = sorted((end, size) for _, end, _, size in chosen[first:])
            total = 0
            for end, size in after:
                total += size
                assert total * S_PS <= (end - begin) * params["link_bytes_per_s"]


@given(pages=st.lists(st.integers(0, 3), min_size=2, max_size=80), gap=st.integers(0, 10**8))
@settings(max_examples=60, deadline=None)
def test_a_die_serves_in_the_order_of_arrival(pages: list[int], gap: int) -> None:
    """Reads of one die end in the order they arrived, at least tR apart."""
    model = NvmeModel(TINY | {"channel_count": 4})
    last: dict[int, int] = {}
    for number, page in enumerate(pages):
        end = model.submit(number * gap, page * PAGE, PAGE)
        if page in last:
            assert end - last[page] >= 50_000_000 - PAGE * 500 * len(pages)
            assert end > last[page]
        last[page] = end
