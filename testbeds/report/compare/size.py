"""The smallest chip of a family that serves so many tokens per second of so many GPUs.

Model: one replay of a run's decisions says how many seconds of each unit's capacity a token takes
(`asic_model/load.py`). Twice the lanes, channels, engines or drives take half; so each is the
smallest number at which its units are used no more than `FILL` at the rate asked, and at which the
GPUs then reach it, waits included. Memory holds what it must: the staging memory the blocks that
one step of all sessions demands, the SRAM their entries and an average for each block that is
scored, the memory below it the table of all blocks of all sessions. A last replay, of the chip
found, is what is shown.

What can fail: `BadInput`, before any replay where GPUs or the metadata rule the question out, and
after it for a unit of which the family has too few.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from offstage.asic_model.energy import area
from offstage.asic_model.load import Work, serve, work_of
from offstage.asic_model.parameters import Preset
from offstage.asic_model.replay import decision_replay
from offstage.asic_model.trace import Trace
from offstage.asic_model.units.metadata import AVERAGE_BYTES, keys_of_block
from offstage.bindings.errors import BadInput
from offstage.testbeds.asic.price import price
from offstage.testbeds.progress import Progress
from offstage.testbeds.report.compare.columns import Range
from offstage.testbeds.report.compare.effect import Load

__all__ = ["WHERE", "Part", "Sized", "size"]

FILL = (0.8, 0.7, 0.6, 0.5, 0.4)
"""How full the fullest unit may be; a lower one where waits keep the GPUs from the rate."""
KNOBS = {
    "front_end.lanes": ("link_in", "link_out"),
    "dma.engines": ("dma_in", "dma_out"),
    "codec.lanes": ("decode", "encode"),
    "metadata.banks": ("metadata", "metadata_update"),
    "dedup.instances": ("hash",),
    "hbm.channels": ("hbm",),
    "ddr.channels": ("ddr",),
    "cxl.channels": ("cxl",),
    "nvme.drives": ("drive",),
}
LINK = "front_end.lanes"
WHERE = "asic size"
SRAM_MIN = float(1 << 18)
"""The smallest array of the SRAM's table."""


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One number of the chip. `used`: of its units, the fullest at the rate asked."""

    parameter: str
    value: float
    unit: str
    family: float
    """What the family's preset has."""
    used: float | None


class Sized(msgspec.Struct, frozen=True, kw_only=True):
    """The chip, at its load. mm2, watt and dollars as ranges; dollars with the drives."""

    family: str
    load: str
    asked_tokens_per_s: float
    tokens_per_s: float
    """What the GPUs reach."""
    tokens_per_s_max: float
    """Of one chip, however many GPUs there are."""
    parts: list[Part]
    next_bottleneck: str
    """The fullest unit: what a larger load meets first."""
    next_used: float
    area_mm2: Range
    watt: Range
    dollars: Range | None
    calibrated: bool


def size(
    trace: Trace, load: Load, family: Preset, tokens_per_s: float, progress: Progress
) -> Sized:
    """The smallest chip. `trace`: on the blocks of the load's model."""
    if family.kind != "asic":
        raise BadInput(f"{family.name} is bought whole", WHERE, "name a chip, such as asic_7nm")
    family = family.for_heads(trace.heads)
    memory = _memory(trace, load, family)
    progress.start(f"the decisions on {family.name}", 2, "replays")
    work = _work(trace, load, family)
    progress.advance(1)
    most = load.gpus * work.tokens / work.host_s if work.host_s else math.inf
    if tokens_per_s > most:
        rate = f"{most:,.0f}" if most >= 10 else f"{most:.3g}"
        raise BadInput(
            f"the GPUs ({load.gpus:,}) compute {rate} tokens/s by themselves",
            WHERE,
            "ask for less, or give more GPUs, sessions or a shorter pace",
        )
    counts = _counts(family, work, load.gpus, tokens_per_s, memory)
    chip = family.with_({**counts, **_sram(family, memory)})
    found = _work(trace, load, chip)
    progress.advance(1)
    return _sized(chip, family, load, trace, found, tokens_per_s)


def _work(trace: Trace, load: Load, preset: Preset) -> Work:
    return load.of(work_of(decision_replay(trace, preset), trace), trace)


