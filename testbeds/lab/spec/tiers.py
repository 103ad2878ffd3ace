"""The tiers below the staging arena: the parameters of a timing side, from a spec and the catalog.

Model: a tier is a preset of `tiers.toml`, a capacity, and the number of devices that this capacity
needs. Its times are integers: a latency, the time of one block on the link, and its other limits.
All figures come from the catalog of `offstage plan`, so each rate and price is in one file only.
The five-minute rule over a tier and the next one below (`bindings/tradeoffs.py`) says in which of
them a block belongs; it is computed once, in ns, and the laboratory decides by that integer.

What can fail: `BadInput` for an unknown preset, and whatever the catalog refuses.
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
"""Longer than any reuse interval."""
ENDS = {"mid": ("value", "value"), "slow": ("high", "low"), "fast": ("low", "high")}
"""The ends of the ranges from which a latency and a rate are taken."""


class _Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    level: str
    device: str
    drive: str = ""
    through: str = ""


@dataclass(frozen=True)
class Tier:
    """One tier. `read_ps`, `write_ps`: time of one block on the link, 0 if it takes none. `drive`:
    the NVMe preset of its `devices`; empty: memory, or a server. `promote_ns`: a block that is read
    again within this time belongs here, or above. `usd`: cost of the whole tier over `life_hours`
    (value, low, high). `wear_usd_per_byte`: drive endurance that a written byte uses up."""

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
    """The presets of tiers, by name."""
    raw = read_toml(Path(__file__).with_name("tiers.toml"), "reinstall Offstage")
    return msgspec.convert(raw, dict[str, _Preset])


def numbers_of(spec: Spec) -> Catalog:
    """The catalog, with the user's file applied if the spec names one."""
    found = catalog()
    return found.with_file(Path(spec.tier.prices)) if spec.tier.prices else found


def said(spec: Spec) -> str:
    """The tiers or the drive below the arena, in a few words."""
    if not spec.tier.below:
        return spec.tier.storage
    names = " + ".join(one.said for one in tiers_of(spec, spec.block_bytes))
    extras: list[str] = [spec.tier.copies]
    extras += [f"new blocks {spec.tier.place}"] if spec.tier.place != "first" else []
    extras += [spec.tier.timing] if spec.tier.timing != "mid" else []
    return f"{names} ({', '.join(extras)})"


def tiers_of(spec: Spec, block_bytes: int) -> tuple[Tier, ...]:
    """The spec's tiers for blocks of `block_bytes`, in the spec's order."""
    numbers = numbers_of(spec)
    built = [_Built(one, spec.tier.timing, numbers) for one in spec.tier.below]
    within = _promotions(spec.tier.below, built, block_bytes)
    return tuple(one.tier(block_bytes, ns) for one, ns in zip(built, within, strict=True))


def _promotions(
    below: Sequence[BelowSpec], built: Sequence["_Built"], block_bytes: int
) -> Iterator[int]:
    """`promote_ns` of each tier: the spec's, or the break-even against the tier below."""
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
    """The five-minute rule over two tiers, in seconds. If an access to the lower tier has no price,
    as with rented storage, the result is infinite: a block that is read again belongs above."""
    if not under.bought_usd or not above.usd_per_gb:
        return math.inf
    return at.break_even_s(
        block_bytes, under.bought_usd, under.rate("read", "value"), under.iops, above.usd_per_gb
    )


class _Built:
    """The figures of one tier, in base units: bytes, seconds, dollars."""

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
        """Price of one GB of the tier over its lifetime."""
        return self._price("value")

    @property
    def bought_usd(self) -> float:
        """Price of its devices and of the server or link in front of them; 0: it is rented."""
        if "price" not in self.numbers:
            return 0.0
        one = self.numbers["price"].base * self.numbers["capacity"].base / at.GB
        return one * self.devices + self._before("value")

    @property
    def iops(self) -> float:
        """Operations per second of all its devices; infinite if there is no limit."""
        return self.numbers["iops"].base * self.devices if "iops" in self.numbers else math.inf

    def rate(self, direction: str, end: str) -> float:
        """Bytes per second of all its devices, at most those of the link in front of them."""
        return min(_of(self.numbers[direction], end) * self.devices, self._link(end))

    def tier(self, block_bytes: int, promote_ns: int) -> Tier:
        """The tier in integers, for blocks of `block_bytes`."""
        drive = self.preset.drive
        latency_s = 0.0 if drive else _of(self.numbers["latency"], self.latency_end)
        if "latency" in self.through:
            latency_s += _of(self.through["latency"], self.latency_end)
        if drive:
            read = write = self._link(self.rate_end)
            most = min(preset(drive).read_bytes_per_s * self.devices, read)
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
        """Price in dollars of the server or link in front of the devices, if it is bought."""
        each = self.through.get("each")
        return _of(each, end) if each else 0.0

    def _price(self, end: str) -> float:
        if "price" in self.numbers:
            return _of(self.numbers["price"], end)
        return _of(self.numbers["rent"], end) * self.life / at.HOURS_PER_MONTH


def _of(number: Dated, end: str) -> float:
    """The number's `end` (value, low or high), in base units."""
    return float(getattr(number, end)) * number.scale


def _block_ps(block_bytes: int, rate: float) -> int:
    return 0 if math.isinf(rate) else math.ceil(block_bytes * PS_PER_S / rate)
