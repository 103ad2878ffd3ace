"""A whole run of `offstage lab pod`: its spec, its points, and the figures of a live pod.

`Beside` compares a figure of `offstage pod run --out` (`pod.json`) with the laboratory's for the
same number of daemons. Only figures with equal definitions are compared; a note on each of the
others says why not.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path

import msgspec

from offstage.bindings.errors import BadInput
from offstage.bindings.notes import Note
from offstage.bindings.outside import read_json
from offstage.testbeds.lab.pod.point_figures import PodPoint
from offstage.testbeds.lab.pod.spec import PodSpec

__all__ = ["AVERAGED", "Beside", "PodSummary", "Row", "beside", "of_seeds", "rows_of"]

POD_JSON = "pod.json"
LIVE_BYTES_MAX = 64 << 20
FIX = "name the folder that `offstage pod run --out` wrote"
AVERAGED = (
    "hit",
    "pool_hit",
    "first_ms_p50",
    "first_ms_p99",
    "load_cv",
    "load_max",
    "filled_share",
    "shards_cv",
    "shards_cv_expected",
)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One pod, schedule and fault over all seeds: means, and ranges (lowest, highest)."""

    daemons: int
    schedule: str
    fault: str
    seeds: int
    refused: int
    means: dict[str, float]
    """Means of `AVERAGED`; with a fault also `lost`, `lowest`, `back_s` and `back_less_s`."""
    ranges: dict[str, tuple[float, float]]
    not_back: int = 0
    """Number of seeds whose hits were not back within the run."""


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """One live figure next to the laboratory's."""

    run: str
    daemons: int
    figure: str
    live: float
    lab: float | None
    note: str


class PodSummary(msgspec.Struct, frozen=True, kw_only=True):
    """summary.json of `offstage lab pod`."""

    version: str
    command: str
    spec: PodSpec
    points: list[PodPoint]
    rows: list[Row]
    beside: list[Beside]
    notes: list[Note] = []
    kind: str = "pod"
    provenance: str = "modelled"


def rows_of(points: Sequence[PodPoint]) -> list[Row]:
    """A row for each pod, schedule and fault, in the order of the points."""
    groups: dict[tuple[int, str, str], list[PodPoint]] = {}
    for one in points:
        groups.setdefault((one.daemons, one.schedule, one.fault), []).append(one)
    rows = []
    for (daemons, schedule, fault), own in groups.items():
        values = {name: [getattr(one, name) for one in own] for name in AVERAGED}
        losses = [one.loss for one in own if one.loss is not None]
        back = [one.back_s for one in losses if one.back_s is not None]
        less = [one.back_less_s for one in losses if one.back_less_s is not None]
        values |= {
            "lost": [one.share for one in losses],
            "lowest": [one.lowest for one in losses],
            "back_s": back,
            "back_less_s": less,
        }
        rows.append(
            Row(
                daemons=daemons,
                schedule=schedule,
                fault=fault,
                seeds=len(own),
                refused=sum(one.refused for one in own),
                means={name: statistics.fmean(given) for name, given in values.items() if given},
                ranges={name: (min(given), max(given)) for name, given in values.items() if given},
                not_back=len(losses) - len(back),
            )
        )
    return rows


def of_seeds(points: Sequence[PodPoint]) -> list[list[bytes]]:
    """The encoded points of all seeds, one list for each pod, schedule and fault."""
    gave: dict[tuple[int, str, str], list[bytes]] = {}
    for one in points:
        found = msgspec.json.encode(msgspec.structs.replace(one, seed=0))
        gave.setdefault((one.daemons, one.schedule, one.fault), []).append(found)
    return list(gave.values())


class _Member(msgspec.Struct):
    weight: int
    state: str
    demands: int
    fetch_ms_max: float


class _Live(msgspec.Struct):
    """The fields of `pod.json` that are read."""

    members: dict[str, _Member]
    shard_tokens: int
    load_cv: float
    hit_rate: float
    lost_rate: float


def beside(folder: Path, rows: Sequence[Row], deadline_s: float) -> list[Beside]:
    """Compare the figures of a live pod with those of the pod of the same size. BadInput: no such
    run, or no point of its size."""
    live = _live(folder)
    count = len(live.members)
    own = [one for one in rows if one.daemons == count and one.fault == "none"]
    if not own:
        known = ", ".join(str(one) for one in sorted({row.daemons for row in rows}))
        raise BadInput(
            f"the live pod has {count} daemons; the run has pods of {known}",
            str(folder),
            f"add {count} to daemons",
        )
    loads = [one.demands / one.weight for one in live.members.values()]
    mean = statistics.fmean(loads)
    lost = [one for one in live.members.values() if one.state != "served"]
    found = [
        (
            "load_cv",
            live.load_cv,
            own[0].means["load_cv"],
            "both: blocks that each daemon served; tens of shards live, thousands in the lab",
        ),
        ("load_max", max(loads) / mean if mean else 0.0, own[0].means["load_max"], "as above"),
        (
            "hit",
            live.hit_rate,
            None,
            "live: share of decode demands that were staged in time; the "
            "laboratory: share of prefix tokens that need no prefill; not comparable",
        ),
        (
            "fetch_s_max",
            max(one.fetch_ms_max for one in live.members.values()) / 1e3,
            deadline_s if lost else None,
            "the laboratory charges the deadline, the most that a dead daemon costs live",
        ),
    ]
    return [
        Beside(run=folder.name, daemons=count, figure=figure, live=value, lab=lab, note=note)
        for figure, value, lab, note in found
    ]


def _live(folder: Path) -> _Live:
    path = folder / POD_JSON if folder.is_dir() else folder
    found = read_json(path, FIX, _Live, LIVE_BYTES_MAX, what="is not the result of a pod run")
    if not found.members:
        raise BadInput("has no members", str(path), FIX)
    return found
