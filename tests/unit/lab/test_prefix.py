"""Does prefix caching in virtual time equal a plain Python cache, with TTL and admission?"""

import json
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from offstage.bindings.core import Core, CoreConfig, Policy, SessionConfig
from offstage.bindings.errors import BadInput
from offstage.bindings.sim import flat, populate
from offstage.testbeds.lab.bounds.prefix import (
    ADMISSIONS,
    PREFIX_EVICTIONS,
    TOUCHES,
    PrefixOptions,
    PrefixTrace,
    simulate,
)
from offstage.testbeds.lab.run.requests import RequestsOptions, run_requests
from offstage.testbeds.workloads.requests.collector import Columns, runs_of
from offstage.testbeds.workloads.requests.columns import Origin, Trace
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.stats import Optimum

ROOT = Path(__file__).parents[3]
TRACES = Path(os.environ.get("OFFSTAGE_TRACES", ROOT.parent / "shared" / "traces"))
SMALL = ("lmcache_magagent_dev", "lmcache_miniswe_dev", "sharegpt_llmservingsim_300")
CONVERSATION = "mooncake_conversation_0-2400s"
BLOCK_TOKENS = 16

Ask = tuple[float, int, Sequence[int]]
"""(arrival in s, session, ids) of one request."""


def trace_of(rows: Sequence[Ask]) -> Trace:
    """Return a trace of these requests, the last block of each half full."""
    columns = Columns(BLOCK_TOKENS, ordered=True)
    for at, session, ids in rows:
        tokens = max(0, BLOCK_TOKENS * len(ids) - BLOCK_TOKENS // 2)
        columns.add("here", at, tokens, 1, runs_of(ids), session=str(session))
    return columns.finish(Origin("made up", "test"))


@dataclass
class Plain:
    """An LRU cache of blocks with a TTL and an admission, as one ordered dict."""

    options: PrefixOptions
    resident: OrderedDict[int, float] = field(default_factory=OrderedDict)
    asked: dict[int, float] = field(default_factory=dict)
    askers: dict[int, set[int]] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    hits: int = 0
    prefix: int = 0
    expired: int = 0

    def admits(self, now: float, session: int, block: int) -> bool:
        if self.options.admission == "second-touch":
            window = self.options.window_s
            last = self.asked.get(block)
            return last is not None and (window is None or now - last <= window)
        if self.options.admission == "turns":
            return self.turns[session] > 1 or bool(self.askers.get(block, set()) - {session})
        return True

    def request(self, now: float, session: int, ids: Sequence[int]) -> None:
        ttl = self.options.ttl_s
        for block in [b for b, used in self.resident.items() if ttl and now - used >= ttl]:
            del self.resident[block]
            self.expired += 1
        self.turns[session] = self.turns.get(session, 0) + 1
        for block in ids:
            if block not in self.resident:
                break
            self.prefix += 1
        for block in ids if self.options.touch == "front" else reversed(ids):
            if block in self.resident:
                self.hits += 1
                self.resident[block] = now
                self.resident.move_to_end(block)
            elif self.admits(now, session, block):
                if len(self.resident) == self.options.capacity_blocks:
                    self.resident.popitem(last=False)
                self.resident[block] = now
            self.asked[block] = now
            self.askers.setdefault(block, set()).add(session)


ids = st.one_of(
    st.lists(st.integers(0, 12), max_size=8),
    st.lists(st.integers(2**62, 2**62 + 6), max_size=8),  # hashes are large
)
asks = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), ids), min_size=1, max_size=40)


@settings(max_examples=300)
@given(
    asks,
    st.integers(1, 14),
    st.sampled_from(ADMISSIONS),
    st.sampled_from(TOUCHES),
    st.sampled_from([None, 1.0, 7.0, 30.0]),
    st.sampled_from([None, 5.0]),
)
def test_it_equals_a_plain_cache(
    steps: list[tuple[int, int, list[int]]],
    capacity: int,
    admission: str,
    touch: str,
    ttl_s: float | None,
    window_s: float | None,
) -> None:
    """Hits, prefix hits and expiries are the model's, for every admission, TTL and order."""
    at = 0
    rows = []
    for gap, session, block_ids in steps:
        at += gap
        rows.append((float(at), session, block_ids))
    if not any(row[2] for row in rows):
        return
    options = PrefixOptions(capacity, "lru", admission, ttl_s, window_s, touch)
    plain = Plain(options)
    for row in rows:
        plain.request(*row)
    prepared = PrefixTrace(trace_of(rows))
    result = simulate(prepared, options)
    accesses = prepared.runs.access_count
    assert result.hit_rates.block == plain.hits / accesses
    assert result.hit_rates.prefix == plain.prefix / accesses
    assert result.expired == plain.expired
    assert result.admitted + result.refused == accesses - plain.hits
    assert result.admitted - result.evicted - result.expired == len(plain.resident)