def _memory(trace: Trace, load: Load, family: Preset) -> dict[str, float]:
    """Bytes that each memory must hold at least. Refuses a family too small for its metadata."""
    table = family.metadata
    assert table is not None
    steps = {(one.session, one.step) for one in trace.fetches}
    layers = load.layers(trace)
    per_layer = sum(one.demands for one in trace.fetches) / len(
        {(one.session, one.step, one.layer) for one in trace.fetches}
    )
    sessions = load.gpus * (load.sessions or len({session for session, _ in steps}))
    staged = sessions * layers * per_layer
    # Scores are of every block of a context, so their most is a session's length in blocks.
    stored = sessions * layers * max(one.scores or one.demands for one in trace.fetches)
    entry = table.entry.base * keys_of_block(table)
    needs = {
        "metadata.sram": max(staged * entry + stored * AVERAGE_BYTES, SRAM_MIN),
        f"{family.staging}.channels": staged * trace.block_bytes,
        f"{family.spill}.channels": stored * entry,
    }
    if needs["metadata.sram"] > table.sram.high * table.sram.scale:
        mib = needs["metadata.sram"] / 2**20
        raise BadInput(
            f"entries and averages of one step need {mib:,.3g} MiB of SRAM; {family.name} has at "
            f"most {table.sram.high:g} {table.sram.unit}",
            WHERE,
            "give fewer GPUs or sessions to a chip",
        )
    return needs


def _sram(family: Preset, memory: Mapping[str, float]) -> dict[str, float]:
    """The SRAM, in powers of two of its unit, as its sets are."""
    assert family.metadata is not None
    units = memory["metadata.sram"] / family.metadata.sram.scale
    return {"metadata.sram": 2.0 ** math.ceil(math.log2(units))}


def _counts(
    family: Preset, work: Work, gpus: int, tokens_per_s: float, memory: Mapping[str, float]
) -> dict[str, float]:
    """The smallest counts with which the GPUs reach the rate."""
    known = dict(family.numbers())
    short = ""
    for fill in FILL:
        counts: dict[str, float] = {}
        units = dict(work.units)
        for name, served in KNOBS.items():
            has = [unit for unit in served if unit in units]
            if name not in known or not has:
                continue
            number = known[name]
            busy = max(units[unit] for unit in has) * tokens_per_s / work.tokens
            count = max(1, math.ceil(number.value * busy / fill))
            if name in memory:
                capacity = family.memory(name.partition(".")[0]).capacity.base
                count = max(count, math.ceil(memory[name] / capacity))
            if name == LINK:
                count = 1 << (count - 1).bit_length()
            if count > number.high:
                short = (
                    f"it needs {count} {name}, of which {family.name} has at most {number.high:g}"
                )
                break
            counts[name] = count
            for unit in has:
                units[unit] *= number.value / count
        else:
            if serve(replace(work, units=units), gpus).tokens_per_s >= tokens_per_s:
                return counts
            short = f"waits leave less with every unit used {fill:.0%} at most"
            continue
        break
    raise BadInput(short, WHERE, "ask for less, or share the load among several chips")


def _sized(
    chip: Preset, family: Preset, load: Load, trace: Trace, work: Work, tokens_per_s: float
) -> Sized:
    at = serve(work, load.gpus)
    steps = tokens_per_s / work.tokens
    used = {name: steps * seconds for name, seconds in work.units.items()}
    known, before = dict(chip.numbers()), dict(family.numbers())
    parts = [
        Part(
            parameter=name,
            value=known[name].value,
            unit=known[name].unit,
            family=before[name].value,
            used=max((used[unit] for unit in KNOBS.get(name, ()) if unit in used), default=None),
        )
        for name in (*KNOBS, "metadata.sram")
        if name in known and (name == "metadata.sram" or any(unit in used for unit in KNOBS[name]))
    ]
    fullest = max(used, key=lambda name: used[name])
    mm2, dollars = area(chip), price(chip)
    watts = [one + steps * joule for one, joule in zip(work.watt, work.joule, strict=True)]
    return Sized(
        family=family.name,
        load=load.said(load.gpus, work, trace),
        asked_tokens_per_s=tokens_per_s,
        tokens_per_s=at.tokens_per_s,
        tokens_per_s_max=work.tokens_per_s_max,
        parts=parts,
        next_bottleneck=fullest,
        next_used=used[fullest],
        area_mm2=Range(
            *(sum(getattr(one, end) for one in mm2) for end in ("value", "low", "high"))
        ),
        watt=Range(*watts),
        dollars=None if dollars is None else Range(dollars.value, dollars.low, dollars.high),
        calibrated=chip.calibrated,
    )
