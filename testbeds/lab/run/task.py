"""What one process computes: a task's points side by side over one workload, or its bounds.

Model: a task goes in, parts and failures come out; nothing is written and nothing is kept, so that
a task runs the same in this process, in a pool, or on another machine. A point that fails, by its
spec or by its policy, ends alone: the others go on.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field

from offstage.asic_model.parameters import read_preset
from offstage.bindings.errors import BadInput, OffstageError, RunFailed
from offstage.bindings.storage import preset
from offstage.bindings.units import parse_time
from offstage.testbeds.lab.bounds.collect import BOUNDS, BoundPoint, Collector, bounds_at
from offstage.testbeds.lab.results.summary import SeedBounds
from offstage.testbeds.lab.run import parts
from offstage.testbeds.lab.run.feed import Feed
from offstage.testbeds.lab.run.parts import BoundKey
from offstage.testbeds.lab.run.plan import Point, Task, build, points_of
from offstage.testbeds.lab.run.point import Runner
from offstage.testbeds.lab.spec.schema import Spec
from offstage.testbeds.workloads.selections.slab import Coarsened, Workload

__all__ = [
    "Failure",
    "TaskResult",
    "bound_key",
    "bound_keys",
    "bounds_of",
    "failures_of",
    "run_task",
]


@dataclass(frozen=True)
class Failure:
    """A point that gave no result: its number (-1: the bounds), the line, and the exit code."""

    point: int
    message: str
    exit_code: int


@dataclass
class TaskResult:
    """Parts by name, and what failed."""

    parts: dict[str, bytes] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)


def failures_of(task: Task, error: OffstageError) -> TaskResult:
    """The result of a task that gave none: every point of it, or its bounds, failed alike."""
    numbers = [point.number for point in task.points] or [-1]
    return TaskResult(failures=[Failure(one, str(error), error.exit_code) for one in numbers])


def run_task(task: Task, code: str, advance: Callable[[int], None]) -> TaskResult:
    """Compute the task. `advance` gets how many session-steps have been made."""
    result = TaskResult()
    names = task.parts(code)
    try:
        workload = build(task.spec, task.seed)
        if not task.points:
            found = bounds_of(task.spec, task.seed, workload, advance)
            result.parts[names[0]] = parts.pack_bounds(found)
            return result
    except OffstageError as error:
        return failures_of(task, error)
    grains = [point.grain(task.spec) for point in task.points]
    feed = Feed(workload, task.spec, dict(enumerate(grains)))
    runners: list[Runner] = []

    def failed(number: int, error: OffstageError) -> None:
        feed.leave(number)
        result.failures.append(Failure(task.points[number].number, str(error), error.exit_code))

    for number, point in enumerate(task.points):
        try:
            runners.append(Runner(number, point, task.spec, workload, feed, task.seed))
        except OffstageError as error:
            failed(number, error)
    while runners:
        for runner in list(runners):
            try:
                if runner.advance():
                    result.parts[names[runner.number]] = parts.pack_run(runner.result())
                    runners.remove(runner)
            except OffstageError as error:
                failed(runner.number, error)
                runners.remove(runner)
        made = feed.make()
        if runners and not made:
            raise RunFailed("points wait for steps that nobody makes", "lab", "report it")
        advance(made)
    return result


# The bounds beside a spec's points: one pass over the selections, then every buffer and cap.
#
# Model: bounds depend on the selections, the staged unit, the slots and the cap, never on a
# policy; points that differ in nothing else share them. Without a cap the drive's own bandwidth is
# the cap: no policy reads faster.


def bound_key(spec: Spec, point: Point) -> BoundKey:
    """Which bounds stand beside the point."""
    grain = point.grain(spec)
    buffer_blocks = point.buffer_blocks(spec) * grain
    drive = preset(spec.tier.storage).cited["read_bytes_per_s"]
    if spec.tier.device:
        drive *= read_preset(spec.tier.device).nvme.drives.whole
    return grain, buffer_blocks, min(point.cap or drive, drive)


def bound_keys(spec: Spec) -> list[BoundKey]:
    """All that the spec's points need, each once."""
    return sorted({bound_key(spec, point) for point in points_of(spec, 0, 0)})


def bounds_of(
    spec: Spec, seed: int, workload: Workload, advance: Callable[[int], None]
) -> dict[BoundKey, SeedBounds]:
    """Every bound of one seed, but of buffers that cannot hold what a layer demands together.
    `advance` gets how many session-steps were read."""
    found: dict[BoundKey, SeedBounds] = {}
    keys = bound_keys(spec)
    for grain in sorted({grain for grain, _, _ in keys}):
        here = [key for key in keys if key[0] == grain]
        whole_blocks = spec.granules > grain
        read = Coarsened(workload, spec.granules) if whole_blocks else workload
        buffers = sorted({buffer for _, buffer, _ in here})
        collector = Collector(read, buffers, begins=_begins(spec, read))
        feed = Feed(workload, spec, {0: grain})
        widest = 0
        for session in range(len(read.sessions)):
            number, last = 0, False
            while not last:
                given = feed.get(0, session, number)
                if given is None:
                    advance(feed.make())
                    continue
                collector.add(given.slab, given.served)
                widest = max(widest, given.widest)
                number, last = number + 1, given.last
        here = [key for key in here if key[1] * spec.layer_count >= widest]
        points = [_point(spec, key) for key in here]
        for key, one in zip(here, bounds_at(collector, points), strict=True):
            found[key] = SeedBounds(seed, BOUNDS, one.rows, one.reads, one.limit_hits)
    if not found:
        raise BadInput("no buffer holds what a layer demands together", "[tier] buffer_over_k",
                       "give more")  # fmt: skip
    return found


def _point(spec: Spec, key: BoundKey) -> BoundPoint:
    grain, buffer_blocks, cap = key
    return BoundPoint(
        buffer_blocks=buffer_blocks,
        slots=buffer_blocks * spec.layer_count * spec.concurrent,
        bytes_per_s=cap or 0,
        block_bytes=spec.block_bytes // grain,
        layer_ns=spec.time_per_token_ns // spec.layer_count,
        lead_ns=parse_time(spec.tier.warmup, "[tier] warmup"),
    )


def _begins(spec: Spec, workload: Workload) -> list[int]:
    """The nominal step at which each session begins: at once, or when another has ended."""
    free = [0] * spec.concurrent
    begins = []
    for info in workload.sessions:
        begin = heapq.heappop(free)
        begins.append(begin)
        heapq.heappush(free, begin + info.steps)
    return begins
