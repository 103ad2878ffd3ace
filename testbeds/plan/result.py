"""A plan as data: every place and rule with its range, and the most important inputs.

Model: a figure's value is computed with all inputs at their middle. Its range covers nine in ten of
many draws of all inputs together, each within its own range (`asic_model/ranges.py`): adding up the
ends of intervals would assume that everything goes wrong together. One seed, the same plan.
`plan.json` is a `Plan`.

What can fail: `BadInput` of the question, the catalog and the model.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from offstage import __version__
from offstage.asic_model.ranges import hypercube, value_at
from offstage.bindings.errors import BadInput
from offstage.bindings.notes import Note
from offstage.host.model.geometry import KvGeometry
from offstage.testbeds.plan.curves import Curves
from offstage.testbeds.plan.engine import EnginePlan
from offstage.testbeds.plan.inputs import Inputs
from offstage.testbeds.plan.question import DRIVES, Question, Spec
from offstage.testbeds.plan.rules import RULES, daemon_keys, figures
from offstage.testbeds.plan.sizing import RECOMPUTE, Place, places
from offstage.testbeds.report.compare.columns import Effect, Range

__all__ = [
    "DOUBT",
    "FIGURES",
    "TIE",
    "Against",
    "InputRow",
    "PlaceRow",
    "Plan",
    "RuleRow",
    "draws_of",
    "input_rows",
    "make_plan",
    "ranged",
]

HELD = (5.0, 95.0)
"""Percentiles of the draws: nine in ten lie between."""
FIGURES: dict[str, Callable[[Place], float]] = {
    "gpus": lambda one: float(one.gpus) or math.inf,
    "devices": lambda one: float(one.count),
    "first_token_s": lambda one: one.first_token_s,
    "capacity_bytes": lambda one: one.capacity_bytes,
    "read_bytes_per_s": lambda one: one.read_bytes_per_s,
    "write_bytes_per_s": lambda one: one.write_bytes_per_s,
    "cold_start_s": lambda one: one.cold_start_s,
    "life_years": lambda one: one.years,
    "life_years_full": lambda one: one.years_full,
    "devices_full": lambda one: float(one.devices_full),
    "usd_per_h": lambda one: one.usd_per_h,
    "usd_per_mtok": lambda one: one.usd_per_mtok,
    "usd_per_mtok_decoded": lambda one: one.usd_per_mtok_decoded,
    "kwh_per_mtok": lambda one: one.kwh_per_mtok,
}
"""The figures of a place that have a range."""
TIE = 0.02
"""Two places whose dollars differ by less than this share are a tie: prices of one day lie further
apart."""
DOUBT = 0.1
"""So are two of which in this share of the draws the other one is cheaper."""
DPU_BASES = ("tlc", "ddr5", "hbm")
"""What flash behind a DPU is bought in place of: drives in the host, or more memory."""


class PlaceRow(msgspec.Struct, kw_only=True):
    """One place where KV waits between turns. A figure that is None is infinite or does not
    exist."""

    name: str
    works: bool
    note: str
    gpu_binds: str
    device_binds: str
    replica: int
    sessions_per_replica: int
    dpus: int
    by_need: dict[str, int]
    """Devices required by each need alone."""
    figures: dict[str, Range | None]
    over_best: Range | None = None
    """Dollars a token over those of the cheapest place, less 1: both of the same draw."""
    cheaper_in: float = 0.0
    """Share of the draws in which it is cheaper than that place."""
    tied: bool = False
    """Whether it cannot be told from that place: see `TIE` and `DOUBT`."""


class Against(msgspec.Struct, kw_only=True):
    """Flash behind a DPU against another place, both of the same draw."""

    base: str
    usd: Range | None
    """Dollars a token over those of the other place, less 1."""
    first_token_s: Range | None
    """Seconds until the first token, less those of the other place."""


class RuleRow(msgspec.Struct, kw_only=True):
    """One rule: a condition under which something pays."""

    name: str
    label: str
    unit: str
    text: str
    figure: Range | None
    rests_on: str = ""
    """The input that moves it most, from one end of its range to the other; empty: none does."""
    kind: str = "cited"
    """Of that input: measured, modelled, cited or assumed."""


class InputRow(msgspec.Struct, kw_only=True):
    """One input, with its source. `kind`: measured, modelled, cited or assumed."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    kind: str
    tag: str
    date: str
    stale: bool
    source: str
    help: str