@given(st.lists(st.lists(st.integers(0, 15), max_size=9), min_size=1, max_size=30))
@pytest.mark.parametrize("eviction", PREFIX_EVICTIONS)
def test_without_admission_it_is_the_flat_cache(eviction: str, rows: list[list[int]]) -> None:
    """Blocks that the host writes, and hits reported in one step, count like single reads."""
    if not any(rows):
        return
    trace = trace_of([(float(at), 0, block_ids) for at, block_ids in enumerate(rows)])
    prepared = PrefixTrace(trace)
    capacity, blocks = 5, prepared.runs.block_count
    core = Core(CoreConfig(capacity, blocks, blocks, demand_max=16), Policy("shared"))
    tenant = core.tenant_add(0, b"\0" * 16, capacity)
    session = core.session_open(0, SessionConfig(tenant, 1))
    core.set_policy(0, Policy(eviction=eviction))
    populate(core, session, blocks)
    hits = flat(core, session, trace.accesses())
    result = simulate(prepared, PrefixOptions(capacity, eviction))
    if capacity < blocks:  # the simulation needs no more slots than there are blocks
        assert round(result.hit_rates.block * prepared.runs.access_count) == hits
    assert result.hit_rates.block <= prepared.ideal.block


@settings(max_examples=100)
@given(asks, st.integers(1, 14), st.floats(0, 0.99))
def test_behind_a_warm_up_only_the_rest_is_counted(
    steps: list[tuple[int, int, list[int]]], capacity: int, share: float
) -> None:
    """Rates are those of a plain cache that also served the first requests; bounds lie between LRU
    and a cache that holds every earlier request."""
    rows = [(float(at), session, block_ids) for at, (_, session, block_ids) in enumerate(steps)]
    warm = int(share * len(rows))
    counted = sum(len(row[2]) for row in rows[warm:])
    if not counted:
        with pytest.raises(BadInput, match=r"leaves none with a block|no request has a block"):
            PrefixTrace(trace_of(rows), share)
        return
    plain = Plain(PrefixOptions(capacity))
    for row in rows[:warm]:
        plain.request(*row)
    hits, prefix = plain.hits, plain.prefix
    for row in rows[warm:]:
        plain.request(*row)
    prepared = PrefixTrace(trace_of(rows), share)
    rates = simulate(prepared, PrefixOptions(capacity)).hit_rates
    assert rates.block == (plain.hits - hits) / counted
    assert rates.prefix == (plain.prefix - prefix) / counted
    seen = {block for row in rows[:warm] for block in row[2]}
    endless = 0
    for row in rows[warm:]:
        for block in row[2]:
            endless += block in seen
            seen.add(block)
    assert prepared.ideal.block == endless / counted
    optimum = Optimum(prepared.trace, prepared.warm_up)
    assert rates.block <= optimum.block_hit_rate(capacity) <= prepared.ideal.block
    assert optimum.block_hit_rate(1 << 20) == prepared.ideal.block


def test_the_definitions_on_one_example() -> None:
    """Block, prefix, token and request rates differ as the page says, worked out by hand."""
    rows = [(0.0, 0, [1, 2, 3]), (1.0, 0, [1, 9, 3])]  # 40 tokens each: 16 + 16 + 8
    rates = simulate(PrefixTrace(trace_of(rows)), PrefixOptions(8)).hit_rates
    assert (rates.block, rates.prefix) == (2 / 6, 1 / 6)
    assert (rates.token, rates.request) == (16 / 80, (0 + 16 / 40) / 2)


def test_what_expires_makes_room() -> None:
    """An expired block frees its room, so that no other is evicted for a new one."""
    rows = [(0.0, 0, [1]), (5.0, 0, [2]), (11.0, 0, [3]), (12.0, 0, [2])]
    result = simulate(PrefixTrace(trace_of(rows)), PrefixOptions(2, ttl_s=10.0))
    assert (result.expired, result.evicted) == (1, 0)
    assert result.hit_rates.block == 1 / 4


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (PrefixOptions(0), "capacity of 0 blocks"),
        (PrefixOptions(1, eviction="best"), "eviction = 'best'"),
        (PrefixOptions(1, admission="some"), "admission = 'some'"),
        (PrefixOptions(1, touch="middle"), "touch = 'middle'"),
        (PrefixOptions(1, ttl_s=0.0), "ttl_s = 0"),
        (PrefixOptions(1, window_s=float("nan")), "window_s = nan"),
    ],
)
def test_bad_options_are_named(options: PrefixOptions, what: str) -> None:
    """Every invalid option is one line of bad input."""
    with pytest.raises(BadInput, match=what):
        simulate(PrefixTrace(trace_of([(0.0, 0, [1])])), options)


