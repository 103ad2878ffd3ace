"""The numbers of a plan, each under one name, with its source.

Model: an input is `device.key`: the catalog's numbers of the question's devices, and of the model
its parameters and KV bytes per token. `kind` is the kind of knowledge: measured on a recorded run,
modelled by the chip model, cited from a source, assumed by us. A function of a plan takes the
values alone, in base units (bytes, seconds, dollars, watts), so that it can be evaluated again with
others: at the ends of one range, or all drawn together.

What can fail: `BadInput` of the catalog and of the model.
"""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from offstage.asic_model.blocks import Number
from offstage.asic_model.tables.numbers import Dated
from offstage.testbeds.plan.kv import session_bytes
from offstage.testbeds.plan.question import Spec
from offstage.testbeds.prices import KEYS, Catalog

__all__ = ["Input", "Inputs", "Kind", "gather", "of_devices"]

Kind = Literal["measured", "modelled", "cited", "assumed"]
KINDS: dict[str, Kind] = {
    "measured": "measured",
    "cited": "cited",
    "derived": "cited",
    "vendor": "cited",
    "guess": "assumed",
}
"""Of the tags of `asic_model.blocks`."""
MODELLED = ("wear", "sparse")
"""What `offstage drive wear` and `offstage bench sparse` gave."""
OF_MODEL = {
    "model.parameters": "held in memory",
    "model.active": "that one token passes",
    "model.kv": "of one token, all layers",
}


@dataclass(frozen=True)
class Input:
    """One number. `stale`: a price older than a year."""

    number: Number
    kind: Kind
    help: str
    stale: bool = False

    @property
    def date(self) -> datetime.date | None:
        """The day for which it is valid, if it has one."""
        return self.number.date if isinstance(self.number, Dated) else None


@dataclass(frozen=True)
class Inputs:
    """All inputs by name."""

    of: Mapping[str, Input]

    @property
    def values(self) -> dict[str, float]:
        """Every value in base units."""
        return {name: one.number.base for name, one in self.of.items()}

    def numbers(self) -> dict[str, Number]:
        """The inputs that have a range."""
        return {
            name: one.number for name, one in self.of.items() if one.number.low < one.number.high
        }

    def set(self, found: Mapping[str, Number], kind: Kind) -> "Inputs":
        """A copy with measured or modelled values in place of others."""
        changed = dict(self.of)
        for name, number in found.items():
            changed[name] = replace(changed[name], number=number, kind=kind, stale=False)
        return Inputs(changed)


def gather(spec: Spec, catalog: Catalog) -> Inputs:
    """The inputs of the question."""
    question = spec.plan
    shape, parameters, active = spec.shape()
    session = session_bytes(shape, question.dtype, question.tokens)
    token = replace_range(session, 1.0 / question.tokens)
    found = {
        "model.parameters": Input(parameters, "cited", OF_MODEL["model.parameters"]),
        "model.active": Input(active, "cited", OF_MODEL["model.active"]),
        "model.kv": Input(token, "cited", OF_MODEL["model.kv"]),
    }
    devices = [
        question.gpu,
        "hbm",
        *question.tiers,
        "ddr5",
        "cxl",
        "tlc",
        question.dpu,
        "api",
        "workload",
        "serving",
        *MODELLED,
    ]
    return Inputs(found | of_devices(catalog, devices))


def of_devices(catalog: Catalog, devices: Iterable[str]) -> dict[str, Input]:
    """The numbers of devices by `device.key`. The place `dpu` has none of its own."""
    return {
        f"{device}.{key}": Input(
            number,
            "modelled" if device in MODELLED else KINDS[number.tag],
            KEYS[key].help,
            catalog.is_stale(key, number),
        )
        for device in dict.fromkeys(devices)
        if device != "dpu"
        for key, number in catalog.numbers(device).items()
    }


def replace_range(number: Number, times: float) -> Number:
    """The same number with value and range multiplied by a factor."""
    return Number(
        value=number.value * times,
        unit=number.unit,
        low=number.low * times,
        high=number.high * times,
        source=number.source,
        tag=number.tag,
        scale=number.scale,
    )
