"""Numbers as people read them: 97.3 %, 1.24×, 3.2 GiB, 0.84 ms."""

from offstage.bindings.units import format_rate
from offstage.bindings.units import format_share as percent

__all__ = ["clock_ns", "count", "milliseconds", "percent", "ratio", "seconds", "show", "size"]

SHARES = ("hit", "nontrivial_hit", "selection_hit", "hit_without_cold", "late", "miss")
"""Keys that are shares as floats; as integers the same names are counts."""
SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
CLOCKS = (("s", 10**9), ("ms", 10**6), ("µs", 10**3))


def ratio(value: float) -> str:
    """A ratio such as traffic: two decimals below 10."""
    return f"{value:.2f}×" if abs(value) < 10 else f"{value:,.1f}×"


def milliseconds(value: float) -> str:
    """A time given in ms, with three significant digits."""
    if value == 0:
        return "0 ms"
    if abs(value) >= 1_000:
        return f"{value / 1e3:,.3g} s" if abs(value) < 1e6 else f"{value / 1e3:,.0f} s"
    if abs(value) >= 100:
        return f"{value:.0f} ms"
    if abs(value) >= 10:
        return f"{value:.1f} ms"
    return f"{value:.2f} ms" if abs(value) >= 0.01 else f"{value * 1e3:.2g} µs"


def seconds(value: float) -> str:
    """A duration given in s."""
    if value < 1:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s"


def size(size_bytes: float) -> str:
    """Bytes with the largest binary unit that keeps the number at or above 1."""
    for unit, scale in SIZES:
        if abs(size_bytes) >= scale:
            value = size_bytes / scale
            if value == int(value):
                return f"{value:,.0f} {unit}"
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{size_bytes:,.0f} B"


def count(value: float) -> str:
    """A whole number with thousands separators."""
    return f"{value:,.0f}"


def clock_ns(value: float) -> str:
    """A time given in ns, for an axis: one or two significant digits."""
    for unit, scale in CLOCKS:
        if value >= scale:
            return f"{value / scale:.{0 if value >= 10 * scale else 1}f} {unit}".replace(".0 ", " ")
    return f"{value:.0f} ns"


def show(key: str, value: object) -> str:
    """A value by its key: `_bytes_per_s`, `_bytes`, `_ms`, `_ns`, `_s`, `_rate`, `_share`, ..., or
    as it is. What is per second is never a time."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no"}.get(bool(value), "") if value is not None else "–"
    if not isinstance(value, int | float):
        return str(value)
    if "bytes_per_s" in key:
        return format_rate(value)
    if key.endswith("_per_s"):
        return f"{value:,.1f}"
    if key.endswith("_bytes") or key == "bytes_read":
        return size(value)
    if "_ms" in key:
        return milliseconds(value)
    if key.endswith("_ns"):
        return clock_ns(value)
    if key.endswith("_s"):
        return seconds(value)
    if key.endswith(("_rate", "_share", "_rate_without_cold")) or key in ("accuracy", "coverage"):
        return percent(value)
    if key in SHARES and isinstance(value, float):
        return percent(value)
    if key.endswith(("_ratio", "_vs_reference")):
        return ratio(value)
    if key == "attention_error_max":
        return f"{value:.1e}"
    return count(value) if isinstance(value, int) else f"{value:.4g}"
