"""Sizes, times, rates, shares and prices in human-readable form: parse and format, nothing else.

Sizes are bytes (int): 1 KiB = 1,024 B and 1 KB = 1,000 B. Times are nanoseconds (int). Rates are
bytes per second (float). Prices are millionths of a dollar (int). A bare number is in the base
unit, but a time or a price needs its unit: a bare `30` hardly means nanoseconds. Text that does not
parse raises `BadInput`, which quotes it and shows a valid example.
"""

import math
import re
from fractions import Fraction

from offstage.bindings.errors import BadInput

__all__ = [
    "format_count",
    "format_price",
    "format_rate",
    "format_seconds",
    "format_share",
    "format_size",
    "format_time",
    "parse_price",
    "parse_rate",
    "parse_size",
    "parse_time",
    "parse_time_between",
]

NUMBER = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?|\.[0-9]+)\s*([A-Za-zµμ]*(?:/s)?)\s*")

SIZE_BYTES = {
    "": 1,
    "b": 1,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
}
TIME_NS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "min": 60 * 10**9,
    "h": 3_600 * 10**9,
    "d": 86_400 * 10**9,
}

PRICE_MICROUSD = {"usd": 10**6}


def parse_size(text: str | int, where: str = "") -> int:
    """Bytes of a size such as `64KiB`, `1.5 GiB`, `2GB` or `4096`."""
    return _parse(text, SIZE_BYTES, "size", "64KiB", where)


def parse_time(text: str | int, where: str = "") -> int:
    """Nanoseconds of a time such as `20ms`, `1.5us` or `2min`; of bare numbers only 0 is one."""
    if not isinstance(text, bool) and str(text).strip() == "0":
        return 0
    return _parse(text, TIME_NS, "time", "20ms", where)


def parse_time_between(text: str, where: str, low: str, high: str) -> int:
    """As `parse_time`, from `low` to `high`, which are written as times too. BadInput beyond."""
    time_ns = parse_time(text, where)
    if not parse_time(low) <= time_ns <= parse_time(high):
        raise BadInput(f"{text!r} is out of range", where, f"give {low} to {high}")
    return time_ns


def parse_price(text: str | int, where: str = "") -> int:
    """Millionths of a dollar of a price such as `0.22USD` or `$0.22`; of bare numbers only 0."""
    if not isinstance(text, bool) and str(text).strip() == "0":
        return 0
    bare = f"{text.strip()[1:]}USD" if isinstance(text, str) and text.strip()[:1] == "$" else text
    return _parse(bare, PRICE_MICROUSD, "price", "0.22USD", where, shown=text)


def parse_rate(text: str | int | float, where: str = "") -> float:
    """Bytes per second of a rate such as `14GB/s`, `800MiB/s` or `1e9` (a number)."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        if not 0 <= text < float("inf"):
            raise BadInput(f"{text} is not a rate", where, "write one such as 14GB/s")
        return float(text)
    bare = text.strip().removesuffix("/s") if isinstance(text, str) else text
    return float(_parse(bare, SIZE_BYTES, "rate", "14GB/s", where, shown=text))


def format_size(size_bytes: int) -> str:
    """The size with the largest binary unit that keeps it at or above 1: `64 KiB`, `1.5 GiB`."""
    return _format(
        size_bytes,
        [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)],
    )


def format_time(time_ns: float) -> str:
    """The time with the largest of ns, us, ms, s that keeps it at or above 1: `20 ms`."""
    return _format(time_ns, [("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)])


def format_count(count: float) -> str:
    """A whole number, thousands apart: `12,854`."""
    return f"{count:,.0f}"


def format_seconds(time_s: float) -> str:
    """A time in seconds as `format_time` writes it: `20 ms`."""
    return format_time(1e9 * time_s)


def format_price(price_microusd: int) -> str:
    """The price in dollars, whole as it is: `0.22 USD`."""
    whole, part = divmod(price_microusd, 10**6)
    return f"{whole}.{part:06d}".rstrip("0").rstrip(".") + " USD"


def format_share(share: float) -> str:
    """A share in [0, 1]; 100 % and 0 % only for exactly all and nothing."""
    if 0.9995 <= share < 1.0:
        # More digits rather than a rounded 100: the misses are what the reader looks for.
        digits = min(6, math.floor(-math.log10(1.0 - share)) - 1)
        parts = min(math.floor(round(share * 10 ** (digits + 2), 6)), 10 ** (digits + 2) - 1)
        return f"{parts / 10**digits:.{digits}f} %"
    if 0.0 < share < 0.0005:
        return "< 0.1 %" if share >= 0.00005 else "< 0.01 %"
    return f"{share * 100:.1f} %".replace("-", "−")


def format_rate(rate_bytes_per_s: float) -> str:
    """The rate in the decimal units that devices are sold by: `14 GB/s`."""
    return _format(
        rate_bytes_per_s, [("GB/s", 10**9), ("MB/s", 10**6), ("KB/s", 10**3), ("B/s", 1)]
    )


def _parse(
    text: object, units: dict[str, int], noun: str, example: str, where: str, shown: object = None
) -> int:
    """A whole number of base units; a fraction of one is refused rather than rounded."""
    shown = text if shown is None else shown
    refused = BadInput(f"{shown!r} is not a {noun}", where, f"write one such as {example}")
    if isinstance(text, bool) or not isinstance(text, (int, str)):
        raise refused
    match = NUMBER.fullmatch(str(text))
    if match is None or match.group(2).lower() not in units:
        raise refused
    value = Fraction(match.group(1).replace("_", "")) * units[match.group(2).lower()]
    if value.denominator != 1:
        raise refused
    return int(value)


def _format(value: float, units: list[tuple[str, int]]) -> str:
    for name, scale in units:
        if abs(value) >= scale:
            return f"{value / scale:.4g} {name}"
    return f"{value:.4g} {units[-1][0]}"
