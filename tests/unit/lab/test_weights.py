"""Does a stream of weights keep floor and cap beside KV, and does a run say what it costs?"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from offstage.bindings.errors import BadInput
from offstage.bindings.storage import nvme_cost, preset
from offstage.bindings.stream import Stream, StreamConfig, open_stream
from offstage.bindings.timing import Costs, open_timing
from offstage.testbeds.lab.results.summary import LabSummary
from offstage.testbeds.lab.run.experiment import compute, plan
from offstage.testbeds.lab.run.summarize import finish
from offstage.testbeds.lab.spec.load import load
from offstage.testbeds.progress import Silent
from offstage.testbeds.report.lab.series import view_of
from offstage.testbeds.report.lab.weights_table import weights_section, weights_table

DRIVE = preset("gen5-tlc").params
PIECE, MIB, PS_PER_S = 1 << 18, 1 << 20, 10**12
LINE = PIECE / nvme_cost(DRIVE, [(0, PIECE)]).ns * 1e9
OWED = 128


def stream(size: int, **more: Any) -> Stream:
    given = {"piece_bytes": PIECE, "in_flight_bytes": 2 * MIB, "in_flight_max": OWED, **more}
    return open_stream(StreamConfig(DRIVE, size, **given))


def flood(side: Stream, until_ps: int) -> None:
    """Reads of KV, always as many as are owed at most, up to then."""
    random, now_ps = np.random.default_rng(1), 0
    for tag in range(OWED):
        side.timing.ask("read", 0, tag=tag, size_bytes=PIECE)
    while now_ps < until_ps:
        now_ps = side.timing.next_ps() or until_ps
        for tag, _ in side.timing.poll(now_ps, OWED):
            at = int(random.integers(0, 1 << 20)) * PIECE
            side.timing.ask("read", now_ps, tag=tag, offset_bytes=at, size_bytes=PIECE)


def test_alone_a_stream_takes_its_bytes_over_the_drives_rate_or_its_cap() -> None:
    """Within the time of the window that the first pieces wait for; a cap lets its burst, 20 ms of
    it, through at once."""
    side = stream(512 * MIB, in_flight_bytes=8 * MIB)
    side.finish()
    assert side.stats()["end_ps"] / PS_PER_S == pytest.approx(512 * MIB / LINE, rel=0.02)
    assert side.stats()["read_bytes"] == 512 * MIB
    capped = stream(512 * MIB, cap_bytes_per_s=10**9, begin_ps=3 * PS_PER_S)
    capped.finish()
    took_s = capped.stats()["end_ps"] / PS_PER_S - 3
    assert took_s == pytest.approx(512 * MIB / 1e9 - 0.02, abs=0.002)


@pytest.mark.parametrize("floor_share", [0.0, 0.25, 0.6])
def test_beside_a_flood_a_stream_has_its_floor_and_its_turns(floor_share: float) -> None:
    """With KV's reads always waiting, the stream reads by its turn of nine, or its floor where that
    is more, and no more than that."""
    floor = int(floor_share * LINE)
    side = stream(8 << 30, floor_bytes_per_s=floor, kv_weight=8)
    flood(side, PS_PER_S // 20)
    rate = side.stats()["read_bytes"] * 20
    assert rate == pytest.approx(max(floor, LINE / 9), rel=0.06)
    assert (side.stats()["floor_bytes"] > 0) == (floor_share > 1 / 9)


def test_without_weights_the_arbiter_adds_no_time() -> None:
    """Reads that are due at once go to the drive as they come, as without an arbiter."""
    side, bare = stream(0, kv_weight=1024), open_timing("nvme", Costs(nvme=DRIVE))
    random, ends, found = np.random.default_rng(3), {}, {}
    for tag in range(OWED):
        now_ps = tag * 1_000_000
        found |= dict(side.timing.poll(now_ps, OWED))
        at = int(random.integers(0, 1 << 20)) * PIECE
        ends[tag] = bare.ask("read", now_ps, tag=tag, offset_bytes=at, size_bytes=PIECE)
        assert side.timing.ask("read", now_ps, tag=tag, offset_bytes=at, size_bytes=PIECE) is None
    while (next_ps := side.timing.next_ps()) is not None:
        found |= dict(side.timing.poll(next_ps, OWED))
    assert found == ends


SPEC = """
seeds = [1, 2]
[workload]
context_tokens = 8192
sessions = 3
concurrent = 2
steps = 24
layers = 3
[selection]
k_blocks = 12
[tier]
buffer_over_k = [2]
time_per_token = "2ms"
warmup = "1ms"
[weights]
bytes = "{size}"
start = "2ms"
floor = "2GB/s"
in_flight = "1MiB"
[[policy]]
use = "window+ema"
"""


def ran(folder: Path, text: str, **changes: Any) -> LabSummary:
    path = folder / "beside.toml"
    path.write_text(text)
    experiment = plan(path, changes)
    compute(experiment, folder / "parts", Silent(), jobs=1, stop_at_failure=True)
    return finish(experiment, folder / "parts", folder, Silent())


def test_a_run_says_what_a_cold_start_costs_and_what_kv_does_to_it(tmp_path: Path) -> None:
    """Every point is run with the stream and without. Beside KV the stream takes longer than alone,
    and the sessions wait longer than without; the terminal and the page show both."""
    summary = ran(tmp_path, SPEC.format(size="1GB"))
    found = {(one.info.workload, one.info.policy): one for one in summary.points}
    assert {workload for workload, _ in found} == {"weights", "no weights"}
    point, other = (found[name, "window+ema"] for name in ("weights", "no weights"))
    start = point.weights
    assert start is not None and start.without is not None and other.weights is not None
    assert start.bytes == 10**9 and other.weights.seconds is None and other.weights.bytes == 0
    assert start.seconds is not None and start.alone_seconds is not None
    assert start.seconds > start.alone_seconds >= 10**9 / LINE
    assert start.without.tokens_per_s == other.weights.tokens_per_s > start.tokens_per_s
    assert other.stall_ms_p99 is not None and point.stall_ms_p99 is not None
    assert start.without.stall_ms_p99 == other.stall_ms_p99.value < point.stall_ms_p99.value
    assert point.demands == other.demands
    view = view_of(summary.points)
    assert weights_table(view) is not None and "The cold start" in weights_section(view)


def test_a_swept_floor_is_run_without_weights_once(tmp_path: Path) -> None:
    path = tmp_path / "beside.toml"
    path.write_text(SPEC.format(size="1GB") + '[sweep]\n"weights.floor" = ["1GB/s", "4GB/s"]\n')
    labels = [one.label for one in plan(path, {}).variants]
    assert labels == ["floor=1GB/s, weights", "floor=4GB/s, weights", "no weights"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"weights.bytes": "40TB"}, "weights of 40TB on a gen5-tlc of 27.94 TiB"),
        ({"weights.floor": "15GB/s"}, "a floor of 15 GB/s, and gen5-tlc reads 14 GB/s"),
        ({"weights.cap": "1GB/s"}, "a cap of 1 GB/s is below the floor of 2 GB/s"),
        ({"weights.cap": "0", "weights.floor": 0}, "a stream that may read nothing never ends"),
        ({"weights.in_flight": "64KiB"}, "reads 256 KiB at once, and in_flight is 64KiB"),
        ({"weights.bytes": "much"}, "'much' is not a size"),
        ({"tier.device": "bluefield3"}, "weights lie on the one drive of [tier] storage"),
        ({"weights.start": "soon"}, "'soon' is not a time"),
    ],
)
def test_what_contradicts_itself_is_one_line(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    path = tmp_path / "beside.toml"
    path.write_text(SPEC.format(size="1GB"))
    with pytest.raises(BadInput) as refused:
        load(path, changes)
    assert says in str(refused.value) and "\n" not in str(refused.value)
