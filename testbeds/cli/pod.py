"""`offstage pod`: several daemons that are one tier, listed in a map."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from offstage.testbeds.cli.common import (
    Fabric,
    Format,
    FormatOption,
    TimeUnitOption,
    emit,
    seed_option,
    table,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from offstage.dpu.pod.map import Member, PodMap
    from offstage.dpu.pod.membership import Membership
    from offstage.host.link.control import Control
    from offstage.testbeds.cli.pod_shown import ShownPod
    from offstage.testbeds.cli.printed import PodPurged
    from offstage.testbeds.live.pod_drain import NotPushed, Pushed
    from offstage.testbeds.live.pod_figures import PodResult
    from offstage.testbeds.live.pod_status import MemberReport

__all__ = ["register", "tell"]

pod = typer.Typer(no_args_is_help=True, help="Several daemons that are one tier.")

PlaceArgument = Annotated[str, typer.Argument(help="the map: a .toml file, or etcd:HOST:PORT,...")]
NameArgument = Annotated[str, typer.Argument(help="the member's name")]
RuntimeDirsOption = Annotated[
    Path | None,
    typer.Option("--runtime-dir", help="folder of the daemons' runtime folders, by name"),
]
ANSWER_S = 1.0
CARRY_OUT_S = 30.0


FabricOption = Annotated[
    Fabric, typer.Option("--fabric", help="shm on the daemons' machine, zmq anywhere")
]


class ScheduleName(StrEnum):
    """Which session starts next."""

    reuse = "reuse"
    least_loaded = "least-loaded"
    round_robin = "round-robin"


def register(app: typer.Typer) -> None:
    """Add `offstage pod`."""
    app.add_typer(pod, name="pod")


@pod.callback()
def about() -> None:
    """Several daemons that are one tier."""


@pod.command()
def status(
    place: PlaceArgument,
    runtime_dir: RuntimeDirsOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Show a pod: its members, their shares of the shards, whether they answer, what they served.

    Exit code 3 where none answers.
    """
    from offstage.bindings.errors import NoAnswer
    from offstage.dpu.pod.history import told
    from offstage.dpu.pod.membership import open_membership
    from offstage.testbeds.cli.pod_shown import shown_pod
    from offstage.testbeds.live.pod_status import pod_report

    membership = open_membership(place)
    found = membership.map()
    frozen = "" if membership.fresh else "yes: the map service does not answer"
    result = shown_pod(found)
    result.frozen, result.doubt = frozen or "no", told(found) or "no"
    seen: dict[str, MemberReport] = {}
    for member in found.readable:
        shown = result.members[member.name]
        shown.answers = _answers(member, runtime_dir, seen)
        if member.name in seen:
            shown.demands_per_s = seen[member.name].kept.load_per_s
            shown.copies = seen[member.name].kept.copies
    membership.close()
    if seen:
        result.pod = pod_report(found, seen)
    emit(result, form, table(result))
    if found.readable and not seen:
        raise NoAnswer("no member answers", place, "start their daemons, or give --runtime-dir")


@pod.command()
def drain(
    place: PlaceArgument,
    name: NameArgument,
    undo: Annotated[bool, typer.Option("--undo", help="let it take new shards again")] = False,
    push: Annotated[
        bool, typer.Option("--push/--no-push", help="push hot or pinned blocks to their new home")
    ] = True,
    tenant: Annotated[
        list[str] | None,
        typer.Option(
            "--tenant", help="tenant whose blocks are pushed; may be repeated; default: default"
        ),
    ] = None,
    runtime_dir: RuntimeDirsOption = None,
    fabric: FabricOption = Fabric.shm,
    form: FormatOption = Format.text,
) -> None:
    """Drain a member: it takes no new shards, and its hot or pinned blocks are pushed to others.

    The rest is read there until it is gone. A member that does not answer is drained all the same,
    and `pushed` says why nothing was.
    """
    from offstage.dpu.pod.map import moved

    def pushed(found: "PodMap", shown: "ShownPod") -> None:
        if push and not undo:
            shown.pushed = {
                one: _pushed(found, name, one, runtime_dir, fabric) for one in tenant or ["default"]
            }

    _change(place, lambda found: moved(found, name, "up" if undo else "draining"), form, pushed)


def _pushed(
    found: "PodMap", name: str, tenant: str, runtime_dir: Path | None, fabric: Fabric
) -> "Pushed | NotPushed":
    """The push of one tenant; an unreachable member is no error of the drain."""
    from offstage.bindings.errors import OffstageError
    from offstage.host.endpoint import Endpoint
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.live.pod_drain import NotPushed, push

    link = Endpoint("", tenant, fabric.value, "pod-drain", timeout_s=ANSWER_S)
    try:
        with shown(1) as progress:
            return push(found, name, link, runtime_dir, progress)
    except OffstageError as error:
        return NotPushed(error.what)


