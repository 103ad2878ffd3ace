"""Plan a spec's run: its points, and the tasks that compute several points together.

Model: a *point* is one policy at one buffer, cap and pool; it is run with every seed. A *task*
is one seed of one variant with some of its points, or its bounds. Tasks with equal selections, such
as those of several HBM pools, are computed as a group, because drawing selections costs the most.
Tasks are independent: any order, grouping, number of processes and machine gives the same bytes.
Each point's result has a separate name on disk.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from offstage.bindings.errors import BadInput
from offstage.testbeds.lab.policies import BUILT_IN
from offstage.testbeds.lab.policies.from_file import without_folders
from offstage.testbeds.lab.policies.policy import CoreSwitches
from offstage.testbeds.lab.policies.registry import GRANULE, Combined, parse
from offstage.testbeds.lab.policies.sources import digests
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
"""Memory estimate that limits the points of a task. A core keeps about 25 bytes for each block it
can number (twice the stored blocks if nothing is shared), and as much again for the state of
sessions."""
BYTES_PER_TIER = 8
"""Bytes of a link in a tier's list; the time of a block's last read takes as many."""


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
        """Separately staged units of one block: 1, or, of a policy with the component `granule`,
        as many as its `granule_tokens` say, all granules of the spec if it says nothing."""
        if not parse(self.policy.use).core.granule:
            return 1
        tokens = self.policy.parameters.get(GRANULE)
        return spec.geometry.block_tokens // tokens if tokens else spec.granules

    def buffer_blocks(self, spec: Spec) -> int:
        """B per layer and session, in blocks."""
        return round(self.buffer_over_k * spec.selection.k_blocks)

    def info(self, spec: Spec, variant_label: str) -> PointInfo:
        """The point's description in the results."""
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
        """The names of the task's results on disk, one per point: digests of the spec's common
        part, the seed, the point and `code`, the version of the code."""
        return [_digest(self.spec, self.seed, one, code) for one in self.points or (None,)]


class _Inputs(msgspec.Struct, kw_only=True):
    """Everything that a result depends on; those of the bounds have `points`, others a `point`."""

    code: str
    inputs: list[str]
    point: Point | UnsetType = UNSET
    points: list[tuple[int, float, int]] | UnsetType = UNSET
    policy: list[str] | UnsetType = UNSET
    seed: int
    spec: Spec


def _digest(spec: Spec, seed: int, point: Point | None, code: str) -> str:
    preset = spec.tier.device.partition(",")[0]
    device = preset if preset.endswith(".toml") else ""
    files = (spec.workload.file, spec.workload.trace, device, spec.tier.prices)
    inputs = (trace_path(one) for one in files if one)
    contents = [
        _content(path, stat.st_size, stat.st_mtime_ns)
        for path, stat in ((path, path.stat()) for path in inputs if path.is_file())
    ]
    what = _Inputs(code=code, inputs=contents, seed=seed, spec=_shared(spec))
    if point is None:
        what.spec = msgspec.structs.replace(what.spec, weights=None)  # no bound knows of them
        points = points_of(spec, 0, 0)
        what.points = sorted({(one.grain(spec), one.buffer_over_k, one.cap or 0) for one in points})
    else:
        use = without_folders(point.policy.use)
        policy = msgspec.structs.replace(point.policy, label="", use=use)
        what.point = replace(point, number=0, variant=0, label="", policy=policy)
        what.policy = _foreign(parse(point.policy.use))
    return hashlib.sha256(msgspec.json.encode(what, order="deterministic")).hexdigest()[:32]


@functools.lru_cache(maxsize=64)
def _content(path: Path, size_bytes: int, modified_ns: int) -> str:
    """Digest of an input file, because results depend on its content, not its name. Size and time
    are keys of the cache only, so that a file is read once and not for every point."""
    return digest(path)


def _shared(spec: Spec) -> Spec:
    """The part of the spec that all points of a variant depend on: adding a point leaves the names
    of the others unchanged."""
    tier = msgspec.structs.replace(spec.tier, buffer_over_k=(), bandwidth=())
    return msgspec.structs.replace(
        spec, policy=(), sweep={}, seeds=(), name="", reference=ReferenceSpec(), tier=tier
    )


def points_of(spec: Spec, variant: int, first: int) -> list[Point]:
    """The points of one variant, numbered from `first`. The points that the others are compared
    with come first: `none` at each buffer, and the reference."""
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
                f"two policies have the label {one.label!r}",
                "[[policy]] label",
                "use distinct labels",
            )
    return list(found.values())


Group = tuple[Task, ...]
"""Tasks that are computed together: they draw the same selections with one seed."""


def tasks_of(spec: Spec, seed: int, points: Sequence[Point]) -> list[Task]:
    """One seed's tasks for these points, a few points each. All points of a task admit sessions in
    the same order: a slab stays in memory until the last point has read it."""
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
    """Tasks in groups, each of which draws its selections once. With enough tasks there are at
    least `GROUPS_PER_JOB` groups per job."""
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
    """The group split into its tasks, or one task into its points; empty for a single point."""
    if len(group) > 1:
        return [(task,) for task in group]
    (task,) = group
    points = task.points if len(task.points) > 1 else ()
    return [(replace(task, points=(point,)),) for point in points]


def steps_of(group: Group) -> int:
    """Number of session-steps that the group draws."""
    work = group[0].spec.workload
    return work.sessions * work.steps


def _order(point: Point) -> str | None:
    """The schedule by which the point's sessions are admitted."""
    return parse(point.policy.use).core.schedule


def _engines_max(spec: Spec) -> int:
    """Most points that one process runs together."""
    work = spec.workload
    blocks = (work.context_tokens + work.steps) // spec.geometry.block_tokens * spec.granules
    each = BYTES_PER_BLOCK + 2 * BYTES_PER_TIER * (len(spec.tier.below) + 1)
    core_bytes = each * blocks * spec.layer_count * work.sessions
    return max(1, min(ENGINES_MAX, MEMORY_BYTES_MAX // max(core_bytes, 1)))


def _selections(spec: Spec) -> bytes:
    """Equal for specs that draw equal selections, which do not depend on the tier."""
    return msgspec.json.encode(
        msgspec.structs.replace(_shared(spec), tier=TierSpec(), weights=None)
    )


def prefetches(combined: Combined) -> bool:
    """Whether the policy reads ahead of demands."""
    return combined.guesses or bool(combined.core.prefetchers)


def _foreign(combined: Combined) -> list[str]:
    """Digests of the sources of other packages' components, because these may change."""
    return [digest for one in combined.components if one not in BUILT_IN for digest in digests(one)]


def _label(policy: PolicySpec, eviction: str, combined: Combined) -> str:
    """The policy's components, and the settings that differ from their defaults."""
    extras = [eviction] if eviction != combined.core.eviction else []
    extras += [f"{key}={value}" for key, value in sorted(policy.parameters.items())]
    return without_folders(policy.use) + (f" ({', '.join(extras)})" if extras else "")
