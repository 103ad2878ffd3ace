"""The cost of one experiment at full scale: 128K tokens, 80 layers, 1,000 steps, end to end.

The selections are drawn, the drive is modelled, the core decides and the ledger is written, in
one process, as in `offstage lab run`, without the figures and the page. Times are of one core of
this machine; other processes do not count.
"""

import time

import msgspec

from offstage.testbeds.lab.run.feed import Feed, Kind
from offstage.testbeds.lab.run.plan import points_of
from offstage.testbeds.lab.run.point import Runner
from offstage.testbeds.lab.run.source import build
from offstage.testbeds.lab.spec.schema import PolicySpec, Spec, TierSpec, WorkloadSpec
from offstage.testbeds.machine import memory_peak_bytes

__all__ = ["MEMORY_AIM_BYTES", "SECONDS_AIM", "LabFigures", "lab_figures"]

SECONDS_AIM = 60
MEMORY_AIM_BYTES = 2 << 30
STEPS = 1000


class LabFigures(msgspec.Struct, frozen=True):
    """One point at full scale: its setting, and seconds of one core. `memory_peak_bytes` is that of
    the whole process so far."""

    policy: str
    layers: int
    blocks: int
    steps: int
    seconds: float
    accesses_per_s: float
    memory_peak_bytes: int
    selected: int = 0
    accesses: int = 0
    drawing_seconds: float = 0.0


def lab_figures(seed: int, steps: int = STEPS) -> LabFigures:
    """Seconds of one core and accesses a second of one point."""
    spec = Spec(
        name="bench",
        seeds=(seed,),
        workload=WorkloadSpec(sessions=1, steps=steps),
        tier=TierSpec(buffer_over_k=(4.0,)),
        policy=(PolicySpec(use="ema"),),
    )
    point = next(one for one in points_of(spec, 0, 0) if one.policy.use == "ema")
    began = time.process_time()
    workload = build(spec, seed)
    feed = Feed(workload, spec.granules, {0: Kind(1, spec.tier.hbm_pool_over_k)})
    runner = Runner(0, point, spec, workload, feed, seed)
    drawing = 0.0
    while not runner.advance():
        since = time.process_time()
        feed.make()
        drawing += time.process_time() - since
    spent = time.process_time() - began
    demands = int(runner.result().rows["demands"].sum(dtype=int))
    return LabFigures(
        policy=point.label,
        layers=workload.layer_count,
        blocks=workload.sessions[0].blocks,
        selected=workload.select_blocks,
        steps=steps,
        accesses=demands,
        seconds=spent,
        drawing_seconds=drawing,
        accesses_per_s=demands / (spent - drawing),
        memory_peak_bytes=memory_peak_bytes(),
    )
