"""Makes the plan of a run, from a generator or from a trace.

The same input and seed give the same plan. Nothing here reads a clock or draws a random number: the
seed only enters the identities of the chunks, and through them their bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from offstage.bindings.errors import BadInput
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.in_blocks import requests_in_blocks
from offstage.testbeds.workloads.requests.sessions import (
    ChunkShape,
    SessionPlan,
    WorkloadPlan,
    compress,
    compression_for,
    generated_chunks,
    lockstep,
    root,
    share,
    trace_chunks,
)
from offstage.testbeds.workloads.requests.trace import TRACE_BLOCK_TOKENS, Request
from offstage.testbeds.workloads.requests.window import Limits, choose

__all__ = ["ChunkShape", "SessionPlan", "TraceOptions", "WorkloadPlan", "from_trace", "generated"]


@dataclass(frozen=True)
class TraceOptions:
    """How a trace becomes a plan.

    `decode_steps` fixes the steps of every session; None takes the trace's output lengths, up to
    `decode_steps_max`. `time_compression` divides every gap between arrivals; None picks the
    factor that brings the last arrival to `arrival_span_s`. `context_tokens_min` excludes short
    prompts, and is halved until the trace has `sessions` requests that long.
    """

    budget_bytes: int
    sessions: int = 8
    sessions_max: int = 8
    context_tokens_min: int = 32_768
    context_tokens_max: int = 131_072
    decode_steps: int | None = None
    decode_steps_max: int = 2_048
    time_compression: float | None = None
    arrival_span_s: float = 5.0
    tenant: str = "tenant-0"


def generated(
    *,
    sessions: int,
    context_tokens: int,
    shared_prefix_tokens: int,
    decode_steps: int,
    shape: ChunkShape,
    seed: int,
    tenants: int = 1,
    budget_bytes: int | None = None,
) -> WorkloadPlan:
    """Sessions that start together and share a system prefix, dealt to `tenants` in turn.

    A chunk that the prefix fills only in part has different tokens in every session, so it is not
    shared. Raises BadInput for a number out of range or a plan beyond `budget_bytes`.
    """
    _at_least_one("sessions", sessions)
    _at_least_one("context_tokens", context_tokens)
    _at_least_one("decode_steps", decode_steps)
    _at_least_one("tenants", tenants)
    _check_shape(shape)
    if not 0 <= shared_prefix_tokens <= context_tokens:
        raise BadInput(
            f"shared_prefix_tokens = {shared_prefix_tokens} with context_tokens = {context_tokens}",
            "workload",
            "give 0 up to context_tokens",
        )
    whole = shared_prefix_tokens // shape.block_tokens * shape.block_tokens
    start = root(seed, "generated")
    prefix = generated_chunks(start, "system", whole, shape.block_tokens)
    rows = []
    for number, arrival_s in enumerate(lockstep(sessions)):
        name = f"session-{number}"
        rest = generated_chunks(
            prefix[-1] if prefix else start, name, context_tokens - whole, shape.block_tokens
        )
        rows.append(
            SessionPlan(
                name=name,
                tenant=f"tenant-{number % tenants}",
                arrival_s=arrival_s,
                shared_chunks=(),
                own_chunks=(*prefix, *rest),
                retained_chunk_count=0,
                context_tokens=context_tokens,
                decode_steps=decode_steps,
                block_tokens=shape.block_tokens,
                asked_context_tokens=context_tokens,
                asked_decode_steps=decode_steps,
            )
        )
    plan = WorkloadPlan(
        source="generated",
        trace="",
        sessions=share(rows),
        sessions_max=sessions,
        shape=shape,
        seed=seed,
        budget_bytes=budget_bytes,
        context_tokens_max=context_tokens,
    )
    if budget_bytes is not None and plan.stored_bytes > budget_bytes:
        raise BadInput(
            f"{sessions} sessions of {context_tokens} tokens need {plan.stored_bytes} bytes, "
            f"the budget is {budget_bytes}",
            "workload",
            "give a larger store ([storage] size), fewer sessions or a shorter context",
        )
    return plan


def from_trace(
    trace: str | Path | Sequence[Request],
    options: TraceOptions,
    shape: ChunkShape,
    seed: int,
    name: str = "",
) -> WorkloadPlan:
    """A plan with real arrivals, lengths and prefix sharing; `trace` is a file of any format, or
    its requests in blocks of 512 tokens.

    The output of a request is not part of its hash ids, so a later turn that continues it finds the
    earlier prompt in the store and prefills the answer again with its question.
    Raises BadInput for a defect of the file, an option out of range, or a budget too small.
    """
    if isinstance(trace, str | Path):
        name = name or Path(trace).name
        requests: Sequence[Request] = list(requests_in_blocks(open_trace(trace)))
    else:
        requests = trace
    _check_options(options, shape)
    cap_tokens = options.context_tokens_max // shape.block_tokens * shape.block_tokens
    options = replace(options, context_tokens_max=cap_tokens)
    steps_max = options.decode_steps or options.decode_steps_max
    limits = Limits(
        sessions=options.sessions,
        context_tokens_min=min(options.context_tokens_min, cap_tokens),
        context_tokens_max=cap_tokens,
        budget_tokens=options.budget_bytes // shape.chunk_bytes * shape.block_tokens,
        # Decoding rewrites a partial tail and adds ceil(steps / block) chunks at most.
        growth_tokens=(-(-steps_max // shape.block_tokens) + 1) * shape.block_tokens,
    )
    window = choose(requests, limits)
    stamps = [request.timestamp_ms for request in window.taken]
    span_s = (stamps[-1] - stamps[0]) / 1e3
    factor = options.time_compression or compression_for(span_s, options.arrival_span_s)
    start = root(seed, "trace")
    rows = [
        _from_request(request, arrival_s, start, options, shape)
        for request, arrival_s in zip(window.taken, compress(stamps, factor), strict=True)
    ]
    return WorkloadPlan(
        source="trace",
        trace=name,
        sessions=share(rows),
        sessions_max=options.sessions_max,
        shape=shape,
        seed=seed,
        budget_bytes=options.budget_bytes,
        time_compression=factor,
        trace_span_s=span_s,
        context_tokens_min=window.context_tokens_min,
        context_tokens_max=cap_tokens,
        left_out=window.left_out,
        before_count=window.before_count,
        after_count=window.after_count,
    )


def _from_request(
    request: Request, arrival_s: float, start: int, options: TraceOptions, shape: ChunkShape
) -> SessionPlan:
    context_tokens = min(request.input_tokens, options.context_tokens_max)
    decode_steps = options.decode_steps or min(
        max(1, request.output_tokens), options.decode_steps_max
    )
    return SessionPlan(
        name=f"request-{request.index}",
        tenant=options.tenant,
        arrival_s=arrival_s,
        shared_chunks=(),
        own_chunks=tuple(trace_chunks(start, request, context_tokens, shape.block_tokens)),
        retained_chunk_count=0,
        context_tokens=context_tokens,
        decode_steps=decode_steps,
        block_tokens=shape.block_tokens,
        request_index=request.index,
        asked_context_tokens=request.input_tokens,
        asked_decode_steps=request.output_tokens,
    )


def _check_options(options: TraceOptions, shape: ChunkShape) -> None:
    _check_shape(shape)
    if TRACE_BLOCK_TOKENS % shape.block_tokens:
        raise BadInput(
            f"block_tokens = {shape.block_tokens} with a trace",
            "workload",
            f"give a divisor of {TRACE_BLOCK_TOKENS}, the trace's own block",
        )
    for name in ("budget_bytes", "sessions", "sessions_max", "decode_steps_max"):
        _at_least_one(name, getattr(options, name))
    if options.decode_steps is not None:
        _at_least_one("decode_steps", options.decode_steps)
    if options.context_tokens_max < shape.block_tokens or options.context_tokens_min < 0:
        raise BadInput(
            f"context_tokens_min = {options.context_tokens_min}, "
            f"context_tokens_max = {options.context_tokens_max}",
            "workload",
            f"give 0 or more, and {shape.block_tokens} (one block) or more",
        )
    for name in ("time_compression", "arrival_span_s"):
        value = getattr(options, name)
        if value is not None and not 0 < value < float("inf"):
            raise BadInput(f"{name} = {value}", "workload", "give a number above 0")


def _check_shape(shape: ChunkShape) -> None:
    _at_least_one("block_tokens", shape.block_tokens)
    _at_least_one("chunk_bytes", shape.chunk_bytes)


def _at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise BadInput(f"{name} = {value}", "workload", "give 1 or more")
