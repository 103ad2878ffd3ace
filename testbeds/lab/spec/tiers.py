"""The tiers below the staging arena: from a spec and the catalog to what a timing side is given.

Model: a tier is a preset of `tiers.toml`, a capacity, and as many devices as that takes. Its times
are integers: a latency, what one block takes on the link, and what else bounds it. All figures are
the catalog's of `offstage plan`, so a rate or a price stands in one file. When a block belongs in a
tier rather than in the one below is the five-minute rule over the two
(`bindings/tradeoffs.py`), worked out once, in ns; the laboratory decides by that integer.

What can fail: `BadInput` for a preset that is not known, and what the catalog refuses.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from offstage.asic_model.tables.numbers import Dated
from offstage.bindings import tradeoffs as at
from offstage.bindings.settings import read_toml
from offstage.bindings.storage import preset
from offstage.bindings.units import format_size, parse_size, parse_time
from offstage.testbeds.lab.spec.schema import BelowSpec, Spec
from offstage.testbeds.prices import Catalog, catalog

__all__ = ["ALWAYS", "NEVER", "Tier", "numbers_of", "presets_of_tiers", "said", "tiers_of"]

PS_PER_S = 10**12
NS_PER_S = 10**9
ALWAYS, NEVER = "always", "never"
ALWAYS_NS = 2**64 - 1
"""More than any reuse interval."""
ENDS = {"mid": ("value", "value"), "slow": ("high", "low"), "fast": ("low", "high")}
"""Which end of a range a latency, and a rate, is taken from."""


class _Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    level: str
    device: str
    drive: str = ""
    through: str = ""


@dataclass(frozen=True)
class Tier:
    """One tier. `read_ps`, `write_ps`: one block on the link, 0 where it takes no time. `drive`:
    the NVMe preset of its `devices`; empty: memory, or a server. `promote_ns`: what is read again
    sooner belongs here, or above. `usd`: value, low and high of what all of it costs over
    `life_hours`. `wear_usd_per_byte`: of drive that a written byte uses up."""

    name: str
    level: str
    capacity_bytes: int
    devices: int
    latency_ps: int
    read_ps: int
    write_ps: int
    read_bytes_per_s: int
    concurrency: int
    drive: str
    promote_ns: int
    usd: tuple[float, float, float]
    life_hours: float
    wear_usd_per_byte: float

    @property
    def said(self) -> str:
        """Name and capacity."""
        return f"{self.name} {format_size(self.capacity_bytes)}"

    @property
    def promote_within(self) -> str:
        """The threshold as a spec writes it."""
        named = {ALWAYS_NS: ALWAYS, 0: NEVER}
        return named.get(self.promote_ns, f"{self.promote_ns}ns")


@lru_cache(maxsize=1)
def presets_of_tiers() -> dict[str, _Preset]:
    """What a tier can be, by name."""
    raw = read_toml(Path(__file__).with_name("tiers.toml"), "reinstall Offstage")
    return msgspec.convert(raw, dict[str, _Preset])


def numbers_of(spec: Spec) -> Catalog:
    """The catalog, with a user's file where the spec names one."""
    found = catalog()
    return found.with_file(Path(spec.tier.prices)) if spec.tier.prices else found


def said(spec: Spec) -> str:
    """What lies below the arena, in a few words."""
    if not spec.tier.below:
        return spec.tier.storage
    names = " + ".join(one.said for one in tiers_of(spec, spec.block_bytes))
    extras: list[str] = [spec.tier.copies]
    extras += [f"new blocks {spec.tier.place}"] if spec.tier.place != "first" else []
    extras += [spec.tier.timing] if spec.tier.timing != "mid" else []
    return f"{names} ({', '.join(extras)})"


def tiers_of(spec: Spec, block_bytes: int) -> tuple[Tier, ...]:
    """The spec's tiers for blocks of that size, the first first."""
    numbers = numbers_of(spec)
    built = [_Built(one, spec.tier.timing, numbers) for one in spec.tier.below]
    within = _promotions(spec.tier.below, built, block_bytes)
    return tuple(one.tier(block_bytes, ns) for one, ns in zip(built, within, strict=True))


def _promotions(
    below: Sequence[BelowSpec], built: Sequence["_Built"], block_bytes: int
) -> Iterator[int]:
    """Of each tier in ns: the spec's, or the break-even over the tier below."""
    for number, one in enumerate(below):
        if one.promote_within:
            yield _stated(one.promote_within)
        elif number + 1 == len(below):
            yield ALWAYS_NS
        else:
            yield _ns(_break_even_s(block_bytes, built[number], built[number + 1]))


