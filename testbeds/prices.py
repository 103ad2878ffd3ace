"""Prices and devices: every number with its unit, range, date, source and tag.

Model: one TOML file for each class of thing (`prices/`), in it a table for each device, and in that
the numbers. `KEYS` says what each key is and in which units it may be written. A user's file has
the same form and takes the place of single numbers. A price that is older than a year is stale, and
is marked wherever it is shown; nothing else ages here.

What can fail: `BadInput`, one line with file, device and key, for a device or key that is not
known, a number without unit or date, a unit of another kind, and a negative number.
"""

import datetime
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from offstage.asic_model.tables.numbers import Dated, dated_numbers
from offstage.bindings.errors import BadInput, nearest
from offstage.bindings.settings import check_known, read_toml

__all__ = ["CLASSES", "KEYS", "Catalog", "Key", "catalog"]

FOLDER = Path(__file__).resolve().parent / "prices"
CLASSES = (
    "gpu",
    "hbm",
    "ddr5",
    "cxl",
    "tlc",
    "qlc",
    "xl-flash",
    "object",
    "dpu",
    "asic",
    "lpddr5x",
    "hbf",
    "rival",
    "api",
    "workload",
    "wear",
    "sparse",
)
NAMED = ("gpu", "dpu")
"""Classes of which a question names one device, so that a user's file may add others."""
STALE_DAYS = 365

