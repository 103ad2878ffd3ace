"""A run's workload: the plan of its sessions and their KV; prefill, then decode of all of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.notes import Note
from offstage.host.agent import Agent, DecodeJob
from offstage.host.decode import Decoder, DemandObserver, SelectionRule
from offstage.host.fabrics import Fabric
from offstage.host.gpu.selector import selectors_of
from offstage.host.pool import HbmPool
from offstage.host.prefill import MissingWriter, compute_context
from offstage.host.record import AgentRecord
from offstage.host.schedule import Rule
from offstage.host.session import Context
from offstage.host.sessions import Sessions, append_chunks
from offstage.host.synthetic_kv import SyntheticKv
from offstage.host.transfers.measure import copy_rate
from offstage.testbeds.live.options import STORE_BYTES_MAX, DriveOptions
from offstage.testbeds.live.vacuous import all_staged, pool_holds_all
from offstage.testbeds.progress import Progress
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.in_blocks import requests_in_blocks
from offstage.testbeds.workloads.requests.in_vain import unused
from offstage.testbeds.workloads.requests.plan import TraceOptions, from_trace, generated
from offstage.testbeds.workloads.requests.sessions import (
    ChunkShape,
    SessionPlan,
    WorkloadPlan,
    chain,
)
from offstage.testbeds.workloads.selections.profiles import layer_processes

__all__ = ["Prefilled", "Workload", "decode", "describe", "full_chunks", "prefill", "prepare"]


PROFILE = "published-mix"
"""What drives generated sessions, as in the laboratory where nothing is said."""


@dataclass(frozen=True)
class Workload:
    """The plan, the stand-in for the model, and the score process of each layer by name: the
    laboratory's, for units of the geometry's block."""

    plan: WorkloadPlan
    synthetic_kv: SyntheticKv
    processes: list[str]
    granules: int = 1
    """Of each block of the tier, where the workload is in granules: contexts end with a block."""
    notes: tuple[Note, ...] = ()
    """What of the trace had no effect, and what its reader changed or doubts."""

    def noted(self, slots: int, layers: int, pool_layer_blocks: int) -> list[Note]:
        """The notes of a run on an arena of so many blocks, for a model of so many layers, with so
        many blocks of each layer and session in the HBM pool."""
        chunks = self.plan.stored_bytes // self.plan.shape.chunk_bytes
        blocks = -(-chunks // self.granules) * layers
        longest = max(
            -(-(one.context_tokens + one.decode_steps) // one.block_tokens)
            for one in self.plan.sessions
        )
        return [
            *self.notes,
            *all_staged(blocks, slots),
            *pool_holds_all(
                -(-longest // self.granules), pool_layer_blocks, "a layer of the longest session"
            ),
        ]

    def jobs(
        self,
        contexts: dict[int, Context],
        run_name: str,
        time_per_token_s: float,
        guesses: Mapping[int, NDArray[np.void]] | None = None,
    ) -> list[DecodeJob]:
        """One job per session. What decoding writes is named after the run, so that every run
        writes it anew instead of finding what the last one wrote. `guesses`: of its first step."""
        starts = self.plan.starts_s(time_per_token_s)
        return [
            DecodeJob(
                number=number,
                name=session.name,
                start_s=start_s,
                context=contexts[number],
                step_count=session.decode_steps,
                grown_identity=_grown(session, contexts[number], run_name),
                queries=partial(self.synthetic_kv.queries, number),
                guesses=None if guesses is None else guesses[number],
            )
            for number, (session, start_s) in enumerate(
                zip(self.plan.sessions, starts, strict=True)
            )
        ]


def prepare(options: DriveOptions, budget_bytes: int = STORE_BYTES_MAX) -> Workload:
    """The workload of the options, from the trace if there is one, of so many bytes of KV at most.
    BadInput: see the plan."""
    geometry = options.geometry
    shape = ChunkShape(geometry.block_tokens, geometry.session_bytes(geometry.block_tokens))
    notes: tuple[Note, ...] = ()
    if options.trace is None:
        plan = generated(
            sessions=options.sessions,
            context_tokens=options.context_tokens,
            shared_prefix_tokens=options.prefix_tokens,
            decode_steps=options.steps,
            shape=shape,
            seed=options.seed,
            budget_bytes=budget_bytes,
        )
    else:
        chosen = TraceOptions(
            budget_bytes=budget_bytes,
            sessions=options.sessions,
            sessions_max=options.sessions,
            context_tokens_max=options.context_tokens,
            decode_steps=options.steps,
        )
        trace = open_trace(options.trace, time_unit=options.time_unit)
        requests = list(requests_in_blocks(trace))
        plan = from_trace(requests, chosen, shape, options.seed, options.trace.name)
        notes = (
            *trace.notes,
            *unused(
                trace,
                [one.context_tokens for one in plan.sessions],
                [one.decode_steps for one in plan.sessions],
                context_tokens_max=plan.context_tokens_max,
                steps_max=options.steps,
                lengths_of_outputs=False,
            ),
        )
    processes = layer_processes(PROFILE, geometry.layer_count, geometry.block_tokens)
    synthetic_kv = SyntheticKv(options.seed, geometry, [one.params for one in processes])
    return Workload(plan, synthetic_kv, [one.name for one in processes], notes=notes)


def full_chunks(session: SessionPlan) -> list[int]:
    """The session's full chunks: a partial last one stays in HBM until decoding fills it."""
    return list(session.chunks[: session.context_tokens // session.block_tokens])


def _grown(session: SessionPlan, context: Context, run_name: str) -> Callable[[int], int]:
    parent = context.identities[-1] if context.identities else 0
    return lambda ordinal: chain(parent, "grown", run_name, session.name, ordinal)


# What was run, for the head and the foot of a report.

SCALED = ("demo", "tiny", "tiny-mla")
"""Geometries of no model: small ones that stand in for one."""


def describe(options: DriveOptions, workload: Workload) -> dict[str, Any]:
    """The plan, the geometry and the host's sizes, JSON-ready."""
    geometry = options.geometry
    size = f"{geometry.layer_count} layers, {geometry.bytes_per_token():,} bytes per token"
    scaled = geometry.name in SCALED
    return {
        **workload.plan.to_dict(),
        "context_tokens": max(one.context_tokens for one in workload.plan.sessions),
        "decode_steps": max(one.decode_steps for one in workload.plan.sessions),
        "geometry": geometry.name,
        "geometry_note": f"scaled down to fit a small machine: {size}" if scaled else size,
        "layer_count": geometry.layer_count,
        "kv_heads": max(layer.kv_heads for layer in geometry.layers),
        "block_bytes": geometry.block_bytes(0),
        "bytes_per_token": geometry.bytes_per_token(),
        "selector": options.selector,
        "kernel": options.kernel,
        "device": options.device,
        "select_blocks": options.select_blocks,
        "sink_blocks": options.sink_blocks,
        "window_blocks": options.window_blocks,
        "pool_ratio": options.pool_ratio,
        "pool_blocks": options.pool_blocks,
        "time_per_token_ms": options.time_per_token_s * 1e3,
        "time_per_token_source": options.decode_cost or "given",
        "processes": workload.processes,
    }


# All sessions of a workload over one control connection and one fabric: prefill, then decode.


@dataclass
class Prefilled:
    """What the host keeps of each session's context, by session number, and what was written."""

    contexts: dict[int, Context]
    block_count: int = 0
    blocks_written: int = 0
    bytes_written: int = 0


def prefill(
    options: DriveOptions,
    workload: Workload,
    control: Sessions,
    fabric: Fabric,
    progress: Progress,
    upkeep: Callable[[], None] = lambda: None,
) -> Prefilled:
    """Compute all contexts and put what the tier lacks of them; it says itself what it has.
    `upkeep`: as `Agent.upkeep`, before each write.

    A chunk that an earlier session or run wrote is not written again. StoreFull, RunFailed: a put
    was refused."""
    sessions = workload.plan.sessions
    layers = options.geometry.layer_count
    progress.start("prefill", sum(len(full_chunks(one)) for one in sessions) * layers)
    done, make = Prefilled({}), selectors_of(options.kernel, options.device)
    for number, session in enumerate(sessions):
        identities = full_chunks(session)
        identities = identities[: len(identities) // workload.granules * workload.granules]
        handle = control.session_open(select_blocks=options.select_blocks)
        appended = append_chunks(control, handle, identities, layers)
        write = MissingWriter(fabric, handle, appended.stored_layers, layers)

        def written(layer: int, first: int, blocks: Any, write: MissingWriter = write) -> None:
            upkeep()
            write(layer, first, blocks)
            progress.advance(len(blocks))

        done.contexts[number] = compute_context(
            workload.synthetic_kv, identities, options.selector, written, make
        )
        control.session_close(handle, archive=True)
        done.block_count += len(identities) * layers
        done.blocks_written += write.blocks_written
        done.bytes_written += write.bytes_written
        progress.note(f"{done.blocks_written:,} of {done.block_count:,} blocks written")
    return done


# Decode: all sessions of a workload over one control connection and one fabric.

NOTE_EVERY_TOKENS = 40


def decode(
    options: DriveOptions,
    workload: Workload,
    contexts: dict[int, Context],
    control: Sessions,
    fabric: Fabric,
    run_name: str,
    progress: Progress,
    observe: DemandObserver | None = None,
    ahead: bool = False,
    guesses: Mapping[int, NDArray[np.void]] | None = None,
    lead_s: float = 0.0,
    upkeep: Callable[[], None] = lambda: None,
) -> AgentRecord:
    """Decode every session to its end; `observe` sees every demand. `ahead`, `upkeep`: as in
    `Agent`. `guesses`: of each session's first step, told `lead_s` before it.

    What decoding writes is named after `run_name`. RunFailed where the tier is gone."""
    rule = SelectionRule(
        options.selector, options.select_blocks, options.sink_blocks, options.window_blocks
    )
    landing_rows = options.select_blocks * workload.plan.sessions_max
    pool = HbmPool(
        options.geometry,
        options.pool_blocks,
        options.arrays(),
        landing_rows,
        options.pool_layer_blocks,
    )
    decoder = Decoder(fabric, pool, workload.synthetic_kv, rule, options.kernel, observe=observe)
    agent = Agent(
        control,
        decoder,
        options.time_per_token_s,
        options.active or workload.plan.sessions_max,
        ahead,
        lead_s,
        Rule(kind=options.schedule),
        upkeep=upkeep,
    )
    jobs = workload.jobs(contexts, run_name, options.time_per_token_s, guesses)
    fabric.register(pool.memory.landing)
    try:
        record = agent.run(jobs, _watcher(progress))
        record.roof_bytes_per_s = copy_rate(pool.arrays)
        return record
    finally:
        fabric.unregister(pool.memory.landing)


def _watcher(progress: Progress) -> Callable[[AgentRecord], None]:
    """Reports every tick's tokens, and now and then of the hit rate so far."""
    seen = 0
    noted = 0

    def watch(record: AgentRecord) -> None:
        nonlocal seen, noted
        progress.advance(len(record.tokens) - seen)
        seen = len(record.tokens)
        if seen - noted >= NOTE_EVERY_TOKENS:
            noted = seen
            progress.note(f"hit rate {record.ended().hit_rate:.1%}")

    return watch