def _stated(text: str) -> int:
    if text in (ALWAYS, NEVER):
        return ALWAYS_NS if text == ALWAYS else 0
    return parse_time(text, "[[tier.below]] promote_within")


def _ns(seconds: float) -> int:
    return ALWAYS_NS if math.isinf(seconds) else round(seconds * NS_PER_S)


def _break_even_s(block_bytes: int, above: "_Built", under: "_Built") -> float:
    """The five-minute rule over two tiers. Where the one below has no price of its own for an
    access, as rented storage, money does not part them: what is asked for again belongs above."""
    if not under.bought_usd or not above.usd_per_gb:
        return math.inf
    return at.break_even_s(
        block_bytes, under.bought_usd, under.rate("read", "value"), under.iops, above.usd_per_gb
    )


class _Built:
    """One tier's figures, in base units: bytes, seconds, dollars."""

    def __init__(self, one: BelowSpec, timing: str, numbers: Catalog) -> None:
        self.name = one.use
        self.preset = presets_of_tiers()[one.use]
        self.numbers = numbers.numbers(self.preset.device)
        through = self.preset.through
        self.through = numbers.numbers(through) if through else {}
        self.life = numbers.numbers("serving")["life"].base
        self.capacity = parse_size(one.capacity, "[[tier.below]] capacity")
        self.latency_end, self.rate_end = ENDS[timing]
        each = self.numbers["capacity"].base if "capacity" in self.numbers else math.inf
        self.devices = one.devices or max(1, math.ceil(self.capacity / each))

    @property
    def usd_per_gb(self) -> float:
        """Of the tier's own bytes, over its life."""
        return self._price("value")

    @property
    def bought_usd(self) -> float:
        """Of the devices that serve it, and of what stands before them; 0: it is rented."""
        if "price" not in self.numbers:
            return 0.0
        one = self.numbers["price"].base * self.numbers["capacity"].base / at.GB
        return one * self.devices + self._before("value")

    @property
    def iops(self) -> float:
        """Of all its devices."""
        return self.numbers["iops"].base * self.devices if "iops" in self.numbers else math.inf

    def rate(self, direction: str, end: str) -> float:
        """Of all its devices, or of the link before them."""
        return min(_of(self.numbers[direction], end) * self.devices, self._link(end))

    def tier(self, block_bytes: int, promote_ns: int) -> Tier:
        """Its integers."""
        drive = self.preset.drive
        latency_s = 0.0 if drive else _of(self.numbers["latency"], self.latency_end)
        if "latency" in self.through:
            latency_s += _of(self.through["latency"], self.latency_end)
        if drive:
            read = write = self._link(self.rate_end)
            most = min(preset(drive).cited["read_bytes_per_s"] * self.devices, read)
        else:
            read, write = (self.rate(one, self.rate_end) for one in ("read", "write"))
            most = read
        gigabytes = self.capacity / at.GB
        low, mid, high = (
            self._price(end) * gigabytes + self._before(end) for end in ("low", "value", "high")
        )
        wear = 0.0
        if "endurance" in self.numbers:
            one = self.numbers["price"].base * self.numbers["capacity"].base / at.GB
            wear = at.write_usd(1.0, one, self.numbers["endurance"].base)
        return Tier(
            name=self.name,
            level=self.preset.level,
            capacity_bytes=self.capacity,
            devices=self.devices,
            latency_ps=round(latency_s * PS_PER_S),
            read_ps=_block_ps(block_bytes, read),
            write_ps=_block_ps(block_bytes, write),
            read_bytes_per_s=round(most),
            concurrency=self._concurrency(),
            drive=drive,
            promote_ns=promote_ns,
            usd=(mid, low, high),
            life_hours=self.life,
            wear_usd_per_byte=wear,
        )

    def _concurrency(self) -> int:
        number = self.numbers.get("concurrency")
        return round(_of(number, self.rate_end)) if number else 0

    def _link(self, end: str) -> float:
        link = self.through.get("link")
        return _of(link, end) if link else math.inf

    def _before(self, end: str) -> float:
        """Dollars of what stands before the devices, where it is bought for them."""
        each = self.through.get("each")
        return _of(each, end) if each else 0.0

    def _price(self, end: str) -> float:
        if "price" in self.numbers:
            return _of(self.numbers["price"], end)
        return _of(self.numbers["rent"], end) * self.life / at.HOURS_PER_MONTH


def _of(number: Dated, end: str) -> float:
    """Its value, low or high, in base units."""
    return float(getattr(number, end)) * number.scale


def _block_ps(block_bytes: int, rate: float) -> int:
    return 0 if math.isinf(rate) else math.ceil(block_bytes * PS_PER_S / rate)
