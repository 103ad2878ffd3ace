"""The hit-versus-traffic curve: the demands of a run, decided again in virtual time.

The sessions' demands do not depend on the tier: selection and HBM pool are the host's. One run's
demands and hints, recorded as they were sent, can therefore be replayed through a fresh decision
core under other policies and other buffers, with the NVMe model as its drive. Those points are
`modelled`; they show where the runs' points lie on the curves.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from offstage.bindings.core import KEY, Core, CoreConfig, SessionConfig
from offstage.bindings.ledger import share
from offstage.bindings.sim import DecodePlan, decode
from offstage.bindings.storage import preset
from offstage.dpu.config.derive import core_policy
from offstage.dpu.config.options import Limits, PolicyOptions
from offstage.host.decode.session import Context, HostSession
from offstage.testbeds.live.demo_options import Arm, DemoOptions
from offstage.testbeds.live.results import CurvePoint
from offstage.testbeds.live.warm_up import LEAD_S
from offstage.testbeds.progress import Progress

__all__ = ["DemandTrace", "hit_versus_traffic"]

DEGREES = (0, 1, 2, 4, 8, 16)
LARGER_BUFFERS = (0.5, 1.0, 1.5, 2.0, 3.0)


@dataclass
class DemandTrace:
    """Demands and hints by (session, step, layer), as the host sent them in one run; `guesses`
    are those of each session's first step, sent in arms that warm up."""

    guesses: Mapping[int, NDArray[np.void]] = field(default_factory=dict)
    demands: dict[tuple[int, int, int], NDArray[np.uint32]] = field(default_factory=dict)
    hints: dict[tuple[int, int, int], NDArray[np.uint16]] = field(default_factory=dict)

    def __call__(
        self,
        session: HostSession,
        layer: int,
        demanded: NDArray[np.uint32],
        hint: NDArray[np.uint16],
    ) -> None:
        """Record one fetch; a `DemandObserver`."""
        self.demands[session.number, session.step, layer] = demanded
        self.hints[session.number, session.step, layer] = hint

    def plan(
        self,
        options: DemoOptions,
        handles: tuple[int, ...],
        lengths: Sequence[int],
        warm_up: bool = False,
    ) -> DecodePlan:
        """The trace in the simulator's form: all sessions together, step by step. `lengths`: the
        blocks of each context; blocks written while decoding are left out. `warm_up`: include
        the first guesses."""
        blocks = max(lengths)
        layers = options.geometry.layer_count
        steps = 1 + max(step for _, step, _ in self.demands)
        rows = [
            (number, step, layer)
            for number in range(len(handles))
            for step in range(steps)
            for layer in range(layers)
        ]
        none = np.empty(0, np.uint32)
        chosen = [self.demands.get(row, none) for row in rows]
        chosen = [
            one[one < lengths[number]] for (number, _, _), one in zip(rows, chosen, strict=True)
        ]
        scores = np.zeros((len(rows), blocks), np.uint16)
        for index, row in enumerate(rows):
            hint = self.hints.get(row)
            if hint is not None:
                known = min(lengths[row[0]], hint.size)
                scores[index, :known] = hint[:known]
        return DecodePlan(
            sessions=handles,
            step_count=steps,
            offsets=np.concatenate([[0], np.cumsum([one.size for one in chosen])]).astype("u8"),
            demands=np.concatenate(chosen).astype(np.uint32),
            scores=scores.reshape(len(handles), steps, layers, blocks),
            selected_count=options.select_blocks,
            compute_ns=int(options.time_per_token_s * 1e9 / layers),
            nvme=preset(options.nvme).params,
            seed=options.seed,
            score_counts=tuple(lengths),
            guesses=tuple(self.guesses[one] for one in range(len(handles))) if warm_up else None,
            lead_ns=int(LEAD_S * 1e9),
        )


@dataclass(frozen=True)
class _Point:
    """One simulated setting."""

    policy: str
    label: str
    arm: Arm
    slot_count: int
    degree: int

    def is_of_a_run(self, options: DemoOptions) -> bool:
        """Whether an arm ran at this buffer and degree."""
        degree = PolicyOptions().degree_max if self.arm.prefetchers else 0
        return (self.slot_count, self.degree) == (options.slot_count, degree)


def hit_versus_traffic(
    options: DemoOptions,
    trace: DemandTrace,
    contexts: dict[int, Context],
    progress: Progress,
) -> list[CurvePoint]:
    """Points of three curves: a larger buffer without prefetch, and the degree of `window+ema`
    with and without sharing. Traffic is in multiples of no prefetch at the demo's buffer."""
    none, *others = options.arms
    points = [
        _Point(
            "no prefetch, larger buffer", f"{share:g}x", none, round(options.slot_count * share), 0
        )
        for share in LARGER_BUFFERS
    ]
    points += [
        _Point(f"{arm.name}, higher degree", f"{degree}", arm, options.slot_count, degree)
        for arm in others
        if "ema" in arm.prefetchers
        for degree in DEGREES
    ]
    progress.start("curve in virtual time", len(points), "points")
    results = []
    for point in points:
        results.append(_simulate(options, trace, contexts, point))
        progress.advance(1)
    reference = next(
        reads for point, (_, reads) in zip(points, results, strict=True) if point.label == "1x"
    )
    return [
        CurvePoint(
            label=point.label,
            policy=point.policy,
            hit=hit_rate,
            traffic_ratio=share(reads, reference),
            provenance="modelled",
            run=point.arm.name if point.is_of_a_run(options) else "",
        )
        for point, (hit_rate, reads) in zip(points, results, strict=True)
    ]


def _simulate(
    options: DemoOptions, trace: DemandTrace, contexts: dict[int, Context], point: _Point
) -> tuple[float, int]:
    """Hit rate and reads of one setting."""
    lengths = [len(contexts[number].identities) for number in sorted(contexts)]
    limits = Limits()
    config = CoreConfig(
        tenant_max=1,
        session_max=len(contexts),
        chunk_max=2 * sum(lengths),
        session_chunk_max=max(lengths),
        layer_count=options.geometry.layer_count,
        slot_count=point.slot_count,
        io_max=limits.reads,
        queue_max=limits.queue,
        block_size_bytes=options.geometry.block_bytes(0),
    )
    policy = core_policy(
        PolicyOptions(
            prefetchers=point.arm.prefetchers,
            eviction=point.arm.eviction,
            window_tokens=options.window_tokens,
            degree_max=point.degree,
        ),
        options.geometry.block_tokens,
    )
    core = Core(config, policy)
    tenant = core.tenant_add(0, bytes(16), point.slot_count)
    handles = tuple(
        _open(core, tenant, options, contexts[number].identities) for number in sorted(contexts)
    )
    plan = trace.plan(options, handles, lengths, options.warms_up(point.arm))
    result = decode(core, plan)
    return core.ledger().ended.hit_rate, result.reads


def _open(core: Core, tenant: int, options: DemoOptions, identities: Sequence[int]) -> int:
    """A session over chunks that the store has in every layer, as after prefill."""
    config = SessionConfig(
        tenant=tenant,
        sink_blocks=options.sink_blocks,
        window_blocks=options.window_blocks,
        select_blocks=options.select_blocks,
        step_ns=int(options.time_per_token_s * 1e9),
    )
    handle = core.session_open(0, config)
    names = b"".join(identity.to_bytes(16, "little") for identity in identities)
    for info in core.session_append(0, handle, np.frombuffer(names, KEY)):
        for layer in range(options.geometry.layer_count):
            core.block_stored(0, int(info["chunk"]), layer)
    core.session_set_generating(0, handle, True)
    return handle
