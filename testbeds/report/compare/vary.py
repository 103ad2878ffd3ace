"""Variations of a result: all parameters together, one at a time, two at a time, and load.

Everything here runs the beginning of the log, many times; the answer is a ratio of two such runs.
Each range of a speed-up covers nine in ten draws of a Latin hypercube over all parameters of the
device; the measured machine is not varied.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from offstage.asic_model.copies import begin, copies
from offstage.asic_model.load import Work, work_of
from offstage.asic_model.neighbours import neighbours
from offstage.asic_model.parameters import Preset
from offstage.asic_model.ranges import across, at_ends, draws, varied
from offstage.asic_model.replay import decision_replay
from offstage.asic_model.result import ChipRun, Logged
from offstage.asic_model.trace import Trace
from offstage.testbeds.progress import Progress
from offstage.testbeds.report.compare.columns import (
    Crossover,
    Effect,
    LoadPoint,
    NeighbourPoint,
    Range,
    Tornado,
)
from offstage.testbeds.report.compare.effect import Load, spread_of

__all__ = ["FETCHES_MAX", "SEED", "SpeedUp", "Varied", "vary"]

FETCHES_MAX = 400
"""Fetches of the log's beginning, for runs repeated hundreds of times."""
LOAD_FETCHES_MAX = 4_000
COPIES = (1, 4, 16, 64)
GRID = 5
AGGRESSOR = (0.1, 0.5, 0.8, 0.9, 1.0, 1.1, 1.3)
"""The aggressor's load, over the device's read capacity."""
FLAT = 0.005
"""A map that is nowhere this far from the preset has no crossover and is not shown."""
SEED = 1
CROSSOVERS = (
    ("codec.decode_rate", "codec rate of a lane", "codec.ratio", "compressed size"),
    ("metadata.sram", "metadata SRAM", "metadata.latency", "lookup"),
)


@dataclass(frozen=True)
class SpeedUp:
    """Speed-up of one device over the measured run; `same_drives`: over the measured machine's
    model with that device's drives."""

    mean: Range
    p99: Range
    same_drives: Range | None


@dataclass
class Varied:
    """All results of the variations."""

    loads: list[list[LoadPoint]]
    works: list[list[tuple[Work, Work]]] = field(default_factory=list)
    """For each device its draws' work under the load, each with that of the preset."""
    speed_ups: list[SpeedUp] = field(default_factory=list)
    tornados: list[Tornado] = field(default_factory=list)
    crossovers: list[Crossover] = field(default_factory=list)
    neighbours: list[NeighbourPoint] = field(default_factory=list)
    neighbours_device: str = ""


def vary(
    trace: Trace,
    presets: Sequence[Preset],
    done: Sequence[ChipRun],
    measured: Logged,
    load: tuple[Load, Trace],
    samples: int,
    deep: bool,
    progress: Progress,
) -> Varied:
    """`presets` with their results on the whole trace; the first is the `measured` machine's.
    `load`: and the trace on the blocks of its model.
    Without samples a range is one value. `deep`: also load on every device, and for the first ASIC
    the effect of each parameter, crossovers and a neighbour."""
    own, *others = presets
    short = begin(trace, FETCHES_MAX)
    found = Varied([[] for _ in range(len(presets) + 1)])
    if samples:
        progress.start("within the ranges of all parameters", len(others) * samples, "draws")
    bases = {id(one): decision_replay(short, one) for one in presets}
    for preset, run in zip(presets, done, strict=True):
        base = bases[id(preset)]
        runs = [] if preset is own else list(_drawn(short, preset, samples, progress))
        found.works.append(_works(trace, load[1], preset, base, runs))
        spread = {
            key: spread_of(
                [
                    getattr(base.fetch_ns, key) / getattr(one.fetch_ns, key)
                    for one in runs
                    if getattr(one.fetch_ns, key)
                ]
            )
            for key in ("mean", "p99")
        }
        found.speed_ups.append(
            SpeedUp(
                _range(measured.fetch_ns.mean, run.fetch_ns.mean, spread["mean"]),
                _range(measured.fetch_ns.p99, run.fetch_ns.p99, spread["p99"]),
                None
                if preset is own or own.kind != "dpu"
                else _range(
                    _on_drives(trace, own, preset).fetch_ns.mean, run.fetch_ns.mean, spread["mean"]
                ),
            )
        )
    if deep and others:
        progress.start("each parameter, load, a neighbour", len(presets), "devices")
        _deepen(
            found,
            trace,
            short,
            presets,
            bases,
            measured.fetch_ns.mean / done[0].fetch_ns.mean,
            load,
            progress,
        )
    return found


