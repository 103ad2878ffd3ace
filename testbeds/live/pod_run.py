"""`offstage pod run`: one workload over all members of a pod, and one report for the pod.

The host computes where each shard lives, so it asks all members in parallel and they need not
know each other. If the host is given the address of the map it follows it, so members may join
and be drained during the run; `pod_figures.py` makes the report.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from offstage.bindings.errors import BadInput, OffstageError
from offstage.bindings.ledger import Ledger
from offstage.dpu.pod.map import Member, PodMap
from offstage.dpu.pod.membership import Membership
from offstage.dpu.pod.shards import ShardGrid
from offstage.host.endpoint import Endpoint
from offstage.host.pod.fabric import PodFabric
from offstage.host.pod.follow import Follower
from offstage.host.pod.joined import Joined
from offstage.host.pod.pod_sessions import PodSessions
from offstage.host.pod.upkeep import Upkeep
from offstage.testbeds.beds.status import counters_since, device_counters
from offstage.testbeds.live.drive import decode, prefill
from offstage.testbeds.live.host_run import RUN_NAME, check_alone, check_fit, overruns, store_bytes
from offstage.testbeds.live.options import DriveOptions
from offstage.testbeds.live.pod_figures import PodResult, member_result, pod_result
from offstage.testbeds.live.workload import Workload, prepare
from offstage.testbeds.progress import Progress

__all__ = ["join", "joined", "run"]


def run(
    options: DriveOptions,
    found: PodMap,
    link: Endpoint,
    runtime_dir: Path | None,
    deadline_ns: int,
    progress: Progress,
    membership: Membership | None = None,
) -> PodResult:
    """Prefill what the pod lacks, decode, and compute the figures. `link` gives the tenant and
    the fabric; each member has a separate endpoint. `membership`: the map to follow during the
    run; it is closed at the end. BadInput: options, sizes that do not fit, no member reachable."""
    options.check()
    with contextlib.ExitStack() as stack:
        members = stack.enter_context(joined(found, link, runtime_dir))
        for one in members:
            check_fit(options.geometry, one.control)
            check_alone(one.control, link.tenant)
        grid = found.grid(options.geometry.block_tokens)
        workload = prepare(options, sum(store_bytes(one.control) for one in members))
        pod = _Pod(options, workload, grid, link, runtime_dir)
        pod.check_limits(members)
        sessions = PodSessions(members, grid)
        sessions.map = found
        fabric = PodFabric(sessions, deadline_ns)
        follow = None
        if membership is not None:
            follow = Follower(membership, pod.login, fabric, sessions)
            stack.callback(_leave_new, sessions, list(members))
            stack.callback(follow.close)
        upkeep = Upkeep(
            sessions,
            fabric,
            options.geometry.layer_count,
            follow.take if follow is not None else lambda: None,
        )
        filled = prefill(options, workload, sessions, fabric, progress, upkeep.turn)
        pod.look(sessions.members)
        plan = workload.plan.sessions
        progress.start(
            f"decode over {len(members)} daemons", sum(s.decode_steps for s in plan), "steps"
        )
        record = decode(
            options,
            workload,
            filled.contexts,
            sessions,
            fabric,
            RUN_NAME,
            progress,
            upkeep=upkeep.turn,
        )
        upkeep.close()
        ledgers = {one.member.name: pod.counted_since(one) for one in sessions.members}
        results = {
            one.member.name: member_result(one, ledgers[one.member.name])
            for one in sessions.members
        }
        pace_overruns = pod.overruns(sessions.members)
        fabric.close()
    known = [one for one in ledgers.values() if one is not None]
    result = pod_result(sessions, results, record, upkeep.total(), known)
    result.pace_overruns = pace_overruns
    slots = sum(one.control.geometry.slot_count for one in members)
    result.notes = workload.noted(slots, options.geometry.layer_count, options.pool_layer_blocks)
    return result


@dataclass
class _Pod:
    """The members to which this run has logged in, and the counts of each when decoding began."""

    options: DriveOptions
    workload: Workload
    grid: ShardGrid
    link: Endpoint
    runtime_dir: Path | None
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    counters: dict[str, dict[str, int] | None] = field(default_factory=dict)

    def login(self, member: Member, epoch: int) -> Joined:
        """Log in to a member that joins during the run. OffstageError: it is unreachable, or
        does not fit."""
        coming = join(member, self.link, self.runtime_dir, epoch)
        try:
            check_fit(self.options.geometry, coming.control)
            self.check_limits([coming])
            self.ledgers[member.name] = Ledger.of(coming.control.ledger())
        except OffstageError:
            coming.fabric.close()
            coming.control.close()
            raise
        return coming

    def look(self, members: list[Joined]) -> None:
        """Marks the start of decoding: figures count from here. A member lost in prefill is not
        counted."""
        for one in members:
            with contextlib.suppress(OffstageError):
                self.ledgers[one.member.name] = Ledger.of(one.control.ledger())
            one.ends[:], one.moved_ends[:], one.failed, one.fetch_ns = 0, 0, 0, 0
        self.counters = {name: counted for name, (_, counted) in self._modelled(members).items()}

    def counted_since(self, one: Joined) -> Ledger | None:
        """None if it was lost, stopped, or restarted."""
        if not one.lost and one.member.name in self.ledgers:
            with contextlib.suppress(OffstageError):
                return Ledger.of(one.control.ledger()).since(self.ledgers[one.member.name])
        return None

    def overruns(self, members: list[Joined]) -> float:
        """As `host_run.overruns`, of the member with the largest share."""
        paces = [
            overruns(model, counters_since(self.counters[name], after))
            for name, (model, after) in self._modelled(members).items()
            if name in self.counters
        ]
        return max(paces, default=-1.0)

    def _modelled(self, members: list[Joined]) -> dict[str, tuple[str, dict[str, int] | None]]:
        """The device that each member models, and its counters; of those that model one and
        answer."""
        found = {}
        for one in members:
            with contextlib.suppress(OffstageError):
                if not one.lost and (model := str(one.control.status()["model"])):
                    own = self.link.at(one.member, self.runtime_dir)
                    found[one.member.name] = model, device_counters(own)
        return found

    def check_limits(self, members: list[Joined]) -> None:
        """Check limits before prefill; the daemons would check these too, but only after it."""
        grid, plan = self.grid, self.workload.plan
        tokens = self.options.geometry.block_tokens
        longest = max(
            -(-(one.context_tokens + one.decode_steps) // tokens) for one in plan.sessions
        )
        at_once = self.options.active or plan.sessions_max
        needed = min(len(plan.sessions), at_once) * (grid.count(longest) if grid.most else 1)
        for one in members:
            limits = one.control.limits
            if not 1 <= grid.most <= limits.session_chunk_max:
                raise BadInput(
                    f"a shard has {grid.most} blocks of {tokens} tokens, and "
                    f"{one.member.name} takes 1 to {limits.session_chunk_max}",
                    "pod map",
                    "change shard_tokens of the map, or [limits] context_tokens of the daemon",
                )
            if needed > limits.session_max:
                raise BadInput(
                    f"{needed} shards at once may be at {one.member.name}, which takes "
                    f"{limits.session_max}",
                    one.control.endpoint,
                    "raise [limits] sessions of the daemon, or shard_tokens of the map",
                )


def join(member: Member, link: Endpoint, runtime_dir: Path | None, epoch: int) -> Joined:
    """Log in to one, by the map of `epoch`; the caller closes it. OffstageError: it is
    unreachable."""
    control, fabric = link.at(member, runtime_dir, epoch).connect()
    return Joined(
        member, control, fabric, lease_ns=control.lease_ns, tenant=link.tenant, epoch=epoch
    )


def _leave_new(sessions: PodSessions, first: list[Joined]) -> None:
    """Log out of the members that joined during the run."""
    for one in sessions.members:
        if one not in first:
            one.fabric.close()
            one.control.close()


@contextlib.contextmanager
def joined(found: PodMap, link: Endpoint, runtime_dir: Path | None) -> Iterator[list[Joined]]:
    """All members that answer. BadInput if none does."""
    with contextlib.ExitStack() as stack:
        members, refused = [], []
        for member in found.readable:
            try:
                one = join(member, link, runtime_dir, found.epoch)
            except OffstageError as error:
                refused.append(error)
                continue
            stack.callback(one.control.close)
            stack.callback(one.fabric.close)
            members.append(one)
        if not members:
            none = BadInput(
                "the pod has no members", "pod map", "offstage pod add MAP NAME ENDPOINT"
            )
            raise refused[0] if refused else none
        yield members
