"""Conversions shared by all units: numbers of a preset to the engine's integer picoseconds."""

from offstage.asic_model.blocks import Logic, Number
from offstage.asic_model.hardware import BLOCKS

__all__ = ["per_byte_ps", "per_mib_ps", "permille", "pipeline_ps"]

MIB = 1 << 20
PS_PER_S = 10**12


def per_mib_ps(bytes_per_s: float) -> int:
    """Picoseconds per MiB at a rate."""
    return round(MIB * PS_PER_S / bytes_per_s)


def per_byte_ps(bytes_per_s: float, count: float) -> int:
    """Picoseconds for `count` bytes at a rate."""
    return round(count * PS_PER_S / bytes_per_s)


def permille(share: Number) -> int:
    """A share in permille, as the engine takes it; at least 1."""
    return max(1, round(share.base * 1000))


def pipeline_ps(block: str, logic: Logic, less: int = 0) -> int:
    """The cycles of a block in Verilog, `less` those that stand elsewhere, by the chip's clock."""
    return round((BLOCKS[block].cycles - less) * PS_PER_S / logic.clock.base)