KINDS: dict[str, dict[str, float]] = {
    "price": {"$/GB": 1.0, "$/TB": 1e-3},
    "rent": {"$/GB-month": 1.0, "$/TB-month": 1e-3},
    "hourly": {"$/h": 1.0},
    "dollars": {"$": 1.0},
    "tokens' price": {"$/Mtok": 1.0},
    "size": {"B": 1.0, "KiB": 2.0**10, "GB": 1e9, "GiB": 2.0**30, "TB": 1e12, "TiB": 2.0**40},
    "rate": {"MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12},
    "time": {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3_600.0},
    "years": {"year": 8_760.0},
    "work": {"TFLOP/s": 1e12},
    "frequency": {"1/s": 1.0},
    "power": {"W": 1.0},
    "count": {"1": 1.0},
    "share": {"1": 1.0},
}
"""Units of each kind, and how many base units one is: dollars, bytes, seconds, watts, hours of
life."""
MONEY = ("price", "rent", "hourly", "dollars", "tokens' price")
UNITS = {unit: scale for units in KINDS.values() for unit, scale in units.items()}


class Key(NamedTuple):
    """What a number is."""

    kind: str
    help: str


KEYS: dict[str, Key] = {
    "price": Key("price", "of a gigabyte, bought"),
    "rent": Key("rent", "of a gigabyte, by the month"),
    "hour": Key("hourly", "of one GPU"),
    "each": Key("dollars", "of one"),
    "mtok": Key("tokens' price", "of a million tokens"),
    "memory": Key("size", "of one GPU"),
    "capacity": Key("size", "of one"),
    "endurance": Key("size", "that may be written in all"),
    "bandwidth": Key("rate", "of a GPU's memory"),
    "link": Key("rate", "to the hosts, or to the GPU"),
    "read": Key("rate", "of one"),
    "write": Key("rate", "of one"),
    "latency": Key("time", "until the first byte"),
    "gap": Key("time", "from an answer to the session's next turn"),
    "pace": Key("time", "of one decoded token"),
    "compute": Key("work", "peak of one GPU"),
    "iops": Key("frequency", "reads a second of one"),
    "power": Key("power", "of one"),
    "life": Key("years", "over which what is bought is spread"),
    "concurrency": Key("count", "requests of one host under way"),
    "slots": Key("count", "for them in a machine of eight GPUs"),
    "least": Key("size", "of the smallest that is sold with the rates"),
    "granule": Key("size", "of the smallest read"),
    "tail": Key("count", "the slowest of a layer's reads over the usual one"),
    "shares": Key("count", "GPUs that share one"),
    "answer": Key("count", "tokens of one answer"),
    "roomy": Key("count", "bytes that flash writes for one of KV, in a store that leaves room"),
    "full": Key("count", "bytes that flash writes for one of KV, in a full store"),
    "rated": Key("count", "bytes that flash writes for one of those that endurance is given for"),
    "carried": Key("rate", "that one drive serves until decoding tokens wait the stated share"),
    "missed": Key("count", "blocks of a layer that are read for one token of sparse attention"),
    "core": Key("time", "of a DPU's core for one layer of one token of sparse attention"),
    "waits": Key("share", "of a decoding token's time: the stated stall"),
    "markup": Key("count", "price over cost"),
    "yielded": Key("share", "of a wafer's dies that work"),
    "prefix": Key("share", "of a session's history that is found again"),
    "prefill": Key("share", "of the GPU's peak that prefill reaches"),
    "memory_share": Key("share", "of HBM for weights and KV"),
    "bandwidth_share": Key("share", "of HBM's rate that decoding reaches"),
    "overlap": Key("share", "of the GPU's time that reads of other sessions fill"),
    "hit": Key("share", "of a step's blocks that are staged in time"),
}


class Catalog:
    """Every device's numbers. `today` decides what is stale."""

    def __init__(
        self,
        devices: Mapping[str, Mapping[str, Dated]],
        classes: Mapping[str, str],
        today: datetime.date,
    ) -> None:
        self.devices = {name: dict(numbers) for name, numbers in devices.items()}
        self.classes = dict(classes)
        self.today = today

    def numbers(self, device: str) -> dict[str, Dated]:
        """The numbers of one device by key. BadInput for one that is not known."""
        check_known(device, self.devices, "plan", "device")
        return self.devices[device]

    def of_class(self, name: str) -> list[str]:
        """Its devices, in the order of its file."""
        return [device for device, kind in self.classes.items() if kind == name]

    def with_tables(self, tables: Mapping[str, Any], where: str) -> "Catalog":
        """A copy with single numbers replaced by those of a user's file. A table of another name
        that has every number of a GPU, or of a DPU, is a new one."""
        found = Catalog(self.devices, self.classes, self.today)
        for device, table in tables.items():
            keys = table if isinstance(table, dict) else {}
            new = next((one for one in NAMED if set(keys) == set(self._keys_of(one))), None)
            if device not in self.devices and new is not None:
                found.classes[device], found.devices[device] = new, {}
                continue
            self._check_device(device, where)
            for key in keys:
                check_known(key, self.devices[device], f"{where}: [{device}]")
        for device, numbers in _checked(tables, where).items():
            found.devices[device] |= numbers
        return found

    def _keys_of(self, name: str) -> list[str]:
        """The numbers that each device of a class has."""
        return list(self.devices[self.of_class(name)[0]])

    def _check_device(self, device: str, where: str) -> None:
        if device not in self.devices:
            needs = " or ".join(
                f"a {one.upper()} ({', '.join(self._keys_of(one))})" for one in NAMED
            )
            raise BadInput(
                f"no table {device!r}",
                where,
                f"{nearest(device, self.devices)}; or give it every number of {needs}",
            )

    def with_file(self, path: Path) -> "Catalog":
        """The same with a file."""
        return self.with_tables(read_toml(path, "give a TOML file of numbers"), path.name)

    def is_stale(self, key: str, number: Dated) -> bool:
        """A price that is older than a year."""
        priced = KEYS[key].kind in MONEY
        return priced and (self.today - number.date).days > STALE_DAYS

    def rows(self) -> Iterator[tuple[str, str, Dated]]:
        """Device, key, number: all of them."""
        for device, numbers in self.devices.items():
            for key, number in numbers.items():
                yield device, key, number


def catalog(today: datetime.date | None = None) -> Catalog:
    """The numbers that come with Offstage."""
    devices, classes = _packaged()
    return Catalog(devices, classes, today or datetime.date.today())


@lru_cache(maxsize=1)
def _packaged() -> tuple[dict[str, dict[str, Dated]], dict[str, str]]:
    devices: dict[str, dict[str, Dated]] = {}
    classes: dict[str, str] = {}
    for name in CLASSES:
        path = FOLDER / f"{name}.toml"
        for device, numbers in _checked(read_toml(path, "reinstall Offstage"), path.name).items():
            devices[device] = numbers
            classes[device] = name
    return devices, classes


def _checked(tables: Mapping[str, Any], where: str) -> dict[str, dict[str, Dated]]:
    """The numbers of a file, each with a known key and a unit of its kind."""
    found = dated_numbers(tables, UNITS, where)
    for device, numbers in found.items():
        for key, number in numbers.items():
            at = f"{where}: {device}.{key}"
            check_known(key, KEYS, at)
            kind = KEYS[key].kind
            if number.unit not in KINDS[kind]:
                raise BadInput(
                    f"{number.unit!r} is not a unit of a {kind}",
                    at,
                    f"give it in one of {', '.join(KINDS[kind])}",
                )
            if kind == "share" and number.high > 1:
                raise BadInput(f"a share of {number.high:g}", at, "give 0 to 1")
            if number.low == 0 and kind != "share":
                raise BadInput("may be 0", at, "give a low above 0")
    return found