class Plan(msgspec.Struct, kw_only=True):
    """`plan.json`. `effects`: dollars for a million tokens in the cheapest place, with one input
    at each end of its range."""

    question: Question
    sentence: str = ""
    best: str
    places: list[PlaceRow]
    dpu: list[Against]
    """What a DPU adds; empty where it is not asked for, or does not work."""
    rules: list[RuleRow]
    effects: list[Effect]
    base: float
    inputs: list[InputRow]
    over_users: dict[str, list[tuple[float, float | None]]]
    """Points (users, dollars per million tokens) by place."""
    over_gap: dict[str, list[tuple[float, float | None]]]
    """Points (seconds until the next turn, dollars per million tokens) by place."""
    draws: int
    daemon: dict[str, str]
    """Keys of a daemon that decides by the same prices."""
    notes: list[Note] = []
    curves: Curves | None = None
    """Curves of the trace, if one was given."""
    engine: EnginePlan | None = None
    """What to set for an engine, if one was asked for."""
    provenance: str = "modelled"
    command: str = ""
    version: str = __version__


def _stale_notes(inputs: Sequence[InputRow]) -> list[Note]:
    """Prices that are out of date."""
    old = ", ".join(one.name for one in inputs if one.stale)
    return [Note("old-prices", f"prices older than a year (marked †): {old}")] if old else []


def make_plan(spec: Spec, inputs: Inputs, *, draws: int = 256, seed: int = 0) -> Plan:
    """The plan of a checked question."""
    question = spec.plan
    shape, _, _ = spec.shape()
    values, rows = inputs.values, input_rows(inputs)
    found = places(question, values)
    _check_cold_start(question, found)
    best = _best(found)
    drawn = list(draws_of(inputs, draws, seed))
    all_places = [places(question, one) for one in drawn]
    middle = figures(question, shape, values, best)
    rules = []
    rests = _rests_on(question, shape, inputs, best)
    for one, of in zip(drawn, all_places, strict=True):
        same = next(place for place in of if place.name == best.name)
        rules.append(figures(question, shape, one, same))
    return Plan(
        question=question,
        best=best.name,
        places=_rows_of(found, all_places, best),
        dpu=list(_dpu(found, all_places)),
        rules=[
            RuleRow(
                name=name,
                label=RULES[name].label,
                unit=RULES[name].unit,
                text=RULES[name].text,
                figure=ranged(middle[name], [of[name] for of in rules]),
                rests_on=rests.get(name, ""),
                kind=inputs.of[rests[name]].kind if name in rests else "cited",
            )
            for name in middle
        ],
        effects=_effects(question, inputs, best.name),
        base=best.usd_per_mtok,
        inputs=rows,
        notes=_stale_notes(rows),
        over_users=_over_users(question, values),
        over_gap=_over_gap(question, values),
        draws=draws,
        daemon=daemon_keys(question, values, best),
    )


def _rests_on(question: Question, shape: KvGeometry, inputs: Inputs, best: Place) -> dict[str, str]:
    """For each rule, the input that moves it most."""
    found: dict[str, tuple[float, str]] = {}
    for name, number in inputs.numbers().items():
        ends = []
        for end in (number.low, number.high):
            values = {**inputs.values, name: end * number.scale}
            same = next(one for one in places(question, values) if one.name == best.name)
            ends.append(figures(question, shape, values, same))
        for rule, low in ends[0].items():
            moved = abs(ends[1][rule] - low)
            if 0 < moved < math.inf and moved > found.get(rule, (0.0, ""))[0]:
                found[rule] = moved, name
    return {rule: name for rule, (_, name) in found.items()}


def _check_cold_start(question: Question, found: list[Place]) -> None:
    """BadInput if no drives can load the weights in the time asked for."""
    drives = [one for one in found if one.name in DRIVES]
    if question.cold_start and all(one.note for one in drives):
        raise BadInput(
            f"no drives load the weights within {question.cold_start}: {drives[0].note}",
            "cold_start",
            "give more time, or leave it out",
        )


def _best(found: list[Place]) -> Place:
    """The cheapest place of those that work. BadInput if none does."""
    working = [
        one for one in found if one.gpus and not one.note and math.isfinite(one.usd_per_mtok)
    ]
    if not working:
        raise BadInput(
            found[0].note or "no place works",
            "plan",
            "choose another GPU, or a smaller model or context",
        )
    return min(working, key=lambda one: one.usd_per_mtok)


def draws_of(inputs: Inputs, count: int, seed: int) -> Iterator[dict[str, float]]:
    """All inputs drawn together, each within its range."""
    numbers = inputs.numbers()
    if not numbers:
        yield inputs.values
        return
    for row in hypercube(len(numbers), count, seed):
        shares = zip(numbers.items(), row.tolist(), strict=True)
        drawn = {name: value_at(number, share) * number.scale for (name, number), share in shares}
        yield {**inputs.values, **drawn}


def ranged(value: float, drawn: list[float]) -> Range | None:
    """None if the value is infinite; an infinite end is replaced by the largest finite one."""
    if not math.isfinite(value):
        return None
    low, high = np.percentile([one for one in drawn if math.isfinite(one)] or [value], HELD)
    return Range(value, min(float(low), value), max(float(high), value))


