"""Conversions shared by all units: numbers of a preset to the engine's integer picoseconds."""

from offstage.asic_model.blocks import Number

__all__ = ["per_byte_ps", "per_mib_ps", "permille"]

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
