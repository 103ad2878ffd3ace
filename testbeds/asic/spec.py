"""A sweep over chips as a TOML file: the run, the presets, and the numbers that vary.

Model: a spec is read and checked completely before anything runs. Its points are every combination
of the axes in `[grid]`, or `draws` of a Latin hypercube over the ranges of the parameters named in
`over`, or both: draws around each combination. A draw that contradicts itself is skipped; a grid
combination that does is an error in the spec.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.ranges import hypercube, value_at, varied
from offstage.bindings.errors import BadInput
from offstage.bindings.settings import check_known, convert, read_toml
from offstage.bindings.storage import presets as drives

__all__ = ["Point", "SweepSpec", "load", "points_of"]

POINTS_MAX = 100_000
COPIES_MAX = 1024


class SweepSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to sweep. `run`: a recorded run, relative to the spec's folder. `copies`: of it, side by
    side. Their decisions are the log's, so only in decision-replay."""

    run: str
    preset: str = "asic_7nm"
    mode: Literal["decision-replay", "closed-loop"] = "decision-replay"
    storage: str = ""
    copies: Annotated[int, msgspec.Meta(ge=1, le=COPIES_MAX)] = 1
    seed: Annotated[int, msgspec.Meta(ge=0)] = 1
    draws: Annotated[int, msgspec.Meta(ge=0, le=POINTS_MAX)] = 0
    over: tuple[str, ...] = ()
    grid: dict[str, tuple[float, ...]] = {}


@dataclass(frozen=True)
class Point:
    """One chip: the differences from the preset, by `block.key` in its unit."""

    number: int
    values: dict[str, float]


def load(path: Path) -> SweepSpec:
    """The spec in a file. BadInput for an invalid spec or an unknown name."""
    where = str(path)
    spec = convert(read_toml(path, "give a sweep's TOML file"), SweepSpec, where)
    preset = _preset(spec, path)
    known = varied(preset)
    if not spec.draws and not spec.grid:
        raise BadInput("nothing varies", where, "give draws, or axes in [grid]")
    if spec.over and not spec.draws:
        raise BadInput("over needs draws", f"{where}: over", "set draws, such as draws = 64")
    if spec.copies > 1 and spec.mode != "decision-replay":
        raise BadInput(
            "copies decide nothing again", f"{where}: copies", "leave it out, or the mode"
        )
    if spec.storage and spec.storage not in drives():
        raise BadInput(
            f"no drive {spec.storage!r}",
            f"{where}: storage",
            f"choose one of {', '.join(drives())}",
        )
    for name in spec.over:
        check_known(name, known, f"{where}: over", "parameter with a range")
        if name in spec.grid:
            raise BadInput(f"{name} is in over and in the grid", f"{where}: over", "name it once")
    for name, values in spec.grid.items():
        check_known(name, dict(preset.numbers()), f"{where}: [grid]", "parameter")
        if not values or len(set(values)) < len(values):
            raise BadInput(
                f"{name} has no values, or a duplicate", f"{where}: [grid]", "list each value once"
            )
    preset.refuse_unused((*spec.over, *spec.grid), where)
    points = max(spec.draws, 1) * math.prod(map(len, spec.grid.values()))
    if points > POINTS_MAX:
        raise BadInput(
            f"{points:,} points, and a sweep has {POINTS_MAX:,} at most",
            where,
            "give fewer draws or values",
        )
    return spec


def points_of(spec: SweepSpec, path: Path, heads: int = 0) -> list[Point]:
    """The points in order: combinations of the grid, and in each the draws. `heads`: KV heads of
    the run's blocks, or 0 where unknown."""
    preset = _preset(spec, path).for_heads(heads)
    for name in spec.over:
        if name not in varied(preset):
            raise BadInput(f"{name} is fixed by the run", f"{path}: over", "leave it out of over")
    found: list[Point] = []
    for combination in itertools.product(*spec.grid.values()):
        chosen = dict(zip(spec.grid, combination, strict=True))
        try:
            base = preset.with_(chosen)
        except BadInput as error:
            where = f"{path}: [grid]: {error.where.removeprefix(f'preset {preset.name}: ')}"
            raise BadInput(error.what, where, error.fix) from None
        for values in _drawn(spec, base):
            found.append(Point(len(found), {**chosen, **values}))
    if not found:
        raise BadInput(
            "no draw is valid", str(path), "narrow the ranges, or draw over fewer parameters"
        )
    return found


def _preset(spec: SweepSpec, path: Path) -> Preset:
    """The preset by name, or from a file relative to the spec's folder."""
    name = spec.preset
    return read_preset(str(path.parent / name) if name.endswith(".toml") else name)


def _drawn(spec: SweepSpec, base: Preset) -> Iterator[dict[str, float]]:
    if not spec.draws:
        yield {}
        return
    known = varied(base)
    names = spec.over or tuple(name for name in known if name not in spec.grid)
    for row in hypercube(len(names), spec.draws, spec.seed).tolist():
        values = {
            name: value_at(known[name], share) for name, share in zip(names, row, strict=True)
        }
        try:
            base.with_(values)
        except BadInput:
            continue
        yield values
