"""Does a plan follow its trace or generator, within its budget, and lose nothing?"""

import os
from collections import Counter
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.plan import (
    ChunkShape,
    TraceOptions,
    WorkloadPlan,
    from_trace,
    generated,
)
from offstage.testbeds.workloads.requests.sessions import root, trace_chunks
from offstage.testbeds.workloads.requests.trace import Request

ROOT = Path(__file__).parents[3]
TRACES = Path(os.environ.get("OFFSTAGE_TRACES", ROOT.parent / "shared" / "traces"))
CONVERSATION = TRACES / "mooncake_conversation_0-2400s.jsonl.gz"
TINY = ROOT / "tests" / "golden" / "data" / "tiny_mooncake.jsonl"
SHAPE = ChunkShape(block_tokens=64, chunk_bytes=1000)

needs_traces = pytest.mark.skipif(
    not CONVERSATION.exists(),
    reason=f"no {CONVERSATION.name}; point OFFSTAGE_TRACES at the folder that holds it",
)


@st.composite
def traces(draw: st.DrawFn) -> list[Request]:
    """Prefix-chained requests: each is new or keeps some full blocks of an earlier one."""
    rows: list[Request] = []
    next_id, stamp_ms = 0, 0.0
    for index in range(draw(st.integers(1, 14))):
        kept: tuple[int, ...] = ()
        continues = draw(st.booleans())
        if rows and continues:
            earlier = draw(st.sampled_from(rows))
            full = earlier.input_tokens // 512
            kept = earlier.block_ids[: draw(st.integers(0, full))]
        new_tokens = draw(st.integers(1 if kept else 0, 4 * 512))
        new_ids = tuple(range(next_id, next_id - (-new_tokens // 512)))
        next_id += len(new_ids)
        stamp_ms += draw(st.sampled_from([0, 3000, 9000]))
        tokens = 512 * len(kept) + new_tokens
        steps = draw(st.integers(0, 400))
        rows.append(Request(index, stamp_ms, tokens, steps, kept + new_ids))
    return rows


options_st = st.builds(
    TraceOptions,
    budget_bytes=st.integers(20_000, 400_000),
    sessions=st.integers(1, 8),
    sessions_max=st.integers(1, 4),
    context_tokens_min=st.sampled_from([0, 700, 2000]),
    context_tokens_max=st.sampled_from([100, 1000, 1536, 131_072]),
    decode_steps=st.sampled_from([None, 1, 300]),
    decode_steps_max=st.sampled_from([64, 300]),
    time_compression=st.sampled_from([None, 1.0, 7.5]),
)


def plan_of(rows: list[Request], options: TraceOptions, seed: int = 1) -> WorkloadPlan:
    try:
        return from_trace(rows, options, SHAPE, seed, "made up")
    except BadInput as error:
        assume("no request" not in error.what)  # The budget may hold none; tested elsewhere.
        raise


@given(traces(), options_st)
def test_every_request_is_accounted_for_and_the_budget_holds(
    rows: list[Request], options: TraceOptions
) -> None:
    """Each request is taken, left out with a reason, or outside; the bytes fit; caps are listed."""
    plan = plan_of(rows, options)
    taken = [s.request_index for s in plan.sessions if s.request_index is not None]
    assert len(taken) == len(plan.sessions)
    left_out = [row.index for row in plan.left_out]
    assert taken == sorted(set(taken), key=taken.index) and 1 <= len(taken) <= options.sessions
    inside = range(plan.before_count, len(rows) - plan.after_count)
    assert sorted(taken + left_out) == list(inside)
    assert plan.stored_bytes <= options.budget_bytes
    for session in plan.sessions:
        assert session.request_index is not None
        request = rows[session.request_index]
        cap = options.context_tokens_max // 64 * 64
        assert session.context_tokens == min(request.input_tokens, cap)
        assert (session in plan.capped) == (request.input_tokens > cap)
        assert len(session.chunks) == -(-session.context_tokens // 64)
        assert session.decode_steps == options.decode_steps or options.decode_steps is None
    arrivals = [session.arrival_s for session in plan.sessions]
    assert arrivals == sorted(arrivals) and arrivals[0] == 0
    assert arrivals[-1] * plan.time_compression == pytest.approx(plan.trace_span_s)


@given(traces(), options_st)
def test_identities_are_equal_exactly_where_prefixes_are(
    rows: list[Request], options: TraceOptions
) -> None:
    """Two sessions have the same chunk identity if and only if all tokens up to its end agree."""
    plan = plan_of(rows, replace(options, budget_bytes=10**9))
    for first, second in combinations(plan.sessions, 2):
        ids = [rows[s.request_index or 0].block_ids for s in (first, second)]
        blocks = next(
            (n for n, (a, b) in enumerate(zip(*ids, strict=False)) if a != b),
            min(len(each) for each in ids),
        )
        # A common id covers the same tokens in both, up to the end of the shorter one.
        tokens = min(512 * blocks, first.context_tokens, second.context_tokens)
        common = set(first.chunks) & set(second.chunks)
        assert common == set(first.chunks[: -(-tokens // 64)])
        assert common == set(second.chunks[: -(-tokens // 64)])


def test_a_tail_cut_by_a_cap_is_other_content() -> None:
    """A store that outlives a change of the cap keeps a short tail and a full chunk apart."""
    request = Request(0, 0.0, 700, 1, (7, 8))
    whole = trace_chunks(root(0, "trace"), request, 700, 64)
    cut = trace_chunks(root(0, "trace"), request, 100, 64)
    assert cut[0] == whole[0] and cut[1] not in whole
    assert len(set(whole)) == 11 and all(0 < chunk < 2**128 for chunk in whole)


@given(traces(), options_st)
def test_shared_and_retained_equal_a_plain_count(
    rows: list[Request], options: TraceOptions
) -> None:
    """Prefill writes each chunk once, and a chunk of another session counts as shared."""
    plan = plan_of(rows, options)
    holders = Counter(chunk for session in plan.sessions for chunk in session.chunks)
    written: list[int] = []
    for session in plan.sessions:
        assert all(chunk in written for chunk in session.chunks[: session.retained_chunk_count])
        written += session.new_chunks
        assert all(holders[chunk] > 1 for chunk in session.shared_chunks)
        assert all(holders[chunk] == 1 for chunk in session.own_chunks)
    assert sorted(written) == sorted(holders)
    grown = [
        session.grown_chunk(session.context_tokens // 64 + n)
        for session in plan.sessions
        for n in range(session.grown_chunk_count)
    ]
    assert len(set(grown) | set(holders)) == len(grown) + len(holders)
    assert plan.stored_bytes == SHAPE.chunk_bytes * (len(grown) + len(holders))


@given(traces(), options_st, st.integers(0, 5), st.integers(0, 5))
def test_a_plan_depends_on_its_input_and_seed_alone(
    rows: list[Request], options: TraceOptions, seed: int, other: int
) -> None:
    """The same input and seed give the same plan; other seeds choose the same but share no
    chunk."""
    plan, again = plan_of(rows, options, seed), plan_of(rows, options, seed)
    assert plan == again
    changed = plan_of(rows, options, other)
    assert plan.account().requests_taken == changed.account().requests_taken
    chunks, others = ({c for s in p.sessions for c in s.chunks} for p in (plan, changed))
    assert chunks == others if seed == other else not chunks & others


@given(
    st.integers(1, 6),
    st.integers(1, 700),
    st.integers(0, 700),
    st.integers(1, 200),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_generated_sessions_share_the_prefix_inside_a_tenant(
    sessions: int, context: int, prefix: int, steps: int, tenants: int, seed: int
) -> None:
    """All sessions have the full chunks of the prefix in common, and nothing else."""
    assume(prefix <= context)
    plan = generated(
        sessions=sessions,
        context_tokens=context,
        shared_prefix_tokens=prefix,
        decode_steps=steps,
        shape=SHAPE,
        seed=seed,
        tenants=tenants,
    )
    whole = prefix // 64
    for first, second in combinations(plan.sessions, 2):
        assert set(first.chunks) & set(second.chunks) == set(first.chunks[:whole])
    sizes = Counter(session.tenant for session in plan.sessions)
    for number, session in enumerate(plan.sessions):
        assert len(session.shared_chunks) == (whole if sizes[session.tenant] > 1 else 0)
        assert session.retained_chunk_count == (whole if number >= tenants else 0)
        assert session.arrival_s == 0 and session.context_tokens == context
    largest = max(sizes.values())
    assert plan.sharing_session_count == (largest if whole and largest > 1 else 0)


def options_with(**changes: Any) -> TraceOptions:
    return TraceOptions(**({"budget_bytes": 10**6} | changes))


@pytest.mark.parametrize(
    ("options", "shape", "what"),
    [
        (options_with(budget_bytes=10), SHAPE, "no request of 60 fits"),
        (options_with(sessions=0), SHAPE, "sessions = 0"),
        (options_with(sessions_max=0), SHAPE, "sessions_max = 0"),
        (options_with(decode_steps=0), SHAPE, "decode_steps = 0"),
        (options_with(context_tokens_max=63), SHAPE, "context_tokens_max = 63"),
        (options_with(context_tokens_min=-1), SHAPE, "context_tokens_min = -1"),
        (options_with(time_compression=0.0), SHAPE, "time_compression = 0.0"),
        (options_with(arrival_span_s=float("nan")), SHAPE, "arrival_span_s = nan"),
        (options_with(), ChunkShape(96, 1000), "block_tokens = 96 with a trace"),
        (options_with(), ChunkShape(64, 0), "chunk_bytes = 0"),
    ],
)
def test_options_out_of_range_are_refused(
    options: TraceOptions, shape: ChunkShape, what: str
) -> None:
    """Every invalid option gives one line with the fix."""
    with pytest.raises(BadInput, match=what) as caught:
        from_trace(TINY, options, shape, 0)
    assert caught.value.fix


def test_a_generated_plan_beyond_its_budget_is_refused() -> None:
    """A plan that does not fit is refused before anything is written."""
    make = {"sessions": 2, "context_tokens": 640, "decode_steps": 1, "shape": SHAPE, "seed": 0}
    with pytest.raises(BadInput, match="need 22000 bytes, the budget is 21999"):
        generated(**make, shared_prefix_tokens=0, budget_bytes=21_999)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="shared_prefix_tokens = 641"):
        generated(**make, shared_prefix_tokens=641)  # type: ignore[arg-type]


def test_a_short_trace_lowers_the_floor_and_says_so() -> None:
    """A trace without long prompts still gives a run, with the floor in force recorded."""
    plan = from_trace(TINY, TraceOptions(budget_bytes=10**7, sessions=6), SHAPE, 0)
    assert 0 < plan.context_tokens_min < 32_768
    assert len(plan.sessions) == 6 and plan.trace == "tiny_mooncake.jsonl"
    assert plan.sharing_session_count >= 4
    counts = (len(plan.left_out), plan.before_count, plan.after_count)
    assert 6 + sum(counts) == 60 and "6 sessions" in plan.sentence()
    assert "of the 60 requests of tiny_mooncake.jsonl" in plan.sentence()
    assert f"compressed {plan.time_compression:g} times" in plan.account().sentence


def test_arrivals_are_told_as_they_are() -> None:
    """The sentence omits gaps that do not exist and compression that was not applied."""
    plan = from_trace(TINY, TraceOptions(budget_bytes=10**7, sessions=6), SHAPE, 0)
    together = replace(plan, trace_span_s=0.0, time_compression=1.0).sentence()
    assert "arriving together; inside" in together and "compressed" not in together
    plain = replace(plan, trace_span_s=0.4, time_compression=1.0).sentence()
    assert "0.4 s of arrivals as they came;" in plain and "compressed" not in plain
    shown = replace(plan, trace_span_s=1234.0, time_compression=250.0).sentence()
    assert "1,234 s of arrivals compressed 250 times;" in shown


@needs_traces
def test_the_real_trace_gives_a_window_worth_running() -> None:
    """The default choice has long prompts, four sharing sessions and turns that continue."""
    shape = ChunkShape(block_tokens=64, chunk_bytes=131_072)
    plan = from_trace(CONVERSATION, TraceOptions(budget_bytes=1 << 30), shape, 0)
    assert len(plan.sessions) == 8 and plan.stored_bytes <= 1 << 30
    assert plan.sharing_session_count >= 4
    assert max(session.context_tokens for session in plan.sessions) >= 117_000
    continuing = [s for s in plan.sessions if 2 * s.retained_chunk_count >= len(s.chunks)]
    assert len(continuing) >= 2
    inside = len(plan.sessions) + len(plan.left_out)
    assert plan.before_count + inside + plan.after_count == 7_851
    assert plan.time_compression > 1 and plan.sessions[-1].arrival_s <= 5.0
