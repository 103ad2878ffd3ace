"""Do pods in virtual time agree with plain models: one cache, chance, a dead member's share?"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from against_schema import checked
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from offstage.bindings.caches import NO_CACHE, Caches
from offstage.bindings.errors import BadInput
from offstage.host.request_record import RequestRecord
from offstage.testbeds.cli import run as command
from offstage.testbeds.lab.bounds.prefix import PrefixOptions, PrefixTrace, simulate
from offstage.testbeds.lab.pod import run
from offstage.testbeds.lab.pod.execute import compute
from offstage.testbeds.lab.pod.point_figures import figures_of
from offstage.testbeds.lab.pod.requests import Requests, requests_of
from offstage.testbeds.lab.pod.spec import Fault, PodSpec, Point, load_spec
from offstage.testbeds.lab.pod.tier import Tier
from offstage.testbeds.progress import Silent
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.served import column, ttft_ms

TINY = Path(__file__).parents[2] / "golden/data/tiny_mooncake.jsonl"
S = 10**9
FREE = {
    "pool": "0B",
    "prefill_tokens_per_s": 1 << 40,
    "deadline": "0s",
    "copies.copies_max": 0,
    "first_shard_tokens": 0,
}
"""Hosts keep nothing and compute in no time, and shards are equal: all cost is the pod's."""


def spec_of(**changes: Any) -> PodSpec:
    return load_spec(None, {key.replace("__", "."): value for key, value in changes.items()})


def point(daemons: int, fault: Fault = "none", seed: int = 1) -> Point:
    return Point(daemons, "least-loaded", fault, seed)


@given(st.lists(st.integers(0, 4), min_size=3, max_size=3), st.data())
def test_caches_are_plain_lru_caches(rooms: list[int], data: st.DataObject) -> None:
    """They equal lists after any mix of uses, lookups and clears."""
    caches, plain = Caches(rooms), [[] for _ in rooms]  # type: ignore[var-annotated]
    pairs = st.lists(st.tuples(st.sampled_from([0, 1, 2, NO_CACHE]), st.integers(0, 9)))
    for _ in range(4):
        drawn = data.draw(pairs)
        at, blocks = (np.array([one[i] for one in drawn], np.uint32) for i in (0, 1))
        held = [cache < 3 and block in plain[cache] for cache, block in drawn]
        assert caches.find(at, blocks).tolist() == held
        entered = 0
        for cache, block in drawn:
            if cache < 3 and rooms[cache]:
                entered += block not in plain[cache]
                plain[cache] = [*(one for one in plain[cache] if one != block), block]
                plain[cache] = plain[cache][-rooms[cache] :]
        assert caches.use(at, blocks) == entered
        assert [caches.held(one) for one in range(3)] == [len(one) for one in plain]
    matched = [next((i for i in range(10) if i not in one), 10) for one in plain]
    assert caches.matched(np.arange(10, dtype=np.uint32)).tolist() == matched
    caches.clear(1)
    assert caches.held(1) == 0
    with pytest.raises(BadInput):
        caches.use(np.array([3], np.uint32), np.array([0], np.uint32))


def plain_hits(requests: Requests, capacity: int) -> int:
    """Return the tokens of unbroken prefixes in one cache, kept as a list."""
    held: list[int] = []
    hits = 0
    for at in range(len(requests)):
        blocks = requests.of(at).tolist()
        run = next((i for i, block in enumerate(blocks) if block not in held), len(blocks))
        hits += min(512 * run, int(requests.input_tokens[at]))
        for block in blocks:
            held = [*(one for one in held if one != block), block][-capacity:]
    return hits


@pytest.mark.parametrize("capacity", [8, 20, 40, 150, 1000])
def test_a_pod_of_one_is_one_lru_cache(capacity: int) -> None:
    """It equals a list. The decision core, which knows no pod, hits the same tokens unless the
    space it reserves for a request of 17 blocks matters."""
    spec = spec_of(trace=str(TINY), **FREE)
    spec = msgspec.structs.replace(spec, store_bytes=capacity * spec.block_bytes, daemons=(1,))
    requests = requests_of(spec, 1, 1)
    requests = replace(requests, arrival_ns=S * np.arange(len(requests)))  # one after the other
    ran = run.simulate(spec, point(1), requests, 8)
    assert sum(one.found_tokens() for one in ran.records) == plain_hits(requests, capacity)
    if capacity > 20:
        core = simulate(PrefixTrace(open_trace(TINY)), PrefixOptions(capacity)).hit_rates.token
        hit = figures_of(spec, point(1), ran, None).hit
        assert hit == pytest.approx(core, abs=1e-12)
    assert ran.held == [min(capacity, 266)]


