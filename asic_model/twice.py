"""A preset with one part of it twice as fast: the change by which a bottleneck is checked.

Model: a device has four parts, and each unit belongs to one. Twice means: a rate, a number of
servers or of drives doubled, or a time halved, and nothing else changed. A disk that is known only
by its service times has those halved, since there is no second one to share them with.

What can fail: `BadInput` where the preset would contradict itself.
"""

from offstage.asic_model.account import drive_share
from offstage.asic_model.parameters import Preset
from offstage.asic_model.result import ChipRun
from offstage.asic_model.trace import Trace
from offstage.asic_model.units.nvme import striped
from offstage.bindings.storage import preset as drive_preset

__all__ = [
    "CHANGES",
    "CONTROL",
    "DEVICE",
    "FLASH",
    "LINK",
    "PARTS",
    "drives_used",
    "twice",
    "used",
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


def used(run: ChipRun, preset: Preset, trace: Trace) -> dict[str, float]:
    """The utilisation of each part: that of its busiest unit. A DPU's reactors both decide and move
    blocks: the time that commands, demands and scores take of them is that of control."""
    found = dict.fromkeys(PARTS, 0.0)
    decides = _decides(preset, trace, run.seconds)
    for one in run.units:
        part = UNITS.get(one.name, DEVICE)
        share = one.utilisation - decides * (one.name == REACTOR)
        found[part] = max(found[part], share)
    found[CONTROL] = max(found[CONTROL], decides)
    return found


def _decides(preset: Preset, trace: Trace, seconds: float) -> float:
    """The share of a DPU's reactors that decisions take; 0 for a chip, which has units for them."""
    cores = preset.cores
    if preset.kind != "dpu" or cores is None or not seconds:
        return 0.0
    spent_ps = sum(
        cores.command.base + one.demands * cores.demand.base + one.scores * cores.score.base
        for one in trace.fetches
    )
    return min(1.0, spent_ps / 1e12 / (cores.reactors.whole * seconds))


def drives_used(drive: str, count: int, reads: int, block_bytes: int, seconds: float) -> float:
    """The utilisation of `count` drives of that model by reads of whole blocks, as `used` has it
    of a run whose units were kept."""
    params = striped(drive_preset(drive).params, count)
    return min(1.0, drive_share(params, reads * block_bytes, reads, round(seconds * 1e12)))
