"""From a spec to what is run: points, and the tasks that compute several of them at once.

Model: a *point* is one policy at one buffer, cap and pool; it is run with every seed. A *task*
is one seed of one variant with some of its points, or its bounds. Tasks whose selections are the
same, as those of several HBM pools, are computed as a group, because selections cost the most to
make. Tasks do not know each other: any order, any grouping, any number of processes, on any
machine, gives the same bytes. Each point's result has a name of its own on
disk.
"""

import functools
import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.policies.policy import CoreSwitches
from offstage.testbeds.lab.policies.registry import Combined, parse
from offstage.testbeds.lab.results.summary import PointInfo
from offstage.testbeds.lab.spec.schema import PolicySpec, ReferenceSpec, Spec, TierSpec
from offstage.testbeds.lab.spec.tiers import said

if TYPE_CHECKING:
    pass
from offstage.testbeds.lab.run.source import digest, trace_path

__all__ = [
    "Group",
    "Point",
    "Task",
    "points_of",
    "prefetches",
    "smaller",
    "steps_of",
    "tasks_of",
    "together",
]


ENGINES_MAX = 64
MEMORY_BYTES_MAX = 3 << 29
GROUPS_PER_JOB = 2
BYTES_PER_BLOCK = 128
"""A task runs as many points side by side as these allow. A core keeps some 25 bytes for each block
that it may know, of which there are twice as many as are stored where nothing is shared, and as
much again for what a session remembers of it."""
BYTES_PER_TIER = 8
"""A link of a tier's list; as much for when a block was last read."""


@dataclass(frozen=True)
class Point:
    """One setting. `number` counts the points of all variants; `cap` is in bytes per second."""

    number: int
    variant: int
    label: str
    policy: PolicySpec
    eviction: str
    buffer_over_k: float
    cap: int | None

    def grain(self, spec: Spec) -> int:
        """Units that are staged of one block: its granules, where the policy stages those."""
        return spec.granules if parse(self.policy.use).core.granule else 1

    def buffer_blocks(self, spec: Spec) -> int:
        """B of each layer and session, in blocks."""
        return round(self.buffer_over_k * spec.selection.k_blocks)

    def info(self, spec: Spec, variant_label: str) -> PointInfo:
        """What the results say of it."""
        granules = self.grain(spec)
        buffer_blocks = self.buffer_blocks(spec)
        return PointInfo(
            workload=variant_label or spec.workload.kind,
            policy=self.label,
            eviction=self.eviction,
            buffer_over_k=self.buffer_over_k,
            buffer_blocks=buffer_blocks,
            slot_count=buffer_blocks * granules * spec.layer_count * spec.concurrent,
            hbm_pool_over_k=spec.tier.hbm_pool_over_k,
            bandwidth_bytes_per_s=self.cap or 0,
            storage=said(spec),
            device=spec.tier.device,
            block_bytes=spec.block_bytes // granules,
            granule=granules > 1,
            parameters=self.policy.parameters,
            context_blocks=(spec.workload.context_tokens + spec.workload.steps - 1)
            // spec.geometry.block_tokens,
        )


@dataclass(frozen=True)
class Task:
    """One seed of one variant, with some of its points. Without points it computes the bounds."""

    spec: Spec
    seed: int
    points: tuple[Point, ...]

    def parts(self, code: str) -> list[str]:
        """The names of the task's results on disk, one for each point: equal where the spec's
        part, the seed, the point and `code`, the version of what computes it, are."""
        return [_digest(self.spec, self.seed, one, code) for one in self.points or (None,)]


def _digest(spec: Spec, seed: int, point: Point | None, code: str) -> str:
    what: dict[str, Any] = {
        "code": code,
        "seed": seed,
        "spec": _shared(spec),
    }
    device = spec.tier.device if spec.tier.device.endswith(".toml") else ""
    files = (spec.workload.file, spec.workload.trace, device, spec.tier.prices)
    inputs = (trace_path(one) for one in files if one)
    what["inputs"] = [
        _content(path, stat.st_size, stat.st_mtime_ns)
        for path, stat in ((path, path.stat()) for path in inputs if path.is_file())
    ]
    if point is None:
        points = points_of(spec, 0, 0)
        what["points"] = sorted(
            {(one.grain(spec), one.buffer_over_k, one.cap or 0) for one in points}
        )
    else:
        policy = msgspec.structs.replace(point.policy, label="")
        what["point"] = replace(point, number=0, variant=0, label="", policy=policy)
        what["policy"] = _foreign(parse(point.policy.use))
    return hashlib.sha256(msgspec.json.encode(what, order="deterministic")).hexdigest()[:32]


@functools.lru_cache(maxsize=64)
def _content(path: Path, size_bytes: int, modified_ns: int) -> str:
    """Digest of an input file: another one under the same name has other results. Size and time
    stand here for the cache only, so that a file is read once and not for every point."""
    return digest(path)


def _shared(spec: Spec) -> Spec:
    """What all points of a variant depend on: a point that is added leaves the others as they
    are."""
    tier = msgspec.structs.replace(spec.tier, buffer_over_k=(), bandwidth=())
    return msgspec.structs.replace(
        spec, policy=(), sweep={}, seeds=(), name="", reference=ReferenceSpec(), tier=tier
    )


