"""What all units share: numbers of a preset as whole picoseconds of the engine."""

from offstage.asic_model.blocks import Number

__all__ = ["per_byte_ps", "per_mib_ps", "permille"]

MIB = 1 << 20
PS_PER_S = 10**12


def per_mib_ps(bytes_per_s: float) -> int:
    """What a MiB takes at a rate."""
    return round(MIB * PS_PER_S / bytes_per_s)


def per_byte_ps(bytes_per_s: float, count: float) -> int:
    """What `count` bytes take at a rate."""
    return round(count * PS_PER_S / bytes_per_s)


def permille(share: Number) -> int:
    """A share as the engine has it; at least one in a thousand."""
    return max(1, round(share.base * 1000))