def test_a_trace_without_sessions_or_blocks_is_refused(tmp_path: Path) -> None:
    """Each missing property of a trace is reported in one line."""
    columns = Columns(BLOCK_TOKENS, ordered=True)
    columns.add("here", 0.0, 16, 1, [(1, 1)])
    prepared = PrefixTrace(columns.finish(Origin("no sessions", "test")))
    with pytest.raises(BadInput, match="needs sessions"):
        simulate(prepared, PrefixOptions(1, admission="turns"))
    lengths = tmp_path / "a.csv"
    lengths.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n")
    with pytest.raises(BadInput, match="needs prefix blocks"):
        PrefixTrace(open_trace(lengths))


@pytest.mark.parametrize("name", [*SMALL, CONVERSATION])
def test_real_traces_give_the_reference_rates(name: str) -> None:
    """LRU, front first and tail first, gives an independent implementation's rates to 4 digits.

    Its capacities are rounded; tail first it counts the unbroken run.
    """
    path = TRACES / f"{name}.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"no {path.name}; point OFFSTAGE_TRACES at the folder that holds it")
    reference = json.loads((TRACES / "reference_stats.json").read_text())
    want = reference["traces"][path.name]
    prepared = PrefixTrace(open_trace(path))
    sizes = [max(1, round(s * want["unique"])) for s in reference["capacity_fractions"]]
    front = [simulate(prepared, PrefixOptions(size)).hit_rates for size in sizes]
    tail = [simulate(prepared, PrefixOptions(size, touch="tail")).hit_rates for size in sizes]
    assert [round(rates.block, 4) for rates in front] == want["lru_block"]
    assert [round(rates.prefix, 4) for rates in front] == want["lru_prefix_fwd"]
    assert [round(rates.prefix, 4) for rates in tail] == want["lru_prefix_rev"]
    assert round(prepared.ideal.block, 4) == want["ideal_block"]
    assert round(prepared.ideal.prefix, 4) == want["ideal_prefix"]
    assert np.isclose(prepared.ideal.token, want["ideal_token"], atol=5e-5)


def test_a_table_has_every_combination_and_its_bounds(tmp_path: Path) -> None:
    """Each trace gets every cache, none of them above OPT, and JSON with its origin."""
    path = tmp_path / "t.jsonl"
    rows = [[1, 2, 3], [1, 2, 4], [7, 8], [1, 2, 3]]
    path.write_text(
        "".join(
            json.dumps(
                {
                    "timestamp": at * 1e3,
                    "input_length": 16 * len(row),
                    "output_length": 1,
                    "hash_runs": runs_of(row),
                }
            )
            + "\n"
            for at, row in enumerate(rows)
        )
    )
    options = RequestsOptions(
        (path,),
        evictions=("lru", "arc"),
        admissions=("all", "second-touch"),
        ttls_s=(None, 2.0),
        capacity_shares=(0.5, 1.0),
    )
    rows = run_requests(options)
    assert [(r.capacity_share, r.eviction, r.admission, r.ttl_s) for r in rows] == list(
        options.caches()
    )
    assert all(row.block_hit_rate <= row.opt <= row.ideal == 5 / 11 for row in rows)
    assert rows[8].capacity_blocks == 6 and rows[8].block_hit_rate == 5 / 11


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"evictions": ()}, "evictions is empty"),
        ({"evictions": ("lru", "score")}, "eviction = 'score'"),
        ({"capacity_shares": (0.5, 1.5)}, "capacity share 1.5"),
        ({"ttls_s": (None, -1.0)}, "ttl_s = -1"),
        ({"traces": ("absent.jsonl",)}, "no such file"),
    ],
)
def test_a_table_is_refused_before_it_is_begun(changes: dict[str, Any], what: str) -> None:
    """A mistake in any list is found before the first trace is read or run."""
    with pytest.raises(BadInput, match=what):
        run_requests(replace(RequestsOptions(("absent.jsonl",)), **changes))
