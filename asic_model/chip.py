"""The whole chip: the units of a preset, and the four routes of requests through them.

Model: `read` moves a block from the medium into the arena, `write` moves one to the medium, `hit`
sends staged blocks to a host, `command` processes a command up to its decisions. They are the four
request kinds of `timing.h`, so a chip implements that seam and every user of a timing side runs on
it: the laboratory, and the replays of a daemon's log. A DPU is the same composition with cores in
place of the chip's units.

A written block crosses the staging memory twice: in from the link, and out again, in the chip to
the codec once its hash is looked up, in a DPU to the drive. What a DPU's cores do with it in
between is taken to stay in their caches, so two is the least. A memory holds no server for what
waits behind it, so writes that wait for a drive hold up no read that lands.

What can fail: `BadInput`, where a preset exceeds the engine's limits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from offstage.asic_model.parameters import Preset, read_preset
from offstage.asic_model.units import cores as software
from offstage.asic_model.units.codec import codec_lanes, coded_permille
from offstage.asic_model.units.cost import per_mib_ps, permille
from offstage.asic_model.units.cxl import cxl_ports
from offstage.asic_model.units.ddr import ddr_channels
from offstage.asic_model.units.dedup import hash_pipelines
from offstage.asic_model.units.dma import dma_engines
from offstage.asic_model.units.front_end import ask, front_end, receive
from offstage.asic_model.units.hbm import hbm_stacks
from offstage.asic_model.units.metadata import averages, look_up, metadata_table, update
from offstage.asic_model.units.nvme import drawn_outside, nvme_units
from offstage.asic_model.units.qos import arbiter
from offstage.asic_model.units.scheduler import decide, scheduler_pipeline
from offstage.bindings.chip import Chip
from offstage.bindings.core import CoreConfig
from offstage.bindings.errors import BadInput
from offstage.bindings.network import Limits, Network, Stage, Unit
from offstage.bindings.timing import Costs, Timing

__all__ = ["Sizes", "limited", "network", "open_chip", "open_timed", "open_timing", "sizes"]

NS = 1000  # ps
DPU_PIECE_BYTES = 8192
"""Piece size of a DPU's one-sided reads: as the chips' pieces, so that both overlap alike."""
MEMORIES: dict[str, Callable[..., tuple[Unit, ...]]] = {
    "hbm": hbm_stacks,
    "ddr": ddr_channels,
    "cxl": cxl_ports,
}


def network(
    preset: Preset,
    *,
    drive: str = "",
    piece_bytes: int = 0,
    weights: Sequence[int] = (1,),
    drawn: bool = False,
) -> Network:
    """Units and routes. `drive`: replaces the preset's medium. `piece_bytes`: the size that a hit
    is cut into; 0: the preset's piece. `weights`: of the tenants, by number. `drawn`: the caller
    draws the service of a disk's reads, in ns, and gives it as their scores (`services.py`)."""
    drawn = drawn and drawn_outside(preset, drive)
    used = {preset.staging, preset.spill} - {""}
    units = [*front_end(preset.front_end), *nvme_units(preset, drive, drawn)]
    for name, build in MEMORIES.items():
        if name in used:
            units += build(preset.memory(name))
    if preset.kind == "dpu":
        assert preset.cores is not None
        routes = _dpu_routes(preset, piece_bytes, drawn)
        return Network((*units, *software.reactors(preset.cores)), routes)
    assert preset.dma and preset.codec and preset.metadata and preset.dedup
    assert preset.scheduler and preset.qos and preset.logic
    units += [
        *arbiter(preset.qos, weights),
        *scheduler_pipeline(preset.scheduler),
        *metadata_table(preset.metadata, preset.logic),
        *dma_engines(preset.dma),
        *codec_lanes(preset.codec),
        *hash_pipelines(preset.dedup, preset.memory(preset.spill), preset.logic),
    ]
    routes = _chip_routes(preset, piece_bytes or preset.dma.piece.whole)
    return Network(tuple(units), routes, coded_permille(preset.codec))


def _chip_routes(preset: Preset, hit_bytes: int) -> dict[str, tuple[Stage, ...]]:
    table, dma = preset.metadata, preset.dma
    assert table and dma and preset.scheduler
    spill = preset.memory(preset.spill)
    arena = preset.staging
    medium = (
        Stage("nvme_command", bytes_permille=0),
        Stage("drive", coded=True),
        Stage("nvme_done", bytes_permille=0),
    )
    return {
        "read": (
            Stage("qos", coded=True),
            *medium,
            Stage("dma_in", coded=True, piece_bytes=dma.piece.whole),
            Stage("decode"),
            Stage(arena),
            update(table),
        ),
        "write": (
            Stage("link_in"),
            Stage("hash"),
            Stage(arena),  # where it waits until its hash is looked up
            *look_up(table, preset.spill, spill, "absent"),
            Stage(arena, label="absent"),
            Stage("encode"),
            Stage("dma_out", coded=True),
            Stage("qos", coded=True),
            medium[0],
            replace(medium[1], write=True),
            medium[2],
        ),
        "hit": (
            *look_up(table, preset.spill, spill, "found"),
            Stage(arena, label="found", piece_bytes=hit_bytes),
            Stage("dma_out"),
            Stage("link_out"),
        ),
        "command": (
            receive(preset.front_end),
            *look_up(table, preset.spill, spill, "known"),
            *averages(table, preset.spill, spill, "known", "averaged"),
            *decide(preset.scheduler, "averaged"),
        ),
    }


