"""A chip in the loop: the daemon's configuration within what a preset has, and its timing side."""

import msgspec

from offstage.bindings.timing import IN_FLIGHT_MAX, Costs, Timing
from offstage.dpu.config import Config

__all__ = ["as_device"]


def as_device(config: Config) -> tuple[Config, Timing | None]:
    """With `model.device`: the configuration with the preset's table of candidates and its reads in
    flight, where those are smaller, and the chip that the daemon's pace comes from. BadInput: no
    such preset."""
    if not config.model.device:
        return config, None
    from offstage.asic_model.chip import open_timing
    from offstage.asic_model.parameters import read_preset

    preset = read_preset(config.model.device)
    limits = config.limits
    candidates = limits.queue
    if preset.scheduler is not None:
        candidates = min(candidates, preset.scheduler.candidates.whole)
    reads = min(limits.reads, preset.nvme.reads.whole)
    limits = msgspec.structs.replace(limits, queue=candidates, reads=reads)
    costs = Costs(seed=config.storage.seed, in_flight_max=IN_FLIGHT_MAX)
    timing = open_timing(config.model.device, costs, block_bytes=config.arena.payload_bytes)
    return msgspec.structs.replace(config, limits=limits), timing
