"""Description of a chip: units, routes of stages, and the capacities of the whole chip.

Plain data, no C; `bindings.chip` runs it. The meaning of every field is that of
`asic_model/engine/chip.h`. BadInput: a stage that names no unit, or leads to no stage.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offstage.bindings.errors import BadInput
from offstage.bindings.qos import QosConfig, TenantShare

__all__ = ["END", "Limits", "Load", "Network", "Stage", "Step", "Unit", "index_of", "whole"]

CODED_MAX = 2000
END = "end"
"""As a stage's `next` or `miss`: the route ends."""


@dataclass(frozen=True)
class Load:
    """Quantiles of a memory's latency at one load, in ps: straight lines between them."""

    load_permille: int
    min_ps: int
    p50_ps: int
    p90_ps: int
    p99_ps: int
    max_ps: int


@dataclass(frozen=True)
class Unit:
    """One hardware unit. A visit occupies a server for `fixed_ps`, `item_ps` an item and `mib_ps`
    a MiB, and then passes `latency_ps`, pipelined, or a latency drawn from `load_rows` by the load
    over the last `load_span_ps`; visits that begin in one `draw_span_ps` draw alike. At each
    multiple of `pause_every_ps` its servers stand still for `pause_ps`, as a memory does for a
    refresh. `queue_max` visits wait; `in_flight_max` are begun and not yet with the next unit (0:
    any number). `drops`: who finds it full ends here.
    `set_count` and `way_count` are those of tags, `drive` the parameters of a drive
    (`bindings.storage.preset`); `qos` and `tenants` are those of a queue `qos`, in which a visit
    costs the bytes it moves."""

    name: str
    kind: str = "server"
    queue: str = "fifo"
    servers: int = 1
    queue_max: int = 1 << 20
    in_flight_max: int = 0
    drops: bool = False
    set_count: int = 0
    way_count: int = 0
    fixed_ps: int = 0
    item_ps: int = 0
    mib_ps: int = 0
    latency_ps: int = 0
    pause_every_ps: int = 0
    pause_ps: int = 0
    load_rows: tuple[Load, ...] = ()
    load_span_ps: int = 0
    draw_span_ps: int = 0
    drive: Mapping[str, int] | None = None
    qos: QosConfig | None = None
    tenants: tuple[TenantShare, ...] = ()


@dataclass(frozen=True)
class Stage:
    """One step of a route: a visit to `unit` that moves `bytes_permille` of the request's bytes
    (`coded`: of its coded bytes, where it has any). Next comes the following stage of the route,
    or the one whose `label` is `next`; a miss of tags goes to the one that `miss` names, or as
    `next`. `piece_bytes` cuts the request from here on, `join` waits for all its pieces.
    `fixed_ps`, `item_ps` and `mib_ps` are this stage's, added to the unit's. `keys`: number of
    each item's keys; tags look up every one, elsewhere each counts; 0: tags look up the request's
    own. `per_key`: items that share these keys; 0: none do."""

    unit: str
    label: str = ""
    next: str = ""
    miss: str = ""
    bytes_permille: int = 1000
    coded: bool = False
    items: str = "none"
    piece_bytes: int = 0
    join: bool = False
    write: bool = False
    keys: int = 0
    per_key: int = 0
    fixed_ps: int = 0
    item_ps: int = 0
    mib_ps: int = 0


@dataclass(frozen=True)
class Network:
    """Units, and routes by name. A request names its route by number, in order of `routes`.
    `coded_permille`: coded over raw size of each equal part of a block, a row for each layer (more
    layers begin again at the first); none: requests say it themselves."""

    units: tuple[Unit, ...]
    routes: Mapping[str, Sequence[Stage]]
    coded_permille: tuple[tuple[int, ...], ...] = ()

    def route(self, name: str) -> int:
        """The number of a route, for `REQUEST`."""
        return list(self.routes).index(name)

    def coded(self) -> tuple[tuple[int, ...], ...]:
        """`coded_permille`, checked as far as C cannot."""
        rows = self.coded_permille
        if any(len(row) != len(rows[0]) for row in rows):
            raise BadInput(
                "rows of coded sizes differ in length", "chip", "give one number per part"
            )
        if any(not 0 < one <= CODED_MAX for row in rows for one in row):
            raise BadInput("a coded size is not within 1 to 2000 permille", "chip", "correct it")
        return rows

    def steps(self) -> dict[str, list["Step"]]:
        """The stages of each route with where they lead to."""
        known = [unit.name for unit in self.units]
        if len(set(known)) < len(known):
            raise BadInput("two units have one name", "chip", "name each unit once")
        found: dict[str, list[Step]] = {}
        for route, stages in self.routes.items():
            if not stages:
                raise BadInput(
                    "has no stage", f"route {route}", "name the units that the route visits"
                )
            labels: dict[str, int | None] = {
                stage.label: number for number, stage in enumerate(stages) if stage.label
            }
            labels[END] = None
            found[route] = []
            for number, stage in enumerate(stages):
                where = f"route {route}, stage {stage.label or number}"
                if stage.unit not in known:
                    raise BadInput(f"no unit {stage.unit!r}", where, f"one of {', '.join(known)}")
                following = None if number + 1 == len(stages) else number + 1
                after = _go(labels, stage.next, following, where)
                miss = _go(labels, stage.miss, after, where)
                found[route].append(Step(stage, after, miss, where))
        return found


@dataclass(frozen=True)
class Step:
    """A stage, and the numbers of the stages of its route that follow; None: the end."""

    stage: Stage
    next: int | None
    miss: int | None
    where: str


@dataclass(frozen=True)
class Limits:
    """The capacity of a chip. `piece_max`: pieces of requests that are cut. `end_max`: ends
    kept until the run hands them out; 0: none are, for runs whose routes' histograms suffice.
    `visit_max`: visits of sampled requests kept; more are lost and counted."""

    in_flight_max: int = 4096
    piece_max: int = 1 << 16
    end_max: int = 1 << 16
    visit_max: int = 1 << 16
    sample_every: int = 0
    bin_ps: int = 1 << 20


def _go(
    labels: Mapping[str, int | None], label: str, otherwise: int | None, where: str
) -> int | None:
    if not label:
        return otherwise
    if label not in labels:
        raise BadInput(f"no stage {label!r}", where, f"one of {', '.join(labels)}")
    return labels[label]


def index_of(known: tuple[str, ...], name: str, where: str, what: str) -> int:
    """The number of a name; BadInput where it is none."""
    if name not in known:
        raise BadInput(f"no {what} {name!r}", where, f"choose one of {', '.join(known)}")
    return known.index(name)


def whole(value: int, name: str, where: str) -> int:
    """A number that its field in C holds: 64 bits of a time in ps, else 32."""
    wide = name.endswith("_ps")
    if not 0 <= value < 1 << (64 if wide else 32):
        raise BadInput(f"{name} is {value}", where, f"0 to 2^{64 if wide else 32} - 1")
    return int(value)