def _dpu_routes(preset: Preset, hit_bytes: int, drawn: bool) -> dict[str, tuple[Stage, ...]]:
    cores = preset.cores
    assert cores is not None
    coded = permille(cores.ratio)
    codec = () if coded == 1000 else (Stage("codec_core"),)
    arena = preset.staging
    hashed = Stage(
        "reactor",
        bytes_permille=1000,
        fixed_ps=cores.command.whole,
        mib_ps=per_mib_ps(cores.hash_rate.base),
    )
    medium = (
        Stage("nvme_command", bytes_permille=0),
        Stage("drive", bytes_permille=coded),
        Stage("nvme_done", bytes_permille=0),
    )
    written = replace(medium[1], write=True)
    if drawn:
        assert preset.disk is not None
        written = replace(written, fixed_ps=preset.disk.service.whole)
        medium = (medium[0], replace(medium[1], items="scores", item_ps=NS), medium[2])
    return {
        "read": (software.submit(cores), *medium, *codec, Stage(arena), software.publish(cores)),
        "write": (
            Stage("link_in"),
            Stage(arena),  # the put window
            hashed,
            *codec,
            software.submit(cores),
            medium[0],
            Stage(arena, bytes_permille=coded),  # the drive fetches it
            written,
            medium[2],
            software.publish(cores),
        ),
        "hit": (
            *ask(preset.front_end),
            Stage(arena, piece_bytes=hit_bytes or DPU_PIECE_BYTES),
            Stage("link_out"),
        ),
        "command": (receive(preset.front_end), *software.decide(cores)),
    }


def open_chip(
    preset: Preset,
    limits: Limits,
    *,
    drive: str = "",
    seed: int = 0,
    piece_bytes: int = 0,
    weights: Sequence[int] = (1,),
    drawn: bool = False,
) -> Chip:
    """The preset as a chip at time 0."""
    built = network(preset, drive=drive, piece_bytes=piece_bytes, weights=weights, drawn=drawn)
    return Chip(built, seed=seed, limits=limits)


def open_timing(name: str, costs: Costs, *, drive: str = "", block_bytes: int = 0) -> Timing:
    """A preset as a side of the timing seam, by name. Uses only seed and limits of `costs`."""
    return open_timed(name, costs, drive=drive, block_bytes=block_bytes).timing()


def open_timed(name: str, costs: Costs, *, drive: str = "", block_bytes: int = 0) -> Chip:
    """The chip of that side, for whom it may ask what its units did."""
    return open_chip(
        read_preset(name),
        Limits(in_flight_max=costs.in_flight_max, end_max=costs.in_flight_max, visit_max=1),
        drive=drive,
        seed=costs.seed,
        piece_bytes=block_bytes,
    )


@dataclass(frozen=True)
class Sizes:
    """The hardware's bounds for a decision core. `candidates`, `prefixes`: None where software
    stores them."""

    candidates: int | None
    prefixes: int | None
    reads: int
    arena_bytes: int


def sizes(preset: Preset) -> Sizes:
    """The table of candidates, the index of known prefixes, the reads in flight, and all of the
    staging memory."""
    return Sizes(
        None if preset.scheduler is None else preset.scheduler.candidates.whole,
        None if preset.dedup is None else preset.dedup.entries.whole,
        preset.nvme.reads.whole,
        preset.arena_bytes,
    )


def limited(preset: Preset, config: CoreConfig) -> CoreConfig:
    """A core's sizes within the preset's. BadInput where its staging memory is too small for the
    blocks of one fetch."""
    has = sizes(preset)
    slots = has.arena_bytes // config.block_size_bytes
    if slots < min(config.demand_max, config.slot_count):
        raise BadInput(
            f"{preset.staging} holds {slots} blocks of {config.block_size_bytes} B, and a fetch "
            f"asks for up to {config.demand_max}",
            f"preset {preset.name}",
            f"give [{preset.staging}] more capacity",
        )
    return replace(
        config,
        queue_max=config.queue_max
        if has.candidates is None
        else min(config.queue_max, has.candidates),
        io_max=min(config.io_max, has.reads),
        slot_count=min(config.slot_count, slots),
    )