def test_shards_are_spread_as_chance_spreads_them() -> None:
    """Over seeds, the variance of shards per daemon is that of balls thrown into bins."""
    spec = spec_of(sessions=400, turns=1, arrivals_per_s=1000)
    requests, ratios = requests_of(spec, 1, 1), []
    for seed in range(20):
        counts = Tier(spec, point(16, seed=seed), requests, 1).shard_counts()
        ratios.append((counts.std() / counts.mean()) ** 2 / (15 / counts.sum()))
    assert 0.8 < np.mean(ratios) < 1.2


def prompts(count: int, blocks: int, fault_s: int) -> Requests:
    """Prompts of one shard each, requested once before `fault_s` and once after it."""
    begin = np.r_[np.arange(count), fault_s + 1 + np.arange(count)] * S
    return Requests(
        begin,
        np.full(2 * count, 512 * blocks),
        np.ones(2 * count, np.int64),
        np.full(2 * count, -1),
        np.arange(2 * count + 1) * blocks,
        np.tile(np.arange(count * blocks, dtype=np.uint32), 2),
        count * blocks,
    )


def with_fault(
    fault: Fault, requests: Requests, daemons: int = 8, **changes: Any
) -> tuple[PodSpec, list[run.Ran]]:
    faults: tuple[Fault, ...] = ("none", fault)
    spec = spec_of(**FREE, faults=list(faults), **changes)
    at = (len(requests) // 2) * S / int(requests.arrival_ns[-1])
    spec = msgspec.structs.replace(spec, fault_at=at)
    return spec, [run.simulate(spec, point(daemons, one), requests, 2) for one in faults]


def test_a_death_costs_what_the_dead_one_had() -> None:
    requests = prompts(400, 8, 400)
    spec, (without, ran) = with_fault("death", requests)
    found = figures_of(spec, point(8, "death"), ran, without)
    assert found.loss is not None
    assert found.loss.tokens == ran.shards[1] * 8 * 512  # seed 1: the second daemon dies
    assert found.loss.share == ran.shards[1] / 400
    again, (_, later) = with_fault("death", requests, lease="0s")
    assert figures_of(again, point(8, "death"), later, without).loss == found.loss


def test_a_join_loses_nothing_and_moves_what_it_gets() -> None:
    requests = prompts(400, 8, 400)
    spec, (without, ran) = with_fault("join", requests)
    found = figures_of(spec, point(8, "join"), ran, without)
    assert found.loss is not None and found.loss.tokens == 0
    assert found.filled_share == without.shards[1] / 400  # all that it is asked for
    assert ran.filled.tolist() == [0, ran.filled.sum(), *[0] * 6]
    _, (_, unfilled) = with_fault("join", requests, fill=False)
    assert not unfilled.filled.any() and unfilled.read.sum() == ran.read.sum()


def test_a_drained_daemon_is_read_and_gets_nothing() -> None:
    spec, (without, ran) = with_fault("drain", prompts(400, 8, 400))
    found = figures_of(spec, point(8, "drain"), ran, without)
    assert found.loss is not None and found.loss.tokens == 0
    assert ran.read[1] == without.read[1] > 0 == ran.filled[1]


def test_a_returning_member_has_what_its_drives_have() -> None:
    spec, (_, dead) = with_fault("death", prompts(400, 8, 400))
    _, (without, back) = with_fault("return", prompts(400, 8, 400), gone="100s")
    lost = [figures_of(spec, point(8), one, without).loss for one in (dead, back)]
    assert lost[0] is not None and lost[1] is not None
    assert 0 < lost[1].tokens < lost[0].tokens / 2


def test_a_slow_daemon_costs_time_and_no_hits() -> None:
    spec, (without, ran) = with_fault("slow", prompts(100, 8, 100), slow=1000)
    loss = figures_of(spec, point(8, "slow"), ran, without).loss
    assert loss is not None and loss.tokens == 0
    waits = [ttft_ms(one.records).max() for one in (without, ran)]
    assert waits[1] > 500 * waits[0]


def test_a_silent_daemon_costs_each_host_its_deadline_until_it_suspects() -> None:
    spec, (_, ran) = with_fault("death", prompts(400, 8, 400))
    slow = msgspec.structs.replace(spec, deadline_ns=S // 2)
    again = run.simulate(slow, point(8, "death"), prompts(400, 8, 400), 2)
    first_ns, begun_ns = times(again.records)[1:]
    waits = first_ns - begun_ns
    assert (waits >= S // 2).sum() == again.deadlines > 0
    assert again.deadlines <= ran.deadlines or ran.deadlines == 0


def test_hot_shards_get_copies_that_take_load() -> None:
    """One prompt is in all requests: without copies one daemon serves them all."""
    count = 600
    requests = Requests(
        np.arange(count) * (S // 20),
        np.full(count, 4096),
        np.ones(count, np.int64),
        np.full(count, -1),
        np.arange(count + 1) * 8,
        np.tile(np.arange(8, dtype=np.uint32), count),
        8,
    )
    found = {}
    for most in (0, 3):
        spec = spec_of(**FREE | {"copies.copies_max": most})
        ran = run.simulate(spec, point(8), requests, 2)
        found[most] = figures_of(spec, point(8), ran, None)
    assert found[0].load_max == 8 and found[0].copies == found[0].copied_bytes == 0
    assert found[3].load_max < 4 and found[3].copies == 3
    assert found[3].hit == found[0].hit


def test_a_common_beginning_is_a_shard_of_its_own() -> None:
    """All prompts begin with the same block and then differ: with a first shard of its own, their
    tails have different homes."""
    count = 400
    blocks = np.arange(count * 8, dtype=np.uint32).reshape(count, 8)
    blocks[:, 0] = 0
    shared = replace(prompts(count, 8, count), blocks=np.tile(blocks.reshape(-1), 2))
    found = {}
    for first in (0, 512):
        spec = spec_of(**FREE | {"first_shard_tokens": first})
        ran = run.simulate(spec, point(8), shared, 2)
        found[first] = figures_of(spec, point(8), ran, None)
    assert found[0].load_max == 8
    assert found[512].load_max < 3


def test_reuse_finds_more_in_the_hosts_pools_than_taking_turns() -> None:
    spec = spec_of(sessions=60, turns=4, pool="24GiB", hosts=4, arrivals_per_s=0.5)
    hits = {}
    for kind in ("reuse", "round-robin", "least-loaded"):
        one = Point(4, kind, "none", 1)  # type: ignore[arg-type]
        hits[kind] = figures_of(spec, one, run.run_point(spec, one), None).pool_hit
    assert hits["reuse"] > 1.2 * max(hits["round-robin"], hits["least-loaded"])


def times(records: Sequence[RequestRecord]) -> tuple[NDArray[np.int64], ...]:
    """Arrivals, first tokens, and when a host took each; -1: none did."""
    arrival_ns, first_ns, begun_ns = (
        column(records, name) for name in ("arrival_ns", "first_token_ns", "scheduled_ns")
    )
    return arrival_ns, first_ns, begun_ns


def of_session(ran: run.Ran, requests: Requests, session: int) -> list[RequestRecord]:
    return [ran.records[at] for at in np.flatnonzero(requests.session == session)]


def test_what_finds_no_place_to_wait_is_refused_and_counted() -> None:
    spec = spec_of(sessions=50, turns=2, hosts=1, active=1, waiting=2, arrivals_per_s=100)
    ran = run.run_point(spec, point(4))
    found = figures_of(spec, point(4), ran, None)
    begun = [one for one in ran.records if one.scheduled_ns is not None]
    assert 0 < found.refused == sum(one.refused for one in ran.records)
    assert found.refused + len(begun) == 100 and all(one.host >= 0 for one in begun)


def test_a_turn_waits_for_the_answer_before_it() -> None:
    spec = spec_of(sessions=5, turns=3, gap="1ms", hosts=1)
    ran, requests = run.run_point(spec, point(4)), requests_of(spec, 1, 1)
    for session in range(5):
        _, first_ns, begun_ns = times(of_session(ran, requests, session))
        ends = first_ns + 250 * spec.time_per_token_ns
        assert (begun_ns[1:] >= ends[:-1]).all()


def with_delays(path: Path, sessions: int) -> Path:
    """Write sessions of three turns, the later ones 2 s and 0 s after the answer before."""
    path.write_text(
        "".join(
            json.dumps(
                {"session_id": f"s{number}", "input_length": 5000, "output_length": 250}
                | ({"timestamp": 100 * number} if after is None else {"delay": after})
                | {"hash_ids": [10 * turn + 100 * number + n for n in range(10)]}
            )
            + "\n"
            for number in range(sessions)
            for turn, after in enumerate([None, 2000, 0])
        )
    )
    return path


@pytest.mark.parametrize(("rate", "tenants"), [(1.0, 1), (4.0, 1), (1.0, 2)])
def test_a_turn_with_a_delay_begins_that_long_after_the_answer(
    tmp_path: Path, rate: float, tenants: int
) -> None:
    """Sessions are closed loops: a turn arrives by the pod's answer, not by the trace's clock."""
    trace = with_delays(tmp_path / "t.jsonl", 5)
    spec = spec_of(trace=str(trace), hosts=1, rate=rate)
    requests = requests_of(spec, tenants, 1)
    ran = run.simulate(spec, point(4), requests, 1)
    assert all(one.host >= 0 for one in ran.records)
    for session in range(5 * tenants):
        arrival_ns, first_ns, begun_ns = times(of_session(ran, requests, session))
        ends = first_ns + 250 * spec.time_per_token_ns
        assert (arrival_ns[1:] - ends[:-1]).tolist() == [round(2 * S / rate), 0]
        assert (begun_ns >= arrival_ns).all()


def test_a_refused_turn_does_not_end_its_session(tmp_path: Path) -> None:
    """The next one comes its delay after the refusal, so every turn is served or refused."""
    spec = spec_of(trace=str(with_delays(tmp_path / "t.jsonl", 40)), hosts=1, active=1, waiting=2)
    ran, requests = run.run_point(spec, point(4)), requests_of(spec, 1, 1)
    refused = [one for one in ran.records if one.refused]
    served = [one for one in ran.records if one.host >= 0]
    assert 0 < len(refused) < len(requests) == len(refused) + len(served)
    for session in range(40):
        own = of_session(ran, requests, session)
        arrival_ns, _, _ = times(own)
        if own[0].refused:
            assert arrival_ns[1] == arrival_ns[0] + 2 * S


def test_tenants_share_nothing() -> None:
    spec = spec_of(sessions=20, turns=2)
    one, three = requests_of(spec, 1, 1), requests_of(spec, 3, 1)
    assert len(three) == 3 * len(one) and three.block_count == 3 * one.block_count
    tenants = [set(three.of(at).tolist()) for at in range(len(three))]
    of = [min(own) // one.block_count for own in tenants]
    assert all(max(own) // one.block_count == of[at] for at, own in enumerate(tenants))
    assert sorted(of) == sorted([0, 1, 2] * len(one)) and (np.diff(three.arrival_ns) >= 0).all()


def test_processes_change_no_figure() -> None:
    spec = spec_of(sessions=20, turns=2, daemons=[2, 4], faults=["none", "death"])
    assert compute(spec, Silent(), 1) == compute(spec, Silent(), 2)


def test_counts_on_the_tiny_trace() -> None:
    """No change moves a single block; each figure was checked when it was recorded."""
    gold = json.loads((TINY.parent / "tiny_pod.json").read_text())
    spec = spec_of(
        trace=str(TINY),
        faults=["none", "death", "return", "join", "drain", "slow"],
        daemons=[4],
        hosts=2,
        schedules=["reuse", "round-robin"],
        pool="8GiB",
        slow=1000,
        first_shard_tokens=0,
    )
    found = [
        [
            one.schedule,
            one.fault,
            one.read_bytes // spec.block_bytes,
            one.put_bytes // spec.block_bytes,
            one.filled_bytes // spec.block_bytes,
            one.deadlines,
            0 if one.loss is None else one.loss.tokens,
        ]
        for one in compute(spec, Silent(), 1)
    ]
    assert found == gold


# The command


def test_the_command_writes_page_table_and_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = {
        "members": {
            f"m{at}": {"weight": 1, "state": "served", "demands": 10 + at, "fetch_ms_max": 2.0}
            for at in range(4)
        },
        "shard_tokens": 4096,
        "load_cv": 0.1,
        "hit_rate": 0.5,
        "lost_rate": 0.0,
    }
    (tmp_path / "live").mkdir()
    (tmp_path / "live/pod.json").write_text(json.dumps(live))
    words = (
        "--set",
        "sessions=20",
        "--daemons",
        "2,4",
        "--beside",
        str(tmp_path / "live"),
        "--seed",
        "1",
        "--seed",
        "2",
        "--out",
        str(tmp_path / "o"),
        "--jobs",
        "1",
        "--format",
        "json",
    )
    assert command(["lab", "pod", *words]) == 0
    document = checked("lab pod", capsys.readouterr().out)
    assert [(one["daemons"], one["fault"]) for one in document["rows"]] == [
        (2, "none"),
        (2, "death"),
        (4, "none"),
        (4, "death"),
    ]
    assert pq.read_table(tmp_path / "o/points.parquet").num_rows == 8
    checked("file lab-pod-summary", (tmp_path / "o/summary.json").read_bytes())
    page = (tmp_path / "o/report.html").read_text()
    assert "Compared with a live pod" in page and "Hit rate over daemons" in page
    load = next(one for one in document["beside"] if one["figure"] == "load_cv")
    assert load["live"] == 0.1 and load["lab"] == document["rows"][2]["means"]["load_cv"]


def test_what_had_no_effect_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unused keys of the trace are noted, and seeds if there is only one daemon."""
    trace = tmp_path / "t.jsonl"
    trace.write_text(TINY.read_text().replace('{"timestamp"', '{"type": 1, "timestamp"'))
    words = (
        "--trace",
        str(trace),
        "--seed",
        "1",
        "--seed",
        "2",
        "--set",
        'faults=["none"]',
        "--out",
        str(tmp_path / "o"),
        "--jobs",
        "1",
        "--format",
        "json",
    )
    for daemons, codes in (("1", ["trace", "seeds-unused"]), ("4", ["trace"])):
        assert command(["lab", "pod", *words, "--daemons", daemons]) == 0
        told = checked("lab pod", capsys.readouterr().out)["notes"]
        assert [one["code"] for one in told] == codes and "type (" in told[0]["what"]
        assert (
            "do not read" not in told[0]["what"]
            and told[0]["what"] in (tmp_path / "o/report.html").read_text()
        )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "daemons=[1]"), "give 2 to 256"),
        (("--daemons", "4,300"), "give 2 to 256"),
        (("--daemons", "4,4"), "daemons"),
        (("--daemons", "four"), "daemons"),
        (("--set", "faults=['death']"), '"none"'),
        (("--set", "faults=['flood']"), "faults"),
        (("--set", "shard_tokens=1000"), "a multiple of 512"),
        (("--set", "first_shard_tokens=8192"), "shard_tokens"),
        (("--set", "daemon=[4]"), "daemons"),
        (("--set", "rate=0"), "give more than 0"),
        (("--set", "link=0B/s"), "link = 0"),
        (("--set", "copies.copies_max=99"), "copies"),
        (("--set", "daemons.x=1"), "daemons"),
        (("--set", "drive=floppy"), "gen5-tlc"),
        (("--set", "model=gpt"), "gpt"),
        (("--trace", "nowhere.jsonl"), "no such file"),
        (("--jobs", "-1"), "give 1 or more"),
        (("--trace", str(TINY), "--set", "turns=3"), "turns has no effect"),
        (("--trace", str(TINY), "--set", "gap=9s"), "gap has no effect"),
        (("--set", "requests=9"), "requests has no effect without a trace"),
        (("--set", "slow=9"), "slow has no effect without the fault slow"),
        (("--set", "gone=9s"), "gone has no effect without the fault return"),
        (("--set", "faults=['none']", "--set", "fault_at=0.2"), "fault_at has no effect"),
        (("nowhere.toml",), "no such file"),
        (("--beside", "nowhere", "--set", "sessions=2", "--daemons", "2"), "no such file"),
    ],
)
def test_bad_input_is_one_line(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = () if "--jobs" in words else ("--jobs", "1")
    assert command(["lab", "pod", *words, *jobs, "--out", str(tmp_path / "o")]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert said in line and "Traceback" not in line
