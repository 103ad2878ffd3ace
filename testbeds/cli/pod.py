"""`offstage pod`: the daemons that are one tier, by the map that says which they are."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from offstage.testbeds.cli.common import Format, FormatOption, emit, table

if TYPE_CHECKING:
    from offstage.pod.map import Member, PodMap

__all__ = ["register"]

pod = typer.Typer(no_args_is_help=True, help="Several daemons that are one tier.")

PlaceArgument = Annotated[str, typer.Argument(help="the map: a .toml file, or etcd:HOST:PORT,...")]
NameArgument = Annotated[str, typer.Argument(help="the member's name")]
ANSWER_S = 1.0


def register(app: typer.Typer) -> None:
    """Add `offstage pod`."""
    app.add_typer(pod, name="pod")


@pod.callback()
def about() -> None:
    """Several daemons that are one tier."""


@pod.command()
def status(
    place: PlaceArgument,
    runtime_dir: Annotated[
        Path | None,
        typer.Option("--runtime-dir", help="holds each daemon's runtime folder, by its name"),
    ] = None,
    form: FormatOption = Format.text,
) -> None:
    """The map, each member's share of the segments, and whether its daemon answers."""
    from offstage.pod.membership import open_membership

    membership = open_membership(place)
    found = membership.map()
    frozen = "" if membership.fresh else "yes: whoever keeps the map does not answer"
    result = {**_shown(found), "frozen": frozen or "no"}
    for member in found.readable:
        folder = None if runtime_dir is None else runtime_dir / member.name
        result["members"][member.name]["answers"] = _answers(member, folder)
    membership.close()
    emit(result, form, table(result))


@pod.command()
def drain(
    place: PlaceArgument,
    name: NameArgument,
    undo: Annotated[bool, typer.Option("--undo", help="it takes new segments again")] = False,
    form: FormatOption = Format.text,
) -> None:
    """A member takes no new segments; what it has is read until it is gone."""
    from offstage.pod.map import moved

    _change(place, lambda found: moved(found, name, "up" if undo else "draining"), form)


@pod.command()
def add(
    place: PlaceArgument,
    name: NameArgument,
    endpoint: Annotated[str, typer.Argument(help="its control socket")],
    weight: Annotated[int, typer.Option("--weight", help="its share against the others'")] = 1,
    zone: Annotated[str, typer.Option("--zone", help="what fails together with it")] = "",
    form: FormatOption = Format.text,
) -> None:
    """A daemon joins; a file that is not there yet is written."""
    from offstage.bindings.settings import convert
    from offstage.pod.map import Member, added

    given = {"name": name, "endpoint": endpoint, "weight": weight, "zone": zone}
    member = convert(given, Member, "pod add")
    _change(place, lambda found: added(found, member), form)


def _change(place: str, transition: Any, form: Format) -> None:
    from offstage.pod.membership import open_membership
    from offstage.pod.placement import moved_share

    membership = open_membership(place)
    seen: list[PodMap] = []

    def noted(found: "PodMap") -> "PodMap":
        seen.append(found)
        changed: PodMap = transition(found)
        return changed

    try:
        after = membership.change(noted)
    finally:
        membership.close()
    result = _shown(after)
    if seen[-1].homes and after.homes:
        moved, least = moved_share(seen[-1], after)
        result |= {"segments_moved": moved, "segments_moved_least": least}
    emit(result, form, table(result))


def _shown(found: "PodMap") -> dict[str, Any]:
    weights = sum(one.weight for one in found.homes)
    members = {
        one.name: {
            "endpoint": one.endpoint, "state": one.state, "incarnation": one.incarnation,
            "weight": one.weight, "zone": one.zone,
            "share": one.weight / weights if one.state == "up" else 0.0,
        }
        for one in found.member
    }  # fmt: skip
    return {"epoch": found.epoch, "segment_tokens": found.segment_tokens, "members": members}


def _answers(member: "Member", runtime_dir: Path | None) -> str:
    """`yes` and how long it runs, or why not."""
    from offstage.bindings.errors import OffstageError
    from offstage.host.control import Control

    try:
        with Control(member.endpoint, name="pod status", tenant="operator", heartbeat=False,
                     runtime_dir=runtime_dir, timeout_s=ANSWER_S) as control:  # fmt: skip
            return "yes, draining" if control.status()["draining"] else "yes"
    except OffstageError as error:
        return f"no: {error.what}"