def _works(
    trace: Trace, loaded: Trace, preset: Preset, base: ChipRun, runs: Sequence[ChipRun]
) -> list[tuple[Work, Work]]:
    """Every draw's work with the preset's; on the load's own blocks where it has some."""
    short = begin(loaded, FETCHES_MAX)
    if loaded is not trace and runs:
        preset = preset.for_heads(loaded.heads)
        base = decision_replay(short, preset)
        runs = [decision_replay(short, one) for one in draws(preset, len(runs), SEED)]
    own = work_of(base, short)
    return [(work_of(one, short), own) for one in runs]


def _drawn(short: Trace, preset: Preset, samples: int, progress: Progress) -> Iterator[ChipRun]:
    for drawn in draws(preset, samples, SEED) if samples else ():
        yield decision_replay(short, drawn)
        progress.advance(1)


def _range(measured: float, modelled: float, spread: tuple[float, float]) -> Range:
    value = measured / modelled if modelled else 0.0
    return Range(value, min(value, value * spread[0]), max(value, value * spread[1]))


def _on_drives(trace: Trace, own: Preset, preset: Preset) -> ChipRun:
    """Today's daemon with another device's drives, all else unchanged."""
    nvme = msgspec.structs.replace(
        own.nvme,
        drive=preset.nvme.drive,
        drives=preset.nvme.drives,
        queue=preset.nvme.queue,
        reads=preset.nvme.reads,
    )
    return decision_replay(trace, msgspec.structs.replace(own, nvme=nvme))


def _deepen(
    found: Varied,
    trace: Trace,
    short: Trace,
    presets: Sequence[Preset],
    bases: dict[int, ChipRun],
    over: float,
    load: tuple[Load, Trace],
    progress: Progress,
) -> None:
    """Load on every device; effects and crossovers of the first ASIC. `over`: measured / modelled
    of the machine's model, so that a base is a speed-up over the measured run."""
    own = bases[id(presets[0])].fetch_ns.mean * over
    chips = [one for one in presets if one.kind == "asic"]
    for preset in chips[:1]:
        base = own / bases[id(preset)].fetch_ns.mean
        found.tornados.append(
            Tornado(
                device=preset.name,
                base=base,
                effects=list(_effects(short, preset, own, base)),
            )
        )
        maps = (_crossover(short, preset, bases[id(preset)], *row) for row in CROSSOVERS)
        found.crossovers += [one for one in maps if _bends(one)]
        found.neighbours_device = preset.name
        found.neighbours = [
            NeighbourPoint(
                qos=one.qos,
                same_tenant=one.same_tenant,
                aggressor_share=one.aggressor_share,
                victim_ns_p99=one.victim_ns_p99,
            )
            for one in neighbours(preset, AGGRESSOR, trace.block_bytes)
        ]
    for at, preset in enumerate(presets):
        found.loads[at + 1] = list(_loaded(*load, preset))
        progress.advance(1)


def _effects(short: Trace, preset: Preset, own_ns: float, base: float) -> Iterator[Effect]:
    for name, number, low, high in at_ends(preset):
        ends = [
            base if one is None else own_ns / decision_replay(short, one).fetch_ns.mean
            for one in (low, high)
        ]
        yield Effect(
            parameter=name,
            unit="" if number.unit == "1" else number.unit,
            low=number.low,
            high=number.high,
            at_low=ends[0],
            at_high=ends[1],
        )


def _crossover(
    short: Trace, preset: Preset, base: ChipRun, x: str, x_name: str, y: str, y_name: str
) -> Crossover:
    """Speed-up over the unchanged preset."""
    known = varied(preset)
    axes = [across(known[name], GRID) for name in (x, y)]
    speed_up = [
        [
            base.fetch_ns.mean / decision_replay(short, preset.with_({x: a, y: b})).fetch_ns.mean
            for a in axes[0]
        ]
        for b in axes[1]
    ]
    units = ["of raw" if name == "codec.ratio" else known[name].unit for name in (x, y)]
    return Crossover(
        device=preset.name,
        what="speed-up over the preset",
        x_name=x_name,
        x_unit=units[0],
        y_name=y_name,
        y_unit=units[1],
        xs=axes[0],
        ys=axes[1],
        speed_up=speed_up,
        x=known[x].value,
        y=known[y].value,
    )


def _bends(found: Crossover) -> bool:
    """Whether the map shows anything: where a load leaves both parameters idle it is flat."""
    return any(abs(value - 1) > FLAT for row in found.speed_up for value in row)


def _loaded(load: Load, trace: Trace, preset: Preset) -> Iterator[LoadPoint]:
    preset = preset.for_heads(trace.heads)
    for count in COPIES:
        part = begin(trace, LOAD_FETCHES_MAX // count)
        run = decision_replay(copies(part, count, SEED, load.tenants), preset)
        yield LoadPoint(
            copies=count,
            bytes_per_s=run.bytes_to_hosts / run.seconds,
            ns_p50=run.fetch_ns.p50,
            ns_p99=run.fetch_ns.p99,
        )