@pod.command()
def add(
    place: PlaceArgument,
    name: NameArgument,
    endpoint: Annotated[str, typer.Argument(help="its control socket")],
    weight: Annotated[
        int, typer.Option("--weight", help="its share relative to the other members")
    ] = 1,
    zone: Annotated[str, typer.Option("--zone", help="failure domain, such as a rack")] = "",
    form: FormatOption = Format.text,
) -> None:
    """Add a daemon to the map; a missing file is created."""
    from offstage.bindings.settings import convert
    from offstage.dpu.config.addresses import check_address, check_member
    from offstage.dpu.pod.map import Member, added

    given = {"name": name, "endpoint": endpoint, "weight": weight, "zone": zone}
    member = convert(given, Member, "pod add")
    check_member(name, endpoint, "pod add")
    check_address("endpoint", endpoint, "pod add")
    _change(place, lambda found: added(found, member), form)


@pod.command()
def remove(
    place: PlaceArgument,
    name: NameArgument,
    form: FormatOption = Format.text,
) -> None:
    """Remove a dead member from the map. Refused while its lease holds.

    Make sure that its process has ended: a daemon that is only cut off may still serve by what
    others promised it. A map in a file has no leases: there a running daemon lets its hosts go, and
    stays out until it is restarted.
    """
    from offstage.bindings.errors import BadInput
    from offstage.dpu.pod.map import moved
    from offstage.dpu.pod.membership import open_membership

    membership = open_membership(place)
    try:
        living = {one.name for one in membership.alive() if one.incarnation}
    finally:
        membership.close()
    if name in living:
        raise BadInput(f"the lease of {name} holds", place, "end that daemon first")
    _change(place, lambda found: moved(found, name, "gone"), form)


@pod.command()
def accept(
    place: PlaceArgument,
    form: FormatOption = Format.text,
) -> None:
    """Accept a map in doubt: it was restored, or its etcd is a different one.

    Members serve again when they have carried out every deletion that any of them knows."""
    from offstage.dpu.pod.history import accepted

    _change(place, accepted, form)


@pod.command()
def purge(
    place: PlaceArgument,
    tenant: Annotated[str, typer.Argument(help="a tenant's name")],
    runtime_dir: RuntimeDirsOption = None,
    form: FormatOption = Format.text,
) -> None:
    """Drop all archived objects of a tenant at every member, under a new epoch.

    Members under a lease do it by themselves, and end the tenant's connections for it; the others
    get a request. Exit code 1, with names, where a member has not; 3 where none answers. Repeat to
    continue.
    """
    from offstage.bindings.errors import NoAnswer, OffstageError, RunFailed
    from offstage.dpu.pod.fence import deletion_holds
    from offstage.dpu.pod.history import keeps
    from offstage.dpu.pod.map import deleted
    from offstage.dpu.pod.membership import open_membership

    membership = open_membership(place)
    carried_out: dict[str, int] = {}
    members: dict[str, dict[str, int] | dict[str, str]] = {}
    try:
        found = membership.change(lambda one: deleted(one, tenant))
        for member in found.readable:
            if member.incarnation:
                continue
            try:
                with _operator(member, runtime_dir) as control:
                    done = control.purge(tenant)
            except OffstageError as error:
                members[member.name] = {"left": f"{error.what}"}
                continue
            members[member.name] = done
            if not done["more"] and not done["marking"]:
                carried_out[member.name] = found.epoch
        names, said = _carried_out(membership, found.deleted[tenant])
        last = membership.map()
    finally:
        membership.close()
    carried_out |= said
    for name in names:
        members.setdefault(name, {"carried_out": said.get(name, 0)})
    result: PodPurged = {"epoch": found.epoch, "members": members}
    emit(result, form, table(result))
    if not keeps(last, tenant, found.purges[tenant][0]):
        raise RunFailed(
            "the pod's map is in doubt or was put back meanwhile",
            f"tenant {tenant}",
            "see offstage pod status, then give the same command again",
        )
    if not deletion_holds(found.deleted[tenant], names, carried_out):
        left = ", ".join(name for name in names if name not in carried_out)
        answered = carried_out or any("left" not in one for one in members.values())
        raise (RunFailed if answered else NoAnswer)(
            f"{left}: not carried out there",
            f"tenant {tenant}",
            "give the same command again when it answers",
        )


