"""A preset with one part of it twice as fast: the change by which a bottleneck is checked.

Model: a device has four parts, and each unit belongs to one. Twice means: a rate, a number of
servers or of drives doubled, or a time halved, and nothing else changed. A disk that is known only
by its service times has those halved, since there is no second one to share them with.

What can fail: `BadInput` where the preset would contradict itself.
"""

from collections.abc import Mapping

import numpy as np

from offstage.asic_model.account import utilisation
from offstage.asic_model.parameters import Preset
from offstage.asic_model.result import ChipRun
from offstage.asic_model.trace import Trace
from offstage.asic_model.units.nvme import medium
from offstage.bindings.chip import Chip

__all__ = [
    "CHANGES",
    "CONTROL",
    "DEVICE",
    "FLASH",
    "LINK",
    "PARTS",
    "no_room",
    "twice",
    "units_since",
    "used",
    "used_since",
]

LINK, DEVICE, FLASH = "link", "DPU", "flash"
CONTROL = "metadata and control"
PARTS = (LINK, DEVICE, FLASH, CONTROL)
UNITS = {
    "link_in": LINK,
    "link_out": LINK,
    "nvme_command": FLASH,
    "drive": FLASH,
    "nvme_done": FLASH,
    "qos": CONTROL,
    "scheduler": CONTROL,
    "metadata": CONTROL,
    "metadata_update": CONTROL,
}
"""Units of the chip by part; all others are the device's own."""
REACTOR = "reactor"
MEMORIES = ("hbm.rate", "ddr.rate", "cxl.rate")
DOUBLED = {
    LINK: ("front_end.lane_rate",),
    DEVICE: (
        *("cores.cores", "cores.reactors", "dma.engines", "codec.lanes", "dedup.instances"),
        *MEMORIES,
    ),
    FLASH: ("nvme.drives",),
    CONTROL: (),
}
HALVED = {
    CONTROL: (
        *("front_end.latency", "cores.command", "cores.demand", "cores.score"),
        *("metadata.cycle", "metadata.latency"),
        *("scheduler.command", "scheduler.score", "scheduler.demand", "scheduler.latency"),
        *("qos.interval", "qos.latency"),
    )
}
DISK = "disk"
CHANGES = {
    LINK: "a link of twice the rate",
    DEVICE: "a DPU with twice the cores, engines and memory bandwidth",
    FLASH: "flash twice as fast",
    CONTROL: "half the time to look up and decide, and half the link's latency",
}
"""What is changed of each part, in words."""


def twice(preset: Preset, part: str) -> Preset:
    """The preset with this part twice as fast. Numbers that it lacks stay out."""
    if part == FLASH and preset.nvme.drive == DISK and preset.disk is not None:
        return preset.with_({"disk.service": preset.disk.service.value / 2})
    factors = dict.fromkeys(DOUBLED[part], 2.0) | dict.fromkeys(HALVED.get(part, ()), 0.5)
    has = {name: number.value for name, number in preset.numbers()}
    return preset.with_({name: has[name] * by for name, by in factors.items() if name in has})


def no_room(preset: Preset, slot_count: int, block_bytes: int) -> str:
    """Why the device's memory cannot hold an arena of so many slots; empty: it can. A core would be
    cut to what fits, and a larger arena then gain nothing."""
    if slot_count * block_bytes <= preset.arena_bytes:
        return ""
    return f"the memory of {preset.name} holds {preset.arena_bytes // block_bytes:,} slots at most"


def used(run: ChipRun, preset: Preset, trace: Trace) -> dict[str, float]:
    """The utilisation of each part over a replay: that of its busiest unit. A DPU's reactors both
    decide and move blocks: the time that commands, demands and scores take is that of control."""
    decides_ps = _decides_ps(
        preset,
        len(trace.fetches),
        sum(one.demands for one in trace.fetches),
        sum(one.scores for one in trace.fetches),
    )
    shares = {one.name: one.utilisation for one in run.units}
    return _by_part(preset, shares, decides_ps, run.seconds)


def used_since(
    chip: Chip, preset: Preset, drive: str, demands: int, begin_ps: int
) -> dict[str, float]:
    """The same of a chip behind the timing seam, from `begin_ps` to now. All 0 where nothing
    followed."""
    elapsed_ps = chip.now_ps - begin_ps
    if elapsed_ps <= 0:
        return dict.fromkeys(PARTS, 0.0)
    stats = chip.stats()
    scores = max(0, stats[REACTOR].items - demands) if REACTOR in stats else 0
    commands = chip.route_stats()["command"].ended
    decides_ps = _decides_ps(preset, commands, demands, scores)
    shares = units_since(chip, preset, drive, begin_ps)
    return _by_part(preset, shares, decides_ps, elapsed_ps / 1e12)


def units_since(chip: Chip, preset: Preset, drive: str, begin_ps: int) -> dict[str, float]:
    """The utilisation of each unit of a chip behind the timing seam, from `begin_ps` to now. Of one
    that had worked before, the work is split as the time in which it was occupied."""
    elapsed_ps = max(chip.now_ps - begin_ps, 1)
    model, shares = medium(preset, drive).drive, {}
    for name, one in chip.stats().items():
        edges = np.minimum(np.arange(len(one.busy_bins) + 1) * float(chip.bin_ps), chip.now_ps)
        behind = np.clip(edges[1:] - begin_ps, 0.0, np.diff(edges))
        part = np.divide(behind, np.diff(edges), out=np.zeros_like(behind), where=behind > 0)
        # A unit whose whole service is drawn is never busy, but has requests inside.
        bins = one.busy_bins if one.busy_bins.any() else one.area_bins
        occupied = float(bins.sum())
        since = float(bins @ part) / occupied if occupied else 1.0
        whole = utilisation(one, elapsed_ps, None if model is None else dict(model))
        shares[name] = min(1.0, whole * since)
    return shares


def _by_part(
    preset: Preset, shares: Mapping[str, float], decides_ps: int, seconds: float
) -> dict[str, float]:
    found = dict.fromkeys(PARTS, 0.0)
    cores = preset.cores
    decides = 0.0
    if cores is not None and seconds:
        decides = min(1.0, decides_ps / 1e12 / (cores.reactors.whole * seconds))
    for name, share in shares.items():
        part = UNITS.get(name, DEVICE)
        found[part] = max(found[part], share - decides * (name == REACTOR))
    found[CONTROL] = max(found[CONTROL], decides)
    return found


def _decides_ps(preset: Preset, commands: int, demands: int, scores: int) -> int:
    """The time of a DPU's reactors that decisions take; 0 for a chip, which has units for them."""
    cores = preset.cores
    if preset.kind != "dpu" or cores is None:
        return 0
    return round(
        commands * cores.command.base + demands * cores.demand.base + scores * cores.score.base
    )