def _rows_of(found: list[Place], drawn: list[list[Place]], best: Place) -> list[PlaceRow]:
    """Every place, with its cost over that of the cheapest."""
    rows = []
    for at, one in enumerate(found):
        works = bool(one.gpus) and not one.note
        over = _apart(found, drawn, at, found.index(best), _dearer) if works else None
        won = [of[at].usd_per_mtok < of[found.index(best)].usd_per_mtok for of in drawn]
        cheaper_in = sum(won) / len(won) if works else 0.0
        tied = over is not None and (over.value < TIE or cheaper_in >= DOUBT)
        row = _place(one, [of[at] for of in drawn])
        row.over_best, row.cheaper_in, row.tied = over, cheaper_in, tied and one is not best
        rows.append(row)
    return rows


def _dpu(found: list[Place], drawn: list[list[Place]]) -> Iterator[Against]:
    names = [one.name for one in found if one.gpus and not one.note]
    for base in DPU_BASES if "dpu" in names else ():
        if base in names:
            at = [[one.name for one in found].index(name) for name in ("dpu", base)]
            yield Against(
                base=base,
                usd=_apart(found, drawn, at[0], at[1], _dearer),
                first_token_s=_apart(
                    found, drawn, at[0], at[1], lambda a, b: a.first_token_s - b.first_token_s
                ),
            )


def _dearer(one: Place, other: Place) -> float:
    return one.usd_per_mtok / other.usd_per_mtok - 1.0


def _apart(
    found: list[Place],
    drawn: list[list[Place]],
    one: int,
    other: int,
    apart: Callable[[Place, Place], float],
) -> Range | None:
    """How far two places are apart, with the range over draws in which both work."""
    both = [(of[one], of[other]) for of in drawn if of[one].gpus and of[other].gpus]
    return ranged(apart(found[one], found[other]), [apart(*pair) for pair in both])


def _place(place: Place, drawn: list[Place]) -> PlaceRow:
    return PlaceRow(
        name=place.name,
        works=bool(place.gpus) and not place.note,
        note=place.note,
        gpu_binds=place.gpu_binds,
        device_binds=place.device_binds,
        replica=place.replica,
        sessions_per_replica=place.sessions_per_replica,
        dpus=place.dpus,
        by_need=place.devices,
        figures={
            name: ranged(of(place), [of(one) for one in drawn]) for name, of in FIGURES.items()
        },
    )


def _cost(question: Question, values: Mapping[str, float], name: str) -> float:
    return next(one for one in places(question, values) if one.name == name).usd_per_mtok


def _effects(question: Question, inputs: Inputs, best: str) -> list[Effect]:
    """Each input at both ends of its range, the rest at their middle; the strongest first."""
    found = []
    for name, number in inputs.numbers().items():
        ends = [
            _cost(question, {**inputs.values, name: end * number.scale}, best)
            for end in (number.low, number.high)
        ]
        if ends[0] != ends[1] and all(map(math.isfinite, ends)):
            found.append(
                Effect(
                    parameter=name,
                    unit=number.unit,
                    low=number.low,
                    high=number.high,
                    at_low=ends[0],
                    at_high=ends[1],
                )
            )
    return sorted(found, key=lambda one: -abs(one.at_high - one.at_low))


def input_rows(inputs: Inputs) -> list[InputRow]:
    """Every input as a row, with its source."""
    return [
        InputRow(
            name=name,
            value=one.number.value,
            low=one.number.low,
            high=one.number.high,
            unit=one.number.unit,
            kind=one.kind,
            tag=one.number.tag,
            date=str(one.date or ""),
            stale=one.stale,
            source=one.number.source,
            help=one.help,
        )
        for name, one in inputs.of.items()
    ]


def _over_users(
    question: Question, values: Mapping[str, float]
) -> dict[str, list[tuple[float, float | None]]]:
    counts = sorted({max(1, round(question.users * 10 ** (at / 4))) for at in range(-8, 5)})
    asked = [(float(n), msgspec.structs.replace(question, users=n), values) for n in counts]
    return _curves(question, asked)


def _over_gap(
    question: Question, values: Mapping[str, float]
) -> dict[str, list[tuple[float, float | None]]]:
    gaps = [float(10 ** (at / 4)) for at in range(0, 25)]
    return _curves(question, [(gap, question, {**values, "workload.gap": gap}) for gap in gaps])


def _curves(
    question: Question, asked: list[tuple[float, Question, Mapping[str, float]]]
) -> dict[str, list[tuple[float, float | None]]]:
    found: dict[str, list[tuple[float, float | None]]] = {
        name: [] for name in (RECOMPUTE, *question.tiers)
    }
    for x, one, values in asked:
        for place in places(one, values):
            usd = place.usd_per_mtok
            found[place.name].append((x, usd if math.isfinite(usd) else None))
    return found
