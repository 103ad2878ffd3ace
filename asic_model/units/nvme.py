"""NVMe controllers and the drives behind them.

What it does: builds commands, rings doorbells, processes completions. Blocks are striped over the
drives, so that several are modelled as one drive with a multiple of the channels, link and queue.

Pipeline: command, drive, completion. The drive is `nvme_model.h`: controller, flash, channels and
link with a queue each, the same model as that of the daemon's emulated storage.
Initiation interval: `command` in the controller; the drive has a separate one.
State: a submission queue entry for each command in flight.
When full: at most `queue` commands are in flight to a drive; the rest wait at the arbiter or, in a
DPU, whose reactor never waits for a drive, in memory.

`disk` is a drive known only by its service times: `depth` I/Os in parallel, each for a time drawn
from the quantiles; I/Os that begin at about the same moment take the same time.
"""

from collections.abc import Mapping

from offstage.asic_model.blocks import Disk
from offstage.asic_model.parameters import Preset
from offstage.asic_model.tables.dram import LOAD_SPAN_PS, mean_ps
from offstage.bindings.drives import params_wrong
from offstage.bindings.errors import BadInput
from offstage.bindings.network import Load, Unit
from offstage.bindings.storage import preset as drive_preset

__all__ = ["drawn_outside", "medium", "nvme_units", "striped"]

WAITING = {"asic": 1, "dpu": 1 << 20}
"""Commands between the arbiter and the drives; a DPU has no arbiter, and its memory is large."""
MANY = ("channel_count", "queue_depth_max", "link_bytes_per_s", "write_buffer_bytes")


def striped(drive: Mapping[str, int], count: int) -> dict[str, int]:
    """`count` drives as one."""
    found = {key: value * (count if key in MANY else 1) for key, value in drive.items()}
    found["command_interval_ps"] = max(1, round(drive["command_interval_ps"] / count))
    return found


def drawn_outside(preset: Preset, name: str = "") -> bool:
    """Whether the reads' services of a disk are known by cause and load, to be drawn by whom it is
    asked."""
    disk = preset.disk
    return (name or preset.nvme.drive) == "disk" and disk is not None and bool(disk.service.spread)


def medium(preset: Preset, name: str = "", drawn: bool = False) -> Unit:
    """The drives of a preset, or the same number of another model. `drawn`: reads bring their
    service."""
    nvme, disk = preset.nvme, preset.disk
    waiting = WAITING[preset.kind]
    name = name or nvme.drive
    if name == "disk" and disk is not None:
        if drawn:
            return Unit("drive", kind="delay", queue_max=waiting)
        depth = disk.depth.whole
        return Unit(
            "drive",
            queue="priority",
            servers=depth,
            in_flight_max=depth,
            queue_max=waiting,
            load_rows=(_services(disk),),
            load_span_ps=LOAD_SPAN_PS,
            draw_span_ps=disk.together.whole,
        )
    count, one = nvme.drives.whole, drive_preset(name).params
    drive = striped(one, count)
    if params_wrong(drive):
        most = count - 1
        while most and params_wrong(striped(one, most)):
            most -= 1
        raise BadInput(
            f"{count:,} of the drive {name}, more than the model stripes",
            f"preset {preset.name}: nvme.drives",
            f"give {most:,} at most",
        )
    depth = min(drive["queue_depth_max"], nvme.queue.whole * count)
    return Unit(
        "drive", kind="drive", queue="priority", queue_max=waiting, in_flight_max=depth, drive=drive
    )


def _services(disk: Disk) -> Load:
    """The quantiles of a service, scaled until the mean of the draws is `service`."""
    shares = [one.base for one in (disk.least, disk.p50, disk.p90, disk.p99, disk.most)]
    row = Load(0, *(round(share * disk.service.base) for share in shares))
    mean = mean_ps(row)
    if not mean:
        raise BadInput("all quantiles of a service are 0", "[disk]", "give those of a measured run")
    return Load(0, *(round(share * disk.service.base**2 / mean) for share in shares))


def nvme_units(preset: Preset, drive: str, drawn: bool = False) -> tuple[Unit, ...]:
    """The command stage, the drives, the completion stage."""
    nvme = preset.nvme
    return (
        Unit(
            "nvme_command",
            queue="priority",
            queue_max=WAITING[preset.kind],
            fixed_ps=nvme.command.whole,
        ),
        medium(preset, drive, drawn),
        Unit(
            "nvme_done",
            queue_max=nvme.queue.whole * nvme.drives.whole,
            fixed_ps=nvme.completion.whole,
        ),
    )
