"""A chip in the loop: the daemon's configuration within what a preset has, and its timing side."""

from msgspec.structs import replace

from offstage.bindings.timing import IN_FLIGHT_MAX, Costs, Timing
from offstage.dpu.config.values import Config

__all__ = ["as_device"]


def as_device(config: Config) -> tuple[Config, Timing | None]:
    """With `model.device`: the configuration with the preset's table of candidates, its reads in
    flight and its staging memory, where those are smaller, and the chip that the daemon's pace
    comes from. BadInput: no such preset."""
    if not config.model.device:
        return config, None
    from offstage.asic_model.chip import open_timing, sizes
    from offstage.asic_model.parameters import read_preset

    has, limits = sizes(read_preset(config.model.device)), config.limits
    candidates = limits.queue if has.candidates is None else min(limits.queue, has.candidates)
    bounded = replace(
        config,
        limits=replace(limits, queue=candidates, reads=min(limits.reads, has.reads)),
        arena=replace(config.arena, size_bytes=min(config.arena.size_bytes, has.arena_bytes)),
    )
    costs = Costs(seed=config.storage.seed, in_flight_max=IN_FLIGHT_MAX)
    timing = open_timing(config.model.device, costs, block_bytes=config.arena.payload_bytes)
    return bounded, timing
