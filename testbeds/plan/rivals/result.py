"""Rivals as data: each with its ranges, who cannot be told apart, and the map of who is best where.

Model: as a plan's (`plan/result.py`): a figure's value is that of all inputs at their middle, its
range covers nine in ten draws of all inputs together, and two rivals are compared within each draw.
The map asks the same at other contexts, users, and selections or reuse. `--format json` prints a
`Rivals`.

What can fail: `BadInput` of the question, and where no rival carries one session.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec

from offstage import __version__
from offstage.asic_model.blocks import Number
from offstage.bindings.errors import BadInput
from offstage.host.model.formats import Stored, growth, total
from offstage.testbeds.plan.inputs import Input, Inputs, Kind, of_devices
from offstage.testbeds.plan.kv import parameters
from offstage.testbeds.plan.result import DOUBT, TIE, InputRow, draws_of, input_rows, ranged
from offstage.testbeds.plan.rivals.design import RIVALS, devices_of
from offstage.testbeds.plan.rivals.model import Outcome, outcome
from offstage.testbeds.plan.rivals.question import Asked
from offstage.testbeds.plan.rivals.stream import drawn, from_capture, shares
from offstage.testbeds.prices import Catalog
from offstage.testbeds.progress import Progress
from offstage.testbeds.report.compare.columns import Range

__all__ = ["MapCell", "RivalRow", "Rivals", "make_rivals", "numbers_of"]

PROFILES = {"tokens": ("hisparse", "gvr"), "blocks": ("smollm2", "published-mix")}
"""Whose published or captured statistics selections are drawn with."""
DRAWN_TOKENS_MAX = 131_072
"""Longer contexts have the shares of this one: they change little, and take long to draw."""
PAGE = 4096
CONTEXTS = {"tokens": ("32K", "128K", "512K"), "blocks": ("32K", "128K", "512K")}
CONTEXTS["prefix"] = ("8K", "32K", "128K")
USERS = {"tokens": (4, 16, 64, 256), "blocks": (4, 16, 64, 256), "prefix": (16, 64, 256, 1024)}
REUSES = (0.3, 0.9)
FIGURES: dict[str, Callable[[Outcome], float]] = {
    "tokens_per_usd": lambda one: one.tokens_per_usd,
    "tokens_per_joule": lambda one: one.tokens_per_joule,
    "tokens_per_s": lambda one: one.tokens_per_s,
    "stall_p99_s": lambda one: one.stall_p99_s,
    "bytes_per_usd": lambda one: one.bytes_per_usd or math.inf,
    "sessions": lambda one: float(one.sessions),
}


class RivalRow(msgspec.Struct, kw_only=True):
    """One rival. A figure is None where there is none: `note` says why. `bound`: what its
    sessions or rate end at; `over_best`: its tokens per dollar over those of the best, less 1, both
    of the same draw; `better_in`: share of the draws in which it has more than that one; `tied`:
    whether it cannot be told from it."""

    name: str
    label: str
    works: bool
    bound: str
    note: str
    figures: dict[str, Range | None]
    over_best: Range | None
    better_in: float
    tied: bool


class MapCell(msgspec.Struct, kw_only=True):
    """One cell of the map: the best by tokens per dollar, and who cannot be told from it. `k` is of
    decode, `reuse` of prefixes without a trace, which has its own; `best` is empty where no rival
    carries a session. `drawn`: the same with drawn selections, where a capture gave these."""

    context: str
    users: int
    k: int | None
    reuse: float | None
    best: str
    tied: list[str]
    drawn: "MapCell | None" = None

    @property
    def names(self) -> set[str]:
        """Those that may be the best."""
        return {self.best, *self.tied} - {""}


class Rivals(msgspec.Struct, kw_only=True):
    """What `offstage rivals` prints. `selections`: where the selections come from."""

    asked: Asked
    sentence: str = ""
    selections: str
    best: str
    rows: list[RivalRow]
    map: list[MapCell]
    inputs: list[InputRow]
    draws: int
    map_draws: int
    provenance: str = "modelled"
    command: str = ""
    version: str = __version__


def numbers_of(asked: Asked, catalog: Catalog) -> Inputs:
    """The inputs of a question but for those of its selections."""
    shape, whole, active = parameters(asked.model)
    kv, index = Stored(0.0, 0.0, 0.0), Stored(0.0, 0.0, 0.0)
    for group in shape.groups:
        grown = growth(group, asked.dtype)
        if group.kind == "indexer":
            index = total([index, grown])
        else:
            kv = total([kv, grown])
    sizes = {"kv": (kv, "of one token"), "index": (index, "of one token's index keys, in HBM")}
    found = {
        "model.parameters": Input(whole, "cited", "held in memory"),
        "model.active": Input(active, "cited", "that one token passes"),
    }
    for name, (stored, what) in sizes.items():
        number = Number(
            value=stored.value,
            unit="B",
            low=stored.low,
            high=stored.high,
            source=shape.source,
            tag="derived",
        )
        found[f"model.{name}"] = Input(number, "cited", what)
    return Inputs(found | of_devices(catalog, devices_of(asked.gpu, asked.dpu)))


def make_rivals(
    asked: Asked,
    inputs: Inputs,
    progress: Progress,
    *,
    capture: Path | None = None,
    steps: int = 32,
    draws: int = 256,
    map_draws: int = 64,
    seed: int = 0,
) -> Rivals:
    """The rivals of a checked question. BadInput of a capture, and where none carries a session."""
    cells = list(_questions(asked))
    made: dict[tuple[int, int], tuple[Inputs, str]] = {}
    own, about = _with_stream(asked, inputs, capture, steps, made)
    if capture is not None:
        drawn_ones, _ = _with_stream(asked, inputs, None, steps, made)
        missed = [one.values["stream.missed"] for one in (own, drawn_ones)]
        about += f"; a step misses {missed[0]:.1%} of k, with drawn selections {missed[1]:.1%}"
    rows = _rows(asked, own, draws, seed)
    best = next((one.name for one in rows if one.over_best == Range(0.0, 0.0, 0.0)), "")
    if not best:
        raise BadInput(
            f"no rival carries one session: {rows[0].note}",
            "rivals",
            "give a larger --budget or --pace, or a shorter --context",
        )
    progress.start("map", len(cells), "cells")
    found = []
    for one, reuse in cells:
        numbers, _ = _with_stream(one, inputs, capture, steps, made)
        if reuse is not None:
            numbers = numbers.set({"workload.prefix": _exactly(reuse)}, "assumed")
        found.append(_cell(one, numbers, reuse, map_draws, seed))
        if capture is not None:
            numbers, _ = _with_stream(one, inputs, None, steps, made)
            found[-1].drawn = _cell(one, numbers, reuse, map_draws, seed)
        progress.advance(1)
    return Rivals(
        asked=asked,
        selections=about,
        best=best,
        rows=rows,
        map=found,
        inputs=input_rows(own),
        draws=draws,
        map_draws=map_draws,
    )


def _questions(asked: Asked) -> Iterator[tuple[Asked, float | None]]:
    """The cells' questions, and their reuse: a slow k or reuse outside, then users and contexts."""
    thirds: tuple[tuple[int, float | None], ...]
    if asked.use == "prefix" and asked.reuse:
        thirds = ((asked.k, None),)  # a trace has its own
    elif asked.use == "prefix":
        thirds = tuple((asked.k, reuse) for reuse in REUSES)
    else:
        thirds = ((max(1, asked.k // 4), None), (asked.k, None))
    for k, reuse in thirds:
        for users in USERS[asked.use]:
            for context in CONTEXTS[asked.use]:
                yield msgspec.structs.replace(asked, context=context, users=users, k=k), reuse


def _exactly(value: float) -> Number:
    return Number(value=value, unit="1", low=value, high=value, tag="guess", source="of the map")


def _with_stream(
    asked: Asked,
    inputs: Inputs,
    capture: Path | None,
    steps: int,
    made: dict[tuple[int, int], tuple[Inputs, str]],
) -> tuple[Inputs, str]:
    """The inputs with those of the selections, and where these come from; `made` keeps them."""
    if asked.use == "prefix":
        return inputs, ""
    tokens = 0 if capture else min(asked.tokens, DRAWN_TOKENS_MAX)
    if (asked.k, tokens) not in made:
        values, layers = inputs.values, max(len(one.layers) for one in asked.shape().groups)
        row = values["model.kv"] * asked.unit / layers
        if capture is not None:
            found = from_capture(capture, asked.k, steps)
        else:
            found = drawn(PROFILES[asked.use], tokens, asked.unit, asked.k, steps)
        counted = shares(found, asked.pool, max(1, int(PAGE // row)), steps)
        kind: Kind = "measured" if capture else "modelled"
        what = "share of k, of a layer and step"
        rows = {name: Input(one, kind, what) for name, one in counted.items()}
        made[asked.k, tokens] = Inputs({**inputs.of, **rows}), found.about
    return made[asked.k, tokens]


def _outcomes(asked: Asked, v: Mapping[str, float]) -> list[Outcome]:
    return [outcome(name, asked, v) for name in asked.rivals]


def _best(found: list[Outcome]) -> int | None:
    """The place of the most tokens per dollar."""
    at = max(range(len(found)), key=lambda one: found[one].tokens_per_usd)
    return at if found[at].sessions else None


def _over(one: Outcome, other: Outcome) -> float:
    return one.tokens_per_usd / other.tokens_per_usd - 1.0


def _better(drawn: list[list[Outcome]], one: int, other: int) -> float:
    """Share of the draws in which one has more tokens per dollar than the other."""
    return sum(of[one].tokens_per_usd > of[other].tokens_per_usd for of in drawn) / len(drawn)


def _tied(found: list[Outcome], drawn: list[list[Outcome]], one: int, best: int) -> bool:
    """Whether one cannot be told from the best: none of all rivals clearly beats it, by being more
    than a little better and so in nearly all draws."""
    return one != best and all(
        bool(found[one].sessions and _over(found[one], other) > -TIE)
        or _better(drawn, one, at) >= DOUBT
        for at, other in enumerate(found)
        if at != one and other.sessions
    )


def _rows(asked: Asked, inputs: Inputs, draws: int, seed: int) -> list[RivalRow]:
    found = _outcomes(asked, inputs.values)
    drawn = [_outcomes(asked, one) for one in draws_of(inputs, draws, seed)]
    best = _best(found)
    rows = []
    for at, one in enumerate(found):
        works = one.sessions > 0
        over = None
        if works and best is not None:
            both = [_over(of[at], of[best]) for of in drawn if of[best].sessions]
            over = Range(0.0, 0.0, 0.0) if at == best else ranged(_over(one, found[best]), both)
        rows.append(
            RivalRow(
                name=one.name,
                label=RIVALS[one.name].label,
                works=works,
                bound=one.bound,
                note=one.note,
                figures={
                    name: ranged(of(one), [of(each[at]) for each in drawn]) if works else None
                    for name, of in FIGURES.items()
                },
                over_best=over,
                better_in=_better(drawn, at, best) if best is not None else 0.0,
                tied=best is not None and _tied(found, drawn, at, best),
            )
        )
    return rows


def _cell(asked: Asked, inputs: Inputs, reuse: float | None, draws: int, seed: int) -> MapCell:
    found = _outcomes(asked, inputs.values)
    best = _best(found)
    tied: list[str] = []
    if best is not None:
        drawn = [_outcomes(asked, one) for one in draws_of(inputs, draws, seed)]
        tied = [one.name for at, one in enumerate(found) if _tied(found, drawn, at, best)]
    return MapCell(
        context=asked.context,
        users=asked.users,
        k=None if asked.use == "prefix" else asked.k,
        reuse=reuse,
        best="" if best is None else found[best].name,
        tied=tied,
    )