@pod.command()
def run(
    place: PlaceArgument,
    runtime_dir: RuntimeDirsOption = None,
    tenant: Annotated[str, typer.Option("--tenant", help="owner of the blocks")] = "default",
    fabric: FabricOption = Fabric.shm,
    geometry: Annotated[str, typer.Option("--geometry", help="model of the KV")] = "demo",
    trace: Annotated[
        Path | None, typer.Option("--trace", help="a trace of requests; default: generated")
    ] = None,
    time_unit: TimeUnitOption = None,
    sessions: Annotated[int, typer.Option("--sessions", help="sessions of the workload")] = 4,
    active: Annotated[
        int, typer.Option("--active", help="sessions that decode concurrently; 0: all")
    ] = 0,
    schedule: Annotated[
        ScheduleName,
        typer.Option("--schedule", help="which session begins next; reuse: most shared prefix"),
    ] = ScheduleName.least_loaded,
    context_tokens: Annotated[int, typer.Option("--context-tokens", help="the longest")] = 131_072,
    steps: Annotated[int, typer.Option("--steps", help="decode steps per session")] = 300,
    seed: Annotated[int, seed_option("seed of the workload")] = 1,
    time_per_token: Annotated[
        str, typer.Option("--time-per-token", help="compute time of the GPU per token")
    ] = "20ms",
    fetch_deadline: Annotated[
        str, typer.Option("--fetch-deadline", help="the longest that a fetch waits for one member")
    ] = "1s",
    out: Annotated[Path | None, typer.Option("--out", help="folder for pod.json")] = None,
    form: FormatOption = Format.text,
) -> None:
    """Drive a workload over all members at once, and print one report for the pod. Members may
    join and drain meanwhile. One that dies costs its fetch deadline; its blocks are recomputed."""
    from offstage.bindings.durable import writable, write_text
    from offstage.bindings.units import parse_time, parse_time_between
    from offstage.dpu.pod.membership import open_membership
    from offstage.host.endpoint import Endpoint
    from offstage.host.model.models import geometry as geometry_of
    from offstage.testbeds.cli.progress import shown
    from offstage.testbeds.document import as_json
    from offstage.testbeds.live.options import DriveOptions
    from offstage.testbeds.live.pod_run import run as drive

    deadline_ns = parse_time_between(fetch_deadline, "--fetch-deadline", "1ms", "60s")
    writable(out and out / "pod.json")
    options = DriveOptions(
        geometry=geometry_of(geometry),
        trace=trace,
        time_unit=time_unit,
        sessions=sessions,
        steps=steps,
        seed=seed,
        active=active,
        schedule=schedule.value,
        context_tokens=context_tokens,
        time_per_token_s=parse_time(time_per_token, "--time-per-token") / 1e9,
    )
    membership = open_membership(place)
    found = membership.map()
    link = Endpoint("", tenant, fabric.value, "pod-run", timeout_s=max(1.0, deadline_ns / 1e9))
    with shown(2) as progress:
        result = drive(options, found, link, runtime_dir, deadline_ns, progress, membership)
    if out is not None:
        write_text(out / "pod.json", as_json(result))
    tell(result, form)


def tell(result: "PodResult", form: Format) -> None:
    """Print a run over a pod. RunFailed, after that, if a check says that its figures must not
    be used."""
    import msgspec
    from rich.console import Group
    from rich.text import Text

    from offstage.bindings.notes import note_lines
    from offstage.testbeds.live.checks import found, refuse

    figures = msgspec.to_builtins(result)
    shown = {name: figure for name, figure in figures.items() if name != "notes"}
    figures["failed"] = found(result)
    emit(figures, form, Group(*map(Text, note_lines(result.notes)), table(shown)))
    refuse(found(result), "pod")


def _carried_out(membership: "Membership", epoch: int) -> tuple[list[str], dict[str, int]]:
    """The members of the map, and the epochs that those under a lease report as carried out.
    Returns when all have reported `epoch` or are gone, or after CARRY_OUT_S."""
    import time

    until_s = time.monotonic() + CARRY_OUT_S
    while True:
        said = {one.name: one.carried_out for one in membership.alive() if one.incarnation}
        members = membership.map().readable
        waiting = [one for one in members if one.incarnation and said.get(one.name, 0) < epoch]
        if not waiting or time.monotonic() > until_s:
            return [one.name for one in members], said
        time.sleep(0.1)


def _change(
    place: str,
    transition: "Callable[[PodMap], PodMap]",
    form: Format,
    more: "Callable[[PodMap, ShownPod], None] | None" = None,
) -> None:
    """Change the map and show it; `more` runs under the new map, and adds to what is shown."""
    from offstage.dpu.pod.membership import open_membership
    from offstage.dpu.pod.placement import moved_share
    from offstage.testbeds.cli.pod_shown import shown_pod

    membership = open_membership(place)
    seen: list[PodMap] = []

    def noted(found: "PodMap") -> "PodMap":
        seen.append(found)
        return transition(found)

    try:
        after = membership.change(noted)
    finally:
        membership.close()
    result = shown_pod(after)
    if seen[-1].homes and after.homes:
        result.shards_moved, result.shards_moved_least = moved_share(seen[-1], after)
        if more is not None:
            more(after, result)
    emit(result, form, table(result))


def _operator(member: "Member", runtime_dir: Path | None) -> "Control":
    """The operator's endpoint at a member."""
    from offstage.host.endpoint import Endpoint

    own = Endpoint(tenant="operator", name="pod", timeout_s=ANSWER_S)
    return own.at(member, runtime_dir).control(heartbeat=False)


def _answers(member: "Member", runtime_dir: Path | None, seen: "dict[str, MemberReport]") -> str:
    """`yes`, or why not; if it answers, its counts are in `seen`."""
    from offstage.bindings.errors import OffstageError
    from offstage.testbeds.live.pod_status import member_report

    try:
        with _operator(member, runtime_dir) as control:
            status = control.status()
            seen[member.name] = member_report(status, control.ledger())
            return "yes, draining" if status["draining"] else "yes"
    except OffstageError as error:
        return f"no: {error.what}"