def points_of(spec: Spec, variant: int, first: int) -> list[Point]:
    """The points of one variant, numbered from `first`: the two that all others are compared with
    come first, where the spec does not name them itself."""
    wanted = [
        (policy, over, cap)
        for policy in spec.policy
        for over in spec.tier.buffer_over_k
        for cap in spec.caps
    ]
    none = PolicySpec(use="none", eviction="lru")
    reference = PolicySpec(use=spec.reference.use, eviction=spec.reference.eviction)
    needed = [(none, over, None) for over in spec.tier.buffer_over_k]
    needed.append((reference, spec.reference.buffer_over_k, None))
    found: dict[tuple[Any, ...], Point] = {}
    for policy, over, cap in [*needed, *wanted]:
        combined = parse(policy.use)
        eviction = policy.eviction or combined.core.eviction or "lru"
        if not prefetches(combined):
            cap = None
        key = (policy.use, eviction, tuple(sorted(policy.parameters.items())), over, cap)
        label = policy.label or _label(policy, eviction, combined)
        if key not in found or policy.label:
            number = found[key].number if key in found else first + len(found)
            found[key] = Point(number, variant, label, policy, eviction, over, cap)
    named: dict[tuple[str, float, int | None], Point] = {}
    for one in found.values():
        other = named.setdefault((one.label, one.buffer_over_k, one.cap), one)
        if other is not one:
            raise BadInput(
                f"two policies are called {one.label!r}", "[[policy]] label", "give each its own"
            )
    return list(found.values())


Group = tuple[Task, ...]
"""Tasks that are computed side by side: they draw the same selections with one seed."""


def tasks_of(spec: Spec, seed: int, points: Sequence[Point]) -> list[Task]:
    """One seed's tasks for these points, a few at a time: those that admit the sessions in one
    order, since what one of them has read and another has not is kept."""
    count = _engines_max(spec)
    orders: dict[str | None, list[Point]] = {}
    for point in points:
        orders.setdefault(_order(point), []).append(point)
    return [
        Task(spec, seed, tuple(alike[begin : begin + count]))
        for alike in orders.values()
        for begin in range(0, len(alike), count)
    ]


def together(tasks: Sequence[Task], jobs: int) -> list[Group]:
    """Tasks in groups, each of which draws its selections once. There are at least as many groups
    as `jobs` keep busy, where there are as many tasks."""
    alike: dict[tuple[bytes, int, str | None], list[list[Task]]] = {}
    most = max(1, len(tasks) // (GROUPS_PER_JOB * jobs))
    for task in tasks:
        order = _order(task.points[0]) if task.points else CoreSwitches().schedule
        groups = alike.setdefault((_selections(task.spec), task.seed, order), [[]])
        engines = sum(len(one.points) for one in groups[-1]) + len(task.points)
        if groups[-1] and (engines > _engines_max(task.spec) or len(groups[-1]) == most):
            groups.append([])
        groups[-1].append(task)
    return [tuple(group) for groups in alike.values() for group in groups]


def smaller(group: Group) -> list[Group]:
    """Its tasks one by one, or of one task its points; nothing where it is a single one."""
    if len(group) > 1:
        return [(task,) for task in group]
    (task,) = group
    points = task.points if len(task.points) > 1 else ()
    return [(replace(task, points=(point,)),) for point in points]


def steps_of(group: Group) -> int:
    """Session-steps that are made for it."""
    work = group[0].spec.workload
    return work.sessions * work.steps


def _order(point: Point) -> str | None:
    """In which its sessions are admitted."""
    return parse(point.policy.use).core.schedule


def _engines_max(spec: Spec) -> int:
    """Points that one process runs side by side."""
    work = spec.workload
    blocks = (work.context_tokens + work.steps) // spec.geometry.block_tokens * spec.granules
    each = BYTES_PER_BLOCK + 2 * BYTES_PER_TIER * (len(spec.tier.below) + 1)
    core_bytes = each * blocks * spec.layer_count * work.sessions
    return max(1, min(ENGINES_MAX, MEMORY_BYTES_MAX // max(core_bytes, 1)))


def _selections(spec: Spec) -> bytes:
    """Equal where what is drawn is: all but the tier decides it."""
    return msgspec.json.encode(msgspec.structs.replace(_shared(spec), tier=TierSpec()))


def prefetches(combined: Combined) -> bool:
    """Whether the policy reads ahead of demands."""
    return combined.guesses or bool(combined.core.prefetchers)


def _foreign(combined: Combined) -> list[str]:
    """Digests of the files of components that are another package's: they may change."""
    files = (inspect.getsourcefile(one) for one in combined.components)
    own = str(Path(__file__).parents[1])
    return [
        hashlib.sha256(Path(file).read_bytes()).hexdigest()
        for file in files
        if file is not None and not file.startswith(own)
    ]


def _label(policy: PolicySpec, eviction: str, combined: Combined) -> str:
    """The policy's components, and what of it is not as they would have it."""
    extras = [eviction] if eviction != combined.core.eviction else []
    extras += [f"{key}={value}" for key, value in sorted(policy.parameters.items())]
    return policy.use + (f" ({', '.join(extras)})" if extras else "")
