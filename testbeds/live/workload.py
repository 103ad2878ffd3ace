"""A run's workload: the plan of its sessions and their KV, and its description for a report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from offstage.bindings.notes import Note
from offstage.host.agent import DecodeJob
from offstage.host.decode.session import Context
from offstage.host.model.drawn_kv import SyntheticKv
from offstage.host.model.geometry import KvGeometry
from offstage.testbeds.live.options import STORE_BYTES_MAX, DriveOptions
from offstage.testbeds.live.results import RunWorkload
from offstage.testbeds.live.vacuous import all_staged, pool_holds_all
from offstage.testbeds.workloads.requests.importer import open_trace
from offstage.testbeds.workloads.requests.in_blocks import requests_in_blocks
from offstage.testbeds.workloads.requests.in_vain import unused
from offstage.testbeds.workloads.requests.plan import TraceOptions, from_trace, generated
from offstage.testbeds.workloads.requests.sessions import (
    ChunkShape,
    PlanAccount,
    SessionPlan,
    WorkloadPlan,
    chain,
)
from offstage.testbeds.workloads.selections.profiles import layer_processes

__all__ = ["Workload", "describe", "full_chunks", "prepare", "run_workload"]


PROFILE = "published-mix"
"""The default process of generated sessions, as in the laboratory."""


@dataclass(frozen=True)
class Workload:
    """The plan, the stand-in for the model, and the score process of each layer by name: the
    laboratory's, for units of the geometry's block."""

    plan: WorkloadPlan
    synthetic_kv: SyntheticKv
    processes: list[str]
    granules: int = 1
    """Granules of each block of the tier, if the workload is in granules: contexts end with a
    block."""
    notes: tuple[Note, ...] = ()
    """Parts of the trace that had no effect, and what its reader changed or doubts."""

    def noted(self, slots: int, layers: int, pool_layer_blocks: int) -> list[Note]:
        """The notes of a run, from the arena's blocks, the model's layers, and the HBM pool's
        blocks per layer and session."""
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
        """One job per session. Chunks written while decoding are named after the run, so that
        every run writes them anew instead of finding those of the last one. `guesses`: for its
        first step."""
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
    """The workload of the options, from the trace if there is one, with at most the given bytes
    of KV. BadInput: see the plan."""
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


# What was run, for a report's header and footer.

SCALED = ("demo", "tiny", "tiny-mla", "tiny-dsa")
"""Geometries of no real model: small ones in place of one."""


def run_workload(account: PlanAccount, geometry: KvGeometry, **more: Any) -> RunWorkload:
    """A plan over a model's KV; `more`: the other fields."""
    size = f"{geometry.layer_count} layers, {geometry.bytes_per_token():,} bytes per token"
    scaled = geometry.name in SCALED
    return RunWorkload(
        **msgspec.structs.asdict(account),
        geometry=geometry.name,
        geometry_note=f"scaled down to fit a small machine: {size}" if scaled else size,
        layer_count=geometry.layer_count,
        kv_heads=max(layer.kv_heads for layer in geometry.layers),
        block_bytes=geometry.block_bytes(0),
        bytes_per_token=geometry.bytes_per_token(),
        **more,
    )


def describe(options: DriveOptions, workload: Workload) -> RunWorkload:
    """The plan, the geometry and the host's sizes."""
    return run_workload(
        workload.plan.account(),
        options.geometry,
        context_tokens=max(one.context_tokens for one in workload.plan.sessions),
        decode_steps=max(one.decode_steps for one in workload.plan.sessions),
        selector=options.selector,
        kernel=options.kernel,
        device=options.device,
        select_blocks=options.select_blocks,
        sink_blocks=options.sink_blocks,
        window_blocks=options.window_blocks,
        pool_ratio=options.pool_ratio,
        pool_blocks=options.pool_blocks,
        time_per_token_ms=options.time_per_token_s * 1e3,
        time_per_token_source=options.decode_cost.said() if options.decode_cost else "given",
        processes=workload.processes,
    )
